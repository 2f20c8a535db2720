//! Whole stories about one key, played through `decide` and `Record::apply`.

mod machine;

use std::time::Duration;

use idem_core::{
    Applied, Claim, Contract, Decision, Mismatch, Moment, Note, Policy, Rejected, Response, Span,
    Transition, Verdict,
};

use machine::cell::Cell;
use machine::{DAY, HOUR, SECOND, at, attempt, claim, origin, point, request, response, token};

const LEASE: Span = Span::from_secs(90);

fn checkpoint(name: &str, sequence: u32) -> Transition {
    Transition::Checkpoint {
        point: point(name),
        sequence,
        lease: LEASE,
    }
}

fn retryable(reason: &str, uncertain: bool) -> Transition {
    Transition::FailRetryable {
        reason: Note::new(reason),
        uncertain,
    }
}

fn replays(decision: &Decision, code: u16) -> bool {
    matches!(decision, Decision::Replay(answer) if *answer == response(code))
}

/// Attempt 1 may have charged and crashed. Attempt 2 is refused by validation. The client corrects its payload
/// under the same key: had the key become free, the corrected request would be a second charge.
#[test]
fn a_refusal_after_a_crash_does_not_free_the_key() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.crash();

    cell.run(&claim(2, request(1)));
    let applied = cell.own(token(2), &Transition::Release).unwrap();
    assert!(matches!(applied, Applied::Changed(_)), "{applied:?}");
    assert_eq!(cell.record().origin, origin(1));

    let corrected = cell.claim(&claim(3, request(2)));
    assert!(
        matches!(corrected, Decision::Mismatch(Mismatch::Payload)),
        "{corrected:?}"
    );
    // The same payload may try again, as the same operation.
    cell.run(&claim(4, request(1)));
    assert_eq!(cell.record().origin, origin(1));
    assert_eq!(cell.record().attempt, attempt(3));

    // Without a crash before it, a refusal does free the key.
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    assert_eq!(
        cell.own(token(1), &Transition::Release),
        Ok(Applied::Removed)
    );
    cell.run(&claim(2, request(2)));
    assert_eq!(cell.record().origin, origin(2));
}

/// The takeover comes a day after the claim, its answer is lost, and the client asks again: retention counts
/// from the finish, so the answer is still there.
#[test]
fn retention_counts_from_the_finish() {
    let patient = Policy::builder()
        .reclaim_window(Duration::from_secs(48 * 3600))
        .provider_memory(Duration::from_secs(72 * 3600))
        .retention(Duration::from_secs(24 * 3600))
        .build()
        .unwrap();
    let claim = |number| Claim::new(request(1), &patient, origin(number), token(number));

    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1));
    cell.wait(DAY);
    cell.run(&claim(2));
    cell.own(token(2), &Transition::Complete(response(201)))
        .unwrap();

    cell.wait(DAY - 1);
    assert!(replays(&cell.claim(&claim(3)), 201));
    cell.wait(1);
    assert!(matches!(cell.claim(&claim(4)), Decision::Restart(_)));
    assert_eq!(cell.record().origin, origin(4));
}

/// A record that is stuck for 30 days is not run again by itself, and its age does not make it a new request.
#[test]
fn what_is_stuck_for_a_month_is_not_run_again() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.wait(30 * DAY);

    let before = cell.held.clone();
    for asking in 2..10 {
        let decision = cell.claim(&claim(asking, request(1)));
        assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");
        assert!(!decision.runs());
        // Nor is another request under this key anything but a mismatch.
        let decision = cell.claim(&claim(asking, request(2)));
        assert!(matches!(decision, Decision::Mismatch(_)), "{decision:?}");
    }
    assert_eq!(cell.held, before);

    cell.resolve(Verdict::Completed(response(201)), token(11))
        .unwrap();
    assert!(replays(&cell.claim(&claim(12, request(1))), 201));
}

/// Operators are called for what is stuck: in progress past its lease, and nothing else.
#[test]
fn stuck_is_what_is_in_progress_past_its_lease() {
    let stuck = |cell: &Cell| cell.record().is_stuck(Moment::exact(cell.now));
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    assert!(!stuck(&cell));
    cell.wait(90 * SECOND - 1);
    assert!(!stuck(&cell));
    cell.wait(1);
    assert!(stuck(&cell));

    let mut failed = cell.clone();
    failed.own(token(1), &retryable("timed out", true)).unwrap();
    cell.own(token(1), &Transition::Complete(response(201)))
        .unwrap();
    for finished in [&failed, &cell] {
        assert!(finished.record().is_lease_over(Moment::exact(finished.now)));
        assert!(!stuck(finished));
    }
}

/// A delayed checkpoint of a dropped call lands after a newer one, and is ignored. The first checkpoint of the
/// next attempt is stored, although the attempt before had come to number 3.
#[test]
fn checkpoints_are_ordered_by_attempt_and_then_by_number() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    for (name, sequence) in [("first", 1), ("third", 3)] {
        cell.own(token(1), &checkpoint(name, sequence)).unwrap();
    }
    let before = cell.held.clone();
    assert_eq!(
        cell.own(token(1), &checkpoint("second", 2)),
        Err(Rejected::Superseded)
    );
    assert_eq!(
        cell.own(token(1), &checkpoint("third", 3)),
        Ok(Applied::Unchanged)
    );
    assert_eq!(
        cell.own(token(1), &checkpoint("fourth", 3)),
        Err(Rejected::Conflict)
    );
    assert_eq!(cell.held, before);

    cell.crash();
    cell.run(&claim(2, request(1)));
    let recovery = cell.record().recovery.as_ref().unwrap();
    assert_eq!((recovery.point.name(), recovery.sequence), ("third", 3));

    cell.own(token(2), &checkpoint("again", 1)).unwrap();
    let recovery = cell.record().recovery.as_ref().unwrap();
    assert_eq!((recovery.point.name(), recovery.sequence), ("again", 1));
    assert_eq!(recovery.attempt, attempt(2));

    // And the first owner's, delayed even further, is a late owner's.
    assert_eq!(
        cell.own(token(1), &checkpoint("late", 99)),
        Err(Rejected::Lost)
    );
}

/// A crash after the charge; the takeover is told to slow down, which is a harmless failure in itself. When the
/// client comes back after the window, the charge of the first attempt is still in doubt.
#[test]
fn a_harmless_failure_does_not_clear_the_doubt_before_it() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.crash();
    cell.run(&claim(2, request(1)));
    cell.own(token(2), &retryable("429", false)).unwrap();
    assert!(cell.record().uncertain);
    assert_eq!(
        cell.record().effect_since,
        at(0),
        "the charge is as old as it was"
    );

    let mut in_time = cell.clone();
    in_time.wait(HOUR);
    in_time.run(&claim(3, request(1)));

    cell.now = at(20 * HOUR);
    let decision = cell.claim(&claim(3, request(1)));
    assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");
    cell.wait(30 * DAY);
    let decision = cell.claim(&claim(4, request(1)));
    assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");
}

/// Ten harmless failures, spread over more than a window, use up neither the reclaims nor the window of the
/// crash that comes after them.
#[test]
fn harmless_failures_cost_nothing_of_what_a_crash_may_need() {
    let mut cell = Cell::unused(at(0));
    for number in 1..=10 {
        cell.run(&claim(number, request(1)));
        cell.own(token(number), &retryable("429", false)).unwrap();
        cell.wait(10 * HOUR);
    }
    cell.run(&claim(11, request(1)));
    assert_eq!(cell.record().reclaims, 0);
    assert_eq!(cell.record().effect_since, cell.now);
    assert_eq!(cell.record().attempt, attempt(11));

    cell.crash();
    cell.run(&claim(12, request(1)));
    assert_eq!(cell.record().reclaims, 1);
}

/// Crash after crash: neither the window nor the count begins anew with a takeover.
#[test]
fn crashes_use_up_the_reclaims_and_the_window() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    for number in 2..=11 {
        cell.crash();
        cell.run(&claim(number, request(1)));
        assert_eq!(cell.record().effect_since, at(0));
    }
    cell.crash();
    let decision = cell.claim(&claim(12, request(1)));
    assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");

    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.now = at(20 * HOUR - 1);
    cell.run(&claim(2, request(1)));
    cell.crash();
    let decision = cell.claim(&claim(3, request(1)));
    assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");
}

/// The owner is stopped before its call to the provider, and its lease ends. A reconciler finds no charge and
/// says that it may be tried again; the retry charges; the owner wakes and calls as well. Both calls carry the
/// same origin, so the provider sees one key.
#[test]
fn a_verdict_of_retryable_keeps_the_origin() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.own(token(1), &checkpoint("validated", 1)).unwrap();
    let sleeping = cell.record().origin;

    cell.crash();
    cell.resolve(Verdict::Retryable, token(2)).unwrap();
    assert!(cell.record().uncertain);
    assert_eq!(
        cell.own(token(1), &Transition::Renew { lease: LEASE }),
        Err(Rejected::Lost),
        "the owner that sleeps is shut out"
    );

    cell.run(&claim(3, request(1)));
    assert_eq!(cell.record().origin, sleeping);
    assert_eq!(
        cell.record()
            .recovery
            .as_ref()
            .map(|recovery| recovery.point.name()),
        Some("validated")
    );
    cell.own(token(3), &Transition::Complete(response(201)))
        .unwrap();

    let before = cell.held.clone();
    for late in [
        Transition::Complete(response(201)),
        Transition::Release,
        retryable("late", true),
    ] {
        assert_eq!(cell.own(token(1), &late), Err(Rejected::Lost));
    }
    assert_eq!(cell.held, before);
}

/// The handler charges, and then a later step of it is not found, which would free the key of a request that
/// had begun nothing. It asked for the provider's key, so its failure is stored as uncertain.
#[test]
fn a_refusal_after_a_charge_keeps_the_key_bound() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.own(token(1), &retryable("404", true)).unwrap();

    let decision = cell.claim(&claim(2, request(2)));
    assert!(
        matches!(decision, Decision::Mismatch(Mismatch::Payload)),
        "{decision:?}"
    );
    cell.run(&claim(3, request(1)));
    assert_eq!(cell.record().origin, origin(1));
    assert!(cell.record().uncertain);

    // Nor can the next attempt free it, whatever it is refused for.
    cell.own(token(3), &Transition::Release).unwrap();
    assert!(cell.held.is_some());
}

/// A key is used again a week after it expired, and then its server crashes: it recovers like any first use,
/// and nothing of the old one is seen.
#[test]
fn a_restarted_key_recovers_like_a_first_use() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.own(token(1), &checkpoint("charged", 4)).unwrap();
    cell.crash();
    cell.run(&claim(2, request(1)));
    cell.own(token(2), &Transition::FailFinal(response(500)))
        .unwrap();
    let revision = cell.record().revision;

    cell.wait(8 * DAY);
    let restart = claim(3, request(2));
    assert!(matches!(cell.claim(&restart), Decision::Restart(_)));
    let first = restart.first_record(cell.now);
    assert_eq!(
        *cell.record(),
        idem_core::Record {
            revision: revision.next(),
            ..first
        }
    );

    cell.crash();
    let restarted = cell.record().effect_since;
    cell.run(&claim(4, request(2)));
    assert_eq!(cell.record().recovery, None);
    assert_eq!(cell.record().origin, origin(3));
    assert_eq!(cell.record().attempt, attempt(2));
    assert_eq!(cell.record().effect_since, restarted);
}

/// At most once: what was begun is never begun again, and only a verdict settles it.
#[test]
fn a_held_record_is_never_run_again() {
    let hold = Policy::builder().contract(Contract::Hold).build().unwrap();
    let claim = |number| Claim::new(request(1), &hold, origin(number), token(number));

    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1));
    cell.crash();
    // A configuration that has changed since does not break the promise.
    for asking in [claim(2), machine::claim(3, request(1))] {
        let decision = cell.claim(&asking);
        assert!(matches!(decision, Decision::OutcomeUnknown), "{decision:?}");
    }
    // The owner was not replaced, so its answer is still welcome.
    cell.own(token(1), &Transition::Complete(response(201)))
        .unwrap();
    assert!(replays(&cell.claim(&claim(4)), 201));
}

/// At exactly the end of the lease both the owner's write and the takeover are allowed, and the one that comes
/// second changes nothing.
#[test]
fn at_the_end_of_a_lease_the_first_write_wins() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    cell.crash();
    let taking = claim(2, request(1));
    let Decision::TakeOver(swap) = idem_core::decide(&taking, cell.snapshot().as_ref()) else {
        panic!("it may be taken over");
    };

    for first in [
        Transition::Renew { lease: Span::ZERO },
        Transition::Complete(response(201)),
        retryable("429", false),
        Transition::Release,
    ] {
        let mut cell = cell.clone();
        cell.own(token(1), &first).unwrap();
        let before = cell.held.clone();
        assert_eq!(
            cell.apply(swap.expect, &swap.change),
            Err(Rejected::Lost),
            "after {first:?}"
        );
        assert_eq!(cell.held, before);
    }

    cell.apply(swap.expect, &swap.change).unwrap();
    let before = cell.held.clone();
    for second in [
        Transition::Renew { lease: LEASE },
        checkpoint("late", 1),
        Transition::Complete(response(201)),
        Transition::FailFinal(response(500)),
        retryable("429", false),
        Transition::Release,
    ] {
        assert_eq!(cell.own(token(1), &second), Err(Rejected::Lost));
    }
    assert_eq!(cell.held, before);
}

/// A lease of zero is over at once, and a retention of zero makes the key new at once, except for those who
/// waited for the answer.
#[test]
fn zero_means_at_once() {
    let instant = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .retention(Duration::ZERO)
        .build()
        .unwrap();
    let claim = |number| Claim::new(request(1), &instant, origin(number), token(number));

    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1));
    let decision = cell.claim(&claim(2));
    assert!(matches!(decision, Decision::TakeOver(_)), "{decision:?}");

    let seen = cell.record().fence();
    cell.own(token(2), &Transition::Complete(response(204)))
        .unwrap();
    assert!(replays(&cell.claim(&claim(3).having_seen(seen)), 204));
    let decision = cell.claim(&claim(4));
    assert!(matches!(decision, Decision::Restart(_)), "{decision:?}");
    // The waiter's attempt is no longer what is held.
    let decision = cell.claim(&claim(5).having_seen(seen));
    assert!(matches!(decision, Decision::TakeOver(_)), "{decision:?}");
}

/// `()`, `false`, an empty body and one that was omitted are answers like any other.
#[test]
fn an_answer_of_nothing_replays() {
    for answer in [
        Response::new(0),
        Response::new(204),
        Response::new(200).body("false"),
        Response::new(200).without_body(),
    ] {
        let mut cell = Cell::unused(at(0));
        cell.run(&claim(1, request(1)));
        cell.own(token(1), &Transition::Complete(answer.clone()))
            .unwrap();
        cell.wait(SECOND);
        let decision = cell.claim(&claim(2, request(1)));
        assert!(
            matches!(&decision, Decision::Replay(stored) if *stored == answer),
            "{decision:?}"
        );
    }
}

/// Whoever was refused touches nothing: the third to come is refused as well.
#[test]
fn refusals_leave_the_record_alone() {
    let mut cell = Cell::unused(at(0));
    cell.run(&claim(1, request(1)));
    let before = cell.held.clone();
    for asking in 2..5 {
        let decision = cell.claim(&claim(asking, request(1)));
        assert!(
            matches!(decision, Decision::Busy { remaining } if remaining == LEASE),
            "{decision:?}"
        );
        for change in [Transition::Release, Transition::Complete(response(201))] {
            assert_eq!(cell.own(token(asking), &change), Err(Rejected::Lost));
        }
        assert_eq!(cell.held, before);
    }
}

/// A claim whose answer was lost finds its own record, even after its lease.
#[test]
fn a_claim_sent_twice_runs_once() {
    let mut cell = Cell::unused(at(0));
    let own = claim(1, request(1));
    cell.run(&own);
    cell.wait(DAY);
    assert!(matches!(cell.claim(&own), Decision::Resume));

    cell.now = at(HOUR);
    cell.run(&claim(2, request(1)));
    let decision = cell.claim(&own);
    assert!(matches!(decision, Decision::Busy { .. }), "{decision:?}");
}
