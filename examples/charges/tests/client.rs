//! `idem-client` against the service and its provider: answers that are lost on the way, and a client that is killed between
//! any two of its steps. The provider's ledger has one charge each time.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, Request};
use charges::demo::Process;
use charges::http::HttpClient;
use charges::provider::Ledger;
use charges::service::PAUSED;
use common::{BODY, Servers};
use idem_client::{
    Client, ClientBuilder, Finished, Horizon, Journal, Operation, RetryPolicy, SendError, Step,
    reqwest,
};
use idem_test_servers::{Direction, Fault, FaultProxy};
use tempfile::TempDir;
use tokio::time::sleep;

fn builder(journal: Journal) -> ClientBuilder {
    let day = Duration::from_secs(24 * 3600);
    let policy = RetryPolicy::until(Horizon::within(day, day).unwrap())
        .pauses(Duration::from_millis(10), Duration::from_millis(50))
        .unwrap()
        .attempts(10_000);
    Client::builder(journal, policy).credentials(|_| async {
        let token = HeaderValue::from_static("Bearer sk_test_acme");
        Ok(HeaderMap::from_iter([(AUTHORIZATION, token)]))
    })
}

fn build(builder: ClientBuilder) -> Client {
    builder
        .build(reqwest::Client::builder().no_proxy())
        .unwrap()
}

fn charge(base: &str, order: &str, body: &str) -> Operation {
    Operation::post(format!("{base}/v1/charges"))
        .key_for("charge", order)
        .header("content-type", "application/json")
        .body(body.to_owned())
        .build()
        .unwrap()
}

fn id_of(finished: &Finished) -> String {
    let charge: serde_json::Value = serde_json::from_slice(finished.answer().body()).unwrap();
    charge["id"].as_str().unwrap().to_owned()
}

/// One charge, while the way of its answers has this fault until one has been on it.
async fn charge_once(fault: Fault) {
    let servers = Servers::start().await;
    let proxy = FaultProxy::start(servers.service).unwrap();
    let journal = Journal::open_in_memory().await.unwrap();
    let client = build(builder(journal).attempt_timeout(Duration::from_secs(1)));
    let operation = charge(&format!("http://{}", proxy.address()), "1", BODY);
    proxy.set_one_way(Direction::Answers, fault).unwrap();
    let sending = tokio::spawn(async move { client.send(&operation).await });
    // It was charged, and the client has heard nothing, or half of it, and has come again.
    while fault != Fault::Pass && (servers.calls().await == 0 || proxy.accepted() < 2) {
        assert!(!sending.is_finished(), "{fault:?}: {:?}", sending.await);
        sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Fault::Pass).unwrap();
    let finished = sending.await.unwrap().unwrap();
    assert_eq!(finished.answer().status(), 201, "{fault:?}");
    assert_eq!(
        finished.answer().is_replayed(),
        fault != Fault::Pass,
        "{fault:?}"
    );
    let ledger = servers.ledger();
    assert_eq!(ledger.len(), 1, "{fault:?} {ledger:?}");
    assert_eq!(id_of(&finished), ledger[0].id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_charges_once_whatever_becomes_of_the_answer() {
    for fault in [
        Fault::Pass,
        Fault::BlackHole,
        // Within the first line of the answer, within its header, and within its body.
        Fault::CutAfter(8),
        Fault::CutAfter(60),
        Fault::CutAfter(160),
        Fault::Garbage,
        // Later than it waits.
        Fault::Delay(Duration::from_secs(3)),
    ] {
        charge_once(fault).await;
    }
}

#[tokio::test]
async fn it_waits_for_what_is_running_and_stops_at_a_mismatch() {
    let servers = Servers::start().await;
    let base = format!("http://{}", servers.service);
    let slow = BODY.replace("tok_visa", "tok_unhurried");
    let operation = charge(&base, "1", &slow);
    let clients: Vec<_> = [
        Journal::open_in_memory().await,
        Journal::open_in_memory().await,
    ]
    .map(|journal| build(builder(journal.unwrap())))
    .into();
    // Two hosts, each with a journal of its own, and one derived key.
    let (one, other) = tokio::join!(clients[0].send(&operation), clients[1].send(&operation));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.answer().body(), other.answer().body());
    assert_ne!(one.answer().is_replayed(), other.answer().is_replayed());
    assert_eq!(servers.ledger().len(), 1);

    let journal = Journal::open_in_memory().await.unwrap();
    let mismatch = build(builder(journal.clone()))
        .send(&charge(&base, "1", BODY))
        .await
        .unwrap();
    assert_eq!(mismatch.answer().status(), 422);
    assert_eq!(
        journal
            .entry(mismatch.key())
            .await
            .unwrap()
            .unwrap()
            .attempts,
        1
    );

    let declined = charge(&base, "2", &BODY.replace("tok_visa", "tok_declined"));
    let declined = clients[0].send(&declined).await.unwrap();
    assert_eq!(declined.answer().status(), 402);
    // Turned away by the provider once: nothing was done, and it is done later.
    let busy = charge(&base, "3", &BODY.replace("tok_visa", "tok_busy"));
    let busy = clients[0].send(&busy).await.unwrap();
    assert_eq!(busy.answer().status(), 201);
    assert_eq!(servers.ledger().len(), 2);
}

/// The variables by which a process of this test binary is the child, and knows where and with what.
const STOP_AT: &str = "CHARGES_TEST_CLIENT_STOPS_AT";
const SERVICE: &str = "CHARGES_TEST_CLIENT_SERVICE";
const PLACE: &str = "CHARGES_TEST_CLIENT_PLACE";
const CHILD: &str = "the_program_that_is_killed";

/// What the child says when it stops at a place, to be killed.
const STOPPED: &str = "stopped";

/// Stops for good if this is the place.
fn stop(here: &str) {
    if std::env::var(STOP_AT).is_ok_and(|place| place == here) {
        println!("\n{STOPPED}");
        std::io::stdout().flush().unwrap();
        // Until it is killed; or, should the test fail, until that has ended.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    }
}

/// The orders that the child charges for. A run that says what it does says every step.
const ORDERS: &str = "CHARGES_TEST_CLIENT_ORDERS";
const TALKS: &str = "CHARGES_TEST_CLIENT_TALKS";

/// A program that charges for orders, as one does that may die at any time: first it takes up what it finds in its journal, and
/// then it does what its own records say is not done.
#[tokio::test]
async fn the_program_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let place = Path::new(&place);
    let talks = std::env::var_os(TALKS).is_some();
    let journal = Journal::open(place.join("sent.db")).await.unwrap();
    let client = build(builder(journal).observe(move |_, step| {
        if talks {
            println!("\n{STEP}");
        }
        stop(match step {
            Step::Beginning => "beginning",
            Step::Journaled { .. } => "journaled",
            Step::Attempted { .. } => "attempted",
            Step::Pausing { .. } => "pausing",
            Step::Recorded => "recorded",
            Step::Acknowledging => "acknowledging",
            Step::Acknowledged => "acknowledged",
            _ => "",
        });
    }));
    let conclude = async |order: &str, finished: Finished| {
        stop("told");
        note(place, order, &id_of(&finished));
        finished.acknowledge().await.unwrap();
    };
    for resumed in client.resume_all(NonZeroUsize::MIN).await.unwrap() {
        let label = resumed.label.unwrap();
        let order = label.strip_prefix("charge ").unwrap();
        conclude(order, resumed.result.unwrap()).await;
    }
    let orders: usize = std::env::var(ORDERS).unwrap().parse().unwrap();
    let base = std::env::var(SERVICE).unwrap();
    for order in (0..orders).map(|number| format!("order-{number}")) {
        if !place.join(&order).exists() {
            let finished = client.send(&charge(&base, &order, BODY)).await.unwrap();
            conclude(&order, finished).await;
        }
    }
}

/// What the child says of every step, if it talks.
const STEP: &str = "a step";

/// The program's own record of what was charged: whole or not at all, and the same however often it is made.
fn note(place: &Path, order: &str, charge: &str) {
    let unfinished = place.join("unfinished");
    let mut file = std::fs::File::create(&unfinished).unwrap();
    file.write_all(charge.as_bytes()).unwrap();
    file.sync_all().unwrap();
    std::fs::rename(&unfinished, place.join(order)).unwrap();
}

/// A provider and a service as processes, a bad line between the service and the client, and the client's files.
struct Scene {
    provider: Process,
    service: Option<Process>,
    line: FaultProxy,
    orders: usize,
    directory: TempDir,
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_charges");

impl Scene {
    async fn start(service: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let arguments = vec!["--ledger".into(), directory.path().join("ledger").into()];
        let provider = Process::start(PROGRAM.into(), "provider", arguments)
            .await
            .unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut scene = Self {
            provider,
            service: None,
            line: FaultProxy::start(nobody).unwrap(),
            orders: 1,
            directory,
        };
        scene.start_service(service).await;
        let address = scene.service.as_ref().unwrap().address().parse().unwrap();
        scene.line = FaultProxy::start(address).unwrap();
        scene
    }

    async fn start_service(&mut self, more: &[&str]) {
        let mut arguments = vec![
            "--provider".into(),
            self.provider.url().into(),
            "--store".into(),
            self.directory.path().join("records.db").into(),
            "--lease".into(),
            "300ms".into(),
        ];
        arguments.extend(more.iter().map(Into::into));
        let service = Process::start(PROGRAM.into(), "service", arguments).await;
        self.service = Some(service.unwrap());
    }

    /// The client, which goes to the service over the line, and stops there.
    fn client(&self, stop_at: &str) -> Child {
        self.command().env(STOP_AT, stop_at).spawn().unwrap()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", CHILD, "--nocapture", "--test-threads=1"])
            .env(PLACE, self.directory.path())
            .env(SERVICE, format!("http://{}", self.line.address()))
            .env(ORDERS, self.orders.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn kill_client_at(&self, place: &str) {
        let mut client = self.client(place);
        let output = BufReader::new(client.stdout.take().unwrap());
        let stopped = output
            .lines()
            .map_while(Result::ok)
            .any(|line| line == STOPPED);
        assert!(stopped, "it ended before it was {place}");
        kill(client);
    }

    async fn calls(&self) -> u64 {
        let request = Request::get(format!("{}/calls", self.provider.url()));
        let request = request.body(Body::empty()).unwrap();
        let reply = HttpClient::unpooled().send(request).await.unwrap();
        reply.json()["calls"].as_u64().unwrap()
    }

    /// Runs the client to its end, and looks what was charged.
    async fn ends_with_one_charge_each(self, place: &str) {
        let output = self.client("").wait_with_output().unwrap();
        assert!(output.status.success(), "{place}");
        let ledger = Ledger::read(&self.directory.path().join("ledger")).unwrap();
        let charged: Vec<_> = ledger.into_iter().map(|entry| entry.id).collect();
        let noted: Vec<_> = (0..self.orders)
            .map(|number| self.directory.path().join(format!("order-{number}")))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        assert_eq!(noted, charged, "{place}");
        let journal = Journal::open(self.directory.path().join("sent.db"))
            .await
            .unwrap();
        assert!(journal.unfinished().await.unwrap().is_empty(), "{place}");
        // And if the program forgets its own records, the journal still knows that it is over.
        let base = format!("http://{}", self.line.address());
        let again = charge(&base, "order-0", BODY);
        let again = build(builder(journal)).send(&again).await;
        assert!(
            matches!(again, Err(SendError::Closed { .. })),
            "{place}: {again:?}"
        );
    }
}

fn kill(mut client: Child) {
    client.kill().unwrap();
    client.wait().unwrap();
}

/// Every place between two steps, in their order.
const PLACES: [&str; 7] = [
    "beginning",
    "journaled",
    "attempted",
    "recorded",
    "told",
    "acknowledging",
    "acknowledged",
];

#[tokio::test]
async fn killed_between_any_two_steps_the_client_charges_once() {
    for place in PLACES {
        let scene = Scene::start(&[]).await;
        scene.kill_client_at(place);
        scene.ends_with_one_charge_each(place).await;
    }
}

#[tokio::test]
async fn killed_again_and_again_it_charges_once() {
    let scene = Scene::start(&[]).await;
    for place in PLACES {
        scene.kill_client_at(place);
    }
    scene.ends_with_one_charge_each("all places").await;
}

#[tokio::test]
async fn killed_while_it_waits_for_the_answer_it_charges_once() {
    // Nothing of the answer has come, or the half of it.
    for fault in [Fault::HalfOpen, Fault::BlackHole] {
        let scene = Scene::start(&[]).await;
        scene.line.set_one_way(Direction::Answers, fault).unwrap();
        let client = scene.client("");
        while scene.calls().await == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        kill(client);
        scene.line.set(Fault::Pass).unwrap();
        scene.ends_with_one_charge_each("sent").await;
    }
}

#[tokio::test]
async fn killed_before_anything_reached_the_service_it_charges_once() {
    let scene = Scene::start(&[]).await;
    scene
        .line
        .set_one_way(Direction::Requests, Fault::BlackHole)
        .unwrap();
    let client = scene.client("");
    while scene.line.accepted() == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    kill(client);
    assert_eq!(scene.calls().await, 0);
    scene.line.set(Fault::Pass).unwrap();
    scene.ends_with_one_charge_each("connected").await;
}

#[tokio::test]
async fn killed_between_two_attempts_it_charges_once() {
    let scene = Scene::start(&[]).await;
    scene
        .line
        .set_one_way(Direction::Answers, Fault::CutAfter(8))
        .unwrap();
    scene.kill_client_at("pausing");
    assert_eq!(scene.calls().await, 1);
    scene.line.set(Fault::Pass).unwrap();
    scene.ends_with_one_charge_each("pausing").await;
}

#[tokio::test]
async fn killed_with_the_service_in_the_middle_of_the_charge_it_charges_once() {
    for place in ["provider-answered", "checkpointed"] {
        let mut scene = Scene::start(&["--pause-at", place]).await;
        let client = scene.client("");
        scene.service.as_mut().unwrap().hears(PAUSED).await.unwrap();
        kill(client);
        let service = scene.service.take().unwrap();
        let address = service.address().to_owned();
        service.kill().unwrap();
        scene.start_service(&["--listen", &address]).await;
        scene.ends_with_one_charge_each(place).await;
    }
}

/// Whatever it is doing some steps after it began: in the middle of a write to its journal, as like as not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_charges_once_for_each_order() {
    let mut scene = Scene::start(&[]).await;
    scene.orders = 40;
    for steps in 1..=30 {
        let mut client = scene.command().env(TALKS, "").spawn().unwrap();
        let output = BufReader::new(client.stdout.take().unwrap());
        let lines = output.lines().map_while(Result::ok);
        let heard = lines.filter(|line| line == STEP).take(steps).count();
        // It goes on until the signal has come.
        kill(client);
        if heard < steps {
            break;
        }
    }
    scene.ends_with_one_charge_each("somewhere").await;
}
