//! What the service answers over HTTP, and what reaches the provider.

mod common;
mod real_clients;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use charges::service::BODY_LIMIT;
use common::{BODY, Servers, raw};
use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore, RecordId, Snapshot, StoreError, Swept, Transition,
    TransitionOutcome, async_trait,
};
use tokio::io::AsyncReadExt as _;
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn a_retry_gets_the_stored_answer() {
    let servers = Servers::start().await;
    let first = servers.charge("k", BODY).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = servers.charge("k", BODY).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(servers.calls().await, 1);
}

#[tokio::test]
async fn a_quoted_key_and_a_bare_one_are_the_same() {
    let servers = Servers::start().await;
    let quoted = servers.charge("\"abc\"", BODY).await;
    let bare = servers.charge("abc", BODY).await;
    assert_eq!((quoted.status.as_u16(), bare.status.as_u16()), (201, 201));
    assert_eq!(quoted.body, bare.body);
    assert_eq!(servers.ledger().len(), 1);
}

#[tokio::test]
async fn a_header_that_is_no_key_is_a_400_and_nothing_happens() {
    let servers = Servers::start().await;
    let too_long = [b"idempotency-key: ".as_slice(), &[b'k'; 256]].concat();
    let cases: [&[&[u8]]; 9] = [
        &[],
        &[b"idempotency-key: a", b"idempotency-key: a"],
        &[b"idempotency-key:"],
        &[b"idempotency-key: \"\""],
        &[&too_long],
        &[b"idempotency-key: a\tb"],
        &[b"idempotency-key: a\x01b"],
        &[b"idempotency-key: a, a"],
        &[b"idempotency-key: a\xff"],
    ];
    for lines in cases {
        let request = raw(lines, BODY.len(), BODY.as_bytes());
        let shown = String::from_utf8_lossy(&request).into_owned();
        assert_eq!(servers.status_of_raw(&request).await, "400", "{shown}");
    }
    assert_eq!(servers.calls().await, 0);

    let longest = "k".repeat(255);
    assert_eq!(servers.charge(&longest, BODY).await.status, 201);
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_and_claims_nothing() {
    let servers = Servers::start().await;
    let padding = " ".repeat(BODY_LIMIT + 1 - BODY.len());
    let reply = servers.charge("k", &format!("{BODY}{padding}")).await;
    assert_eq!(reply.status, 413);
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
    // Had the key been claimed, another body would be a mismatch now.
    assert_eq!(servers.charge("k", BODY).await.status, 201);
    assert_eq!(servers.ledger().len(), 1);

    let padding = " ".repeat(BODY_LIMIT - BODY.len());
    assert_eq!(servers.charge("at the limit", "").await.status, 400);
    assert_eq!(
        servers
            .charge("limit", &format!("{BODY}{padding}"))
            .await
            .status,
        201
    );
}

#[tokio::test]
async fn a_body_that_breaks_off_claims_nothing() {
    let servers = Servers::start().await;
    let half = &BODY.as_bytes()[..BODY.len() / 2];
    let mut connection = servers
        .send_raw(&raw(&[b"idempotency-key: k"], BODY.len(), half))
        .await;
    tokio::io::AsyncWriteExt::shutdown(&mut connection)
        .await
        .unwrap();
    // Whatever the service says, if it does, it is done with the request when it closes the connection.
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
    assert_eq!(servers.calls().await, 0);
    let other = r#"{"amount": 1, "currency": "eur", "source": "tok_visa"}"#;
    assert_eq!(servers.charge("k", other).await.status, 201);
}

#[tokio::test]
async fn a_client_that_hangs_up_finds_its_answer_later() {
    let servers = Servers::start().await;
    let body = BODY.replace("tok_visa", "tok_unhurried");
    let connection = servers
        .send_raw(&raw(&[b"idempotency-key: k"], body.len(), body.as_bytes()))
        .await;
    let called = async {
        while servers.calls().await == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(10), called).await.unwrap();
    drop(connection);
    let reply = servers.charge_patiently("k", &body).await;
    assert_eq!(reply.status, 201);
    // The first one's work was done to its end, so nobody took over and the provider was called once.
    assert_eq!(reply.header("idempotent-replayed"), Some("true"));
    assert_eq!(servers.calls().await, 1);
}

#[tokio::test]
async fn a_key_is_bound_to_endpoint_payload_and_query() {
    let servers = Servers::start().await;
    let first = servers.charge("k", BODY).await;
    let key = [("idempotency-key", "k")];
    let refund = format!("{{\"charge\": {}}}", first.json()["id"]);
    for (path, body) in [
        ("/v1/refunds", refund.as_str()),
        ("/v1/refunds", BODY),
        ("/v1/charges", &BODY.replace("2500", "2501")),
        ("/v1/charges?expand=all", BODY),
    ] {
        let reply = servers.post(path, &key, body).await;
        assert_eq!(reply.status, 422, "{path} {body}");
        assert_eq!(
            reply.json()["title"],
            "Idempotency-Key already used with a different request"
        );
        assert_eq!(reply.header("idempotent-replayed"), None);
    }
    assert_eq!(servers.calls().await, 1);
}

#[tokio::test]
async fn a_refund_is_made_once() {
    let servers = Servers::start().await;
    let charge = servers.charge("k", BODY).await;
    let refund = format!("{{\"charge\": {}}}", charge.json()["id"]);
    let key = [("idempotency-key", "r")];
    let first = servers.post("/v1/refunds", &key, &refund).await;
    let again = servers.post("/v1/refunds", &key, &refund).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 201));
    assert_eq!(first.body, again.body);
    assert_eq!(servers.ledger().len(), 2);

    let key = [("idempotency-key", "s")];
    let unknown = servers
        .post("/v1/refunds", &key, r#"{"charge": "ch_9999"}"#)
        .await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn nobody_refunds_the_charge_of_another() {
    let servers = Servers::start().await;
    let charge = servers.charge("k", BODY).await;
    let refund = format!("{{\"charge\": {}}}", charge.json()["id"]);
    let request = raw(&[b"idempotency-key: r"], refund.len(), refund.as_bytes());
    let globex = String::from_utf8(request)
        .unwrap()
        .replace("/v1/charges", "/v1/refunds")
        .replace("sk_test_acme", "sk_test_globex");
    assert_eq!(servers.status_of_raw(globex.as_bytes()).await, "404");
    assert_eq!(servers.ledger().len(), 1);
    let key = [("idempotency-key", "r")];
    assert_eq!(servers.post("/v1/refunds", &key, &refund).await.status, 201);
}

#[tokio::test]
async fn a_charge_is_given_back_once_whatever_the_key() {
    let servers = Servers::start().await;
    let charge = servers.charge("k", BODY).await;
    let refund = format!("{{\"charge\": {}}}", charge.json()["id"]);
    let with_key = async |key| {
        let headers = [("idempotency-key", key)];
        servers.post("/v1/refunds", &headers, &refund).await
    };
    assert_eq!(with_key("r").await.status, 201);
    let second = with_key("s").await;
    assert_eq!(second.status, 403);
    assert_eq!(
        second.json()["type"],
        "https://charges.example/problems/already-refunded"
    );
    assert_eq!(with_key("s").await.body, second.body);
    // The first one's retry is still told that it was done.
    assert_eq!(with_key("r").await.status, 201);
    assert_eq!(servers.ledger().len(), 2);
}

#[tokio::test]
async fn a_form_is_read_like_json() {
    let servers = Servers::start().await;
    let headers = [
        ("idempotency-key", "k"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let form = "amount=2500&currency=EUR&source=tok_visa&description=two+words";
    let first = servers.post("/v1/charges", &headers, form).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.json()["description"], "two words");
    let reordered = "description=two%20words&source=tok_visa&currency=EUR&amount=2500";
    let again = servers.post("/v1/charges", &headers, reordered).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(servers.ledger()[0].currency, "eur");
}

#[tokio::test]
async fn an_invalid_request_leaves_its_key_unused() {
    let servers = Servers::start().await;
    for (wrong, status) in [
        (BODY.replace("2500", "0"), 400),
        (BODY.replace("2500", "-1"), 400),
        (BODY.replace("2500", "2500.5"), 400),
        (BODY.replace("2500", "25e-1"), 400),
        (BODY.replace("2500", "-2500.0"), 400),
        (BODY.replace("2500", "0.0"), 400),
        // As a double it is another integer.
        (BODY.replace("2500", "9007199254740993.0"), 400),
        (BODY.replace("2500", "1e400"), 400),
        (BODY.replace("2500", "\"2500\""), 400),
        (BODY.replace("2500", "18446744073709551616"), 400),
        (BODY.replace("eur", "euro"), 400),
        (BODY.replace("eur", "e1r"), 400),
        (BODY.replace("tok_visa", "4242424242424242"), 400),
        ("[]".to_owned(), 400),
        ("{".to_owned(), 400),
    ] {
        let reply = servers.charge("k", &wrong).await;
        assert_eq!(reply.status, status, "{wrong}");
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json")
        );
        assert!(!reply.json()["detail"].as_str().unwrap().is_empty());
    }
    let headers = [("idempotency-key", "k"), ("content-type", "text/plain")];
    assert_eq!(
        servers.post("/v1/charges", &headers, BODY).await.status,
        415
    );
    assert_eq!(servers.calls().await, 0);
    assert_eq!(servers.charge("k", BODY).await.status, 201);
}

#[tokio::test]
async fn a_whole_number_is_an_amount_however_json_spells_it() {
    let servers = Servers::start().await;
    for spelling in ["2500", "2500.0", "25e2", "2.5E+3", "25000e-1"] {
        let reply = servers
            .charge(spelling, &BODY.replace("2500", spelling))
            .await;
        assert_eq!(reply.status, 201, "{spelling}");
        assert_eq!(reply.json()["amount"], 2500, "{spelling}");
    }
    assert!(servers.ledger().iter().all(|entry| entry.amount == 2500));
    let odd = servers.charge("2500", &BODY.replace("2500", "25e2")).await;
    assert_eq!(odd.header("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn a_field_that_is_named_twice_is_a_400() {
    let servers = Servers::start().await;
    let json = BODY.replace("}", r#", "amount": 1}"#);
    let escaped = BODY.replace("}", r#", "\u0061mount": 1}"#);
    let form = "amount=2500&currency=eur&source=tok_visa&amount=1";
    for (content_type, body) in [
        ("application/json", json.as_str()),
        ("application/json", &escaped),
        ("application/x-www-form-urlencoded", form),
    ] {
        let headers = [("idempotency-key", "k"), ("content-type", content_type)];
        let reply = servers.post("/v1/charges", &headers, body).await;
        assert_eq!(reply.status, 400, "{body}");
        let detail = reply.json()["detail"].to_string();
        assert!(detail.contains("twice"), "{detail}");
    }
    assert_eq!(servers.calls().await, 0);
    assert_eq!(servers.charge("k", BODY).await.status, 201);
}

#[tokio::test]
async fn a_body_that_is_not_json_is_told_from_one_that_is_no_object() {
    let servers = Servers::start().await;
    for (body, expected) in [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (r#"{"amount": 1,}"#, "not valid JSON"),
        ("amount=1", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("7", "must be a JSON object"),
    ] {
        let reply = servers.charge("k", body).await;
        let detail = reply.json()["detail"].to_string();
        assert_eq!(reply.status, 400, "{body}");
        assert!(detail.contains(expected), "{body}: {detail}");
    }
}

#[tokio::test]
async fn nobody_is_answered_without_a_known_token() {
    let servers = Servers::start().await;
    let first = servers.charge("k", BODY).await;
    assert_eq!(first.status, 201);
    for token in [
        "authorization: Bearer sk_wrong",
        "authorization: sk_test_acme",
        "authorization: Basic sk_test_acme",
        "authorization: Bearer sk_test_acme\r\nauthorization: Bearer sk_test_globex",
        "x: y",
    ] {
        let request = String::from_utf8(raw(&[b"idempotency-key: k"], BODY.len(), BODY.as_bytes()))
            .unwrap()
            .replace("authorization: Bearer sk_test_acme", token);
        assert_eq!(
            servers.status_of_raw(request.as_bytes()).await,
            "401",
            "{token}"
        );
    }
}

#[tokio::test]
async fn two_customers_never_meet() {
    let servers = Servers::start().await;
    let acme = servers.charge("k", BODY).await;
    let request =
        String::from_utf8(raw(&[b"idempotency-key: k"], BODY.len(), BODY.as_bytes())).unwrap();
    let globex = request.replace("sk_test_acme", "sk_test_globex");
    assert_eq!(servers.status_of_raw(globex.as_bytes()).await, "201");
    assert_eq!(servers.ledger().len(), 2);
    assert_eq!(servers.charge("k", BODY).await.body, acme.body);
}

#[tokio::test]
async fn a_declined_card_is_declined_once() {
    let servers = Servers::start().await;
    let body = BODY.replace("tok_visa", "tok_declined");
    let first = servers.charge("k", &body).await;
    let again = servers.charge("k", &body).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (402, 402));
    assert_eq!(first.body, again.body);
    assert_eq!(servers.calls().await, 1);
    // A key is not freed by a refusal that came from the provider.
    assert_eq!(servers.charge("k", BODY).await.status, 422);
}

#[tokio::test]
async fn a_provider_that_turns_us_away_is_asked_again_under_the_same_key() {
    let servers = Servers::start().await;
    let body = BODY.replace("tok_visa", "tok_busy");
    let first = servers.charge("k", &body).await;
    assert_eq!(first.status, 429);
    assert_eq!(first.header("retry-after"), Some("1"));
    assert_eq!(servers.charge("k", BODY).await.status, 422);
    let again = servers.charge("k", &body).await;
    assert_eq!(again.status, 201);
    assert_eq!(again.header("idempotent-replayed"), None);
    assert_eq!((servers.calls().await, servers.ledger().len()), (2, 1));
}

#[tokio::test]
async fn a_silent_provider_has_charged_once() {
    let servers = Servers::start().await;
    let body = BODY.replace("tok_visa", "tok_slow");
    let silent = servers.charge("k", &body).await;
    assert_eq!(silent.status, 504);
    assert_eq!(silent.header("retry-after"), Some("1"));
    let again = servers.charge_patiently("k", &body).await;
    assert_eq!(again.status, 201);
    assert_eq!((servers.calls().await, servers.ledger().len()), (2, 1));
}

#[tokio::test]
async fn a_running_request_is_a_409_that_says_when_to_come_back() {
    let servers = Arc::new(Servers::start().await);
    let body = BODY.replace("tok_visa", "tok_unhurried");
    let first = tokio::spawn({
        let (servers, body) = (Arc::clone(&servers), body.clone());
        async move { servers.charge("k", &body).await }
    });
    while servers.calls().await == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let busy = servers.charge("k", &body).await;
    assert_eq!(busy.status, 409);
    assert_eq!(busy.header("retry-after"), Some("1"));
    // What the key is bound to comes before whether it is running.
    assert_eq!(servers.charge("k", BODY).await.status, 422);
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test]
async fn other_paths_and_methods_are_problems_too() {
    let servers = Servers::start().await;
    let elsewhere = servers.post("/v2/charges", &[], "").await;
    assert_eq!(elsewhere.status, 404);
    let get = b"GET /v1/charges HTTP/1.1\r\nhost: charges\r\nidempotency-key: k\r\n\r\n";
    assert_eq!(servers.status_of_raw(get).await, "405");
}

#[tokio::test]
async fn without_its_store_the_service_does_nothing() {
    let servers = Servers::on(Arc::new(Unreachable)).await;
    let reply = servers.charge("k", BODY).await;
    assert_eq!(reply.status, 503);
    assert!(reply.header("retry-after").is_some());
    assert_eq!(servers.calls().await, 0);
}

/// A store that is down.
#[derive(Debug)]
struct Unreachable;

#[async_trait]
impl KeyStore for Unreachable {
    async fn claim(&self, _: &Claim) -> Result<ClaimOutcome, StoreError> {
        Err(StoreError::unavailable("connection refused"))
    }

    async fn transition(
        &self,
        _: &RecordId,
        _: Expect,
        _: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        Err(StoreError::unavailable("connection refused"))
    }

    async fn load(&self, _: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        Err(StoreError::unavailable("connection refused"))
    }

    async fn sweep(&self, _: NonZeroU32) -> Result<Swept, StoreError> {
        Err(StoreError::unavailable("connection refused"))
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}
