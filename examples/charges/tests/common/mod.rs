//! A service and a provider in this process, and a client that can misbehave.

#![allow(dead_code, reason = "each test binary uses some of it")]
#![expect(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "these are helpers of tests"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use charges::http::{HttpClient, Reply};
use charges::provider::{self, Entry, Ledger};
use charges::service::{Database, Service, Settings};
use idem_core::{KeyStore, MemoryKeyStore, SystemClock};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub const BODY: &str = r#"{"amount": 2500, "currency": "eur", "source": "tok_visa"}"#;

/// Both servers. They end with the test's runtime.
pub struct Servers {
    pub service: SocketAddr,
    provider: SocketAddr,
    client: HttpClient,
    directory: TempDir,
}

impl Servers {
    pub async fn start() -> Self {
        Self::on(Arc::new(MemoryKeyStore::new(SystemClock))).await
    }

    pub async fn on(store: Arc<dyn KeyStore>) -> Self {
        let directory = TempDir::new().unwrap();
        let ledger = directory.path().join("ledger");
        let provider = listen(provider::router(&ledger).unwrap()).await;
        let settings = Settings {
            lease: Duration::from_millis(300),
            provider_timeout: Duration::from_secs(1),
            ..Settings::new(
                format!("http://{provider}"),
                Database::Sqlite("unused".into()),
            )
        };
        let service = Service::new(store, &settings).unwrap();
        Self {
            service: listen(service.router()).await,
            provider,
            client: HttpClient::unpooled(),
            directory,
        }
    }

    pub fn ledger(&self) -> Vec<Entry> {
        Ledger::read(&self.ledger_path()).unwrap()
    }

    pub fn ledger_path(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    /// How often the provider was called.
    pub async fn calls(&self) -> u64 {
        let url = format!("http://{}/calls", self.provider);
        let request = Request::get(url).body(Body::empty()).unwrap();
        let reply = self.client.send(request).await.unwrap();
        reply.json()["calls"].as_u64().unwrap()
    }

    /// Sends JSON with these headers beside the usual ones.
    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let url = format!("http://{}{path}", self.service);
        let mut request = Request::post(url).header("authorization", "Bearer sk_test_acme");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.client.send(request).await.unwrap()
    }

    pub async fn charge(&self, key: &str, body: &str) -> Reply {
        self.post("/v1/charges", &[("idempotency-key", key)], body)
            .await
    }

    /// Sends the same charge until something else comes than that it is running.
    pub async fn charge_patiently(&self, key: &str, body: &str) -> Reply {
        loop {
            let reply = self.charge(key, body).await;
            if reply.status != 409 {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends these bytes as they are, and gives the connection.
    pub async fn send_raw(&self, bytes: &[u8]) -> TcpStream {
        let mut connection = TcpStream::connect(self.service).await.unwrap();
        connection.write_all(bytes).await.unwrap();
        connection
    }

    /// The status of the answer to these bytes.
    pub async fn status_of_raw(&self, bytes: &[u8]) -> String {
        let mut connection = self.send_raw(bytes).await;
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    }
}

/// A request with these header lines, byte for byte, and a body of this length, of which `body` is sent.
pub fn raw(lines: &[&[u8]], length: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        b"POST /v1/charges HTTP/1.1\r\nhost: charges\r\nauthorization: Bearer sk_test_acme\r\n\
        content-type: application/json\r\n"
            .to_vec();
    for line in lines {
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("content-length: {length}\r\n\r\n").as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

async fn listen(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
