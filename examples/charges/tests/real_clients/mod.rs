//! Clients that others wrote: curl, and Stripe's SDKs for Python and Node. They make their own keys, send forms, and
//! send again by their own rules, and what they get is the one charge that was made.

#![expect(clippy::unwrap_used, reason = "these are helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use idem_test_servers::{Direction, Fault, FaultProxy, Unavailable, unless_missing};
use tokio::time::sleep;

use super::common::Servers;

/// A program that charges a card at a URL, and prints the charge as JSON.
#[derive(Debug, Clone, Copy)]
enum Client {
    Curl,
    Python,
    Node,
}

impl Client {
    /// The command that charges this source, under this key or one of its own.
    fn command(
        self,
        base: &str,
        source: &str,
        key: Option<&str>,
        scratch: &Path,
    ) -> Result<Command, Unavailable> {
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/real_clients");
        let mut command = match self {
            Self::Curl => {
                installed("curl")?;
                // What was written to a file is written again by a retry, which is not so for a pipe. An answer that
                // ends within its header is a whole one to curl, which has no body.
                let mut command = Command::new("sh");
                let script = r#"until curl "$@" --output "$0" && test -s "$0"; do sleep 0.2; done; cat "$0""#;
                command.args(["-c", script]).arg(scratch.join("answer"));
                command
                    .args(["--silent", "--show-error", "--fail", "--max-time", "2"])
                    .args(["--retry", "8", "--retry-all-errors", "--retry-delay", "1"])
                    .args(["--header", "Authorization: Bearer sk_test_acme"])
                    .args(["--header", "Idempotency-Key: a-key-of-curls-own"])
                    .args(["--data", "amount=2500&currency=eur"])
                    .args(["--data-urlencode", &format!("source={source}")])
                    .arg(format!("{base}/v1/charges"));
                return Ok(command);
            }
            Self::Python => {
                let mut command = installed("python3")?;
                command.env("PYTHONPATH", sdks()?.join("python"));
                command.arg(scripts.join("charge.py"));
                command
            }
            Self::Node => {
                let mut command = installed("node")?;
                command.env("NODE_PATH", sdks()?.join("node/node_modules"));
                command.arg(scripts.join("charge.cjs"));
                command
            }
        };
        command.args([base, source]).args(key);
        Ok(command)
    }
}

/// A command of this machine, if it is there.
fn installed(program: &str) -> Result<Command, Unavailable> {
    match Command::new(program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(Command::new(program)),
        _ => Err(Unavailable::Missing {
            what: program.to_owned(),
            install: "apt-get install curl python3 nodejs".to_owned(),
        }),
    }
}

/// The directory of Stripe's SDKs.
fn sdks() -> Result<PathBuf, Unavailable> {
    let missing = || Unavailable::Missing {
        what: "Stripe's SDKs (IDEM_TEST_STRIPE_SDKS)".to_owned(),
        install: "scripts/test fetches them, or scripts/stripe-sdks".to_owned(),
    };
    std::env::var_os("IDEM_TEST_STRIPE_SDKS")
        .map(PathBuf::from)
        .ok_or_else(missing)
}

/// One charge by this client, while the way of its answers has this fault until one has been on it.
async fn charge_once(client: Client, fault: Fault, source: &'static str) {
    let servers = Servers::start().await;
    let proxy = FaultProxy::start(servers.service).unwrap();
    let base = format!("http://{}", proxy.address());
    let ledger = servers.ledger_path();
    // The SDKs give up at an answer that has begun; whoever uses them calls again with the same key.
    let has_begun = matches!(fault, Fault::CutAfter(bytes) if bytes > STATUS_LINE);
    let key = has_begun.then_some("a-key-of-the-applications-own");
    let command = client.command(&base, source, key, ledger.parent().unwrap());
    let Some(mut command) = unless_missing(command) else {
        return;
    };
    proxy.set_one_way(Direction::Answers, fault).unwrap();
    let charging = tokio::task::spawn_blocking(move || command.output().unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    // It has heard nothing, or half of it, and has come again.
    let is_met = |calls: u64| fault == Fault::Pass || (calls > 0 && proxy.accepted() > 1);
    while !is_met(servers.calls().await) {
        assert!(
            Instant::now() < until && !charging.is_finished(),
            "{:?}",
            charging.await
        );
        sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Fault::Pass).unwrap();

    let output: Output = charging.await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let charge: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&charge["object"], &charge["amount"]),
        (&"charge".into(), &2500.into())
    );
    let ledger = servers.ledger();
    assert_eq!(ledger.len(), 1, "{ledger:?}");
    assert_eq!(charge["id"], ledger[0].id);
}

/// How long the first line of an answer is.
const STATUS_LINE: usize = "HTTP/1.1 201 Created\r\n".len();

/// Every way in which an answer is lost, and none.
const FAULTS: [(Fault, &str); 7] = [
    (Fault::Pass, "tok_visa"),
    // It is carried out, and the client hears nothing until it hangs up or is cut off.
    (Fault::BlackHole, "tok_visa"),
    // The handler is running when its client goes.
    (Fault::BlackHole, "tok_unhurried"),
    // Within the first line of the answer, within its header, and within its body.
    (Fault::CutAfter(8), "tok_visa"),
    (Fault::CutAfter(60), "tok_visa"),
    (Fault::CutAfter(160), "tok_visa"),
    // Later than any client waits.
    (Fault::Delay(Duration::from_secs(3)), "tok_visa"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_charges_once_whatever_becomes_of_the_answer() {
    for (fault, source) in FAULTS {
        charge_once(Client::Curl, fault, source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_sdk_for_python_charges_once_whatever_becomes_of_the_answer() {
    for (fault, source) in FAULTS {
        charge_once(Client::Python, fault, source).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_sdk_for_node_charges_once_whatever_becomes_of_the_answer() {
    for (fault, source) in FAULTS {
        charge_once(Client::Node, fault, source).await;
    }
}
