//! What a request gets: each row of the table.

use std::sync::Arc;
use std::time::Duration;

use idem_core::{Contract, OnBusy, Policy, Span};

use super::common::{Request, Server, TestStore, builder, raw};

#[tokio::test]
async fn without_a_key_where_one_is_required_it_is_a_400() {
    let server = Server::start().await;
    let reply = server
        .send(Request::new("POST", "/charges").json("{}"))
        .await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (400, "key-missing")
    );
    assert_eq!((server.script.calls(), server.store.claims()), (0, 0));
}

#[tokio::test]
async fn without_a_key_where_none_is_required_it_is_handed_on() {
    let server = Server::with(|options| options.key_optional()).await;
    for call in 1..=2 {
        let reply = server
            .send(Request::new("POST", "/charges").json("{}"))
            .await;
        assert_eq!(
            (reply.status, reply.body_text()),
            (201, format!("call {call}").as_str())
        );
    }
    assert_eq!(server.store.claims(), 0);
    assert_eq!(server.charge("k").await.body_text(), "call 3");
    assert_eq!(server.charge("k").await.body_text(), "call 3");
    let broken = server.send(Request::charge("a, b")).await;
    assert_eq!(
        (broken.status, broken.problem().as_str()),
        (400, "key-invalid")
    );
}

#[tokio::test]
async fn a_header_that_is_no_key_is_a_400() {
    let server = Server::start().await;
    let too_long = "k".repeat(256);
    let twice = Request::charge("a").header("idempotency-key", "a");
    let other = Request::charge("a").header("Idempotency-Key", "b");
    let requests =
        ["", "\"\"", &too_long, "a\tb", "a, a", "a;b", "a b", "\"a"].map(Request::charge);
    let bytes = Request::post("/charges", "").header("x", "").json("{}");
    let not_ascii = Request::new("POST", "/charges")
        .header("idempotency-key", b"a\xff")
        .json("{}");
    let mut all = requests.to_vec();
    all.extend([twice, other, not_ascii, bytes]);
    for request in all {
        let reply = server.send(request.clone()).await;
        assert_eq!(
            (reply.status, reply.problem().as_str()),
            (400, "key-invalid"),
            "{request:?}"
        );
    }
    // A control character is refused by the server before the layer sees it.
    let control = server.send(Request::charge("a\u{1}b")).await;
    assert_eq!(control.status, 400);
    assert_eq!((server.script.calls(), server.store.claims()), (0, 0));
    let longest = "k".repeat(255);
    assert_eq!(server.charge(&longest).await.status, 201);
}

#[tokio::test]
async fn both_spellings_are_one_key() {
    let server = Server::start().await;
    assert_eq!(server.charge("\"abc\"").await.body_text(), "call 1");
    let bare = server.charge("abc").await;
    assert_eq!((bare.body_text(), bare.is_replayed()), ("call 1", true));
}

#[tokio::test]
async fn the_first_gets_the_answer_unchanged_and_the_second_the_same() {
    let server = Server::start().await;
    let first = server.charge("k").await;
    assert_eq!((first.status, first.body_text()), (201, "call 1"));
    assert_eq!(
        (first.text("x-call"), first.is_replayed()),
        (Some("1"), false)
    );
    let again = server.charge("k").await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(
        (again.text("x-call"), again.is_replayed()),
        (Some("1"), true)
    );
    assert_eq!(server.script.calls(), 1);
    // Another key is another operation, and so is another account's.
    assert_eq!(server.charge("l").await.body_text(), "call 2");
    let globex = server
        .send(Request::charge("k").header("x-account", "globex"))
        .await;
    assert_eq!(
        (globex.body_text(), globex.is_replayed()),
        ("call 3", false)
    );
}

#[tokio::test]
async fn one_that_is_running_is_a_409_that_says_when_to_come_back() {
    let server = Arc::new(Server::start().await);
    let gate = server.script.stop();
    let first = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.charge("k").await }
    });
    gate.arrival().await;
    let busy = server.charge("k").await;
    assert_eq!(
        (busy.status, busy.problem().as_str()),
        (409, "request-in-progress")
    );
    // The lease has 90 s left; the hint is one.
    assert_eq!(busy.text("retry-after"), Some("1"));
    // What the key is bound to comes before whether it is running.
    let other = server.send(Request::charge("k").body("{}")).await;
    assert_eq!(other.status, 422);
    gate.let_go();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(server.charge("k").await.is_replayed());
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_wait_that_the_policy_allows_ends_with_the_first_ones_answer() {
    let policy = Policy::builder()
        .on_busy(OnBusy::Wait(Span::from_secs(10)))
        .build()
        .unwrap();
    let server = Arc::new(Server::of(|builder| builder.policy(policy)).await);
    let gate = server.script.stop();
    let send = || {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.charge("k").await })
    };
    let first = send();
    gate.arrival().await;
    let second = send();
    while server.store.claims() < 2 {
        tokio::task::yield_now().await;
    }
    gate.let_go();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.is_replayed(), second.is_replayed()), (false, true));
    assert_eq!(first.body, second.body);
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn another_operation_or_payload_is_a_422() {
    let server = Server::start().await;
    server.charge("k").await;
    let json = r#"{"amount":1000}"#;
    for request in [
        Request::post("/refunds", "k").json(json),
        Request::charge("k").body(r#"{"amount":1001}"#),
        Request::post("/charges?dry_run=1", "k").json(json),
        Request::post("/charges", "k").body(json),
        Request::new("PATCH", "/charges")
            .header("idempotency-key", "k")
            .json(json),
        Request::charge("k").header("content-encoding", "gzip"),
    ] {
        let reply = server.send(request.clone()).await;
        assert_eq!(
            (reply.status, reply.problem().as_str()),
            (422, "key-reused"),
            "{request:?}"
        );
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(
            body["title"],
            "Idempotency-Key already used with a different request"
        );
        assert!(!reply.is_replayed());
        assert_eq!(reply.text("retry-after"), None);
    }
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn the_same_meaning_in_other_bytes_is_the_same_request() {
    let server = Server::start().await;
    let first = Request::post("/charges?a=1&b=2", "k").json(r#"{"amount":5.0,"to":"a"}"#);
    assert_eq!(server.send(first).await.status, 201);
    let again = Request::post("/charges?b=2&a=1", "k")
        .header("content-type", "application/json; charset=utf-8")
        .header("content-encoding", "identity")
        .body("{ \"to\": \"\\u0061\",\n\"amount\": 5 }");
    assert!(server.send(again).await.is_replayed());

    let form = |body: &str| {
        Request::post("/charges", "f")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
    };
    assert_eq!(server.send(form("a=1&b=x+y")).await.status, 201);
    assert!(server.send(form("b=x%20y&a=1")).await.is_replayed());

    // What is no JSON is taken byte for byte, and never refused: that is for the handler.
    let broken = |body: &str| Request::charge("b").body(body);
    assert_eq!(server.send(broken("{\"a\":")).await.status, 201);
    assert!(server.send(broken("{\"a\":")).await.is_replayed());
    assert_eq!(server.send(broken("{ \"a\":")).await.status, 422);
}

#[tokio::test]
async fn an_outcome_that_nobody_knows_is_a_409_that_says_not_to_come_back() {
    let policy = Policy::builder().contract(Contract::Hold).build().unwrap();
    let server = Server::of(|builder| builder.policy(policy)).await;
    server
        .script
        .answer(axum::response::IntoResponse::into_response(
            http::StatusCode::GATEWAY_TIMEOUT,
        ));
    assert_eq!(server.charge("k").await.status, 504);
    server.store.clock.advance(Span::from_secs(91));
    let reply = server.charge("k").await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (409, "outcome-unknown")
    );
    assert_eq!(reply.text("retry-after"), None);
    assert_eq!(server.script.calls(), 1);
}

#[tokio::test]
async fn a_record_of_another_version_is_a_503() {
    let server = Server::start().await;
    server.charge("k").await;
    let other = idem_core::Rules::new(idem_core::Profile::new(2), idem_core::Nulls::Distinct);
    let layer = server.layer.with_rules(other);
    let newer = Server::around(Arc::clone(&server.store), layer.clone(), |script| {
        axum::Router::new()
            .route(
                "/charges",
                axum::routing::post(move || script.clone().run()),
            )
            .layer(layer)
    })
    .await;
    let reply = newer.charge("k").await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (503, "other-version")
    );
    assert_eq!(reply.text("retry-after"), Some("1"));
    assert_eq!(newer.script.calls(), 0);
}

#[tokio::test]
async fn nobody_is_answered_whom_the_scope_function_refuses() {
    let server = Server::start().await;
    server.charge("k").await;
    for request in [
        Request::charge("k").header("x-account", "nobody"),
        Request::charge("a, b").header("x-account", "nobody"),
        Request::new("POST", "/charges").header("x-account", "nobody"),
    ] {
        let reply = server.send(request).await;
        assert_eq!((reply.status, reply.body_text()), (401, "who are you?"));
        assert_eq!(reply.text("www-authenticate"), Some("Bearer"));
    }
    assert_eq!((server.script.calls(), server.store.claims()), (1, 1));
}

#[tokio::test]
async fn a_scope_function_that_panics_ends_its_connection_and_claims_nothing() {
    let server = Server::start().await;
    // No scope is empty, and the function of these tests does not expect it to be.
    let nameless = Request::charge("k").header("x-account", "");
    let reply = raw(server.address, &nameless.bytes()).await;
    assert!(reply.is_none(), "{reply:?}");
    assert_eq!((server.script.calls(), server.store.claims()), (0, 0));
    assert_eq!(server.charge("k").await.body_text(), "call 1");
}

#[tokio::test]
async fn without_its_store_the_handler_is_not_called() {
    let server = Server::start().await;
    server.store.go_down();
    let reply = server.charge("k").await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (503, "store-unavailable")
    );
    assert_eq!(reply.text("retry-after"), Some("1"));
    assert_eq!(server.script.calls(), 0);
    server.store.come_up();
    assert_eq!(server.charge("k").await.status, 201);
}

#[tokio::test]
async fn an_outcome_that_cannot_be_stored_in_time_is_stored_later() {
    let policy = Policy::builder()
        .store_timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    let server = Server::of(|builder| builder.policy(policy)).await;
    let gate = server.store.stop_finish();
    let reply = server.charge("k").await;
    assert_eq!(
        (reply.status, reply.problem().as_str()),
        (503, "not-yet-stored")
    );
    assert_eq!(reply.text("retry-after"), Some("1"));
    gate.let_go();
    server.idle().await;
    let again = server.charge("k").await;
    assert_eq!((again.body_text(), again.is_replayed()), ("call 1", true));
}

#[tokio::test]
async fn other_methods_are_not_looked_at() {
    let server = Server::start().await;
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        for _ in 0..2 {
            let request = Request::new(method, "/charges").header("idempotency-key", "a, b");
            assert_eq!(server.send(request).await.status, 201, "{method}");
        }
    }
    assert_eq!((server.script.calls(), server.store.claims()), (10, 0));
    let patch = || Request::new("PATCH", "/charges").header("idempotency-key", "p");
    assert_eq!(server.send(patch()).await.body_text(), "call 11");
    assert!(server.send(patch()).await.is_replayed());
}

#[tokio::test]
async fn a_second_layer_lets_the_request_of_the_first_pass() {
    let store = TestStore::new();
    let layer = builder(&store).build();
    let server = Server::around(store, layer.clone(), |script| {
        axum::Router::new()
            .route(
                "/charges",
                axum::routing::post(move || script.clone().run()),
            )
            .route_layer(layer.clone())
            .layer(layer)
    })
    .await;
    assert_eq!(server.charge("k").await.body_text(), "call 1");
    assert!(server.charge("k").await.is_replayed());
    assert_eq!(server.store.claims(), 2);
}

#[tokio::test]
async fn a_target_with_a_host_is_the_same_operation() {
    let server = Server::start().await;
    server.charge("k").await;
    let absolute = Request::post("http://test/charges", "k").json(r#"{"amount":1000}"#);
    let reply = raw(server.address, &absolute.bytes()).await.unwrap();
    assert!(reply.is_replayed(), "{reply:?}");
}
