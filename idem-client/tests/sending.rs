//! Over real sockets, to a server that loses, delays and cuts answers.

mod support;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};
use idem_client::{
    Failure, Horizon, IdempotencyKey, InvalidOperation, Journal, LastAttempt, Operation, Parked,
    RetryPolicy, SendError, Source, State, Step,
};
use support::{Reply, Server, answer, builder, built, client, cut, policy, problem};

const REPLAYED: &str = "idempotent-replayed: true";

/// The server saw the same bytes so many times.
fn assert_same_bytes(server: &Server, times: usize) {
    let requests = server.requests();
    assert_eq!(requests.len(), times, "{requests:#?}");
    assert!(
        requests.iter().all(|one| *one == requests[0]),
        "{requests:#?}"
    );
    assert!(
        requests[0].starts_with("POST /charges?live=1 HTTP/1.1\r\n"),
        "{requests:#?}"
    );
    assert!(
        requests[0].ends_with("\r\n\r\n{\"amount\":2500}"),
        "{requests:#?}"
    );
    let key = server.operation().key().as_str().to_owned();
    assert!(
        requests[0].contains(&format!("\r\nidempotency-key: {key}\r\n")),
        "{requests:#?}"
    );
}

#[tokio::test]
async fn an_answer_that_is_lost_is_asked_for_again_with_the_same_bytes() {
    // Nothing, a connection that is closed at once, in the status line, in the header, in the body.
    for lost in [Reply::Silence, cut(0), cut(8), cut(30), cut(80)] {
        let journal = Journal::open_in_memory().await.unwrap();
        let server = Server::start(vec![lost.clone(), answer(201, &[REPLAYED], "ch_1")]).await;
        let client = built(builder(&journal, policy()).attempt_timeout(Duration::from_millis(300)));
        let finished = client.send(&server.operation()).await.unwrap();
        assert_eq!(finished.answer().body(), "ch_1", "{lost:?}");
        assert!(finished.answer().is_replayed());
        assert_same_bytes(&server, 2);
        let entry = journal.entry(finished.key()).await.unwrap().unwrap();
        assert_eq!(entry.attempts, 2);
        finished.acknowledge().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_in_progress_is_waited_for_and_a_mismatch_is_not() {
    let journal = Journal::open_in_memory().await.unwrap();
    let busy = problem(409, "request-in-progress");
    let server = Server::start(vec![busy.clone(), busy, answer(201, &[], "ch_1")]).await;
    let finished = client(&journal).send(&server.operation()).await.unwrap();
    assert_eq!(finished.answer().status(), 201);
    assert_same_bytes(&server, 3);

    for status in [400, 401, 403, 404, 422] {
        let journal = Journal::open_in_memory().await.unwrap();
        let server = Server::start(vec![problem(status, "key-reused")]).await;
        let finished = client(&journal).send(&server.operation()).await.unwrap();
        assert_eq!(finished.answer().status(), status);
        assert_same_bytes(&server, 1);
    }
}

/// The clock of the runtime stands still and jumps while nothing but a pause is waited for.
fn skip_pauses(step: Step) {
    match step {
        Step::Pausing { .. } => tokio::time::pause(),
        Step::Journaled { attempt } if attempt > 1 => tokio::time::resume(),
        _ => {}
    }
}

#[tokio::test]
async fn the_server_is_left_alone_as_long_as_it_asks_within_the_deadline() {
    let deadline = Duration::from_secs(1200);
    let in_an_hour = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    for value in ["3600".to_owned(), in_an_hour] {
        let journal = Journal::open_in_memory().await.unwrap();
        let line = format!("retry-after: {value}");
        let busy = answer(429, &[&line], "");
        let server = Server::start(vec![busy.clone(), busy]).await;
        let pauses: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let observed = Arc::clone(&pauses);
        let policy = policy().deadline(deadline);
        let client = built(builder(&journal, policy).observe(move |_, step| {
            if let Step::Pausing { pause, .. } = step {
                observed.lock().unwrap().push(pause);
            }
            skip_pauses(step);
        }));
        let given_up = client.send(&server.operation()).await.unwrap_err();
        // At the deadline it was tried once more, and not after it.
        let SendError::GaveUp { attempts, last, .. } = given_up else {
            panic!("{given_up:?}");
        };
        assert_eq!(attempts, 2);
        assert!(
            matches!(last, LastAttempt::Answered { status } if status == 429),
            "{last:?}"
        );
        // Without the header it would have been 4 ms at most. Some of the deadline had passed by then.
        let pauses = pauses.lock().unwrap().clone();
        assert!(pauses.len() == 1 && pauses[0] <= deadline, "{pauses:?}");
        assert!(pauses[0] > deadline / 2, "{pauses:?}");
        let pending = journal.pending().await.unwrap();
        assert_eq!(pending[0].state, State::Pending);
        assert_eq!(pending[0].last_outcome.as_deref(), Some("answered 429"));
    }
}

#[tokio::test]
async fn the_server_is_left_alone_no_longer_than_it_asks() {
    let journal = Journal::open_in_memory().await.unwrap();
    let busy = answer(409, &["retry-after: 60"], "");
    let server = Server::start(vec![busy, answer(201, &[], "ch_1")]).await;
    let pauses: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let observed = Arc::clone(&pauses);
    let client = built(builder(&journal, policy()).observe(move |_, step| {
        if let Step::Pausing { pause, .. } = step {
            observed.lock().unwrap().push(pause);
        }
        skip_pauses(step);
    }));
    let finished = client.send(&server.operation()).await.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_eq!(*pauses.lock().unwrap(), [Duration::from_secs(60)]);
}

#[tokio::test]
async fn a_failure_is_believed_when_it_is_replayed() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![
        answer(500, &[], "boom"),
        answer(500, &[REPLAYED], "boom"),
    ])
    .await;
    let finished = client(&journal).send(&server.operation()).await.unwrap();
    assert_eq!(finished.answer().status(), 500);
    assert_eq!(finished.answer().body(), "boom");
    assert_same_bytes(&server, 2);
}

#[tokio::test]
async fn an_empty_answer_is_one_and_comes_from_the_journal_until_it_is_acknowledged() {
    for reply in [
        answer(204, &[], ""),
        answer(200, &["x-a: 1", "x-a: 2"], ""),
        answer(200, &[], "false"),
    ] {
        let journal = Journal::open_in_memory().await.unwrap();
        let server = Server::start(vec![reply]).await;
        let client = client(&journal);
        let first = client.send(&server.operation()).await.unwrap();
        assert_eq!(first.source(), Source::Service);
        let again = client.send(&server.operation()).await.unwrap();
        assert_eq!(again.source(), Source::Journal);
        assert_eq!(first.answer(), again.answer());
        assert_same_bytes(&server, 1);
        assert!(journal.pending().await.unwrap().is_empty());
        assert_eq!(journal.unfinished().await.unwrap().len(), 1);

        first.acknowledge().await.unwrap();
        let closed = client.send(&server.operation()).await.unwrap_err();
        assert!(matches!(closed, SendError::Closed { .. }), "{closed:?}");
        assert_same_bytes(&server, 1);
        // What was sent and answered is gone, and the key is not.
        assert!(journal.unfinished().await.unwrap().is_empty());
        let entry = journal.entry(again.key()).await.unwrap().unwrap();
        assert_eq!(entry.state, State::Closed);
        assert_eq!(journal.forget(Duration::ZERO).await.unwrap(), 1);
        assert_eq!(journal.entry(again.key()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_outcome_that_nobody_knows_is_parked_until_somebody_has_looked() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![
        problem(409, "outcome-unknown"),
        answer(201, &[], "ch_1"),
    ])
    .await;
    let client = client(&journal);
    let operation = server.operation();
    let error = client.send(&operation).await.unwrap_err();
    let SendError::Parked { why, answer, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*why, Parked::OutcomeUnknown);
    assert_eq!(answer.as_ref().unwrap().status(), 409);

    // Neither by the same call, nor by resuming.
    let error = client.send(&operation).await.unwrap_err();
    assert!(matches!(error, SendError::Parked { .. }), "{error:?}");
    let resumed = client.resume_all(NonZeroUsize::MIN).await.unwrap();
    assert!(matches!(
        resumed[0].result,
        Err(SendError::Parked {
            why: Parked::OutcomeUnknown,
            ..
        })
    ));
    assert_same_bytes(&server, 1);
    let pending = journal.pending().await.unwrap();
    assert_eq!(pending[0].state, State::Parked(Parked::OutcomeUnknown));
    assert_eq!(pending[0].label.as_deref(), Some("charge order-4711"));

    assert!(
        journal
            .unpark(operation.key(), "the provider knows nothing of it")
            .await
            .unwrap()
    );
    assert!(!journal.unpark(operation.key(), "again").await.unwrap());
    let mut resumed = client.resume_all(NonZeroUsize::MIN).await.unwrap();
    let finished = resumed.remove(0).result.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_same_bytes(&server, 2);
}

#[tokio::test]
async fn a_parked_operation_that_somebody_closed_is_over() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![problem(409, "outcome-unknown")]).await;
    let client = client(&journal);
    let operation = server.operation();
    client.send(&operation).await.unwrap_err();
    // It has no answer that could be acknowledged.
    assert!(!journal.acknowledge(operation.key()).await.unwrap());
    assert!(
        journal
            .close_operation(operation.key(), "charged, says the provider")
            .await
            .unwrap()
    );
    assert!(
        !journal
            .close_operation(operation.key(), "again")
            .await
            .unwrap()
    );
    assert!(journal.pending().await.unwrap().is_empty());
    let error = client.send(&operation).await.unwrap_err();
    assert!(matches!(error, SendError::Closed { .. }), "{error:?}");
    let entry = journal.entry(operation.key()).await.unwrap().unwrap();
    assert_eq!(entry.note.as_deref(), Some("charged, says the provider"));
    assert_same_bytes(&server, 1);
}

#[tokio::test]
async fn attempts_are_bounded_and_what_has_no_answer_stays_pending() {
    let journal = Journal::open_in_memory().await.unwrap();
    let down = answer(503, &[], "");
    let mut script = vec![down.clone(), down.clone(), down];
    script.push(answer(201, &[], "ch_1"));
    let server = Server::start(script).await;
    let client = built(builder(&journal, policy().attempts(3)));
    let error = client.send(&server.operation()).await.unwrap_err();
    assert!(
        matches!(error, SendError::GaveUp { attempts: 3, .. }),
        "{error:?}"
    );
    assert_same_bytes(&server, 3);
    let finished = client.resume(server.operation().key()).await.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_same_bytes(&server, 4);
}

#[tokio::test]
async fn a_server_that_is_not_there_was_sent_nothing() {
    let journal = Journal::open_in_memory().await.unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let operation = Operation::post(url)
        .key_for("charge", "secret-order")
        .build()
        .unwrap();
    let client = built(builder(&journal, policy().attempts(2)));
    let error = client.send(&operation).await.unwrap_err();
    let SendError::GaveUp {
        last: LastAttempt::Failed { failure, .. },
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(*failure, Failure::NotSent);
    // Neither the key nor the address is told to a log.
    let mut told = format!("{error} {error:?}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        told += &format!(" {error}");
        source = error.source();
    }
    assert!(
        !told.contains(operation.key().as_str()) && !told.contains("http://"),
        "{told}"
    );
    assert_eq!(journal.pending().await.unwrap()[0].attempts, 2);
}

#[tokio::test]
async fn credentials_are_sent_with_every_attempt_and_kept_nowhere() {
    let directory = support::directory();
    let path = directory.path().join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    let server = Server::start(vec![cut(0), answer(503, &[], "")]).await;
    let client = built(
        builder(&journal, policy().attempts(2)).credentials(|outgoing| {
            let token = format!("Bearer hunter{}", outgoing.attempt);
            async move {
                let mut lines = HeaderMap::new();
                lines.insert(AUTHORIZATION, token.parse()?);
                // What the operation has itself is not replaced.
                lines.insert("x-account", HeaderValue::from_static("mallory"));
                lines.insert("idempotency-key", HeaderValue::from_static("another"));
                Ok(lines)
            }
        }),
    );
    client.send(&server.operation()).await.unwrap_err();
    let requests = server.requests();
    for (number, request) in (1..).zip(&requests) {
        assert!(
            request.contains(&format!("authorization: Bearer hunter{number}\r\n")),
            "{request}"
        );
        assert!(
            !request.contains("mallory") && !request.contains("another"),
            "{request}"
        );
    }
    assert_eq!(requests[0].replace("hunter1", "hunter2"), requests[1]);
    journal.close().await;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let held = std::fs::read(file.unwrap().path()).unwrap();
        let held = String::from_utf8_lossy(&held).into_owned();
        assert!(!held.contains("hunter"), "{held}");
    }
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![]).await;
    let client = built(
        builder(&journal, policy()).credentials(|_| async { Err("the vault is sealed".into()) }),
    );
    let error = client.send(&server.operation()).await.unwrap_err();
    let SendError::Credentials { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.to_string(), "the vault is sealed");
    assert_eq!(server.requests().len(), 0);
    assert_eq!(journal.pending().await.unwrap()[0].state, State::Pending);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_operation_pending_and_free() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![Reply::Silence, answer(201, &[REPLAYED], "ch_1")]).await;
    let client = client(&journal);
    let operation = server.operation();
    tokio::select! {
        biased;
        () = server.has_received(1) => {}
        sent = client.send(&operation) => panic!("{sent:?}"),
    }
    assert_eq!(journal.pending().await.unwrap()[0].state, State::Pending);
    let finished = client.send(&operation).await.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_same_bytes(&server, 2);
}

#[tokio::test]
async fn one_task_at_a_time_sends_an_operation() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![Reply::Silence]).await;
    let client = client(&journal);
    let operation = server.operation();
    let sending = tokio::spawn({
        let (client, operation) = (client.clone(), operation.clone());
        async move { client.send(&operation).await.map(drop) }
    });
    server.has_received(1).await;
    let error = client.send(&operation).await.unwrap_err();
    assert!(matches!(error, SendError::Busy { .. }), "{error:?}");
    let resumed = client.resume_all(NonZeroUsize::MIN).await.unwrap();
    assert!(matches!(resumed[0].result, Err(SendError::Busy { .. })));
    // Nor is it closed under the hands of whoever sends it.
    assert!(!journal.close_operation(operation.key(), "").await.unwrap());
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    assert_same_bytes(&server, 1);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_not_sent() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![answer(201, &[], "ch_1")]).await;
    let client = client(&journal);
    let key = IdempotencyKey::new("the caller's own").unwrap();
    let first = server.charge().key(key.clone()).build().unwrap();
    assert_eq!(first.key(), &key);
    let finished = client.send(&first).await.unwrap();
    assert!(server.requests()[0].contains("idempotency-key: \"the caller's own\"\r\n"));
    let send_others = async || {
        for other in [
            server.charge().body(r#"{"amount":2501}"#),
            server.charge().header("x-account", "umbrella"),
            Operation::post(server.url("/refunds")).body(r#"{"amount":2500}"#),
            Operation::builder(Method::PUT, server.url("/charges?live=1")),
        ] {
            let other = other.key(key.clone()).build().unwrap();
            let error = client.send(&other).await.unwrap_err();
            assert!(matches!(error, SendError::Different { .. }), "{error:?}");
        }
    };
    send_others().await;
    // Not even when the journal has forgotten what it was.
    finished.acknowledge().await.unwrap();
    send_others().await;
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![answer(307, &["location: /elsewhere"], "")]).await;
    let finished = client(&journal).send(&server.operation()).await.unwrap();
    assert_eq!(finished.answer().status(), 307);
    assert_same_bytes(&server, 1);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_left_out_and_cookies_always() {
    let journal = Journal::open_in_memory().await.unwrap();
    let long = answer(
        201,
        &["x-id: ch_1", "set-cookie: session=hunter2"],
        &"x".repeat(1001),
    );
    let server = Server::start(vec![long]).await;
    let client = built(builder(&journal, policy()).answer_limit(1000));
    let finished = client.send(&server.operation()).await.unwrap();
    assert!(finished.answer().is_cut() && finished.answer().body().is_empty());
    assert_eq!(finished.answer().headers()["x-id"], "ch_1");
    assert!(!finished.answer().headers().contains_key("set-cookie"));
    let again = client.send(&server.operation()).await.unwrap();
    assert_eq!(again.answer(), finished.answer());
}

#[tokio::test]
async fn resuming_takes_up_everything_that_is_not_over() {
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start((0..20).map(|_| answer(201, &[], "done")).collect()).await;
    let client = client(&journal);
    for number in 0..20 {
        let charge = Operation::post(server.url("/")).key_for("charge", &number.to_string());
        let recorded = journal
            .record(&charge.build().unwrap(), support::horizon())
            .await
            .unwrap();
        assert_eq!(recorded, idem_client::Recorded::There(State::Pending));
    }
    let resumed = client
        .resume_all(NonZeroUsize::new(3).unwrap())
        .await
        .unwrap();
    assert_eq!(resumed.len(), 20);
    for one in resumed {
        let finished = one.result.unwrap();
        assert_eq!(finished.source(), Source::Service);
    }
    // Nobody acknowledged anything, so everything comes again, and nothing is sent.
    let resumed = client
        .resume_all(NonZeroUsize::new(3).unwrap())
        .await
        .unwrap();
    for one in resumed {
        one.result.unwrap().acknowledge().await.unwrap();
    }
    assert_eq!(server.requests().len(), 20);
    assert!(
        client
            .resume_all(NonZeroUsize::MIN)
            .await
            .unwrap()
            .is_empty()
    );
    let absent = IdempotencyKey::new("absent").unwrap();
    let error = client.resume(&absent).await.unwrap_err();
    assert!(matches!(error, SendError::Absent { .. }), "{error:?}");
}

#[test]
fn what_cannot_be_sent_or_must_not_be_kept_is_no_operation() {
    for url in [
        "",
        "/charges",
        "ftp://a.example/",
        "http://",
        "http://a b/",
        "http://a/#b",
    ] {
        let refused = Operation::post(url).build();
        assert!(
            matches!(refused, Err(InvalidOperation::Url)),
            "{url:?} {refused:?}"
        );
    }
    let post = || Operation::post("https://a.example/");
    for secret in [
        post().header("Authorization", "Bearer hunter2"),
        post().header("proxy-authorization", "hunter2"),
        post().header("cookie", "hunter2"),
        post().header("x-api-key", {
            let mut value = HeaderValue::from_static("hunter2");
            value.set_sensitive(true);
            value
        }),
        Operation::post("https://me:hunter2@a.example/"),
    ] {
        let refused = secret.build().unwrap_err();
        assert!(
            matches!(refused, InvalidOperation::Secret { .. }),
            "{refused:?}"
        );
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
    let refused = post().header("idempotency-key", "k").build();
    assert!(matches!(refused, Err(InvalidOperation::KeyAsHeader)));
    let refused = post().header("a b", "c").build();
    assert!(matches!(refused, Err(InvalidOperation::HeaderName)));
    let refused = post().header("a", "b\r\nc: d").build();
    assert!(matches!(refused, Err(InvalidOperation::HeaderValue { .. })));
}

#[test]
fn the_callers_own_key_wins_and_a_random_one_is_made_once() {
    let post = || Operation::post("https://a.example/");
    let own = IdempotencyKey::new("own").unwrap();
    for built in [
        post().key(own.clone()).key_for("charge", "1"),
        post().key_for("charge", "1").key(own.clone()),
    ] {
        assert_eq!(built.build().unwrap().key(), &own);
    }
    let [one, other] = [(); 2].map(|()| post().build().unwrap());
    assert_ne!(one.key(), other.key());
    assert_eq!(&one.key().as_str()[14..15], "4");
    assert_eq!(one.clone().key(), one.key());
    let name = http::HeaderName::from_static("x-request-id");
    let other = post().key(own).key_header(name).build().unwrap();
    assert_eq!(other.headers()["x-request-id"], "own");
    assert!(!other.headers().contains_key("idempotency-key"));
}

#[tokio::test]
async fn what_began_under_a_shorter_horizon_keeps_it_under_another_policy() {
    let [hour, week] = [1, 7 * 24].map(|hours| Duration::from_secs(hours * 3600));
    let journal = Journal::open_in_memory().await.unwrap();
    let busy = answer(429, &["retry-after: 7200"], "");
    let server = Server::start(vec![busy, answer(201, &[], "ch_1")]).await;
    let operation = server.operation();
    let horizon = Horizon::within(hour, hour).unwrap();
    journal.record(&operation, horizon).await.unwrap();
    let longer = RetryPolicy::until(Horizon::within(week, week).unwrap()).deadline(3 * hour);
    let client = built(builder(&journal, longer).observe(|_, step| skip_pauses(step)));
    // When the server wants to hear of it again, it is too old.
    let error = client.send(&operation).await.unwrap_err();
    let past = Parked::PastHorizon;
    assert!(
        matches!(&error, SendError::Parked { why, .. } if *why == past),
        "{error:?}"
    );
    assert_same_bytes(&server, 1);
    assert_eq!(
        journal.pending().await.unwrap()[0].state,
        State::Parked(past)
    );
}

#[tokio::test]
async fn an_attempt_ends_with_the_horizon() {
    let short = Duration::from_millis(200);
    let journal = Journal::open_in_memory().await.unwrap();
    let server = Server::start(vec![Reply::Silence]).await;
    let policy = RetryPolicy::until(Horizon::within(short, short).unwrap());
    let client = built(builder(&journal, policy).attempt_timeout(Duration::from_secs(3600)));
    let error = client.send(&server.operation()).await.unwrap_err();
    let past = Parked::PastHorizon;
    assert!(
        matches!(&error, SendError::Parked { why, .. } if *why == past),
        "{error:?}"
    );
    assert_same_bytes(&server, 1);
}
