//! Routers in routers: the operation is what the client asked for.

use axum::Router;
use axum::extract::MatchedPath;
use axum::routing::post;
use http::request::Parts;
use idem_core::{Inspect as _, Operation};

use super::common::{Request, Server, TestStore, builder};

#[tokio::test]
async fn two_routes_under_different_prefixes_are_two_operations() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let version = |script: super::common::Script| {
            Router::new()
                .route("/charges", post(move || script.clone().run()))
                .layer(layer.clone())
        };
        Router::new()
            .nest("/v1", version(script.clone()))
            .nest("/v2", version(script))
    })
    .await;
    let send = async |path: &str| server.send(Request::post(path, "k")).await;
    assert_eq!(send("/v1/charges").await.status, 201);
    assert!(send("/v1/charges").await.is_replayed());
    assert_eq!(send("/v2/charges").await.problem(), "key-reused");
    assert_eq!(server.script.calls(), 1);
    let records = server
        .store
        .inner
        .list(
            &idem_core::Filter::default(),
            None,
            std::num::NonZeroU32::MIN,
        )
        .await
        .unwrap();
    assert_eq!(records[0].record.operation.as_str(), "POST /v1/charges");
}

#[tokio::test]
async fn the_layer_outside_or_inside_of_a_nest_names_the_same_operation() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let inside = Server::around(std::sync::Arc::clone(&store), layer.clone(), |script| {
        let inner = Router::new().route("/charges", post(move || script.clone().run()));
        Router::new().nest("/v1", inner.route_layer(layer.clone()))
    })
    .await;
    let outside = Server::around(store, layer.clone(), |script| {
        let inner = Router::new().route("/charges", post(move || script.clone().run()));
        Router::new().nest("/v1", inner).layer(layer)
    })
    .await;
    assert_eq!(
        inside.send(Request::post("/v1/charges", "k")).await.status,
        201
    );
    assert!(
        outside
            .send(Request::post("/v1/charges", "k"))
            .await
            .is_replayed()
    );
}

#[tokio::test]
async fn a_route_layer_leaves_unknown_routes_alone() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        Router::new()
            .route("/charges", post(move || script.clone().run()))
            .route_layer(layer)
    })
    .await;
    assert_eq!(
        server.send(Request::new("POST", "/elsewhere")).await.status,
        404
    );
    assert_eq!(
        server.send(Request::new("POST", "/charges")).await.status,
        400
    );
    assert_eq!(
        server.send(Request::new("GET", "/charges")).await.status,
        405
    );
    assert_eq!(server.store.claims(), 0);
}

fn template(request: &Parts) -> Operation {
    let path = request.extensions.get::<MatchedPath>().unwrap();
    Operation::new(format!("{} {}", request.method, path.as_str())).unwrap()
}

#[tokio::test]
async fn an_operation_by_template_still_tells_two_paths_apart() {
    let store = TestStore::new();
    let layer = builder(&store)
        .options(|options| options.operation(template))
        .build();
    let server = Server::around(store, layer.clone(), |script| {
        Router::new()
            .route("/charges/{id}/refunds", post(move || script.clone().run()))
            .route_layer(layer)
    })
    .await;
    let send = async |path: &str| server.send(Request::post(path, "k")).await;
    assert_eq!(send("/charges/1/refunds").await.status, 201);
    assert!(send("/charges/1/refunds").await.is_replayed());
    let other = send("/charges/2/refunds").await;
    assert_eq!(other.problem(), "key-reused");
    assert!(
        other.body_text().contains("another payload"),
        "{}",
        other.body_text()
    );
}

#[tokio::test]
async fn a_path_of_any_length_is_no_error_of_the_layer() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        Router::new()
            .route("/{*rest}", post(move || script.clone().run()))
            .layer(layer)
    })
    .await;
    let long = |last: &str| Request::post(&format!("/{}{last}", "a".repeat(5000)), "k");
    assert_eq!(server.send(long("1")).await.status, 201);
    assert!(server.send(long("1")).await.is_replayed());
    assert_eq!(server.send(long("2")).await.problem(), "key-reused");
}
