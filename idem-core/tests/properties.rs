//! What holds for every record, every transition and every moment.

mod machine;

use idem_core::{
    Applied, Claim, Decision, Expect, Moment, Record, Rejected, Snapshot, Span, State, Transition,
    Verdict, decide, settle,
};
use proptest::prelude::*;
use proptest::sample::select;

use machine::arbitrary::{self, retry_of, write_to};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_late_owner_changes_nothing(
        record in arbitrary::record(),
        late in arbitrary::token(),
        change in arbitrary::owners_transition(),
        moment in arbitrary::moment(),
    ) {
        prop_assume!(late != record.token);
        prop_assert_eq!(record.apply(Expect::Owner(late), &change, moment), Err(Rejected::Lost));
    }

    #[test]
    fn an_owner_changes_nothing_once_the_record_has_an_outcome(
        record in arbitrary::record(),
        change in arbitrary::owners_transition(),
        moment in arbitrary::moment(),
    ) {
        if record.state == State::InProgress {
            return Ok(());
        }
        let result = record.apply(Expect::Owner(record.token), &change, moment);
        prop_assert!(matches!(result, Ok(Applied::Unchanged) | Err(Rejected::Lost)), "{:?}", result);
    }

    #[test]
    fn an_answer_stays_until_it_expires(
        (record, (expect, change)) in record_and_write(),
        moment in arbitrary::moment(),
    ) {
        let Some(answer) = record.state.response() else {
            return Ok(());
        };
        match record.apply(expect, &change, moment) {
            Ok(Applied::Changed(next)) => {
                prop_assert!(matches!(change, Transition::Restart(_)));
                let expires_at = record.state.finish().unwrap().expires_at;
                prop_assert!(expires_at <= moment.earliest());
                prop_assert_eq!(next.state, State::InProgress);
            }
            Ok(Applied::Removed) => prop_assert!(false, "{:?} was removed", answer),
            _ => {}
        }
    }

    #[test]
    fn whatever_is_decided_can_be_carried_out_at_that_moment(
        record in arbitrary::record(),
        moment in arbitrary::moment(),
    ) {
        let claim = retry_of(&record, 200);
        if let Decision::Restart(swap) | Decision::TakeOver(swap) = at_moment(&claim, &record, moment) {
            let applied = record.apply(swap.expect, &swap.change, moment);
            let Ok(Applied::Changed(next)) = applied else {
                return Err(TestCaseError::fail(format!("{applied:?}")));
            };
            prop_assert_eq!(next.token, claim.token());
            // Whoever won it is let run, however late it learns that, and everybody else is not.
            prop_assert!(matches!(at_moment(&claim, &next, moment), Decision::Resume));
            prop_assert!(!matches!(at_moment(&retry_of(&next, 201), &next, moment), Decision::Resume));
            // The swap works once.
            prop_assert_eq!(next.apply(swap.expect, &swap.change, moment), Ok(Applied::Unchanged));
        }
    }

    /// In doubt nobody is let run who would not be let run at every time that it can be.
    #[test]
    fn a_doubtful_clock_only_ever_forbids(
        record in arbitrary::record(),
        moment in arbitrary::moment(),
        part in 0.0..=1.0_f64,
    ) {
        let (earliest, latest) = (moment.earliest(), moment.latest());
        let between = (latest.since(earliest).as_micros() as f64 * part) as u64;
        let between = (earliest + Span::from_micros(between).unwrap()).min(latest);
        let claim = retry_of(&record, 200);
        for now in [earliest, between, moment.now, latest] {
            let exact = Moment::exact(now);
            if at_moment(&claim, &record, moment).runs() {
                prop_assert!(at_moment(&claim, &record, exact).runs(), "at {:?}", now);
            }
            prop_assert!(record.is_expired(exact) || !record.is_expired(moment));
            prop_assert!(record.is_stuck(exact) || !record.is_stuck(moment));
        }
    }

    /// What the next sender of the same request is told after each transition.
    #[test]
    fn what_is_decided_next_follows_from_what_was_applied(
        (record, (expect, change)) in record_and_write(),
        moment in arbitrary::moment(),
    ) {
        let next = match record.apply(expect, &change, moment) {
            Ok(Applied::Changed(next)) => *next,
            Ok(Applied::Removed) => {
                let decision = decide(&retry_of(&record, 200), None);
                prop_assert!(matches!(decision, Decision::Claim));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let claim = retry_of(&next, 200);
        let decision = at_moment(&claim, &next, moment);
        let awaited = at_moment(&claim.clone().having_seen(next.fence()), &next, moment);
        // With a doubtful clock, whatever begins now is over only when the latest reading can have come.
        let at_once = |length: Span| moment.now + length <= moment.earliest();
        let may_run_again = next.is_within_reclaim_terms(moment);
        match change {
            Transition::Complete(answer)
            | Transition::FailFinal(answer)
            | Transition::Resolve { verdict: Verdict::Completed(answer) | Verdict::Failed(answer), .. } => {
                let is_answer = |decision: &Decision| matches!(decision, Decision::Replay(held) if *held == answer);
                prop_assert!(is_answer(&awaited), "{:?}", awaited);
                if at_once(record.terms.retention) {
                    prop_assert!(matches!(decision, Decision::Restart(_)), "{:?}", decision);
                } else {
                    prop_assert!(is_answer(&decision), "{:?}", decision);
                }
            }
            Transition::FailRetryable { .. }
            | Transition::Release
            | Transition::Resolve { verdict: Verdict::Retryable, .. } => {
                let may_be_certain = matches!(change, Transition::FailRetryable { uncertain: false, .. });
                prop_assert!(next.uncertain || may_be_certain);
                if next.uncertain && may_run_again {
                    prop_assert!(matches!(decision, Decision::TakeOver(_)), "{:?}", decision);
                } else if next.uncertain {
                    prop_assert!(matches!(decision, Decision::OutcomeUnknown), "{:?}", decision);
                } else if at_once(record.terms.retention) {
                    prop_assert!(matches!(decision, Decision::Restart(_)), "{:?}", decision);
                } else {
                    prop_assert!(matches!(decision, Decision::TakeOver(_)), "{:?}", decision);
                }
            }
            Transition::Renew { lease }
            | Transition::Checkpoint { lease, .. }
            | Transition::TakeOver { lease, .. } => {
                if !at_once(lease) {
                    prop_assert!(matches!(decision, Decision::Busy { .. }), "{:?}", decision);
                } else if may_run_again {
                    prop_assert!(matches!(decision, Decision::TakeOver(_)), "{:?}", decision);
                } else {
                    prop_assert!(matches!(decision, Decision::OutcomeUnknown), "{:?}", decision);
                }
            }
            Transition::Restart(restart) => {
                prop_assert_eq!(at_once(restart.lease()), !matches!(decision, Decision::Busy { .. }));
                prop_assert_eq!(next.revision, record.revision.next());
            }
            Transition::Resolve { verdict: Verdict::Released, .. } => prop_assert!(false, "it stands"),
        }
    }

    /// The same write sent twice changes nothing the second time, and is not taken for a loss.
    #[test]
    fn a_write_sent_twice_is_applied_once(
        (record, (expect, change)) in record_and_write(),
        moment in arbitrary::moment(),
    ) {
        let Ok(Applied::Changed(next)) = record.apply(expect, &change, moment) else {
            return Ok(());
        };
        let again = next.apply(expect, &change, moment);
        if let Transition::Renew { .. } = change {
            prop_assert!(matches!(again, Ok(Applied::Changed(_))), "{:?}", again);
        } else {
            prop_assert_eq!(again, Ok(Applied::Unchanged));
        }
    }

    /// At any time, any span and any counter. Arithmetic that overflows would panic here.
    #[test]
    fn extremes_neither_panic_nor_wrap(
        (mut record, (expect, change)) in record_and_write(),
        moment in arbitrary::moment(),
        revision in select(vec![0, u64::MAX - 1, u64::MAX]),
    ) {
        record.revision = idem_core::Revision::new(revision);
        let expect = match expect {
            Expect::Owner(token) => Expect::Owner(token),
            Expect::Unchanged { token, .. } => Expect::Unchanged { token, revision: record.revision },
        };
        let _ = at_moment(&retry_of(&record, 200), &record, moment);
        let _ = settle(expect, &change, Some(&record));
        if let Ok(Applied::Changed(next)) = record.apply(expect, &change, moment) {
            prop_assert!(next.revision >= record.revision);
            prop_assert!(next.reclaims >= record.reclaims || next.origin != record.origin);
            prop_assert!(next.attempt >= record.attempt || next.origin != record.origin);
            prop_assert!(next.locked_until >= next.locked_at || next.locked_until == record.locked_until);
            let _ = at_moment(&retry_of(&next, 201), &next, moment);
        }
        let remaining = record.locked_until.since(moment.earliest());
        prop_assert!(remaining <= Span::MAX);
    }
}

fn record_and_write() -> impl Strategy<Value = (Record, (Expect, Transition))> {
    arbitrary::record().prop_flat_map(|record| {
        let write = write_to(&record);
        (Just(record), write)
    })
}

fn at_moment(claim: &Claim, record: &Record, moment: Moment) -> Decision {
    let snapshot = Snapshot {
        record: record.clone().into(),
        now: moment.now,
        skew: moment.skew,
    };
    decide(claim, Some(&snapshot))
}
