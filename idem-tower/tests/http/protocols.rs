//! However a request travels, it is the same request.

use axum::body::Body;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::common::{Request, Server, raw};

const BODY: &str = r#"{"amount":1000,"to":"somebody"}"#;

async fn over_http2(
    server: &Server,
    key: &str,
    body: Body,
) -> http::Response<hyper::body::Incoming> {
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let request = http::Request::post(format!("http://{}/charges", server.address))
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    client.request(request).await.unwrap()
}

#[tokio::test]
async fn framing_and_version_make_no_difference() {
    let server = Server::start().await;
    let request = Request::post("/charges", "k").json(BODY);
    assert_eq!(server.send(request.clone()).await.body_text(), "call 1");
    for size in [1, 7, 1000] {
        let chunked = raw(server.address, &request.chunked(size)).await.unwrap();
        assert!(chunked.is_replayed(), "in chunks of {size}");
    }
    let whole = over_http2(&server, "k", Body::new(Full::from(BODY))).await;
    let frames = BODY.as_bytes().chunks(5).map(|piece| {
        Ok::<_, std::convert::Infallible>(http_body::Frame::data(bytes::Bytes::from_static(piece)))
    });
    let frames: Vec<_> = frames.collect();
    let pieces = StreamBody::new(Pieces(frames.into_iter()));
    let pieces = over_http2(&server, "k", Body::new(pieces)).await;
    for response in [whole, pieces] {
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.headers()["idempotent-replayed"], "true");
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "call 1"
        );
    }
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_first_request_over_http2_is_replayed_over_http1() {
    let server = Server::start().await;
    let first = over_http2(&server, "k", Body::from(BODY)).await;
    assert_eq!(first.status(), 201);
    let again = server.send(Request::post("/charges", "k").json(BODY)).await;
    assert!(again.is_replayed());
}

#[tokio::test]
async fn a_reset_stream_of_http2_does_not_cancel_the_work() {
    let server = Server::start().await;
    let gate = server.script.stop();
    let request = over_http2(&server, "k", Body::from(BODY));
    tokio::select! {
        _ = request => panic!("there is no answer yet"),
        () = gate.arrival() => {}
    }
    server.has_dropped_one().await;
    gate.let_go();
    server.idle().await;
    let again = server.send(Request::post("/charges", "k").json(BODY)).await;
    assert!(again.is_replayed());
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_its_body_is_told_to_go_on() {
    let server = Server::start().await;
    let request = Request::post("/charges", "k")
        .json(BODY)
        .header("expect", "100-continue");
    assert_eq!(server.send(request).await.body_text(), "call 1");
    assert!(
        server
            .send(Request::post("/charges", "k").json(BODY))
            .await
            .is_replayed()
    );
}

/// Frames, one after the other.
struct Pieces<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Pieces<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}
