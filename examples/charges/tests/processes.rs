//! The program as it is run: the story, its exit codes, and what it leaves behind.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod story;

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use charges::demo::Process;
use charges::http::{HttpClient, HttpError, Reply};
use charges::provider::Ledger;
use charges::service::PAUSED;
use story::{
    PROGRAM, account, assert_it_ended_well, assert_no_process, assert_nothing_is_left, commands,
    curl, process_with, program, run, signal, until,
};
use tempfile::TempDir;

#[test]
fn the_story_ends_well() {
    let (output, directory) = run(&[]);
    assert_it_ended_well(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains('\x1b'), "colours without a terminal");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_nothing_is_left(directory.path());
}

#[test]
fn the_story_ends_badly_when_the_keys_are_ignored() {
    let (output, directory) = run(&["--ignore-keys"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let second = text.split("The same again, spelled differently").nth(1);
    let second = second.and_then(|rest| rest.split("The answer is lost").next());
    assert!(second.unwrap().contains("ledger: 2 charges"), "{second:?}");
    assert!(account(&output, "charges in the provider's ledger").unwrap() > 50);
    assert!(account(&output, "charged too often").unwrap() >= 5);
    // On a slow disk the provider is too late for some of fifty charges, so their senders may hear nothing.
    assert!(account(&output, "answers that differed").unwrap() >= 1);
    assert_nothing_is_left(directory.path());
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    for arguments in [
        &["sreve"][..],
        &["--store", "r.db"],
        &["service"],
        &["serve", "--store"],
    ] {
        let (output, _directory) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "));
        assert!(output.stdout.is_empty());
    }
    let (output, _directory) = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("cargo demo serve"));
    let (help, _directory) = run(&["help"]);
    assert_eq!((help.status.code(), help.stdout), (Some(0), output.stdout));
}

#[test]
fn a_story_that_cannot_be_written_is_exit_code_1() {
    for arguments in [&[][..], &["serve"], &["--help"]] {
        let directory = TempDir::new().unwrap();
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = program(directory.path(), arguments)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains("No space left"), "{complaint}");
        assert_nothing_is_left(directory.path());
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_exit_code_1() {
    let (output, _directory) = run(&["serve", "--store", "/nowhere/records.db"]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.starts_with("error: the store /nowhere/records.db cannot be opened"),
        "{complaint}"
    );
    assert!(!complaint.contains("ledger"), "{complaint}");
}

#[tokio::test]
async fn a_server_that_ends_before_it_is_ready_is_quoted() {
    let arguments = vec!["--ledger".into(), "/nowhere/ledger".into()];
    let started = Process::start(PROGRAM.into(), "provider", arguments).await;
    let said = started.unwrap_err().to_string();
    assert!(
        said.starts_with("the provider ended before it was ready: the ledger /nowhere/ledger"),
        "{said}"
    );
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn an_interrupted_story_leaves_nothing_behind() {
    for interrupt in ["-INT", "-TERM", "-HUP"] {
        let directory = TempDir::new().unwrap();
        let (mut child, _) = until(directory.path(), &[], "Fifty at once");
        assert!(process_with(directory.path()).is_some());
        signal(&child, interrupt);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{interrupt}");
        assert_nothing_is_left(directory.path());
    }
}

#[test]
fn servers_end_with_a_story_that_is_killed() {
    let directory = TempDir::new().unwrap();
    let (mut child, _) = until(directory.path(), &[], "Fifty at once");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_no_process(directory.path());
}

#[test]
fn what_serve_prints_can_be_tried() {
    let directory = TempDir::new().unwrap();
    let store = directory.path().join("kept.db");
    let (mut child, lines) = until(
        directory.path(),
        &["serve", "--store", store.to_str().unwrap()],
        "Ctrl-C ends it",
    );
    let commands = commands(&lines);
    assert_eq!(commands.len(), 5);
    let statuses: Vec<_> = commands.iter().map(|command| curl(command)).collect();
    assert_eq!(statuses, ["201", "422", "201", "504", "201"]);
    assert_eq!(curl(&commands[0]), "201");
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_no_process(directory.path());
    assert!(store.exists());
    let ledger = Ledger::read(&directory.path().join("kept.db.ledger.jsonl")).unwrap();
    // Two customers' charges, the slow one, and a refund.
    assert_eq!(ledger.len(), 4);
}

#[tokio::test]
async fn a_server_is_gone_when_its_guard_is_dropped() {
    let directory = TempDir::new().unwrap();
    let arguments = vec!["--ledger".into(), directory.path().join("ledger").into()];
    let provider = Process::start(PROGRAM.into(), "provider", arguments)
        .await
        .unwrap();
    assert!(process_with(directory.path()).is_some());
    drop(provider);
    assert_eq!(process_with(directory.path()), None);
}

/// A provider and a service as processes, as the story has them, with a lease of 300 ms.
struct Pair {
    provider: Process,
    service: Option<Process>,
    client: HttpClient,
    directory: TempDir,
}

impl Pair {
    async fn start(place: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let ledger = directory.path().join("ledger");
        let arguments = vec!["--ledger".into(), ledger.into()];
        let provider = Process::start(PROGRAM.into(), "provider", arguments)
            .await
            .unwrap();
        let mut pair = Self {
            provider,
            service: None,
            client: HttpClient::unpooled(),
            directory,
        };
        pair.start_service(&["--pause-at", place]).await;
        pair
    }

    async fn start_service(&mut self, more: &[&str]) {
        let store = self.directory.path().join("records.db");
        let mut arguments = vec![
            "--provider".into(),
            self.provider.url().into(),
            "--store".into(),
            store.into(),
            "--lease".into(),
            "300ms".into(),
        ];
        arguments.extend(more.iter().map(Into::into));
        let service = Process::start(PROGRAM.into(), "service", arguments).await;
        self.service = Some(service.unwrap());
    }

    fn charge(&self) -> impl Future<Output = Result<Reply, HttpError>> + Send + 'static {
        let service = self.service.as_ref().unwrap();
        let request = Request::post(format!("{}/v1/charges", service.url()))
            .header("authorization", "Bearer sk_test_acme")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("idempotency-key", "k")
            .body(Body::from("amount=2500&currency=eur&source=tok_visa"))
            .unwrap();
        let client = self.client.clone();
        async move { client.send(request).await }
    }

    async fn calls(&self) -> u64 {
        let request = Request::get(format!("{}/calls", self.provider.url()));
        let reply = self.client.send(request.body(Body::empty()).unwrap()).await;
        reply.unwrap().json()["calls"].as_u64().unwrap()
    }

    /// Kills the service in the middle of a charge, starts it again, and sends the charge again until it is
    /// answered. How often the provider was called, and how often it charged.
    async fn crash_and_recover(mut self) -> (u64, usize) {
        let sender = tokio::spawn(self.charge());
        self.service.as_mut().unwrap().hears(PAUSED).await.unwrap();
        self.service.take().unwrap().kill().unwrap();
        assert!(sender.await.unwrap().is_err());
        self.start_service(&[]).await;
        let first = loop {
            let reply = self.charge().await.unwrap();
            if reply.status != 409 {
                break reply;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(first.status, 201);
        assert_eq!(first.header("idempotent-replayed"), None);
        let again = self.charge().await.unwrap();
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        let ledger = Ledger::read(&self.directory.path().join("ledger")).unwrap();
        let calls = self.calls().await;
        assert!(self.service.take().unwrap().stop().await.unwrap().success());
        (calls, ledger.len())
    }
}

#[tokio::test]
async fn killed_after_the_charge_it_asks_the_provider_again_and_charges_once() {
    let pair = Pair::start("provider-answered").await;
    assert_eq!(pair.crash_and_recover().await, (2, 1));
}

#[tokio::test]
async fn killed_after_the_checkpoint_it_does_not_ask_the_provider_again() {
    let pair = Pair::start("checkpointed").await;
    assert_eq!(pair.crash_and_recover().await, (1, 1));
}
