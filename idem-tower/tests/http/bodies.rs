//! A request body that does not arrive is never claimed.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::common::{Request, Server, raw, send_raw};

const LIMIT: usize = 1000;

async fn server() -> Server {
    Server::with(|options| {
        options
            .body_limit(LIMIT)
            .body_timeout(Duration::from_millis(50))
    })
    .await
}

fn of(bytes: usize) -> Request {
    Request::post("/charges", "k").body("x".repeat(bytes))
}

/// The key is unused, so another body is the first.
async fn assert_unclaimed(server: &Server) {
    assert_eq!((server.script.calls(), server.store.claims()), (0, 0));
    assert_eq!(
        server.send(Request::charge("k")).await.body_text(),
        "call 1"
    );
}

#[tokio::test]
async fn over_the_limit_it_is_a_413() {
    let server = server().await;
    let reply = server.send(of(LIMIT + 1)).await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (413, "body-too-large")
    );
    let chunked = raw(server.address, &of(LIMIT + 1).chunked(100))
        .await
        .unwrap();
    assert_eq!(
        (chunked.status, chunked.problem().as_str()),
        (413, "body-too-large")
    );
    assert_unclaimed(&server).await;
}

#[tokio::test]
async fn one_that_says_it_is_over_the_limit_is_not_waited_for() {
    let server = server().await;
    let reply = raw(server.address, &of(LIMIT + 1).cut(0)).await.unwrap();
    assert_eq!(reply.status, 413);
    assert_unclaimed(&server).await;
}

#[tokio::test]
async fn at_the_limit_it_reaches_the_handler_whole() {
    let server = server().await;
    assert_eq!(server.send(of(LIMIT)).await.status, 201);
    let chunked = raw(server.address, &of(LIMIT).chunked(7)).await.unwrap();
    assert!(chunked.is_replayed());
}

#[tokio::test]
async fn one_that_does_not_end_is_a_408() {
    let server = server().await;
    let reply = raw(server.address, &of(100).cut(50)).await.unwrap();
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (408, "body-too-slow")
    );
    assert_unclaimed(&server).await;
}

#[tokio::test]
async fn one_that_trickles_is_a_408_too() {
    let server = server().await;
    let mut connection = send_raw(server.address, &of(LIMIT).cut(0)).await;
    let (mut reading, mut writing) = connection.split();
    let trickle = async {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut answer = [0; 12];
    tokio::select! {
        read = reading.read_exact(&mut answer) => { read.unwrap(); }
        () = trickle => panic!("the connection was closed without an answer"),
    }
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_unclaimed(&server).await;
}

#[tokio::test]
async fn one_that_breaks_off_is_a_400_or_nothing() {
    let server = Server::with(|options| options.body_limit(LIMIT)).await;
    let mut connection = send_raw(server.address, &of(100).cut(50)).await;
    connection.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"),
        "{answer:?}"
    );
    assert_unclaimed(&server).await;
}

#[tokio::test]
async fn chunks_that_are_none_are_a_400() {
    let server = server().await;
    let mut bytes = of(10).chunked(5);
    bytes.truncate(bytes.len() - 5);
    bytes.extend_from_slice(b"zz\r\n");
    let reply = raw(server.address, &bytes).await;
    assert!(reply.is_none_or(|reply| reply.status == 400));
    assert_unclaimed(&server).await;
}
