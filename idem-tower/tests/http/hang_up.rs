//! A client that hangs up at each stage, with a real socket that is really closed.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::response::Response;
use axum::routing::post;
use http::StatusCode;
use tokio::io::AsyncReadExt as _;
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;

use super::common::{Request, Server, TestStore, builder, send_raw};

#[tokio::test]
async fn while_the_body_is_on_its_way_nothing_is_claimed() {
    let server = Server::start().await;
    let request = Request::charge("k").body("x".repeat(1000));
    drop(send_raw(server.address, &request.cut(500)).await);
    // The server may see the end of the body as an error or drop the request: either way it is over.
    server.idle().await;
    let other = server.charge("k").await;
    assert_eq!((other.body_text(), other.is_replayed()), ("call 1", false));
}

#[tokio::test]
async fn while_the_claim_is_on_its_way_the_key_is_given_back() {
    let server = Server::start().await;
    let gate = server.store.stop_claim();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    gate.let_go();
    server.idle().await;
    assert_eq!(server.script.calls(), 0);
    // Another payload: had the key been kept, this would be a mismatch or busy.
    let other = server.send(Request::charge("k").body("{}")).await;
    assert_eq!((other.body_text(), other.is_replayed()), ("call 1", false));
}

#[tokio::test]
async fn while_the_handler_runs_it_runs_on_and_its_answer_is_stored() {
    let server = Server::start().await;
    let gate = server.script.stop();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    assert_eq!(server.charge("k").await.problem(), "request-in-progress");
    gate.let_go();
    server.idle().await;
    assert_eq!((server.script.calls(), server.script.done()), (1, 1));
    let again = server.charge("k").await;
    assert_eq!((again.body_text(), again.is_replayed()), ("call 1", true));
}

#[tokio::test]
async fn while_the_outcome_is_being_stored_it_is_stored() {
    let server = Server::start().await;
    let gate = server.store.stop_finish();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    gate.let_go();
    server.idle().await;
    let again = server.charge("k").await;
    assert_eq!((again.body_text(), again.is_replayed()), ("call 1", true));
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn while_the_answer_is_on_its_way_it_is_stored_already() {
    let server = Server::start().await;
    let large = "y".repeat(200 * 1024);
    server
        .script
        .answer(Response::new(Body::from(large.clone())));
    let mut connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    let mut first = [0; 12];
    connection.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    drop(connection);
    let again = server.charge("k").await;
    assert_eq!(
        (again.body_text(), again.is_replayed()),
        (large.as_str(), true)
    );
}

#[tokio::test]
async fn while_it_waits_for_another_it_is_forgotten() {
    let policy = idem_core::Policy::builder()
        .on_busy(idem_core::OnBusy::Wait(idem_core::Span::from_secs(60)))
        .build()
        .unwrap();
    let server = Server::of(|builder| builder.policy(policy)).await;
    let gate = server.script.stop();
    let first = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    let second = send_raw(server.address, &Request::charge("k").bytes()).await;
    while server.store.claims() < 2 {
        tokio::task::yield_now().await;
    }
    drop(second);
    server.has_dropped_one().await;
    drop(first);
    server.has_dropped_one().await;
    gate.let_go();
    server.idle().await;
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_timeout_around_the_layer_does_not_cancel_the_work() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let late = ServiceBuilder::new()
            .layer(HandleErrorLayer::new(async |_: tower::BoxError| {
                StatusCode::REQUEST_TIMEOUT
            }))
            .layer(TimeoutLayer::new(Duration::from_millis(50)));
        Router::new()
            .route("/charges", post(move || script.clone().run()))
            .layer(layer)
            .layer(late)
    })
    .await;
    let gate = server.script.stop();
    assert_eq!(server.charge("k").await.status, 408);
    gate.let_go();
    server.idle().await;
    let again = server.charge("k").await;
    assert_eq!((again.body_text(), again.is_replayed()), ("call 1", true));
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_handler_that_panics_behind_its_clients_back_has_failed() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(Arc::clone(&store), layer.clone(), |script| {
        let handler = move || {
            let script = script.clone();
            async move {
                assert_ne!(script.run().await.status(), 201, "the handler's own fault");
            }
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    let gate = server.script.stop();
    let connection = send_raw(server.address, &Request::charge("k").bytes()).await;
    gate.arrival().await;
    drop(connection);
    server.has_dropped_one().await;
    gate.let_go();
    server.idle().await;
    let again = server.charge("k").await;
    assert_eq!((again.status, again.is_replayed()), (500, true));
}
