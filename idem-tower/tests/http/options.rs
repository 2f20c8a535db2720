//! Options for each route.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN};
use axum::routing::post;
use bytes::Bytes;
use http::{Method, StatusCode};
use idem_core::{Nulls, Profile, Rules};
use idem_tower::{EXPOSED_HEADERS, ProblemKind};
use tower_http::cors::CorsLayer;

use super::common::{Request, Server, TestStore, builder};

#[tokio::test]
async fn the_key_is_sent_back_on_request() {
    let server = Server::with(|options| options.echo_key()).await;
    for _ in 0..2 {
        let reply = server.charge("\"abc\"").await;
        assert_eq!(reply.text("idempotency-key"), Some("\"abc\""));
    }
    let mismatch = server.send(Request::charge("abc").body("{}")).await;
    assert_eq!(
        (mismatch.status, mismatch.text("idempotency-key")),
        (422, Some("abc"))
    );
    let silent = Server::start().await;
    assert_eq!(silent.charge("abc").await.text("idempotency-key"), None);
}

#[tokio::test]
async fn statuses_types_and_bodies_of_problems_can_be_changed() {
    let server = Server::with(|options| {
        options
            .problem_status(ProblemKind::KeyReused, StatusCode::CONFLICT)
            .problem_types("https://api.example.com/problems/")
    })
    .await;
    server.charge("k").await;
    let reply = server.send(Request::charge("k").body("{}")).await;
    assert_eq!(reply.status, 409);
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["type"], "https://api.example.com/problems/key-reused");
    assert_eq!(body["status"], 409);

    let plain = Server::with(|options| {
        options.render_problems(|problem| {
            let response = http::Response::builder().status(problem.status);
            response
                .body(Bytes::from(format!("{}!", problem.kind)))
                .unwrap()
        })
    })
    .await;
    let reply = plain.send(Request::new("POST", "/charges")).await;
    assert_eq!((reply.status, reply.body_text()), (400, "key-missing!"));
}

#[tokio::test]
async fn the_hint_when_to_come_back_can_be_changed() {
    let server =
        Arc::new(Server::with(|options| options.retry_hint(Duration::from_millis(2500))).await);
    let gate = server.script.stop();
    let first = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.charge("k").await }
    });
    gate.arrival().await;
    assert_eq!(server.charge("k").await.text("retry-after"), Some("3"));
    // A lease that is over sooner is not waited for longer.
    server
        .store
        .clock
        .advance(idem_core::Span::from_millis(89_500));
    assert_eq!(server.charge("k").await.text("retry-after"), Some("1"));
    gate.let_go();
    first.await.unwrap();
}

#[tokio::test]
async fn methods_can_be_changed() {
    let server = Server::with(|options| options.methods([Method::PUT])).await;
    assert_eq!(
        server.send(Request::new("POST", "/charges")).await.status,
        201
    );
    assert_eq!(
        server.send(Request::new("PUT", "/charges")).await.status,
        400
    );
}

#[tokio::test]
async fn each_route_has_its_own_options_policy_and_rules() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let lenient = Rules::new(Profile::new(2), Nulls::SameAsAbsent)
        .exclude_pointer("/sent_at")
        .unwrap()
        .exclude_query("utm_source");
    let server = Server::around(store, layer.clone(), |script| {
        let route = |path| {
            let script = script.clone();
            Router::new().route(path, post(move || script.clone().run()))
        };
        let optional = layer.with_options(|options| options.key_optional());
        let short = layer.with_policy(
            idem_core::Policy::builder()
                .retention(Duration::from_secs(1))
                .build()
                .unwrap(),
        );
        route("/strict")
            .route_layer(layer.clone())
            .merge(route("/lenient").route_layer(layer.with_rules(lenient)))
            .merge(route("/optional").route_layer(optional))
            .merge(route("/short").route_layer(short))
    })
    .await;
    let send =
        async |path: &str, body: &str| server.send(Request::post(path, path).json(body)).await;

    send("/strict", r#"{"a":1}"#).await;
    assert_eq!(send("/strict", r#"{"a":1,"b":null}"#).await.status, 422);
    send("/lenient", r#"{"a":1,"sent_at":1}"#).await;
    assert!(
        send("/lenient", r#"{"a":1,"b":null,"sent_at":2}"#)
            .await
            .is_replayed()
    );
    let tracked = Request::post("/lenient?utm_source=mail", "/lenient").json(r#"{"a":1}"#);
    assert!(server.send(tracked).await.is_replayed());
    assert_eq!(
        server.send(Request::new("POST", "/optional")).await.status,
        201
    );
    assert_eq!(
        server.send(Request::new("POST", "/strict")).await.status,
        400
    );
    send("/short", "{}").await;
    server.store.clock.advance(idem_core::Span::from_secs(2));
    assert!(!send("/short", "{}").await.is_replayed());
    assert!(send("/strict", r#"{"a":1}"#).await.is_replayed());
}

#[tokio::test]
async fn browsers_are_shown_the_headers() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        Router::new()
            .route("/charges", post(move || script.clone().run()))
            .layer(layer)
            .layer(CorsLayer::new().expose_headers(EXPOSED_HEADERS))
    })
    .await;
    let reply = server
        .send(Request::charge("k").header(ORIGIN.as_str(), "https://shop.example"))
        .await;
    let exposed = reply.text(ACCESS_CONTROL_EXPOSE_HEADERS.as_str());
    assert_eq!(
        exposed,
        Some("idempotency-key,idempotent-replayed,retry-after")
    );
}
