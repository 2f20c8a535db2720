use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Display;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::call::{Call, What};
use super::judge::{Answered, Operation, judge};
use super::paper::{Ink, Paper};
use super::told::{asks_to_come_back, is_fresh, notes, retry_after, subject};
use super::{DemoError, Ending, Process};
use crate::http::{HttpClient, HttpError, Reply};
use crate::provider::{Kind, Ledger};
use crate::service::{Database, Keys, Place};

/// How long a process that is not heard of keeps a key, here.
const LEASE: Duration = Duration::from_millis(2500);
/// How long the service waits for the provider. It must have given up well before its lease is over, or else a
/// loaded machine decides which of the two comes first.
const PROVIDER_TIMEOUT: Duration = Duration::from_millis(1250);

/// How often a client asks before it gives up. It is asked to wait for a second each time, and needs three or
/// four times to outlast a lease.
const PATIENCE: u32 = 10;

/// How long the service may take to call its provider.
const CALLED_WITHIN: Duration = Duration::from_secs(10);

/// Where the story is played: the processes, the client, and what the client remembers.
///
/// Fields are dropped in this order: the processes are gone before their directory is.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) paper: Paper,
    service: Option<Process>,
    service_url: String,
    provider: Process,
    client: HttpClient,
    operations: Vec<Operation>,
    surprises: Vec<String>,
    scene: usize,
    calls_before: u64,
    keys: Keys,
    records: Database,
    redis: Option<String>,
    began: Instant,
    directory: TempDir,
}

/// How a service differs from the one of most scenes.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) pause_at: Option<Place>,
    pub(super) retention: Option<&'static str>,
}

impl Stage {
    /// Starts both processes, and says what there is to see. Without a place for the records they are in a temporary file.
    pub(super) async fn set(
        paper: Paper,
        keys: Keys,
        records: Option<Database>,
        redis: Option<String>,
    ) -> Result<Self, DemoError> {
        let directory = tempfile::Builder::new().prefix("charges-demo-").tempdir()?;
        let ledger = directory.path().join("ledger.jsonl");
        let provider = Process::start(
            std::env::current_exe()?.into(),
            "provider",
            vec!["--ledger".into(), ledger.into()],
        )
        .await?;
        let records =
            records.unwrap_or_else(|| Database::Sqlite(directory.path().join("records.db")));
        let mut stage = Self {
            paper,
            service: None,
            service_url: String::new(),
            provider,
            client: HttpClient::unpooled(),
            operations: Vec::new(),
            surprises: Vec::new(),
            scene: 0,
            calls_before: 0,
            keys,
            records,
            redis,
            began: Instant::now(),
            directory,
        };
        stage.start_service(Difference::default()).await?;
        stage.introduce();
        Ok(stage)
    }

    fn introduce(&self) {
        let Self { paper, .. } = self;
        paper.title("Idempotency keys");
        paper.blank();
        paper.say(
            "A client that hears no answer cannot know whether its card was charged. So it names each \
             operation with a key of its own, and sends the same request with the same key again until it \
             hears. The service does the work once for each key, and gives everybody the same answer.",
        );
        paper.blank();
        let about = |name: &str, url: &str, what: &str| {
            paper.line(format_args!("    {name:<10}{url:<25}{what}"));
        };
        let redis = self.redis.as_ref().map(|_| ", with Redis in front of it");
        let records = format!(
            "a process; keys and answers in {}{}",
            self.records.kind(),
            redis.unwrap_or_default()
        );
        about("service", &self.service_url, &records);
        about(
            "provider",
            self.provider.url(),
            "another process; its ledger is where money moves",
        );
        paper.blank();
        paper.say(&format!(
            "A key stays reserved for a process that has gone silent until its lease is over: {} s here, so that \
             you need not wait, and 90 s by default. An answer is kept for 24 h.",
            LEASE.as_secs_f64(),
        ));
        if self.keys == Keys::Ignored {
            paper.blank();
            let warning = "This service ignores the keys. See what happens.";
            paper.line(format_args!("    {}", paper.ink(Ink::Bad, warning)));
        }
    }

    /// Begins a scene.
    pub(super) async fn scene(&mut self, title: &str) -> Result<(), DemoError> {
        self.paper.check()?;
        self.scene += 1;
        self.paper.heading(self.scene, title);
        self.calls_before = self.calls().await?;
        Ok(())
    }

    /// Remembers an operation that is wanted once. Its card is to be charged so often: once, or not at all.
    pub(super) fn wants(&mut self, order: &str, due: usize) {
        self.operations.push(Operation {
            description: order.to_owned(),
            due,
            requests: 0,
            answers: Vec::new(),
        });
    }

    /// Sends a request and prints both.
    pub(super) async fn send(&mut self, call: &Call) -> Result<Reply, DemoError> {
        self.print_call(&format!("POST {}", call.path()), &call.about());
        let reply = self.exchange(call).await?;
        self.print_reply(&reply);
        Ok(reply)
    }

    /// Sends a request, prints both, and is surprised at any other status.
    ///
    /// Where the story wants to hear what came of it, a client that is asked to come back does so: on a machine
    /// that is busy, the provider may be too late.
    pub(super) async fn send_for(&mut self, call: &Call, status: u16) -> Result<Reply, DemoError> {
        let reply = self.send(call).await?;
        if Answered::is_final(status) && asks_to_come_back(&reply) {
            return self.retry(call, reply, status).await;
        }
        self.expect(&reply, status);
        Ok(reply)
    }

    /// Sends the same request again, as often and as late as the client is told to, until there is an answer
    /// that says what came of it. `last` is what it was told before.
    pub(super) async fn retry(
        &mut self,
        call: &Call,
        mut last: Reply,
        status: u16,
    ) -> Result<Reply, DemoError> {
        for _ in 0..PATIENCE {
            let when = match retry_after(&last) {
                Some(seconds) => {
                    sleep(Duration::from_secs(seconds)).await;
                    format!("after {seconds} s, as it was told")
                }
                None => String::new(),
            };
            last = self.send_again(call, &when).await?;
            if !asks_to_come_back(&last) {
                self.expect(&last, status);
                return Ok(last);
            }
        }
        self.print_accident("the client gives up");
        self.surprise(format_args!("no answer after {PATIENCE} retries"));
        Ok(last)
    }

    /// Sends the same request again at once, and then as [`Stage::retry`].
    pub(super) async fn send_again_for(
        &mut self,
        call: &Call,
        status: u16,
    ) -> Result<Reply, DemoError> {
        let reply = self.send_again(call, "").await?;
        if asks_to_come_back(&reply) {
            return self.retry(call, reply, status).await;
        }
        self.expect(&reply, status);
        Ok(reply)
    }

    /// Sends the same request again and prints both.
    async fn send_again(&mut self, call: &Call, when: &str) -> Result<Reply, DemoError> {
        self.print_call("the same again", when);
        let reply = self.exchange(call).await?;
        self.print_reply(&reply);
        Ok(reply)
    }

    /// Sends a request in the background. Aborting the task hangs up.
    pub(super) fn spawn(
        &mut self,
        call: &Call,
    ) -> Result<JoinHandle<Result<Reply, HttpError>>, DemoError> {
        self.count(call, 1);
        let request = call.request(&self.service_url)?;
        let client = self.client.clone();
        Ok(tokio::spawn(async move { client.send(request).await }))
    }

    /// Sends so many of the same request at once and prints the answers. Who is asked to come back does so, all
    /// at once again. The work must be done by one of them.
    pub(super) async fn crowd(&mut self, call: &Call, size: usize) -> Result<(), DemoError> {
        self.print_call(&format!("{size} × POST {}", call.path()), &call.about());
        let (mut waiting, mut fresh) = (size, 0);
        for _ in 0..PATIENCE {
            let senders: Result<Vec<_>, _> = (0..waiting).map(|_| self.spawn(call)).collect();
            let mut replies = Vec::with_capacity(waiting);
            for sender in senders? {
                let reply = sender.await??;
                self.remember(call, &reply);
                replies.push(reply);
            }
            self.print_crowd(&replies);
            fresh += replies.iter().filter(|reply| is_fresh(reply)).count();
            waiting = replies.iter().filter(|it| asks_to_come_back(it)).count();
            if waiting == 0 {
                break;
            }
            let wait = replies
                .iter()
                .filter_map(retry_after)
                .max()
                .unwrap_or_default();
            sleep(Duration::from_secs(wait)).await;
            let when = format!("after {wait} s, as they were told");
            self.print_call(&format!("{waiting} × the same again"), &when);
        }
        if waiting > 0 {
            self.surprise(format_args!("{waiting} of {size} got no answer"));
        }
        if fresh != 1 {
            self.surprise(format_args!("the work was done {fresh} times"));
        }
        Ok(())
    }

    /// Prints answers that differ in nothing but their charge once, with their number.
    pub(super) fn print_crowd(&self, replies: &[Reply]) {
        let mut groups: Vec<Vec<&Reply>> = Vec::new();
        let kind = |reply: &Reply| (reply.status, notes(reply));
        for reply in replies {
            match groups
                .iter_mut()
                .find(|group| kind(group[0]) == kind(reply))
            {
                Some(group) => group.push(reply),
                None => groups.push(vec![reply]),
            }
        }
        groups.sort_by_key(Vec::len);
        for group in groups {
            let charges: BTreeSet<_> = group.iter().map(|reply| subject(reply)).collect();
            let subject = match charges.len() {
                1 => subject(group[0]),
                several => format!("{several} different charges"),
            };
            self.print_answer(&format!("{:>2} × ", group.len()), group[0], &subject);
        }
    }

    pub(super) fn print_call(&self, what: &str, about: &str) {
        self.paper.event("→", (Ink::Bold, what), about);
    }

    /// Something bad that happens beside requests.
    pub(super) fn print_accident(&self, what: &str) {
        self.paper.event("✗", (Ink::Bad, what), "");
    }

    /// Something that is done beside requests.
    pub(super) fn print_remark(&self, what: &str) {
        self.paper.event("·", (Ink::Dim, what), "");
    }

    fn print_reply(&self, reply: &Reply) {
        self.print_answer("", reply, &subject(reply));
    }

    fn print_answer(&self, count: &str, reply: &Reply, subject: &str) {
        let ink = match reply.status.as_u16() {
            200..=299 => Ink::Good,
            500.. => Ink::Bad,
            _ => Ink::Wait,
        };
        let status = format!("{count}{}", reply.status);
        let about = format!("{subject}{}", notes(reply));
        self.paper.event("←", (ink, &status), &about);
    }

    /// Prints how often these orders are in the ledger, and how often the provider was called in this scene.
    pub(super) async fn ledger(&mut self, orders: &[&str]) -> Result<(), DemoError> {
        let entries = Ledger::read(&self.ledger_path())?;
        let listed = |name: &str| orders.contains(&name);
        let charges = entries
            .iter()
            .filter(|entry| entry.kind == Kind::Charge && listed(&entry.description))
            .count();
        let operations = self.operations.iter();
        let due: usize = operations
            .filter(|operation| listed(&operation.description))
            .map(|operation| operation.due)
            .sum();
        let calls = self.calls().await? - self.calls_before;
        let ink = if charges == due { Ink::Good } else { Ink::Bad };
        let what = format!("ledger: {}", counted(charges, "charge"));
        let calls = counted(usize::try_from(calls).unwrap_or(usize::MAX), "call");
        self.paper.event(
            "$",
            (ink, &what),
            &format!("{calls} to the provider in this scene"),
        );
        Ok(())
    }

    /// Says why, in a sentence or two.
    pub(super) fn because(&self, why: &str) {
        // Of a service that ignores the keys, none of it is true.
        if self.keys == Keys::Honoured {
            self.paper.say(why);
        }
    }

    /// Notes that an answer is another one than the story has it.
    pub(super) fn expect(&mut self, reply: &Reply, status: u16) {
        if reply.status != status {
            let got = reply.status.as_u16();
            self.surprise(format_args!("{got} instead of {status}"));
        }
    }

    /// Notes that something is not as the story has it.
    pub(super) fn surprise(&mut self, what: impl Display) {
        self.surprises.push(format!("scene {}: {what}", self.scene));
    }

    /// Waits until the provider has been called in this scene.
    pub(super) async fn provider_is_called(&self) -> Result<(), DemoError> {
        let called = async {
            while self.calls().await? == self.calls_before {
                sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        };
        let silent = DemoError::Silent {
            name: "service",
            expected: "anything to its provider",
        };
        timeout(CALLED_WITHIN, called).await.unwrap_or(Err(silent))
    }

    /// Waits until the service says that it is paused.
    pub(super) async fn service_is_paused(&mut self) -> Result<(), DemoError> {
        match &mut self.service {
            Some(service) => service.hears(crate::service::PAUSED).await.map(drop),
            None => Ok(()),
        }
    }

    /// Kills the service with SIGKILL.
    pub(super) fn kill_service(&mut self) -> Result<(), DemoError> {
        match self.service.take() {
            Some(service) => Ok(service.kill()?),
            None => Ok(()),
        }
    }

    /// Has the service end in peace, if it runs, and starts it anew, on the same records and at the same
    /// address.
    pub(super) async fn start_service(&mut self, difference: Difference) -> Result<(), DemoError> {
        if let Some(service) = self.service.take() {
            service.stop().await?;
        }
        let mut arguments: Vec<OsString> = vec![
            "--provider".into(),
            self.provider.url().into(),
            "--lease".into(),
            format!("{}ms", LEASE.as_millis()).into(),
            "--provider-timeout".into(),
            format!("{}ms", PROVIDER_TIMEOUT.as_millis()).into(),
        ];
        arguments.extend(self.records.arguments());
        if let Some(address) = self.service_url.strip_prefix("http://") {
            arguments.extend(["--listen".into(), address.into()]);
        }
        if let Some(place) = difference.pause_at {
            arguments.extend(["--pause-at".into(), place.name().into()]);
        }
        if let Some(retention) = difference.retention {
            arguments.extend(["--retention".into(), retention.into()]);
        }
        if let Some(redis) = &self.redis {
            arguments.extend(["--redis".into(), redis.into()]);
        }
        if self.keys == Keys::Ignored {
            arguments.push("--ignore-keys".into());
        }
        let program = std::env::current_exe()?.into();
        let service = Process::start(program, "service", arguments).await?;
        self.service_url = service.url().to_owned();
        self.service = Some(service);
        Ok(())
    }

    /// Reads the ledger, prints the verdict, and says how it ends.
    pub(super) fn conclude(self) -> Result<Ending, DemoError> {
        let ledger = Ledger::read(&self.ledger_path())?;
        let verdict = judge(&self.operations, &ledger, self.surprises);
        self.paper.account(&verdict, self.began.elapsed());
        self.paper.check()?;
        Ok(if verdict.is_good() {
            Ending::Good
        } else {
            Ending::Bad
        })
    }

    async fn exchange(&mut self, call: &Call) -> Result<Reply, DemoError> {
        let reply = self.spawn(call)?.await??;
        self.remember(call, &reply);
        Ok(reply)
    }

    fn remember(&mut self, call: &Call, reply: &Reply) {
        // What is said of a refund says nothing of the charge.
        if !Answered::is_final(reply.status.as_u16()) || matches!(call.what, What::Refund { .. }) {
            return;
        }
        let answered = Answered {
            status: reply.status.as_u16(),
            body: reply.body.clone(),
        };
        if let Some(operation) = self.find(call.order) {
            operation.answers.push(answered);
        }
    }

    fn count(&mut self, call: &Call, requests: usize) {
        if let Some(operation) = self.find(call.order) {
            operation.requests += requests;
        }
    }

    fn find(&mut self, order: &str) -> Option<&mut Operation> {
        self.operations
            .iter_mut()
            .find(|operation| operation.description == order)
    }

    fn ledger_path(&self) -> std::path::PathBuf {
        self.directory.path().join("ledger.jsonl")
    }

    async fn calls(&self) -> Result<u64, DemoError> {
        let url = format!("{}/calls", self.provider.url());
        let request = axum::http::Request::get(url).body(axum::body::Body::empty())?;
        let reply = self.client.send(request).await?;
        Ok(reply.json()["calls"].as_u64().unwrap_or_default())
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}"),
        1 => format!("1 {what}"),
        more => format!("{more} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{SLOW, UNHURRIED};

    #[test]
    fn who_waits_for_whom_is_not_a_close_race() {
        assert!(UNHURRIED * 4 <= PROVIDER_TIMEOUT);
        assert!(PROVIDER_TIMEOUT * 2 <= SLOW);
        assert!(PROVIDER_TIMEOUT * 2 <= LEASE);
        assert!(LEASE * 2 <= Duration::from_secs(1) * PATIENCE);
    }
}
