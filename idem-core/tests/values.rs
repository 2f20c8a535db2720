//! The borders of the small types: durations, instants, policies and texts.

mod machine;

use std::time::Duration;

use idem_core::{
    AttemptNumber, Contract, Expect, InvalidPolicy, Moment, Note, OnBusy, Policy, RecoveryPoint,
    Response, Revision, Settled, Span, Timestamp, Transition, Verdict, settle,
};
use proptest::prelude::*;

use machine::{arbitrary, attempt, claim, point, request, token};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_defaults_are_those_that_are_promised() {
    let policy = Policy::default();
    let terms = policy.terms();
    assert_eq!(policy.lease().as_duration(), Duration::from_secs(90));
    assert_eq!(policy.heartbeat().as_duration(), Duration::from_secs(30));
    assert_eq!(policy.heartbeat_ceiling().as_duration(), HOUR);
    assert_eq!(policy.provider_memory().as_duration(), 24 * HOUR);
    assert_eq!(terms.contract, Contract::Reclaim);
    assert_eq!(terms.retention.as_duration(), 24 * HOUR);
    assert_eq!(terms.reclaim_window.as_duration(), 20 * HOUR);
    assert_eq!(terms.max_reclaims, 10);
    assert_eq!(
        policy.store_timeout().as_duration(),
        Duration::from_secs(10)
    );
    assert_eq!(policy.response_limit(), 256 * 1024);
    assert_eq!(policy.on_busy(), OnBusy::Reject);
    assert_eq!(Policy::builder().build(), Ok(policy));
}

#[test]
fn a_policy_holds_what_it_was_built_with() {
    let wait = OnBusy::Wait(Span::from_millis(200));
    let policy = Policy::builder()
        .lease(Duration::from_secs(60))
        .retention(Duration::from_secs(1))
        .heartbeat(Duration::from_secs(7))
        .heartbeat_ceiling(Duration::from_secs(120))
        .contract(Contract::Hold)
        .reclaim_window(Duration::from_secs(30))
        .max_reclaims(3)
        .provider_memory(Duration::from_secs(150))
        .response_limit(17)
        .store_timeout(Duration::from_secs(5))
        .on_busy(wait)
        .build()
        .unwrap();
    let terms = policy.terms();
    assert_eq!(policy.lease(), Span::from_secs(60));
    assert_eq!(terms.retention, Span::from_secs(1));
    assert_eq!(policy.heartbeat(), Span::from_secs(7));
    assert_eq!(policy.heartbeat_ceiling(), Span::from_secs(120));
    assert_eq!(terms.contract, Contract::Hold);
    assert_eq!(terms.reclaim_window, Span::from_secs(30));
    assert_eq!(terms.max_reclaims, 3);
    assert_eq!(policy.provider_memory(), Span::from_secs(150));
    assert_eq!(policy.response_limit(), 17);
    assert_eq!(policy.store_timeout(), Span::from_secs(5));
    assert_eq!(policy.on_busy(), wait);
}

/// An attempt that begins at the end of the window may live for a whole ceiling, or for a first lease that is
/// longer. The provider has to remember its key until then.
#[test]
fn the_provider_remembers_as_long_as_an_attempt_may_live() {
    let policy = |window: u64, ceiling: u64, lease: u64, memory: u64| {
        Policy::builder()
            .reclaim_window(Duration::from_secs(window))
            .heartbeat_ceiling(Duration::from_secs(ceiling))
            .lease(Duration::from_secs(lease))
            .provider_memory(Duration::from_secs(memory))
            .build()
    };
    let forgets = |memory| {
        Err(InvalidPolicy::ProviderForgets {
            last_effect: Duration::from_secs(300),
            memory: Duration::from_secs(memory),
        })
    };
    assert!(policy(200, 100, 60, 300).is_ok());
    assert_eq!(policy(200, 100, 60, 299), forgets(299));
    assert!(policy(200, 10, 100, 300).is_ok());
    assert_eq!(policy(200, 10, 100, 299), forgets(299));
}

#[test]
fn a_heartbeat_is_shorter_than_the_lease_or_none() {
    let policy = |heartbeat, lease| {
        Policy::builder()
            .lease(Duration::from_secs(lease))
            .heartbeat(Duration::from_secs(heartbeat))
            .build()
    };
    assert!(policy(59, 60).is_ok());
    assert!(policy(0, 60).is_ok());
    assert!(policy(0, 0).is_ok());
    for (heartbeat, lease) in [(60, 60), (61, 60), (1, 0)] {
        let error = policy(heartbeat, lease);
        assert!(
            matches!(error, Err(InvalidPolicy::HeartbeatTooSlow { .. })),
            "{error:?}"
        );
    }
    let instant = Policy::builder().lease(Duration::ZERO).build().unwrap();
    assert!(instant.heartbeat().is_zero(), "there is nothing to renew");
}

#[test]
fn a_duration_that_is_too_long_is_named() {
    let too_long = Span::MAX.as_duration() + Duration::from_micros(1);
    let builder = Policy::builder;
    for (setting, built) in [
        ("lease", builder().lease(too_long).build()),
        ("retention", builder().retention(too_long).build()),
        ("heartbeat", builder().heartbeat(too_long).build()),
        (
            "heartbeat ceiling",
            builder().heartbeat_ceiling(too_long).build(),
        ),
        ("store timeout", builder().store_timeout(too_long).build()),
        (
            "reclaim window",
            builder().reclaim_window(Duration::MAX).build(),
        ),
        (
            "provider memory",
            builder().provider_memory(Duration::MAX).build(),
        ),
    ] {
        match built {
            Err(InvalidPolicy::TooLong { setting: named, .. }) => assert_eq!(named, setting),
            other => panic!("{setting}: {other:?}"),
        }
    }
    let longest = builder().retention(Span::MAX.as_duration()).build();
    assert_eq!(
        longest.map(|policy| policy.terms().retention),
        Ok(Span::MAX)
    );
}

#[test]
fn a_span_is_never_shorter_than_its_duration() {
    for (nanos, micros) in [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2)] {
        let span = Span::new(Duration::from_nanos(nanos)).unwrap();
        assert_eq!(span.as_micros(), micros);
    }
    assert_eq!(Span::new(Span::MAX.as_duration()), Ok(Span::MAX));
    assert!(Span::new(Span::MAX.as_duration() + Duration::from_nanos(1)).is_err());
    assert!(Span::from_micros(Span::MAX.as_micros() + 1).is_err());
    assert!(Span::from_micros(u64::MAX).is_err());
    assert_eq!(Span::MAX.saturating_add(Span::from_millis(1)), Span::MAX);
    // A number of seconds that does not fit is the longest span, never a short one.
    assert_eq!(Span::from_secs(u32::MAX), Span::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn instants_and_spans_agree_with_wide_arithmetic(
        instant in arbitrary::timestamp(),
        other in arbitrary::timestamp(),
        span in arbitrary::span(),
    ) {
        let wide = |instant: Timestamp| i128::from(instant.as_micros());
        let length = i128::from(span.as_micros());
        let narrow = |micros: i128| micros.clamp(i64::MIN.into(), i64::MAX.into());
        prop_assert_eq!(wide(instant + span), narrow(wide(instant) + length));
        prop_assert_eq!(wide(instant - span), narrow(wide(instant) - length));
        let since = i128::from(instant.since(other).as_micros());
        prop_assert_eq!(since, (wide(instant) - wide(other)).clamp(0, Span::MAX.as_micros().into()));

        let moment = Moment { now: instant, skew: span };
        prop_assert_eq!(moment.earliest(), instant - span);
        prop_assert_eq!(moment.latest(), instant + span);
    }

    #[test]
    fn a_note_is_as_much_of_the_text_as_fits(text in "[\0aé€𐍈]{0,700}") {
        let note = Note::new(&text);
        let kept = note.as_str();
        let clean = text.replace('\0', " ");
        prop_assert!(clean.starts_with(kept));
        prop_assert!(kept.len() <= Note::MAX_BYTES);
        // Not one more character would fit.
        if let Some(next) = clean[kept.len()..].chars().next() {
            prop_assert!(kept.len() + next.len_utf8() > Note::MAX_BYTES);
        }
    }
}

#[test]
fn counters_stop_at_their_last_number() {
    assert_eq!(AttemptNumber::FIRST.as_u32(), 1);
    assert_eq!(attempt(1).next(), attempt(2));
    assert_eq!(attempt(u32::MAX).next(), attempt(u32::MAX));
    assert_eq!(Revision::FIRST.next(), Revision::new(2));
    assert_eq!(Revision::new(u64::MAX).next(), Revision::new(u64::MAX));
}

#[test]
fn a_recovery_point_has_a_name_and_bounded_data() {
    let name = |length| RecoveryPoint::new("x".repeat(length));
    assert!(name(0).is_err());
    assert!(name(1).is_ok());
    assert!(name(RecoveryPoint::MAX_NAME_BYTES).is_ok());
    assert!(name(RecoveryPoint::MAX_NAME_BYTES + 1).is_err());
    assert!(RecoveryPoint::new("nul\0").is_err());
    let data = |length| point("charged").with_data(vec![0; length]);
    assert!(data(RecoveryPoint::MAX_DATA_BYTES).is_ok());
    assert!(data(RecoveryPoint::MAX_DATA_BYTES + 1).is_err());
    assert_ne!(data(0).unwrap(), point("charged"));
}

/// Of all writes only a release can tell from the record's absence that it was applied before.
#[test]
fn what_finds_nothing_is_lost_unless_it_was_a_release() {
    let owner = Expect::Owner(token(1));
    assert_eq!(
        settle(owner, &Transition::Release, None),
        Settled::AlreadyApplied
    );
    let record = claim(1, request(1)).first_record(machine::at(0));
    let seen = Expect::unchanged(&record);
    let lease = Span::from_secs(90);
    for (expect, change) in [
        (owner, Transition::Renew { lease }),
        (owner, Transition::Complete(Response::new(201))),
        (owner, Transition::FailFinal(Response::new(500))),
        (
            owner,
            Transition::FailRetryable {
                reason: Note::new("later"),
                uncertain: false,
            },
        ),
        (
            owner,
            Transition::Checkpoint {
                point: point("charged"),
                sequence: 1,
                lease,
            },
        ),
        (
            seen,
            Transition::TakeOver {
                token: token(2),
                lease,
            },
        ),
        (seen, Transition::Restart(Box::new(claim(2, request(1))))),
        (
            seen,
            Transition::Resolve {
                verdict: Verdict::Released,
                token: token(2),
                note: Note::new("who"),
            },
        ),
    ] {
        assert_eq!(settle(expect, &change, None), Settled::Lost, "{change:?}");
    }
}
