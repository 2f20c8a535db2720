//! What of a response is stored and comes back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use idem_core::Policy;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::common::{Request, Server, send_raw};

fn with_lines(lines: &[(&'static str, &[u8])]) -> Response {
    let mut response = Response::new(Body::from("body"));
    for (name, value) in lines {
        response
            .headers_mut()
            .append(*name, HeaderValue::from_bytes(value).unwrap());
    }
    response
}

const LINES: [(&str, &[u8]); 8] = [
    ("set-cookie", b"a=1"),
    ("set-cookie", b"b=2; Path=/"),
    ("set-cookie", b"c=3"),
    ("x-list", b"1, 2"),
    ("x-list", b"3"),
    ("x-bytes", b"caf\xe9 \xff"),
    ("date", b"Mon, 01 Jan 2024 00:00:00 GMT"),
    ("connection", b"x-hop"),
];

#[tokio::test]
async fn header_lines_come_back_in_order_with_repeats_and_bytes() {
    let server = Server::with(|options| options.replay_set_cookie()).await;
    server.script.answer(with_lines(&LINES));
    let first = server.charge("k").await;
    let again = server.charge("k").await;
    for name in ["set-cookie", "x-list", "x-bytes"] {
        assert!(!first.values(name).is_empty());
        assert_eq!(first.values(name), again.values(name), "{name}");
    }
    assert_eq!(again.values("set-cookie").len(), 3);
    assert_eq!(again.values("x-bytes"), [b"caf\xe9 \xff"]);
    assert_eq!(first.text("date"), Some("Mon, 01 Jan 2024 00:00:00 GMT"));
    assert_ne!(again.text("date"), first.text("date"));
}

#[tokio::test]
async fn cookies_come_back_only_where_that_is_asked_for() {
    let server = Server::start().await;
    server.script.answer(with_lines(&LINES));
    assert_eq!(server.charge("k").await.values("set-cookie").len(), 3);
    let again = server.charge("k").await;
    assert!(again.values("set-cookie").is_empty());
    assert_eq!(again.values("x-list").len(), 2);
}

#[tokio::test]
async fn replayed_headers_can_be_chosen() {
    let server = Server::with(|options| options.replay_headers(|name| name == "x-bytes")).await;
    server.script.answer(with_lines(&LINES));
    server.charge("k").await;
    let again = server.charge("k").await;
    assert_eq!(
        (again.values("x-bytes").len(), again.values("x-list").len()),
        (1, 0)
    );
}

#[tokio::test]
async fn nothing_is_an_answer_like_any_other() {
    let server = Server::start().await;
    for code in [200_u16, 204] {
        let key = code.to_string();
        server.script.answer(
            Response::builder()
                .status(code)
                .body(Body::empty())
                .unwrap(),
        );
        let first = server.charge(&key).await;
        let again = server.charge(&key).await;
        assert_eq!((first.status, first.body.len()), (code, 0));
        assert_eq!(
            (again.status, again.body.len(), again.is_replayed()),
            (code, 0, true)
        );
    }
    for body in ["false", "null", "{}"] {
        server.script.answer(Response::new(Body::from(body)));
        server.charge(body).await;
        assert_eq!(server.charge(body).await.body_text(), body);
    }
}

#[tokio::test]
async fn bytes_come_back_byte_for_byte() {
    let server = Server::start().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    server
        .script
        .answer(Response::new(Body::from(bytes.clone())));
    server.charge("k").await;
    assert_eq!(server.charge("k").await.body, bytes);
}

#[tokio::test]
async fn over_the_limit_the_body_is_not_kept_and_nothing_runs_again() {
    let server = Server::start().await;
    for (key, size) in [("at", 256 * 1024), ("over", 300 * 1024)] {
        let body = "z".repeat(size);
        let response = Response::builder()
            .status(201)
            .header("x-a", "1")
            .header("content-type", "text/plain");
        let response = response
            .header("content-language", "de")
            .header("etag", "\"1\"");
        server
            .script
            .answer(response.body(Body::from(body.clone())).unwrap());
        let first = server.charge(key).await;
        assert_eq!((first.status, first.body.len()), (201, size));
        let again = server.charge(key).await;
        assert_eq!(
            (again.status, again.text("x-a"), again.is_replayed()),
            (201, Some("1"), true)
        );
        if key == "at" {
            assert_eq!(again.body, first.body);
        } else {
            assert_eq!(again.problem(), "body-not-kept");
            assert_eq!(
                (again.text("content-language"), again.text("etag")),
                (None, None)
            );
        }
    }
    assert_eq!(server.script.calls(), 2);
}

#[tokio::test]
async fn the_limit_is_that_of_the_policy() {
    let policy = Policy::builder().response_limit(3).build().unwrap();
    let server = Server::of(|builder| builder.policy(policy)).await;
    server.script.answer(Response::new(Body::from("four")));
    assert_eq!(server.charge("k").await.body_text(), "four");
    assert_eq!(server.charge("k").await.problem(), "body-not-kept");
}

/// A body whose frames come through a channel: it ends when the sender is dropped.
struct Stream(mpsc::Receiver<Result<Frame<Bytes>, &'static str>>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context)
    }
}

fn stream() -> (mpsc::Sender<Result<Frame<Bytes>, &'static str>>, Body) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Body::new(Stream(receiver)))
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

#[tokio::test]
async fn a_stream_of_events_is_sent_on_as_it_comes() {
    // By its type, and not because it takes long.
    let server = Server::with(|options| options.stream_after(Duration::MAX)).await;
    let (events, body) = stream();
    let response = Response::builder().header("content-type", "text/event-stream; charset=utf-8");
    server.script.answer(response.body(body).unwrap());
    let mut connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    events.send(piece("data: 1\n\n")).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"data: 1\n\n\r\n") {
        let mut buffer = [0; 1024];
        let read = connection.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0);
        seen.extend_from_slice(&buffer[..read]);
    }
    // It is still open, and its record is finished.
    let again = server.charge("k").await;
    assert_eq!(
        (again.status, again.problem().as_str(), again.is_replayed()),
        (200, "body-not-kept", true)
    );
    events.send(piece("data: 2\n\n")).await.unwrap();
    drop(events);
    connection.read_to_end(&mut seen).await.unwrap();
    assert!(seen.ends_with(b"data: 2\n\n\r\n0\r\n\r\n"));
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_body_that_takes_long_is_a_stream_and_loses_nothing() {
    let server = Server::with(|options| options.stream_after(Duration::from_millis(20))).await;
    let (pieces, body) = stream();
    server.script.answer(Response::new(body));
    pieces.send(piece("one ")).await.unwrap();
    pieces.send(piece("two ")).await.unwrap();
    let reading = tokio::spawn(Request::charge("k").send_owned(server.address));
    while server.script.calls() == 0 {
        tokio::task::yield_now().await;
    }
    loop {
        let again = server.charge("k").await;
        if again.status == 200 {
            assert_eq!(again.problem(), "body-not-kept");
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pieces.send(piece("three")).await.unwrap();
    drop(pieces);
    assert_eq!(reading.await.unwrap().body_text(), "one two three");
}

/// A body that is always ready, and for long has nothing.
struct Idle(u32);

impl http_body::Body for Idle {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.0 = left;
        let data = if left == 0 { "at last" } else { "" };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(data.as_bytes())))))
    }
}

#[tokio::test]
async fn a_body_that_is_always_ready_still_has_its_time() {
    let server = Server::with(|options| options.stream_after(Duration::ZERO)).await;
    server
        .script
        .answer(Response::new(Body::new(Idle(100_000))));
    assert_eq!(server.charge("k").await.body_text(), "at last");
    assert_eq!(server.charge("k").await.problem(), "body-not-kept");
}

#[tokio::test]
async fn a_body_of_unknown_length_that_grows_over_the_limit_is_sent_on_and_not_kept() {
    let policy = Policy::builder().response_limit(10).build().unwrap();
    let never = Duration::MAX;
    let server = Server::of(|builder| {
        builder
            .policy(policy)
            .options(|options| options.stream_after(never))
    })
    .await;
    let (pieces, body) = stream();
    server.script.answer(Response::new(body));
    for text in ["12345", "67890", "1", "2"] {
        pieces.send(piece(text)).await.unwrap();
    }
    // It has not ended, and is not waited for: it could go on for ever, and fill the memory.
    let mut connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    let mut head = [0; 12];
    let answered = timeout(Duration::from_secs(10), connection.read_exact(&mut head)).await;
    answered
        .expect("an answer before the end of the body")
        .unwrap();
    drop(pieces);
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"5\r\n12345\r\n5\r\n67890\r\n1\r\n1\r\n1\r\n2\r\n0\r\n\r\n"));
    let again = server.charge("k").await;
    assert_eq!(
        (again.problem().as_str(), again.is_replayed()),
        ("body-not-kept", true)
    );
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_body_in_pieces_that_ends_soon_is_kept() {
    let server = Server::start().await;
    let (pieces, body) = stream();
    server.script.answer(Response::new(body));
    for text in ["one ", "two ", "three"] {
        pieces.send(piece(text)).await.unwrap();
    }
    drop(pieces);
    assert_eq!(server.charge("k").await.body_text(), "one two three");
    let again = server.charge("k").await;
    assert_eq!(
        (again.body_text(), again.is_replayed()),
        ("one two three", true)
    );
}

#[tokio::test]
async fn trailers_reach_the_first_client() {
    let server = Server::start().await;
    let (pieces, body) = stream();
    let response = Response::builder()
        .header("trailer", "x-sum")
        .body(body)
        .unwrap();
    server.script.answer(response);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("42"));
    pieces.send(piece("data")).await.unwrap();
    pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
    drop(pieces);
    let request = Request::charge("k").header("te", "trailers");
    let mut connection = send_raw(server.address, &request.bytes()).await;
    let mut all = Vec::new();
    connection.read_to_end(&mut all).await.unwrap();
    let all = String::from_utf8(all).unwrap();
    assert!(all.ends_with("0\r\nx-sum: 42\r\n\r\n"), "{all}");
    assert_eq!(server.charge("k").await.body_text(), "data");
}

#[tokio::test]
async fn a_body_that_breaks_off_does_so_for_its_client_and_the_work_was_done() {
    let server = Server::start().await;
    let (pieces, body) = stream();
    server.script.answer(Response::new(body));
    pieces.send(piece("half")).await.unwrap();
    pieces.send(Err("the disk is gone")).await.unwrap();
    drop(pieces);
    let mut connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    let mut all = Vec::new();
    let _ = connection.read_to_end(&mut all).await;
    assert!(!all.ends_with(b"0\r\n\r\n"), "{all:?}");
    let again = server.charge("k").await;
    assert_eq!(
        (again.status, again.problem().as_str()),
        (200, "body-not-kept")
    );
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_body_that_is_not_kept_is_not_read_either() {
    let server = Server::start().await;
    let (pieces, body) = stream();
    server
        .script
        .answer(Response::builder().status(429).body(body).unwrap());
    let mut connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    let mut head = [0; 12];
    // The head is there although the body has not begun.
    connection.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 429");
    drop(pieces);
}
