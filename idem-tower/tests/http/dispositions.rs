//! What a response means: each row of the table, and who may say otherwise.

use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use idem_core::Span;
use idem_tower::{Attempt, Disposition, Dispositions};

use super::common::{Request, Server, TestStore, builder};

fn status(code: u16) -> Response {
    (
        StatusCode::from_u16(code).unwrap(),
        [("x-from", "the handler")],
        format!("status {code}"),
    )
        .into_response()
}

#[tokio::test]
async fn completed_and_failed_are_stored_and_replayed() {
    let server = Server::start().await;
    for code in [
        200, 201, 202, 204, 206, 301, 302, 303, 304, 307, 402, 407, 409, 410, 412, 416, 417, 418,
        421, 423, 424, 426, 451, 500, 501, 505, 507, 508, 511, 599, 900,
    ] {
        let key = code.to_string();
        server.script.answer(status(code));
        let first = server.charge(&key).await;
        let again = server.charge(&key).await;
        assert_eq!((first.status, first.is_replayed()), (code, false));
        assert_eq!((again.status, again.is_replayed()), (code, true));
        assert_eq!(first.body, again.body);
        assert_eq!(again.text("x-from"), Some("the handler"));
        // The key is bound.
        assert_eq!(
            server.send(Request::charge(&key).body("{}")).await.status,
            422
        );
    }
}

#[tokio::test]
async fn rejected_leaves_the_key_unused() {
    let server = Server::start().await;
    for code in [
        400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 428, 431,
    ] {
        let key = code.to_string();
        server.script.answer(status(code));
        let first = server.charge(&key).await;
        assert_eq!(
            (first.status, first.text("x-from")),
            (code, Some("the handler"))
        );
        let calls = server.script.calls();
        let corrected = server
            .send(Request::charge(&key).body(r#"{"amount":1}"#))
            .await;
        assert_eq!((corrected.status, corrected.is_replayed()), (201, false));
        assert_eq!(server.script.calls(), calls + 1);
    }
}

#[tokio::test]
async fn retryable_lets_the_same_request_try_again() {
    let server = Server::start().await;
    for code in [425, 429] {
        let key = code.to_string();
        server.script.answer(status(code));
        assert_eq!(server.charge(&key).await.status, code);
        assert_eq!(
            server.send(Request::charge(&key).body("{}")).await.status,
            422
        );
        let again = server.charge(&key).await;
        assert_eq!((again.status, again.is_replayed()), (201, false));
    }
}

#[tokio::test]
async fn unknown_keeps_the_key_until_its_lease_is_over() {
    let server = Server::start().await;
    for code in [408, 502, 503, 504] {
        let key = code.to_string();
        server.script.answer(status(code));
        let first = server.charge(&key).await;
        assert_eq!(
            (first.status, first.text("x-from")),
            (code, Some("the handler"))
        );
        assert_eq!(server.charge(&key).await.problem(), "request-in-progress");
        server.store.clock.advance(Span::from_secs(91));
        let again = server.charge(&key).await;
        assert_eq!((again.status, again.is_replayed()), (201, false));
        assert!(server.charge(&key).await.is_replayed());
    }
}

#[tokio::test]
async fn a_panic_is_a_500_that_is_replayed_and_the_process_lives() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let handler = move || async move {
            script.clone().run().await;
            panic!("the handler's own fault")
        };
        #[expect(unreachable_code, reason = "its type is never inferred otherwise")]
        let handler = move || {
            let handler = handler.clone();
            async move {
                let never: std::convert::Infallible = handler().await;
                match never {}
                StatusCode::OK
            }
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    let first = server.charge("k").await;
    assert_eq!(
        (first.status, first.problem().as_str()),
        (500, "handler-failed")
    );
    let again = server.charge("k").await;
    assert_eq!((again.status, again.is_replayed()), (500, true));
    assert_eq!(first.body, again.body);
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn the_table_can_be_changed() {
    let table = Dispositions::default()
        .with(StatusCode::SERVICE_UNAVAILABLE, Disposition::Retryable)
        .with(StatusCode::CONFLICT, Disposition::Rejected)
        .with(StatusCode::UNPROCESSABLE_ENTITY, Disposition::Completed);
    let server = Server::with(|options| options.dispositions(table)).await;
    server.script.answer(status(503));
    assert_eq!(server.charge("503").await.status, 503);
    assert_eq!(server.charge("503").await.status, 201);
    server.script.answer(status(409));
    assert_eq!(server.charge("409").await.status, 409);
    assert_eq!(
        server.send(Request::charge("409").body("{}")).await.status,
        201
    );
    server.script.answer(status(422));
    assert_eq!(server.charge("422").await.status, 422);
    assert!(server.charge("422").await.is_replayed());
}

#[tokio::test]
async fn a_response_can_say_what_it_means() {
    let server = Server::start().await;
    let say = |disposition| (StatusCode::OK, disposition, "said").into_response();

    server.script.answer(say(Disposition::Rejected));
    assert_eq!(server.charge("a").await.status, 200);
    assert_eq!(
        server.send(Request::charge("a").body("{}")).await.status,
        201
    );

    server.script.answer(say(Disposition::Retryable));
    assert_eq!(server.charge("b").await.status, 200);
    assert_eq!(server.charge("b").await.status, 201);

    server.script.answer(say(Disposition::Unknown));
    assert_eq!(server.charge("c").await.status, 200);
    assert_eq!(server.charge("c").await.status, 409);

    let failed = (StatusCode::BAD_REQUEST, Disposition::Failed, "said").into_response();
    server.script.answer(failed);
    assert_eq!(server.charge("d").await.status, 400);
    assert!(server.charge("d").await.is_replayed());

    let completed = (StatusCode::BAD_GATEWAY, Disposition::Completed, "said").into_response();
    server.script.answer(completed);
    assert_eq!(server.charge("e").await.status, 502);
    assert!(server.charge("e").await.is_replayed());
}

#[tokio::test]
async fn an_attempt_can_say_what_its_response_means() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let handler = move |attempt: Attempt| async move {
            attempt.dispose(Disposition::Retryable);
            script.run().await
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    assert_eq!(server.charge("k").await.body_text(), "call 1");
    assert_eq!(server.charge("k").await.body_text(), "call 2");
    // What the response says comes before it.
    server
        .script
        .answer((Disposition::Completed, "said").into_response());
    assert_eq!(server.charge("k").await.body_text(), "said");
    assert!(server.charge("k").await.is_replayed());
}

#[tokio::test]
async fn no_status_frees_the_key_after_a_provider_key_was_asked_for() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        let handler = move |attempt: Attempt| async move {
            let key = attempt.provider_key("charge").unwrap().to_string();
            let number = attempt.number().to_string();
            (script.run().await.status(), Json([key, number]))
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    })
    .await;
    for code in [404, 429] {
        let key = code.to_string();
        server.script.answer(status(code));
        let first = server.charge(&key).await;
        assert_eq!(first.status, code);
        let other = server.send(Request::charge(&key).body("{}")).await;
        assert_eq!(other.problem(), "key-reused");
        let again = server.charge(&key).await;
        assert_eq!((again.status, again.is_replayed()), (201, false));
        let parts = |body: &[u8]| -> [String; 2] { serde_json::from_slice(body).unwrap() };
        let ([provider, one], [same, two]) = (parts(&first.body), parts(&again.body));
        assert_eq!((provider, one.as_str(), two.as_str()), (same, "1", "2"));
    }
}
