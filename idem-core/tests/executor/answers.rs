//! What senders are told: the first, the second, and everybody whose request does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Skewed, held, request, request_for, response, seconds, store};
use idem_core::executor::{
    Answer, Attempt, Begin, Idempotency, Json, NoProviderKey, Outcome, PublicError, Storable,
    Unreadable,
};
use idem_core::{Body, Mismatch, OnBusy, Policy, RecoveryPoint, Response, Span, Status};
use tokio::sync::Barrier;

async fn unreachable_handler(_attempt: Attempt) -> Outcome<Response> {
    panic!("this handler must not be called")
}

#[tokio::test(start_paused = true)]
async fn the_second_sender_gets_the_first_ones_answer() {
    let idempotency = Idempotency::new(store());
    let first = idempotency
        .execute(&request(), |_| async {
            Outcome::Completed(response("ch_1"))
        })
        .await
        .unwrap();
    assert_eq!(first, Answer::Fresh(response("ch_1")));
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn a_failure_for_good_replays_too() {
    let idempotency = Idempotency::new(store());
    let declined = || Response::new(402).body("declined");
    let first = idempotency
        .execute(&request(), |_| async { Outcome::Failed(declined()) })
        .await
        .unwrap();
    assert_eq!(first, Answer::Fresh(declined()));
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(declined()));
}

#[tokio::test(start_paused = true)]
async fn values_that_look_like_nothing_are_answers_like_any_other() {
    async fn twice<T>(value: T)
    where
        T: Clone + std::fmt::Debug + PartialEq + serde::Serialize + serde::de::DeserializeOwned,
    {
        let idempotency = Idempotency::new(store());
        let mine = value.clone();
        let first = idempotency
            .execute(&request(), |_| async { Outcome::Completed(Json(mine)) })
            .await
            .unwrap();
        assert_eq!(first, Answer::Fresh(Json(value.clone())));
        let again = idempotency
            .execute(&request(), |_| async {
                Outcome::Rejected(Json(value.clone()))
            })
            .await
            .unwrap();
        assert_eq!(again, Answer::Replayed(Json(value)));
    }
    twice(()).await;
    twice(false).await;
    twice(0).await;
    twice(String::new()).await;
    twice(None::<u32>).await;
    twice(Vec::<u8>::new()).await;

    let idempotency = Idempotency::new(store());
    let nothing = |_| async { Outcome::Completed(Response::new(204)) };
    assert_eq!(
        idempotency.execute(&request(), nothing).await.unwrap(),
        Answer::Fresh(Response::new(204))
    );
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(Response::new(204)));
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_key_is_refused_on_every_route() {
    let policy = Policy::builder()
        .lease(seconds(90))
        .heartbeat(Duration::ZERO)
        .on_busy(OnBusy::Wait(Policy::default().lease()))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(store()).with_policy(policy);
    let other_payload = request_for("POST /v1/charges", 2000);
    let other_operation = request_for("POST /v1/refunds", 1000);
    let refused = |idempotency: Idempotency<_>| {
        let (payload, operation) = (other_payload.clone(), other_operation.clone());
        async move {
            let answer = idempotency
                .execute(&payload, unreachable_handler)
                .await
                .unwrap();
            assert_eq!(answer, Answer::Mismatch(Mismatch::Payload));
            let answer = idempotency
                .execute(&operation, unreachable_handler)
                .await
                .unwrap();
            assert_eq!(answer, Answer::Mismatch(Mismatch::Operation));
        }
    };

    // While it runs; nobody waits for an answer that is not theirs.
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    refused(idempotency.clone()).await;
    // When its lease is over, before the takeover.
    tokio::time::advance(seconds(91)).await;
    refused(idempotency.clone()).await;
    // When it failed and may be tried again.
    assert_eq!(
        execution
            .finish(Outcome::Retryable(response("later")))
            .await,
        Answer::Fresh(response("later"))
    );
    refused(idempotency.clone()).await;
    // When it is done.
    let done = idempotency
        .execute(&request(), |_| async {
            Outcome::Completed(response("ch_1"))
        })
        .await
        .unwrap();
    assert_eq!(done, Answer::Fresh(response("ch_1")));
    refused(idempotency.clone()).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_with_another_payload_is_refused_at_once() {
    let wait = Policy::builder()
        .on_busy(OnBusy::Wait(Policy::default().lease()))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(store()).with_policy(wait);
    let Begin::Execute(_execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let before = tokio::time::Instant::now();
    let answer = idempotency
        .execute(&request_for("POST /v1/charges", 1), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(answer, Answer::Mismatch(Mismatch::Payload));
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_second_sender_is_told_that_the_first_is_running() {
    let idempotency = Idempotency::new(store());
    let Begin::Execute(_execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    tokio::time::advance(seconds(10)).await;
    let answer = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    let Answer::Busy { remaining } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(remaining.as_duration(), seconds(80));
}

#[tokio::test]
async fn of_many_at_once_one_runs_and_all_who_wait_get_its_answer() {
    const SENDERS: usize = 64;
    let wait = Policy::builder()
        .on_busy(OnBusy::Wait(Policy::default().lease()))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(store()).with_policy(wait);
    let (barrier, runs) = (
        Arc::new(Barrier::new(SENDERS)),
        Arc::new(AtomicUsize::new(0)),
    );
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (idempotency, barrier, runs) = (idempotency.clone(), barrier.clone(), runs.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                let work = |_| async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Outcome::Completed(response("ch_1"))
                };
                idempotency.execute(&request(), work).await.unwrap().value()
            })
        })
        .collect();
    for sender in senders {
        assert_eq!(sender.await.unwrap(), Some(response("ch_1")));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    idempotency.idle().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_they_said() {
    let wait = |millis| {
        let longest = idem_core::Span::from_millis(millis);
        Policy::builder()
            .on_busy(OnBusy::Wait(longest))
            .build()
            .unwrap()
    };
    let idempotency = Idempotency::new(store());
    let Begin::Execute(_execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let idempotency = idempotency.with_policy(wait(200));
            tokio::spawn(async move {
                let before = tokio::time::Instant::now();
                let answer = idempotency
                    .execute(&request(), unreachable_handler)
                    .await
                    .unwrap();
                (answer, before.elapsed())
            })
        })
        .collect();
    for waiter in waiting {
        let (answer, waited) = waiter.await.unwrap();
        assert!(matches!(answer, Answer::Busy { .. }), "{answer:?}");
        assert!(
            waited >= Duration::from_millis(200) && waited < Duration::from_millis(205),
            "{waited:?}"
        );
    }
}

#[derive(Debug)]
struct OutOfPaper;

impl PublicError for OutOfPaper {
    fn public_outcome(&self) -> Outcome<Response> {
        Outcome::Failed(Response::new(500).body("the receipt could not be printed"))
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_work_is_never_run_again() {
    let idempotency = Idempotency::new(store());
    let fail = |_| async { Err::<Outcome<Response>, _>(OutOfPaper) };
    let answer = idempotency.execute(&request(), fail).await.unwrap();
    assert_eq!(
        answer,
        Answer::Fresh(OutOfPaper.public_outcome().answer().clone())
    );
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(
        again,
        Answer::Replayed(OutOfPaper.public_outcome().answer().clone())
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_for_good_and_goes_no_further() {
    let idempotency = Idempotency::new(store());
    let answer = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(answer, Answer::Fresh(Response::new(500)));
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(Response::new(500)));
    assert_eq!(idempotency.in_flight(), 0);

    // As a value it cannot be read, and says so with the response that is kept.
    let typed = |_| async { Outcome::Completed(Json(1)) };
    let again = idempotency.execute(&request(), typed).await.unwrap();
    assert_eq!(again, Answer::Unreadable(Response::new(500)));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_leaves_its_key_unused() {
    let store = store();
    let idempotency = Idempotency::new(store.clone());
    let reject = |_| async { Outcome::Rejected(Response::new(422)) };
    let answer = idempotency
        .execute(&request_for("POST /v1/charges", 0), reject)
        .await
        .unwrap();
    assert_eq!(answer, Answer::Fresh(Response::new(422)));
    assert_eq!(held(&store).await, None);
    // Corrected, under the same key.
    let charge = |_| async { Outcome::Completed(response("ch_1")) };
    let answer = idempotency.execute(&request(), charge).await.unwrap();
    assert_eq!(answer, Answer::Fresh(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn no_answer_frees_a_key_after_the_work_has_begun() {
    for late in [
        Outcome::Rejected(Response::new(404)),
        Outcome::Retryable(Response::new(429)),
    ] {
        let store = store();
        let idempotency = Idempotency::new(store.clone());
        let answer = late.answer().clone();
        let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = keys.clone();
        let work = |attempt: Attempt| async move {
            seen.lock()
                .unwrap()
                .push(attempt.provider_key("charge").unwrap());
            late
        };
        assert_eq!(
            idempotency.execute(&request(), work).await.unwrap(),
            Answer::Fresh(answer)
        );
        let record = held(&store).await.expect("the key stays bound");
        assert_eq!(
            (record.status(), record.uncertain),
            (Status::FailedRetryable, true)
        );
        // Another payload does not get the key, and the same one calls the provider with the same key.
        let other = idempotency
            .execute(&request_for("POST /v1/charges", 1), unreachable_handler)
            .await;
        assert_eq!(other.unwrap(), Answer::Mismatch(Mismatch::Payload));
        let seen = keys.clone();
        let again = |attempt: Attempt| async move {
            seen.lock()
                .unwrap()
                .push(attempt.provider_key("charge").unwrap());
            Outcome::Completed(response("ch_1"))
        };
        let answer = idempotency.execute(&request(), again).await.unwrap();
        assert_eq!(answer, Answer::Fresh(response("ch_1")));
        let keys = keys.lock().unwrap();
        assert_eq!(keys[0], keys[1]);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_after_an_answer_that_nothing_has_begun() {
    for outcome in [Outcome::Rejected, Outcome::Retryable] {
        let idempotency = Idempotency::new(store());
        let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
            panic!()
        };
        // Some part of the handler goes on after its answer.
        let attempt = execution.attempt();
        let answer = execution.finish(outcome(response("no"))).await;
        assert_eq!(answer, Answer::Fresh(response("no")));
        assert_eq!(attempt.provider_key("charge"), Err(NoProviderKey::Ended));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retryable_failure_runs_again_and_keeps_its_key_bound() {
    let idempotency = Idempotency::new(store());
    for expected in 1..=12 {
        // More often than an uncertain record may be reclaimed: harmless failures do not count.
        let later = |attempt: Attempt| async move {
            assert_eq!(attempt.number().as_u32(), expected);
            Outcome::Retryable(Response::new(429))
        };
        let answer = idempotency.execute(&request(), later).await.unwrap();
        assert_eq!(answer, Answer::Fresh(Response::new(429)));
    }
    let answer = idempotency
        .execute(&request_for("POST /v1/charges", 1), unreachable_handler)
        .await;
    assert_eq!(answer.unwrap(), Answer::Mismatch(Mismatch::Payload));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_waits_for_its_lease_and_keeps_its_provider_key() {
    let idempotency = Idempotency::new(store());
    let (first_key, origin) = {
        let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
            panic!()
        };
        let attempt = execution.attempt();
        let key = attempt.provider_key("charge").unwrap();
        let told = execution.finish(Outcome::Unknown(Response::new(504))).await;
        assert_eq!(told, Answer::Fresh(Response::new(504)));
        (key, attempt.fence().origin)
    };
    let busy = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert!(matches!(busy, Answer::Busy { .. }), "{busy:?}");
    tokio::time::advance(seconds(90)).await;
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert_eq!(execution.attempt().number().as_u32(), 2);
    assert_eq!(execution.attempt().fence().origin, origin);
    assert_eq!(
        execution.attempt().provider_key("charge").unwrap(),
        first_key
    );
}

#[tokio::test(start_paused = true)]
async fn the_provider_key_is_refused_when_the_provider_may_have_forgotten_it() {
    let policy = Policy::builder()
        .heartbeat_ceiling(seconds(3600))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(store()).with_policy(policy);
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert!(execution.attempt().provider_key("charge").is_ok());
    drop(execution);
    tokio::time::advance(seconds(19 * 3600)).await;
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let attempt = execution.attempt();
    assert!(attempt.provider_key("charge").is_ok());
    tokio::time::advance(seconds(5 * 3600)).await;
    assert!(attempt.provider_key("charge").is_err());
}

#[tokio::test(start_paused = true)]
async fn the_provider_may_have_forgotten_a_key_as_soon_as_any_clock_says_so() {
    let policy = Policy::builder()
        .reclaim_window(seconds(3600))
        .heartbeat_ceiling(seconds(3600))
        .provider_memory(seconds(7200))
        .build()
        .unwrap();
    let skewed = Skewed::new(store(), Span::from_secs(10));
    let idempotency = Idempotency::new(skewed).with_policy(policy);
    drop(idempotency.begin(&request()).await.unwrap());
    tokio::time::advance(seconds(100)).await;
    let Begin::Execute(second) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert_eq!(second.attempt().number().as_u32(), 2);
    tokio::time::advance(seconds(7200 - 100 - 11)).await;
    assert!(second.attempt().provider_key("charge").is_ok());
    tokio::time::advance(seconds(1)).await;
    assert!(second.attempt().provider_key("charge").is_err());
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_goes_on_from_the_last_checkpoint() {
    let idempotency = Idempotency::new(store());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert_eq!(execution.attempt().recovery_point(), None);
    let point =
        |name, data: &'static [u8]| RecoveryPoint::new(name).unwrap().with_data(data).unwrap();
    for name in ["validated", "reserved", "charged"] {
        execution
            .attempt()
            .checkpoint(point(name, b"\0\xff"))
            .await
            .unwrap();
    }
    drop(execution);
    tokio::time::advance(seconds(90)).await;
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let attempt = execution.attempt();
    assert_eq!(attempt.recovery_point(), Some(&point("charged", b"\0\xff")));
    // Its own numbers begin at one again, and still count as later.
    attempt.checkpoint(point("mailed", b"")).await.unwrap();
    drop(execution);
    tokio::time::advance(seconds(90)).await;
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert_eq!(
        execution.attempt().recovery_point(),
        Some(&point("mailed", b""))
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_is_omitted_and_the_work_is_done() {
    let policy = Policy::builder().response_limit(4).build().unwrap();
    let idempotency = Idempotency::new(store()).with_policy(policy);
    let work = |_| async { Outcome::Completed(response("12345")) };
    assert_eq!(
        idempotency.execute(&request(), work).await.unwrap(),
        Answer::Fresh(response("12345"))
    );
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    let Answer::Replayed(replayed) = again else {
        panic!("{again:?}")
    };
    assert_eq!(replayed, response("12345").without_body());
    assert_eq!(replayed.body_ref(), &Body::Omitted);
    let typed = |_| async { Outcome::Completed(Json(1)) };
    let again = idempotency.execute(&request(), typed).await.unwrap();
    assert_eq!(again, Answer::Unreadable(response("12345").without_body()));
}

#[tokio::test(start_paused = true)]
async fn after_its_retention_the_key_is_a_new_request() {
    let store = store();
    let idempotency = Idempotency::new(store.clone());
    let origin = |attempt: Attempt| async move {
        Outcome::Completed(Json(format!("{:?}", attempt.fence().origin)))
    };
    let first = idempotency
        .execute(&request(), origin)
        .await
        .unwrap()
        .value()
        .unwrap();
    tokio::time::advance(seconds(24 * 3600 - 1)).await;
    assert_eq!(
        idempotency.execute(&request(), origin).await.unwrap(),
        Answer::Replayed(first.clone())
    );
    tokio::time::advance(seconds(1)).await;
    let other_request = request_for("POST /v1/refunds", 1);
    let second = idempotency.execute(&other_request, origin).await.unwrap();
    assert!(
        matches!(&second, Answer::Fresh(origin) if *origin != first),
        "{second:?}"
    );
}

/// A value that panics when it is written.
#[derive(Debug, PartialEq)]
struct Unwritable;

impl Storable for Unwritable {
    fn to_response(&self) -> Response {
        panic!("planned")
    }

    fn from_response(response: Response) -> Result<Self, Unreadable> {
        Err(Unreadable { response })
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_panics_when_it_is_written_does_not_run_again() {
    for outcome in [Outcome::Completed, Outcome::Failed] {
        let store = store();
        let idempotency = Idempotency::new(store.clone());
        let work = |_| async { outcome(Unwritable) };
        let first = idempotency.execute(&request(), work).await.unwrap();
        assert_eq!(first, Answer::Unreadable(Response::new(500)));
        assert_eq!(held(&store).await.unwrap().status(), Status::FailedFinal);
        let again = idempotency.execute(&request(), unreachable_handler).await;
        assert_eq!(again.unwrap(), Answer::Replayed(Response::new(500)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_by_which_nobody_knows_is_not_a_failure_for_good() {
    type Boxed = Box<dyn std::error::Error + Send + Sync>;

    let policy = Policy::builder()
        .lease(seconds(1))
        .heartbeat_ceiling(seconds(1))
        .reclaim_window(seconds(2))
        .provider_memory(seconds(4))
        .build()
        .unwrap();
    let store = store();
    let idempotency = Idempotency::new(store.clone()).with_policy(policy);
    // The card may be charged, and the provider forgets its key while the handler looks at something else.
    let forgets = |attempt: Attempt| async move {
        attempt.provider_key("charge")?;
        tokio::time::sleep(seconds(4)).await;
        attempt.provider_key("charge")?;
        Ok::<_, Boxed>(Outcome::Completed(response("ch_1")))
    };
    let answer = idempotency.execute(&request(), forgets).await.unwrap();
    assert_eq!(answer, Answer::Fresh(Response::new(503)));
    assert_eq!(held(&store).await.unwrap().status(), Status::InProgress);

    // A checkpoint that could not be stored leaves it open as well.
    let faulty = crate::support::Faulty::new(crate::support::store());
    let idempotency = Idempotency::new(faulty.clone());
    let away = faulty.clone();
    let cannot_store = |attempt: Attempt| async move {
        away.set_from_now_on(crate::support::Fault::Unavailable);
        attempt.checkpoint(RecoveryPoint::new("charged")?).await?;
        Ok::<_, Boxed>(Outcome::Completed(response("ch_1")))
    };
    let answer = idempotency.execute(&request(), cannot_store).await.unwrap();
    assert_eq!(answer, Answer::Fresh(Response::new(503)));
    faulty.set_from_now_on(crate::support::Fault::None);
    assert_eq!(
        held(&faulty.inner).await.unwrap().status(),
        Status::InProgress
    );
}
