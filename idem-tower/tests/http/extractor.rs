//! What a handler gets, and completion in its own transaction.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use idem_core::{Expect, KeyStore as _, Policy, RecoveryPoint, Response as Kept, Span, Transition};
use idem_tower::{Attempt, Disposition, IDEMPOTENCY_KEY};

use super::common::{Request, Server, TestStore, builder, serve};

#[tokio::test]
async fn an_attempt_has_its_key_number_and_recovery_point() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let handler = move |attempt: Attempt| async move {
            let point = attempt
                .recovery_point()
                .map(|point| point.name().to_owned());
            let seen = format!("{} {} {point:?}", attempt.key().as_str(), attempt.number());
            attempt
                .checkpoint(RecoveryPoint::new("charged").unwrap())
                .await
                .unwrap();
            if script.run().await.status() == 504 {
                return (StatusCode::GATEWAY_TIMEOUT, seen);
            }
            (StatusCode::OK, seen)
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    let silent = axum::response::IntoResponse::into_response(StatusCode::GATEWAY_TIMEOUT);
    server.script.answer(silent);
    assert_eq!(server.charge("abc").await.body_text(), "abc 1 None");
    server.store.clock.advance(Span::from_secs(91));
    assert_eq!(
        server.charge("abc").await.body_text(),
        "abc 2 Some(\"charged\")"
    );
}

#[tokio::test]
async fn an_optional_attempt_is_there_if_there_is_a_key() {
    let store = TestStore::new();
    let layer = builder(&store)
        .options(|options| options.key_optional())
        .build();
    let server = Server::around(store, layer.clone(), |_| {
        let handler = async |attempt: Option<Attempt>| attempt.is_some().to_string();
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    assert_eq!(server.charge("k").await.body_text(), "true");
    assert_eq!(
        server
            .send(Request::new("POST", "/charges"))
            .await
            .body_text(),
        "false"
    );
}

#[tokio::test]
async fn a_handler_without_the_layer_is_a_500_of_its_service() {
    let router = Router::new().route(
        "/charges",
        post(async |attempt: Attempt| attempt.number().to_string()),
    );
    let reply = Request::charge("k").send(serve(router).await).await;
    assert_eq!(reply.status, 500);
}

/// Stores the outcome as a transaction of the handler's own would, if it commits.
async fn join(store: &TestStore, attempt: &Attempt, commits: bool) {
    let held = store.inner.load(attempt.id()).await.unwrap().unwrap();
    let complete = Transition::Complete(
        Kept::new(201)
            .header("x-a", "1")
            .body("stored with the rows"),
    );
    if commits {
        let expect = Expect::Owner(held.record.token);
        store
            .inner
            .transition(attempt.id(), expect, &complete)
            .await
            .unwrap();
    }
}

async fn joining(commits: bool) -> Server {
    let store = TestStore::new();
    let layer = builder(&store).build();
    Server::around(Arc::clone(&store), layer.clone(), |script| {
        let handler = move |attempt: Attempt| async move {
            script.run().await;
            join(&store, &attempt, commits).await;
            (Disposition::Joined, "not looked at")
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await
}

#[tokio::test]
async fn what_the_handlers_transaction_committed_is_what_is_sent() {
    let server = joining(true).await;
    let first = server.charge("k").await;
    assert_eq!(
        (first.status, first.body_text()),
        (201, "stored with the rows")
    );
    assert_eq!((first.text("x-a"), first.is_replayed()), (Some("1"), false));
    let again = server.charge("k").await;
    assert_eq!((&again.body, again.is_replayed()), (&first.body, true));
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_transaction_that_never_committed_leaves_the_outcome_unknown() {
    let server = joining(false).await;
    let first = server.charge("k").await;
    assert_eq!(
        (first.status, first.problem().as_str()),
        (503, "not-yet-stored")
    );
    assert_eq!(server.charge("k").await.problem(), "request-in-progress");
    server.store.clock.advance(Span::from_secs(91));
    assert_eq!(server.charge("k").await.status, 503);
    assert_eq!(server.script.calls(), 2);
}

#[tokio::test]
async fn a_store_that_does_not_say_what_was_committed_is_not_waited_for_for_ever() {
    let store = TestStore::new();
    let policy = Policy::builder()
        .store_timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    let layer = builder(&store).policy(policy).build();
    let server = Server::around(Arc::clone(&store), layer.clone(), |_| {
        let handler = move |attempt: Attempt| async move {
            join(&store, &attempt, true).await;
            (Disposition::Joined, "not looked at")
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    let _never_opened = server.store.stop_load();
    let first = server.charge("k").await;
    assert_eq!(
        (first.status, first.problem().as_str()),
        (503, "not-yet-stored")
    );
    let again = server.charge("k").await;
    assert_eq!(
        (again.body_text(), again.is_replayed()),
        ("stored with the rows", true)
    );
}

#[tokio::test]
async fn bytes_that_a_transaction_committed_win_over_the_handlers_response() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(Arc::clone(&store), layer.clone(), |_| {
        let handler = move |attempt: Attempt| async move {
            join(&store, &attempt, true).await;
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "an error after the commit",
            )
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    assert_eq!(server.charge("k").await.body_text(), "stored with the rows");
    assert_eq!(server.charge("k").await.body_text(), "stored with the rows");
}

#[tokio::test]
async fn elsewhere_the_attempt_is_in_the_extensions() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |_| {
        let handler = async |request: axum::extract::Request| {
            let attempt = request.extensions().get::<Attempt>().unwrap();
            assert!(request.headers().contains_key(IDEMPOTENCY_KEY));
            attempt.number().to_string()
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    assert_eq!(server.charge("k").await.body_text(), "1");
}
