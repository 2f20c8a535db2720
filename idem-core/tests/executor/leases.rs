//! Leases: kept alive by a heartbeat, lost to somebody else, or over without anybody saying so.

use std::time::Duration;

use idem_core::executor::{Answer, Attempt, AttemptError, Begin, Execution, Idempotency, Outcome};
use idem_core::{KeyStore, Policy, RecoveryPoint, Response, Status};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::support::{Fault, Faulty, held, request, response, seconds, store};

async fn owner<S: KeyStore + 'static>(idempotency: &Idempotency<S>) -> Execution {
    match idempotency.begin(&request()).await.unwrap() {
        Begin::Execute(execution) => execution,
        other => panic!("{other:?}"),
    }
}

fn without_heartbeat() -> Policy {
    Policy::builder().heartbeat(Duration::ZERO).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_keeps_a_long_handler_its_key() {
    let idempotency = Idempotency::new(store());
    let other = idempotency.clone();
    let long = |attempt: Attempt| async move {
        for _ in 0..60 {
            sleep(seconds(30)).await;
            assert!(!attempt.is_lease_lost());
            assert!(matches!(
                other.begin(&request()).await.unwrap(),
                Begin::Busy { .. }
            ));
        }
        Outcome::Completed(response("ch_1"))
    };
    assert_eq!(
        idempotency.execute(&request(), long).await.unwrap(),
        Answer::Fresh(response("ch_1"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_hung_handler_is_renewed_up_to_its_ceiling_only() {
    let idempotency = Idempotency::new(store());
    let hung = owner(&idempotency).await;
    let started = Instant::now();
    hung.attempt().lease_lost().await;
    let lasted = started.elapsed();
    // The last renewal is just before the ceiling, and its lease runs out.
    assert!(
        lasted > seconds(3600) && lasted <= seconds(3600 + 90),
        "{lasted:?}"
    );
    assert_eq!(owner(&idempotency).await.attempt().number().as_u32(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_heartbeat_a_handler_renews_by_hand() {
    let idempotency = Idempotency::new(store()).with_policy(without_heartbeat());
    let execution = owner(&idempotency).await;
    advance(seconds(80)).await;
    execution.attempt().renew().await.unwrap();
    advance(seconds(80)).await;
    assert!(!execution.attempt().is_lease_lost());
    assert!(matches!(
        idempotency.begin(&request()).await.unwrap(),
        Begin::Busy { .. }
    ));
    // A checkpoint renews as well.
    execution
        .attempt()
        .checkpoint(RecoveryPoint::new("charged").unwrap())
        .await
        .unwrap();
    advance(seconds(80)).await;
    assert!(!execution.attempt().is_lease_lost());
    advance(seconds(10)).await;
    assert!(execution.attempt().is_lease_lost());
}

#[tokio::test(start_paused = true)]
async fn a_late_owner_changes_nothing_and_answers_what_the_record_says() {
    for late in [
        Outcome::Completed(response("ch_late")),
        Outcome::Failed(response("ch_late")),
    ] {
        let store = store();
        let idempotency = Idempotency::new(store.clone()).with_policy(without_heartbeat());
        let sleeper = owner(&idempotency).await;
        advance(seconds(90)).await;
        let winner = owner(&idempotency).await;
        assert_eq!(
            winner.finish(Outcome::Completed(response("ch_1"))).await,
            Answer::Fresh(response("ch_1"))
        );
        let settled = held(&store).await;

        let attempt = sleeper.attempt();
        assert!(matches!(
            attempt.renew().await,
            Err(AttemptError::LeaseLost)
        ));
        let point = RecoveryPoint::new("late").unwrap();
        assert!(matches!(
            attempt.checkpoint(point).await,
            Err(AttemptError::LeaseLost)
        ));
        assert_eq!(
            sleeper.finish(late).await,
            Answer::Replayed(response("ch_1"))
        );
        assert_eq!(held(&store).await, settled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_owner_that_stores_nothing_answers_for_itself() {
    for late in [
        Outcome::Rejected(Response::new(422)),
        Outcome::Retryable(Response::new(429)),
    ] {
        let store = store();
        let idempotency = Idempotency::new(store.clone()).with_policy(without_heartbeat());
        let sleeper = owner(&idempotency).await;
        advance(seconds(90)).await;
        let _winner = owner(&idempotency).await;
        let running = held(&store).await;
        let answer = late.answer().clone();
        assert_eq!(sleeper.finish(late).await, Answer::Fresh(answer));
        assert_eq!(held(&store).await, running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_owner_beside_a_running_one_is_told_that_it_runs() {
    let idempotency = Idempotency::new(store()).with_policy(without_heartbeat());
    let sleeper = owner(&idempotency).await;
    advance(seconds(90)).await;
    let winner = owner(&idempotency).await;
    let told = sleeper
        .finish(Outcome::Completed(response("ch_late")))
        .await;
    assert!(matches!(told, Answer::Busy { .. }), "{told:?}");
    // The other one fails without an answer: the same request may run, and has not been answered.
    let later = Response::new(429);
    assert_eq!(
        winner.finish(Outcome::Retryable(later.clone())).await,
        Answer::Fresh(later)
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_owner_whose_record_is_gone_does_not_claim_success() {
    let idempotency = Idempotency::new(store()).with_policy(without_heartbeat());
    let sleeper = owner(&idempotency).await;
    advance(seconds(90)).await;
    let winner = owner(&idempotency).await;
    assert_eq!(
        winner.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
    advance(seconds(25 * 3600)).await;
    idempotency
        .store()
        .sweep(std::num::NonZeroU32::MIN)
        .await
        .unwrap();
    assert_eq!(
        sleeper
            .finish(Outcome::Completed(response("ch_late")))
            .await,
        Answer::OutcomeUnknown
    );
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_cut_off_learns_it_from_its_own_timer() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let execution = owner(&idempotency).await;
    let attempt = execution.attempt();
    let started = Instant::now();
    faulty.set_from_now_on(Fault::Hang);
    attempt.lease_lost().await;
    assert_eq!(started.elapsed(), seconds(90));
    assert!(attempt.is_lease_lost());
}

#[tokio::test(start_paused = true)]
async fn the_timer_starts_when_a_renewal_is_sent_not_when_it_is_answered() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone()).with_policy(without_heartbeat());
    let execution = owner(&idempotency).await;
    let attempt = execution.attempt();
    advance(seconds(50)).await;
    faulty.plan_transitions([Fault::GateAfter]);
    let renewing = tokio::spawn({
        let attempt = attempt.clone();
        async move { attempt.renew().await }
    });
    faulty.someone_at_gate().await;
    advance(seconds(20)).await;
    faulty.open_gate();
    renewing.await.unwrap().unwrap();
    // Sent at 50, answered at 70, over at 140.
    let at_70 = Instant::now();
    attempt.lease_lost().await;
    assert_eq!(at_70.elapsed(), seconds(70));
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_survives_a_store_that_is_away_for_a_while() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let execution = owner(&idempotency).await;
    faulty.set_from_now_on(Fault::Unavailable);
    sleep(seconds(60)).await;
    faulty.set_from_now_on(Fault::None);
    sleep(seconds(600)).await;
    assert!(!execution.attempt().is_lease_lost());
    // A record that is locked by a transaction for a while is not a lost one.
    faulty.set_from_now_on(Fault::Contended);
    sleep(seconds(60)).await;
    assert!(!execution.attempt().is_lease_lost());
    faulty.set_from_now_on(Fault::None);
    sleep(seconds(600)).await;
    assert!(!execution.attempt().is_lease_lost());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_after_its_lease_is_renewed_before_the_work_starts() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    faulty.plan_claims([Fault::GateAfter]);
    let begun = tokio::spawn({
        let idempotency = idempotency.clone();
        async move { idempotency.begin(&request()).await.unwrap() }
    });
    faulty.someone_at_gate().await;
    advance(seconds(100)).await;
    faulty.open_gate();
    let Begin::Execute(execution) = begun.await.unwrap() else {
        panic!()
    };
    assert!(!execution.attempt().is_lease_lost());
    assert_eq!(*faulty.sent.lock().unwrap(), ["claim", "renew"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_after_somebody_took_over_does_not_run() {
    let faulty = Faulty::new(store());
    let late = Idempotency::new(faulty.clone());
    faulty.plan_claims([Fault::GateAfter]);
    let begun = tokio::spawn({
        let late = late.clone();
        async move { late.begin(&request()).await.unwrap() }
    });
    faulty.someone_at_gate().await;
    advance(seconds(100)).await;
    let prompt = Idempotency::new(faulty.inner.clone());
    let winner = owner(&prompt).await;
    faulty.open_gate();
    assert!(matches!(begun.await.unwrap(), Begin::Busy { .. }));
    assert_eq!(
        winner.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_zero_is_over_at_once() {
    let policy = Policy::builder().lease(Duration::ZERO).build().unwrap();
    let idempotency = Idempotency::new(store()).with_policy(policy);
    let first = owner(&idempotency).await;
    assert!(first.attempt().is_lease_lost());
    let second = owner(&idempotency).await;
    assert_eq!(second.attempt().number().as_u32(), 2);
    let unknown = first.finish(Outcome::Completed(response("ch_late"))).await;
    assert!(
        matches!(unknown, Answer::Busy { .. } | Answer::OutcomeUnknown),
        "{unknown:?}"
    );
    assert_eq!(
        second.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
}

#[tokio::test(start_paused = true)]
async fn lease_lost_wakes_when_a_write_is_refused() {
    let idempotency = Idempotency::new(store());
    let sleeper = owner(&idempotency.with_policy(without_heartbeat())).await;
    advance(seconds(90)).await;
    let _winner = owner(&idempotency).await;
    let attempt = sleeper.attempt();
    assert!(attempt.renew().await.is_err());
    timeout(Duration::ZERO, attempt.lease_lost())
        .await
        .expect("it is known at once");
}

#[tokio::test(start_paused = true)]
async fn dropping_an_execution_leaves_the_key_to_its_lease() {
    let store = store();
    let idempotency = Idempotency::new(store.clone());
    drop(owner(&idempotency).await);
    assert_eq!(held(&store).await.unwrap().status(), Status::InProgress);
    assert!(matches!(
        idempotency.begin(&request()).await.unwrap(),
        Begin::Busy { .. }
    ));
    // The heartbeat ended with it.
    sleep(seconds(90)).await;
    assert_eq!(owner(&idempotency).await.attempt().number().as_u32(), 2);
}
