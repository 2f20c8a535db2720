//! Waiting for somebody else's attempt.

use std::sync::atomic::Ordering;
use std::time::Duration;

use idem_core::executor::{Answer, Attempt, Begin, Idempotency, Outcome};
use idem_core::{OnBusy, Policy, Response, Span};
use tokio::time::{Instant, advance};

use crate::support::{Fault, Faulty, request, response, seconds, store};

fn waiting(longest: Duration) -> Policy {
    Policy::builder()
        .on_busy(OnBusy::Wait(Span::new(longest).unwrap()))
        .build()
        .unwrap()
}

async fn unreachable_handler(_attempt: Attempt) -> Outcome<Response> {
    panic!("this handler must not be called")
}

#[tokio::test(start_paused = true)]
async fn one_probe_serves_everybody_and_holds_nothing() {
    let faulty = Faulty::new(store());
    let idempotency = Idempotency::new(faulty.clone());
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let idempotency = idempotency.with_policy(waiting(seconds(60)));
            tokio::spawn(async move {
                idempotency
                    .execute(&request(), unreachable_handler)
                    .await
                    .unwrap()
            })
        })
        .collect();
    advance(seconds(1)).await;
    tokio::time::sleep(seconds(9)).await;
    let looks = faulty.loads.load(Ordering::SeqCst);
    // Ten seconds at four looks a second, and the quicker ones at first: for a hundred waiters.
    assert!((10..=50).contains(&looks), "{looks}");
    assert_eq!(
        execution.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), Answer::Replayed(response("ch_1")));
    }
    // One more look told all of them, and none of them asked the store itself again.
    assert!(faulty.loads.load(Ordering::SeqCst) <= looks + 2);
    let claims = faulty
        .sent
        .lock()
        .unwrap()
        .iter()
        .filter(|call| **call == "claim")
        .count();
    assert_eq!(claims, 101);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_in_this_process_wakes_its_waiters_at_once() {
    let idempotency = Idempotency::new(store()).with_policy(waiting(seconds(60)));
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let waiter = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            let answer = idempotency
                .execute(&request(), unreachable_handler)
                .await
                .unwrap();
            (answer, Instant::now())
        }
    });
    tokio::time::sleep(Duration::from_millis(10_100)).await;
    let done = Instant::now();
    assert_eq!(
        execution.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
    let (answer, woken) = waiter.await.unwrap();
    assert_eq!(answer, Answer::Replayed(response("ch_1")));
    assert_eq!(woken, done);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_the_answer_it_waited_for_even_if_it_is_not_kept() {
    let policy = Policy::builder()
        .retention(Duration::ZERO)
        .on_busy(OnBusy::Wait(Span::from_secs(60)))
        .build()
        .unwrap();
    let idempotency = Idempotency::new(store()).with_policy(policy);
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let waiter = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            idempotency
                .execute(&request(), unreachable_handler)
                .await
                .unwrap()
        }
    });
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(
        execution.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
    assert_eq!(waiter.await.unwrap(), Answer::Replayed(response("ch_1")));
    // Whoever did not wait gets what a retention of zero means.
    let fresh = |_| async { Outcome::Completed(response("ch_2")) };
    assert_eq!(
        idempotency.execute(&request(), fresh).await.unwrap(),
        Answer::Fresh(response("ch_2"))
    );
}

/// A policy under which an answer is kept for nobody but those who wait for it.
fn kept_for_nobody(on_busy: OnBusy) -> Policy {
    Policy::builder()
        .retention(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .on_busy(on_busy)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_the_answer_of_whoever_took_over_while_it_waited() {
    let here = Idempotency::new(store());
    // Another process, so that nobody wakes this one's waiters: they see the attempts when they look.
    let there = Idempotency::new(here.store().clone());
    let there = there.with_policy(kept_for_nobody(OnBusy::Reject));
    let here = here.with_policy(kept_for_nobody(OnBusy::Wait(Span::from_secs(600))));
    let Begin::Execute(_crashed) = there.begin(&request()).await.unwrap() else {
        panic!()
    };
    let lease_ends = Instant::now() + seconds(90);
    let waiter = tokio::spawn(async move {
        let answer = here.execute(&request(), unreachable_handler).await;
        answer.unwrap()
    });
    tokio::time::sleep(seconds(1)).await;
    // The test goes on before the timers do, so the takeover comes before the next look.
    advance(lease_ends - Instant::now()).await;
    let Begin::Execute(second) = there.begin(&request()).await.unwrap() else {
        panic!()
    };
    assert_eq!(second.attempt().number().as_u32(), 2);
    tokio::time::sleep(seconds(1)).await;
    let stored = second.finish(Outcome::Completed(response("ch_1"))).await;
    assert_eq!(stored, Answer::Fresh(response("ch_1")));
    assert_eq!(waiter.await.unwrap(), Answer::Replayed(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_found_the_record_locked_takes_the_answer_that_it_saw_coming() {
    let faulty = Faulty::new(store());
    let there = Idempotency::new(faulty.inner.clone());
    let there = there.with_policy(kept_for_nobody(OnBusy::Reject));
    let wait = OnBusy::Wait(Span::from_secs(60));
    let here = Idempotency::new(faulty.clone()).with_policy(kept_for_nobody(wait));
    let Begin::Execute(execution) = there.begin(&request()).await.unwrap() else {
        panic!()
    };
    faulty.plan_claims([Fault::Contended, Fault::Contended, Fault::Contended]);
    let waiter = tokio::spawn(async move {
        let answer = here.execute(&request(), unreachable_handler).await;
        answer.unwrap()
    });
    tokio::time::sleep(seconds(1)).await;
    let stored = execution.finish(Outcome::Completed(response("ch_1"))).await;
    assert_eq!(stored, Answer::Fresh(response("ch_1")));
    assert_eq!(waiter.await.unwrap(), Answer::Replayed(response("ch_1")));
}

#[tokio::test(start_paused = true)]
async fn when_the_owner_fails_without_an_answer_one_waiter_runs() {
    let idempotency = Idempotency::new(store()).with_policy(waiting(seconds(60)));
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let idempotency = idempotency.clone();
            let work = |attempt: Attempt| async move {
                assert_eq!(attempt.number().as_u32(), 2);
                Outcome::Completed(response("ch_1"))
            };
            tokio::spawn(async move { idempotency.execute(&request(), work).await.unwrap() })
        })
        .collect();
    tokio::time::sleep(seconds(1)).await;
    let later = Response::new(429);
    assert_eq!(
        execution.finish(Outcome::Retryable(later.clone())).await,
        Answer::Fresh(later)
    );
    let mut fresh = 0;
    for waiter in waiters {
        match waiter.await.unwrap() {
            Answer::Fresh(_) => fresh += 1,
            Answer::Replayed(answer) => assert_eq!(answer, response("ch_1")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fresh, 1);
}

#[tokio::test(start_paused = true)]
async fn when_the_owner_is_gone_a_waiter_takes_over_at_the_end_of_the_lease() {
    let idempotency = Idempotency::new(store()).with_policy(waiting(seconds(120)));
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    drop(execution);
    let started = Instant::now();
    let work = |attempt: Attempt| async move {
        assert_eq!(attempt.number().as_u32(), 2);
        Outcome::Completed(response("ch_1"))
    };
    assert_eq!(
        idempotency.execute(&request(), work).await.unwrap(),
        Answer::Fresh(response("ch_1"))
    );
    let waited = started.elapsed();
    assert!(waited >= seconds(90) && waited < seconds(91), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let idempotency = Idempotency::with_waiters(store(), 1).with_policy(waiting(seconds(60)));
    let Begin::Execute(execution) = idempotency.begin(&request()).await.unwrap() else {
        panic!()
    };
    let first = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            idempotency
                .execute(&request(), unreachable_handler)
                .await
                .unwrap()
        }
    });
    tokio::time::sleep(seconds(1)).await;
    let started = Instant::now();
    let second = idempotency
        .execute(&request(), unreachable_handler)
        .await
        .unwrap();
    assert!(matches!(second, Answer::Busy { .. }), "{second:?}");
    assert_eq!(started.elapsed(), Duration::ZERO);
    // A waiter that leaves gives its seat back.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let third = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            idempotency
                .execute(&request(), unreachable_handler)
                .await
                .unwrap()
        }
    });
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(
        execution.finish(Outcome::Completed(response("ch_1"))).await,
        Answer::Fresh(response("ch_1"))
    );
    assert_eq!(third.await.unwrap(), Answer::Replayed(response("ch_1")));
}

#[test]
fn a_runtime_that_ends_takes_no_other_ones_waiters_with_it() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let (brief, lasting) = (runtime(), runtime());
    let idempotency = {
        let _entered = lasting.enter();
        Idempotency::new(store()).with_policy(waiting(seconds(60)))
    };
    let execution = lasting.block_on(async {
        match idempotency.begin(&request()).await.unwrap() {
            Begin::Execute(execution) => execution,
            other => panic!("{other:?}"),
        }
    });
    // It looks for a waiter of the one runtime, on that runtime, which ends.
    brief.block_on(async {
        let request = request();
        let waiter = idempotency.execute(&request, unreachable_handler);
        let waited = tokio::time::timeout(Duration::from_millis(1), waiter).await;
        assert!(waited.is_err());
    });
    let waiter = idempotency.clone();
    let waiter = lasting.spawn(async move {
        let answer = waiter.execute(&request(), unreachable_handler).await;
        (answer.unwrap(), Instant::now())
    });
    lasting.block_on(tokio::task::yield_now());
    drop(brief);
    lasting.block_on(async {
        tokio::time::sleep(seconds(1)).await;
        let stored = execution.finish(Outcome::Completed(response("ch_1"))).await;
        assert_eq!(stored, Answer::Fresh(response("ch_1")));
        let done = Instant::now();
        let (answer, woken) = waiter.await.unwrap();
        assert_eq!(answer, Answer::Replayed(response("ch_1")));
        assert_eq!(woken, done);
    });
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_for_a_locked_record_either() {
    let faulty = Faulty::new(store());
    faulty.set_from_now_on(Fault::Contended);
    let started = Instant::now();
    let longest = Duration::from_millis(15);
    let idempotency = Idempotency::new(faulty).with_policy(waiting(longest));
    let busy = idempotency.begin(&request()).await.unwrap();
    assert!(matches!(busy, Begin::Busy { .. }), "{busy:?}");
    assert!(started.elapsed() <= longest, "{:?}", started.elapsed());
}
