//! Requests that nobody would send.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use idem_tower::Attempt;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::common::{Reply, Server, TestStore, builder, send_raw};

/// How often the handler was called for a method that needs a key, and had no attempt.
static UNCLAIMED: AtomicUsize = AtomicUsize::new(0);
/// How often the layer panicked.
static PANICS: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

async fn handler(request: HttpRequest) -> String {
    CALLS.fetch_add(1, Ordering::SeqCst);
    let is_keyed = matches!(request.method().as_str(), "POST" | "PATCH");
    if is_keyed && request.extensions().get::<Attempt>().is_none() {
        UNCLAIMED.fetch_add(1, Ordering::SeqCst);
    }
    // Whatever is left of the body is read, so that what is wrong with it comes out.
    let read = axum::body::to_bytes(request.into_body(), usize::MAX).await;
    format!("{:?}", read.map(|body| body.len()).ok())
}

const OTHER_METHODS: &[&str] = &[
    "GET", "HEAD", "PUT", "OPTIONS", "post", "PO ST", "PRI", "CONNECT", "TRACE", "M-SEARCH",
];

fn method() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => Just(b"POST".to_vec()),
        2 => Just(b"PATCH".to_vec()),
        1 => prop::sample::select(OTHER_METHODS).prop_map(|method| method.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ]
}

const TARGETS: &[&str] = &[
    "/",
    "/a",
    "/a?b=c&b=%zz",
    "*",
    "http://test/a?x",
    "//",
    "/%00%ff",
    "/a/../b",
    "/?",
    "a",
    "",
];

fn target() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(TARGETS).prop_map(|target| target.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
        1 => "/[ -~]{0,60}".prop_map(String::into_bytes),
        1 => (1..9000_usize).prop_map(|length| [b"/".to_vec(), vec![b'a'; length]].concat()),
    ]
}

fn key_line() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        2 => "[a-c]{1,2}".prop_map(String::into_bytes),
        3 => "[a-z]{3}".prop_map(String::into_bytes),
        1 => "\"[ -~]{0,5}\"".prop_map(String::into_bytes),
        1 => "[ -~]{0,260}".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..20),
    ];
    key.prop_map(|key| [b"idempotency-key: ", key.as_slice()].concat())
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let named = |name: &'static str, value: BoxedStrategy<Vec<u8>>| {
        value.prop_map(move |value| [name.as_bytes(), b": ", value.as_slice()].concat())
    };
    let pick = |values: &'static [&'static str]| {
        prop::sample::select(values)
            .prop_map(|value| value.as_bytes().to_vec())
            .boxed()
    };
    let wild = || vec(any::<u8>(), 0..300).boxed();
    prop_oneof![
        1 => key_line(),
        3 => named("content-type", pick(&["application/json", "application/x-www-form-urlencoded", "application/json; charset=utf-16", "a/b+json", "text/plain", ";", "", "\u{7f}"])),
        1 => named("content-type", wild()),
        1 => named("content-encoding", pick(&["gzip", "identity", "br, gzip", "", "\u{fc}"])),
        1 => named("content-length", pick(&["0", "5", "-1", "18446744073709551616", "5, 5", "99999999999"])),
        1 => named("transfer-encoding", pick(&["chunked", "gzip, chunked", "identity", "chunked, chunked", "x"])),
        1 => named("expect", pick(&["100-continue", "200-ok"])),
        1 => named("connection", pick(&["close", "upgrade", "idempotency-key", "keep-alive, x"])),
        1 => named("upgrade", pick(&["h2c", "websocket"])),
        1 => named("x-account", pick(&["acme", "globex", "nobody"])),
        1 => vec(any::<u8>(), 0..50),
    ]
}

const BODIES: &[&str] = &[
    "",
    "{}",
    "{\"a\":1}",
    "{\"a\":1,\"a\":2}",
    "[1e999999999999999999999]",
    "\"\\ud800\"",
    "a=1&b=%zz",
    "a=1",
    "5\r\nhello\r\n0\r\n\r\n",
    "0\r\n\r\nPOST /a HTTP/1.1\r\nhost: x\r\n\r\n",
    "zz\r\n",
];

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(BODIES).prop_map(|body| body.as_bytes().to_vec()),
        2 => vec(any::<u8>(), 0..3000),
        1 => (0..3000_usize).prop_map(|depth| vec![b'['; depth]),
        1 => (0..4000_usize).prop_map(|digits| vec![b'9'; digits]),
    ]
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let framing = prop_oneof![
        5 => Just(Framing::Length),
        2 => (1..100_usize).prop_map(Framing::Chunks),
        1 => Just(Framing::None),
    ];
    let lines = (prop::option::weighted(0.85, key_line()), vec(line(), 0..4))
        .prop_map(|(key, lines)| key.into_iter().chain(lines).collect::<Vec<_>>());
    let whole = (method(), target(), lines, body(), framing).prop_map(
        |(method, target, lines, body, framing)| assemble(&method, &target, &lines, &body, framing),
    );
    // Now and then the connection is cut, or a byte is another one.
    (
        whole,
        prop::option::weighted(0.1, any::<prop::sample::Index>()),
        prop::option::weighted(0.1, (any::<prop::sample::Index>(), any::<u8>())),
    )
        .prop_map(|(mut bytes, cut, flip)| {
            if let Some((at, byte)) = flip {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(at) = cut {
                bytes.truncate(at.index(bytes.len()));
            }
            bytes
        })
}

#[derive(Debug, Clone, Copy)]
enum Framing {
    Length,
    Chunks(usize),
    None,
}

fn assemble(
    method: &[u8],
    target: &[u8],
    lines: &[Vec<u8>],
    body: &[u8],
    framing: Framing,
) -> Vec<u8> {
    let mut bytes = [
        method,
        b" ",
        target,
        b" HTTP/1.1\r\nhost: test\r\nconnection: close\r\n",
    ]
    .concat();
    for line in lines {
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\n");
    }
    match framing {
        Framing::Length => bytes.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes()),
        Framing::Chunks(_) => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n"),
        Framing::None => bytes.extend_from_slice(b"\r\n"),
    }
    match framing {
        Framing::Chunks(size) => {
            for chunk in body.chunks(size) {
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        Framing::Length | Framing::None => bytes.extend_from_slice(body),
    }
    bytes
}

/// How many requests.
const REQUESTS: u32 = 1000;

#[test]
fn a_thousand_wild_requests_do_no_harm() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async {
        let store = TestStore::new();
        let layer = builder(&store)
            .options(|options| options.body_timeout(Duration::from_millis(20)))
            .build();
        let router = Router::new().fallback(handler).layer(layer.clone());
        Server::around(store, layer, |_| router).await
    });
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Not those of other tests' handlers, which may run beside this one.
        let file = panic.location().map_or("", |place| place.file());
        if ["idem-tower/src", "idem-core/src"]
            .iter()
            .any(|ours| file.contains(ours))
        {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        before(panic);
    }));
    let config = Config {
        cases: REQUESTS,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&request(), |bytes| {
        let reply = runtime.block_on(answer_to(server.address, &bytes));
        if let Some(reply) = &reply {
            prop_assert!(reply.status < 500, "{reply:?}");
        }
        prop_assert_eq!(UNCLAIMED.load(Ordering::SeqCst), 0);
        prop_assert_eq!(PANICS.load(Ordering::SeqCst), 0);
        Ok(())
    });
    let _ = std::panic::take_hook();
    outcome.unwrap();
    // The requests were not so wild that none of them came through, and the server is well.
    let calls = CALLS.load(Ordering::SeqCst);
    assert!(calls > 100, "{calls} calls only");
    assert_eq!(runtime.block_on(server.charge("well")).status, 200);
}

/// Sends bytes and reads the answer. If there is none soon, it says that no more will come: what was sent need not be a whole request.
async fn answer_to(address: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut connection = send_raw(address, bytes).await;
    let mut answer = Vec::new();
    let soon = timeout(
        Duration::from_millis(40),
        connection.read_to_end(&mut answer),
    )
    .await;
    if soon.is_err() {
        let _ = connection.shutdown().await;
        let end = timeout(Duration::from_secs(10), connection.read_to_end(&mut answer)).await;
        let _ = end.expect("the server neither answers nor closes the connection");
    }
    Reply::parse(&answer)
}
