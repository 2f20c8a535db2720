//! A server that answers as it is told, and what the tests of this crate share.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests, of which each test binary uses some"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_client::{
    Client, ClientBuilder, Horizon, Journal, JournalOptions, ManualClock, Operation,
    OperationBuilder, RetryPolicy, Timestamp,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// What becomes of one request, which was carried out in any case.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// These bytes, and the connection is closed.
    Bytes(String),
    /// Nothing, until the client hangs up.
    Silence,
}

/// An answer with these header lines and this body.
pub(crate) fn answer(status: u16, lines: &[&str], body: &str) -> Reply {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    Reply::Bytes(format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n{lines}\r\n{body}"
    ))
}

/// The first bytes of an answer, after which the connection is cut.
pub(crate) fn cut(bytes: usize) -> Reply {
    let Reply::Bytes(mut whole) = answer(201, &[], "a body that is not there whole") else {
        return Reply::Silence;
    };
    whole.truncate(bytes);
    Reply::Bytes(whole)
}

pub(crate) fn problem(status: u16, name: &str) -> Reply {
    let body = format!(r#"{{"type":"urn:idem:problem:{name}"}}"#);
    answer(status, &["content-type: application/problem+json"], &body)
}

/// A server that gives one reply of its script to each request, and keeps the requests byte for byte.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    count: watch::Receiver<usize>,
}

impl Server {
    pub(crate) async fn start(script: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (counted, count) = watch::channel(0);
        let kept = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut script = script.into_iter();
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let Some(request) = read(&mut connection).await else {
                    continue;
                };
                kept.lock().unwrap().push(request);
                counted.send_modify(|count| *count += 1);
                let over = || answer(418, &[], "the script is over");
                let reply = script.next().unwrap_or_else(over);
                tokio::spawn(async move {
                    match reply {
                        Reply::Bytes(bytes) => {
                            // It may have hung up.
                            let _ = connection.write_all(bytes.as_bytes()).await;
                        }
                        Reply::Silence => {
                            let _ = connection.read(&mut [0]).await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            requests,
            count,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until so many requests have come.
    pub(crate) async fn has_received(&self, requests: usize) {
        let mut count = self.count.clone();
        count.wait_for(|count| *count >= requests).await.unwrap();
    }

    pub(crate) fn charge(&self) -> OperationBuilder {
        Operation::post(self.url("/charges?live=1"))
            .key_for("charge", "order-4711")
            .header("content-type", "application/json")
            .header("x-account", "acme")
            .body(r#"{"amount":2500}"#)
    }

    pub(crate) fn operation(&self) -> Operation {
        self.charge().build().unwrap()
    }
}

async fn read(connection: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let length = connection.read(&mut chunk).await.ok()?;
        if length == 0 {
            return None;
        }
        request.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8(request.clone()).unwrap();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(text);
            }
        }
    }
}

pub(crate) fn horizon() -> Horizon {
    Horizon::within(DAY, DAY).unwrap()
}

/// A policy that is in no doubt for long.
pub(crate) fn policy() -> RetryPolicy {
    RetryPolicy::until(horizon())
        .pauses(Duration::from_millis(1), Duration::from_millis(4))
        .unwrap()
}

pub(crate) fn builder(journal: &Journal, policy: RetryPolicy) -> ClientBuilder {
    Client::builder(journal.clone(), policy)
}

pub(crate) fn client(journal: &Journal) -> Client {
    built(builder(journal, policy()))
}

pub(crate) fn built(builder: ClientBuilder) -> Client {
    builder
        .build(reqwest::Client::builder().no_proxy())
        .unwrap()
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A clock that stands at some moment.
pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_micros(
        1_700_000_000_000_000,
    )))
}

pub(crate) async fn open(path: &Path, clock: &Arc<ManualClock>) -> Journal {
    let options = JournalOptions::new().clock(Arc::clone(clock));
    options.open(path).await.unwrap()
}

/// A connection of somebody else's to the same file.
pub(crate) fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}
