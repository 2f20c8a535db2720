//! Answers that are lost, stores that are away, and callers that leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use idem_core::executor::{Answer, Attempt, AttemptError, Begin, Idempotency, Outcome};
use idem_core::{Contract, OnBusy, Policy, RecoveryPoint, Response, Span, Status, StoreErrorKind};
use tokio::time::{Instant, advance, sleep};

use crate::support::{Fault, Faulty, held, request, request_for, response, seconds, store};

async fn unreachable_handler(_attempt: Attempt) -> Outcome<Response> {
    panic!("this handler must not be called")
}

async fn charge(_attempt: Attempt) -> Outcome<Response> {
    Outcome::Completed(response("ch_1"))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_runs_nothing() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    faulty.set_from_now_on(Fault::Unavailable);
    let error = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(idempotency.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_recognises_itself() {
    for lost in [Fault::AppliedAndLost, Fault::NotAppliedAndLost] {
        let faulty = Faulty::new(store());
        let idempotency = Idempotency::new(faulty.clone());
        faulty.plan_claims([lost, lost]);
        let answer = idempotency.execute(&request(), charge).await.unwrap();
        assert_eq!(answer, Answer::Fresh(response("ch_1")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_whose_answer_was_lost_recognises_itself() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    drop(idempotency.begin(&request()).await.unwrap());
    advance(seconds(90)).await;
    faulty.plan_transitions([Fault::AppliedAndLost]);
    let work = |attempt: Attempt| async move {
        assert_eq!(attempt.number().as_u32(), 2);
        Outcome::Completed(response("ch_1"))
    };
    assert_eq!(
        idempotency.execute(&request(), work).await.unwrap(),
        Answer::Fresh(response("ch_1"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_can_confirm_is_given_back() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    faulty.set_from_now_on(Fault::AppliedAndLost);
    let error = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous);
    faulty.set_from_now_on(Fault::None);
    idempotency.idle().await;
    assert_eq!(held(&faulty.inner).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_acknowledgement_was_lost_is_not_a_loss() {
    for lost in [
        Fault::AppliedAndLost,
        Fault::NotAppliedAndLost,
        Fault::Unavailable,
        Fault::Contended,
    ] {
        let faulty = Faulty::new(store());
        let idempotency = Idempotency::new(faulty.clone());
        faulty.plan_transitions([lost, lost, lost]);
        let answer = idempotency.execute(&request(), charge).await.unwrap();
        assert_eq!(answer, Answer::Fresh(response("ch_1")), "{lost:?}");
        let again = idempotency
            .execute(&request(), unreachable_handler)
            .await
            .unwrap();
        assert_eq!(again, Answer::Replayed(response("ch_1")));
    }
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_completion_whose_record_is_gone_is_unknown_not_a_success() {
    let faulty = Faulty::new(store());
    let policy = Policy::builder().retention(Duration::ZERO).build().unwrap();
    let idempotency = Idempotency::new(faulty.clone()).with_policy(policy);
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    faulty.plan_transitions([Fault::AppliedAndLost, Fault::GateBefore]);
    let finishing = tokio::spawn(execution.finish(Outcome::Completed(response("ch_1"))));
    faulty.someone_at_gate().await;
    use idem_core::KeyStore as _;
    faulty.inner.sweep(std::num::NonZeroU32::MIN).await.unwrap();
    assert_eq!(held(&faulty.inner).await, None);
    faulty.open_gate();
    assert_eq!(finishing.await.unwrap(), Answer::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_completion_whose_key_is_in_new_use_is_unknown() {
    // The new request may be another one, or the same one again: neither says anything of the old.
    for amount in [7, 1000] {
        let faulty = Faulty::new(store());
        let policy = Policy::builder().retention(Duration::ZERO).build().unwrap();
        let idempotency = Idempotency::new(faulty.clone()).with_policy(policy);
        let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
            panic!()
        };
        faulty.plan_transitions([Fault::AppliedAndLost, Fault::GateBefore]);
        let finishing = tokio::spawn(execution.finish(Outcome::Completed(response("ch_1"))));
        faulty.someone_at_gate().await;
        let later = Idempotency::new(faulty.inner.clone());
        let work = |_| async { Outcome::Completed(response("ch_2")) };
        let another = request_for("POST /v1/charges", amount);
        assert_eq!(
            later.execute(&another, work).await.unwrap(),
            Answer::Fresh(response("ch_2"))
        );
        faulty.open_gate();
        assert_eq!(finishing.await.unwrap(), Answer::OutcomeUnknown, "{amount}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_whose_acknowledgement_was_lost_is_stored_once() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    faulty.plan_transitions([Fault::AppliedAndLost, Fault::Unavailable]);
    let attempt = execution.attempt();
    attempt
        .checkpoint(RecoveryPoint::new("charged").unwrap())
        .await
        .unwrap();
    let recovery = held(&faulty.inner).await.unwrap().recovery.clone().unwrap();
    assert_eq!((recovery.point.name(), recovery.sequence), ("charged", 1));
    faulty.set_from_now_on(Fault::Unavailable);
    let error = attempt
        .checkpoint(RecoveryPoint::new("mailed").unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, AttemptError::Store(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_checkpoint_does_not_undo_a_newer_one() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let attempt = execution.attempt();
    faulty.plan_transitions([Fault::GateBefore]);
    let delayed = tokio::spawn({
        let attempt = attempt.clone();
        async move {
            attempt
                .checkpoint(RecoveryPoint::new("first").unwrap())
                .await
        }
    });
    faulty.someone_at_gate().await;
    attempt
        .checkpoint(RecoveryPoint::new("second").unwrap())
        .await
        .unwrap();
    faulty.open_gate();
    assert!(matches!(
        delayed.await.unwrap(),
        Err(AttemptError::Superseded)
    ));
    assert_eq!(
        held(&faulty.inner)
            .await
            .unwrap()
            .recovery
            .clone()
            .unwrap()
            .point
            .name(),
        "second"
    );
    assert!(!attempt.is_lease_lost());
}

#[tokio::test(start_paused = true)]
async fn storing_goes_on_when_the_caller_is_told_that_it_takes_too_long() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    faulty.set_from_now_on(Fault::Unavailable);
    let started = Instant::now();
    let told = execution.finish(Outcome::Completed(response("ch_1"))).await;
    assert_eq!(
        (told, started.elapsed()),
        (Answer::NotYetStored, seconds(10))
    );
    // For longer than the lease: the record is still ours, so the outcome still belongs there.
    sleep(seconds(300)).await;
    assert_eq!(idempotency.in_flight(), 1);
    faulty.set_from_now_on(Fault::None);
    idempotency.idle().await;
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_kept_until_the_outcome_is_stored() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    // The completion stands still for longer than the lease, and only the heartbeat keeps the key.
    faulty.plan_transitions([Fault::GateBefore]);
    let finishing = tokio::spawn(execution.finish(Outcome::Completed(response("ch_1"))));
    faulty.someone_at_gate().await;
    sleep(seconds(500)).await;
    let other = idempotency.begin(&request()).await.unwrap();
    assert!(matches!(other, Begin::Busy { .. }), "{other:?}");
    faulty.open_gate();
    assert_eq!(finishing.await.unwrap(), Answer::NotYetStored);
    idempotency.idle().await;
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn a_response_that_the_store_finds_too_large_is_shrunk_not_lost() {
    for (refusals, expected) in [
        (1, response("ch_1").without_body()),
        (2, Response::new(201).without_body()),
        (4, Response::new(201).without_body()),
    ] {
        let faulty = Faulty::new(store());
        let idempotency = Idempotency::new(faulty.clone());
        faulty.plan_transitions(vec![Fault::TooLarge; refusals]);
        let answer = idempotency.execute(&request(), charge).await.unwrap();
        assert_eq!(answer, Answer::Fresh(response("ch_1")));
        let again = idempotency
            .execute(&request(), unreachable_handler)
            .await
            .unwrap();
        assert_eq!(again, Answer::Replayed(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_given_back_when_its_caller_left_before_the_work_began() {
    for gate in [Fault::GateBefore, Fault::GateAfter] {
        let faulty = Faulty::new(store());
        let idempotency = Idempotency::new(faulty.clone());
        faulty.plan_claims([gate]);
        let leaving = tokio::spawn({
            let idempotency = idempotency.clone();
            async move { idempotency.execute(&request(), unreachable_handler).await }
        });
        faulty.someone_at_gate().await;
        leaving.abort();
        assert!(leaving.await.unwrap_err().is_cancelled());
        assert_eq!(idempotency.in_flight(), 1);
        faulty.open_gate();
        idempotency.idle().await;
        assert_eq!(held(&faulty.inner).await, None, "{gate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_left_takes_nothing_over() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    drop(idempotency.begin(&request()).await.unwrap());
    advance(seconds(90)).await;
    let expired = held(&faulty.inner).await;
    faulty.plan_claims([Fault::AppliedAndLost, Fault::GateAfter]);
    let leaving = tokio::spawn({
        let idempotency = idempotency.clone();
        async move { idempotency.execute(&request(), unreachable_handler).await }
    });
    faulty.someone_at_gate().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    faulty.open_gate();
    idempotency.idle().await;
    let left = held(&faulty.inner).await.unwrap();
    // The claim that stood at the gate may still be decided on; nothing after it is begun.
    assert!(
        Some(&left) == expired.as_ref() || left.status() == Status::FailedRetryable,
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_stored_when_its_caller_left_after_the_work() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    faulty.plan_transitions([Fault::GateBefore]);
    let leaving = tokio::spawn({
        let idempotency = idempotency.clone();
        async move { idempotency.execute(&request(), charge).await }
    });
    faulty.someone_at_gate().await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    faulty.open_gate();
    idempotency.idle().await;
    let again = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(response("ch_1")));
}

/// Drops an execution after every number of polls, and looks at what is left.
#[tokio::test(start_paused = true)]
async fn an_execution_can_be_dropped_at_every_await() {
    for with_faults in [false, true] {
        for polls in 0.. {
            let faulty = Faulty::new(store());
            if with_faults {
                faulty.plan_claims([Fault::AppliedAndLost, Fault::Contended, Fault::None]);
                faulty.plan_transitions([
                    Fault::AppliedAndLost,
                    Fault::Unavailable,
                    Fault::Contended,
                ]);
            }
            let idempotency = Idempotency::new(faulty.clone());
            let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let work = {
                let (started, ended) = (started.clone(), ended.clone());
                |_| async move {
                    started.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(10)).await;
                    ended.fetch_add(1, Ordering::SeqCst);
                    Outcome::Completed(response("ch_1"))
                }
            };
            let finished = {
                let request = request();
                let mut execution = Box::pin(idempotency.execute(&request, work));
                let mut finished = false;
                for _ in 0..polls {
                    let mut context = Context::from_waker(Waker::noop());
                    if let Poll::Ready(answer) = execution.as_mut().poll(&mut context) {
                        assert_eq!(answer.unwrap(), Answer::Fresh(response("ch_1")));
                        finished = true;
                        break;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
                finished
            };
            idempotency.idle().await;
            let left = held(&faulty.inner).await;
            match (started.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)) {
                (0, 0) => assert_eq!(left, None, "nothing was begun, so the key is unused"),
                (1, 0) => assert_eq!(left.unwrap().status(), Status::InProgress),
                (1, 1) => assert_eq!(left.unwrap().status(), Status::Completed),
                other => panic!("{other:?}"),
            }
            if finished {
                assert!(polls >= 2, "the handler alone takes two polls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_stays_locked_is_busy_not_an_error() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    faulty.set_from_now_on(Fault::Contended);
    let answer = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert!(matches!(answer, Answer::Busy { .. }), "{answer:?}");
    // Who waits gets it when the lock is gone.
    let wait = Policy::builder()
        .on_busy(OnBusy::Wait(Span::from_secs(5)))
        .build()
        .unwrap();
    faulty.set_from_now_on(Fault::None);
    faulty.plan_claims(vec![Fault::Contended; 10]);
    let answer = idempotency
        .with_policy(wait)
        .execute(&request(), charge)
        .await
        .unwrap();
    assert_eq!(answer, Answer::Fresh(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_given_back_late_does_not_free_the_key_of_the_next_one() {
    let faulty = Faulty::new(store());
    let other = Idempotency::new(faulty.inner.clone());
    let Begin::Execute(owner) = other.begin(&request()).await.unwrap() else {
        panic!()
    };
    let policy = Policy::builder()
        .on_busy(OnBusy::Wait(Span::from_secs(60)))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(faulty.clone()).with_policy(policy);
    faulty.plan_claims([Fault::NotAppliedAndLost]);
    faulty.plan_transitions([Fault::GateBefore]);
    let waiting = tokio::spawn(async move { idempotency.begin(&request()).await.unwrap() });
    // Nobody can tell whether the claim was made, so it is being given back while its caller waits for the other.
    faulty.someone_at_gate().await;
    assert_eq!(
        owner.finish(Outcome::Rejected(response("no"))).await,
        Answer::Fresh(response("no"))
    );
    let Begin::Execute(execution) = waiting.await.unwrap() else {
        panic!()
    };
    faulty.open_gate();
    sleep(seconds(1)).await;
    assert_eq!(
        held(&faulty.inner).await.unwrap().status(),
        Status::InProgress
    );
    assert_eq!(
        execution.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_that_cannot_be_renewed_is_given_back() {
    for (fault, times) in [(Fault::Unavailable, 1), (Fault::Contended, 3)] {
        let faulty = Faulty::new(store());
        let policy = Policy::builder().contract(Contract::Hold).build().unwrap();
        let idempotency = Idempotency::new(faulty.clone()).with_policy(policy);
        faulty.plan_claims([Fault::GateAfter]);
        faulty.plan_transitions(std::iter::repeat_n(fault, times));
        let begun = tokio::spawn({
            let idempotency = idempotency.clone();
            async move { idempotency.begin(&request()).await }
        });
        faulty.someone_at_gate().await;
        // The claim is answered when its lease is over.
        advance(seconds(100)).await;
        faulty.open_gate();
        assert!(!matches!(begun.await.unwrap(), Ok(Begin::Execute(_))));
        idempotency.idle().await;
        assert_eq!(held(&faulty.inner).await, None, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_may_take_over_is_given_back_however_long_it_takes() {
    let faulty = Faulty::new(store());
    let policy = Policy::builder().contract(Contract::Hold).build().unwrap();
    let idempotency = Idempotency::new(faulty.clone()).with_policy(policy);
    faulty.plan_claims(std::iter::repeat_n(Fault::AppliedAndLost, 4));
    faulty.set_from_now_on(Fault::Unavailable);
    assert!(idempotency.begin(&request()).await.is_err());
    sleep(seconds(3600)).await;
    faulty.set_from_now_on(Fault::None);
    idempotency.idle().await;
    assert_eq!(held(&faulty.inner).await, None);
}
