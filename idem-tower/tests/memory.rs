//! What many bodies at once take.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use idem_core::executor::Idempotency;
use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, Scope, SystemClock};
use idem_tower::IdempotencyLayer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

const REQUESTS: usize = 1000;
const BODY: usize = 100 * 1024;

/// The most memory that this process has had at once, in bytes. Linux knows.
fn peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Sends all requests so that every body is in its handler at the same time, and says by how much the peak grew.
async fn growth(layer: Option<IdempotencyLayer<MemoryKeyStore<SystemClock>>>) -> Option<usize> {
    let all_are_here = Arc::new(Barrier::new(REQUESTS));
    let handler = move |body: Bytes| {
        let all_are_here = Arc::clone(&all_are_here);
        async move {
            all_are_here.wait().await;
            body.len().to_string()
        }
    };
    let router = Router::new().route("/", post(handler));
    let router = match layer {
        Some(layer) => router.layer(layer),
        None => router,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });

    let body: Arc<[u8]> = vec![b'x'; BODY].into();
    let before = peak()?;
    // A listener has room for so many connections that nobody has accepted; more are reset.
    let at_the_door = Arc::new(Semaphore::new(64));
    let mut clients = JoinSet::new();
    for number in 0..REQUESTS {
        let (body, at_the_door) = (Arc::clone(&body), Arc::clone(&at_the_door));
        clients.spawn(async move {
            let place = at_the_door.acquire().await.unwrap();
            let mut connection = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nidempotency-key: {number}\r\n\
                    content-length: {BODY}\r\n\r\n"
            );
            connection.write_all(head.as_bytes()).await.unwrap();
            connection.write_all(&body).await.unwrap();
            drop(place);
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.ends_with(&BODY.to_string()), "{answer}");
        });
    }
    // In the order in which they end: one that fails keeps the others waiting for it.
    let all = async {
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
    };
    timeout(Duration::from_secs(120), all).await.unwrap();
    Some(peak()?.saturating_sub(before))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_bodies_at_once_are_held_about_once_each() {
    let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let layer = IdempotencyLayer::builder(idempotency, rules)
        .single_scope(Scope::new("one").unwrap())
        .build();
    let Some(with) = growth(Some(layer)).await else {
        eprintln!("SKIPPED: the peak of the memory is known on Linux only");
        return;
    };
    // A peak does not come down, so the second run shows only what it takes beyond the first.
    let beyond = growth(None).await.unwrap_or_default();
    let bodies = REQUESTS * BODY;
    println!(
        "{} MiB of bodies: {} MiB with the layer, {} MiB more without it",
        bodies >> 20,
        with >> 20,
        beyond >> 20
    );
    assert!(
        with < 3 * bodies,
        "{with} bytes for {bodies} bytes of bodies"
    );
}
