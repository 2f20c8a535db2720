//! Every transition in SQL does what the pure reference does, over many states of a record.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use idem_core::{
    Applied, AttemptNumber, Body, Claim, Contract, Expect, Finish, Headers, KeyStore as _,
    ManualClock, Moment, Note, Origin, Policy, Record, Recovery, RecoveryPoint, Rejected, Response,
    Revision, Span, State, Terms, Timestamp, Transition, TransitionOutcome, Verdict,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Few instants that are close together, so that before, at and after are all met, and the ends of time.
fn instant() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => 0..6_i64,
        1 => Just(i64::MAX),
        1 => Just(i64::MAX - 3),
        1 => Just(i64::MIN),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        6 => (0..6_u64).prop_map(|micros| Span::from_micros(micros).unwrap()),
        1 => Just(Span::MAX),
    ]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..3_u32, 1 => Just(u32::MAX)]
}

fn attempt() -> impl Strategy<Value = AttemptNumber> {
    count().prop_map(|number| AttemptNumber::new(number.max(1).try_into().unwrap()))
}

fn note() -> impl Strategy<Value = Note> {
    prop_oneof![Just(Note::new("")), Just(Note::new("429 ü"))]
}

fn point() -> impl Strategy<Value = RecoveryPoint> {
    let data = option::of(vec(any::<u8>(), 0..4));
    ("[ab]", data).prop_map(|(name, data)| {
        let point = RecoveryPoint::new(name).unwrap();
        match data {
            None => point,
            Some(data) => point.with_data(data).unwrap(),
        }
    })
}

fn response() -> impl Strategy<Value = Response> {
    let lines = vec((vec(any::<u8>(), 0..4), vec(any::<u8>(), 0..4)), 0..3);
    let body = prop_oneof![
        1 => Just(Body::Omitted),
        3 => vec(any::<u8>(), 0..8).prop_map(|body| Body::Bytes(Bytes::from(body))),
    ];
    (any::<u16>(), lines, body)
        .prop_map(|(code, lines, body)| Response::from_parts(code, Headers::from_iter(lines), body))
}

fn finish() -> impl Strategy<Value = Finish> {
    (instant(), instant()).prop_map(|(finished_at, expires_at)| Finish {
        finished_at: Timestamp::from_micros(finished_at),
        expires_at: Timestamp::from_micros(expires_at),
    })
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => Just(State::InProgress),
        1 => (response(), finish())
            .prop_map(|(response, finish)| State::Completed { response, finish }),
        1 => (response(), finish())
            .prop_map(|(response, finish)| State::FailedFinal { response, finish }),
        2 => finish().prop_map(|finish| State::FailedRetryable { finish }),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let contract = prop_oneof![3 => Just(Contract::Reclaim), 1 => Just(Contract::Hold)];
    (contract, span(), span(), count()).prop_map(
        |(contract, retention, reclaim_window, max_reclaims)| Terms {
            contract,
            retention,
            reclaim_window,
            max_reclaims,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let recovery = option::of((point(), attempt(), count()).prop_map(
        |(point, attempt, sequence)| Recovery {
            point,
            attempt,
            sequence,
        },
    ));
    let numbers = (
        0..3_u64,
        prop_oneof![8 => 1..4_i64, 1 => Just(i64::MAX)],
        attempt(),
        count(),
        any::<bool>(),
    );
    let times = (instant(), instant(), instant(), instant());
    (
        numbers,
        times,
        recovery,
        terms(),
        state(),
        option::of(note()),
    )
        .prop_map(|(numbers, times, recovery, terms, state, note)| {
            let (token, revision, attempt, reclaims, uncertain) = numbers;
            let (created_at, effect_since, locked_at, locked_until) = times;
            let first = support::claim("k", token).first_record(Timestamp::from_micros(created_at));
            Record {
                revision: Revision::new(revision.unsigned_abs()),
                attempt,
                reclaims,
                uncertain,
                recovery,
                terms,
                effect_since: Timestamp::from_micros(effect_since),
                locked_at: Timestamp::from_micros(locked_at),
                locked_until: Timestamp::from_micros(locked_until),
                state,
                note,
                ..first
            }
        })
}

fn fresh_claim() -> impl Strategy<Value = Claim> {
    (0..3_u64, any::<bool>()).prop_map(|(number, hold)| {
        let policy = Policy::builder()
            .contract(if hold {
                Contract::Hold
            } else {
                Contract::Reclaim
            })
            .max_reclaims(7)
            .build()
            .unwrap();
        let claim = support::claim_of(support::id("k"), 100 + number, &policy);
        Claim::new(
            claim.request().clone(),
            &policy,
            Origin::from_bytes([9; 16]),
            claim.token(),
        )
    })
}

fn new_token() -> impl Strategy<Value = idem_core::OwnerToken> {
    (0..3_u64).prop_map(|number| support::token(200 + number))
}

fn transition() -> impl Strategy<Value = Transition> {
    let verdict = prop_oneof![
        response().prop_map(Verdict::Completed),
        response().prop_map(Verdict::Failed),
        Just(Verdict::Retryable),
        Just(Verdict::Released),
    ];
    prop_oneof![
        1 => span().prop_map(|lease| Transition::Renew { lease }),
        2 => (point(), count(), span()).prop_map(|(point, sequence, lease)| {
            Transition::Checkpoint { point, sequence, lease }
        }),
        1 => response().prop_map(Transition::Complete),
        1 => response().prop_map(Transition::FailFinal),
        1 => (note(), any::<bool>())
            .prop_map(|(reason, uncertain)| Transition::FailRetryable { reason, uncertain }),
        1 => Just(Transition::Release),
        3 => (new_token(), span())
            .prop_map(|(token, lease)| Transition::TakeOver { token, lease }),
        2 => fresh_claim().prop_map(|claim| Transition::Restart(Box::new(claim))),
        3 => (verdict, new_token(), note())
            .prop_map(|(verdict, token, note)| Transition::Resolve { verdict, token, note }),
    ]
}

/// The expectation that goes with the transition, true of the record or not.
fn expect(record: &Record, change: &Transition, is_true: [bool; 2]) -> Expect {
    let token = if is_true[0] {
        record.token
    } else {
        support::token(999)
    };
    match Expect::Owner(token) {
        owner if change.patch(owner).is_ok() => owner,
        _ => Expect::Unchanged {
            token,
            revision: if is_true[1] {
                record.revision
            } else {
                record.revision.next().next()
            },
        },
    }
}

#[test]
fn the_statements_do_what_the_reference_does() {
    let directory = support::directory();
    let path = directory.path().join("keys.sqlite");
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(0)));
    let runtime = support::runtime();
    let store = runtime
        .block_on(
            SqliteOptions::new()
                .without_durability()
                .clock(clock.clone())
                .open(&path),
        )
        .unwrap();
    let outside = support::raw(&path);
    outside.execute_batch("PRAGMA synchronous = OFF").unwrap();

    let truth = prop_oneof![
        6 => Just([true, true]),
        1 => Just([false, true]),
        1 => Just([true, false]),
    ];
    let mut runner = TestRunner::new(Config {
        cases: 4000,
        failure_persistence: None,
        ..Config::default()
    });
    let mut met = std::collections::BTreeMap::<_, [u32; 2]>::new();
    let met_cell = std::cell::RefCell::new(&mut met);
    runner
        .run(
            &(record(), transition(), truth, instant()),
            |(record, change, is_true, now)| {
                let expect = expect(&record, &change, is_true);
                clock.set(Timestamp::from_micros(now));
                support::put(&outside, &record);
                let applied = runtime.block_on(compare(&store, &record, expect, &change, now))?;
                met_cell.borrow_mut().entry(change.name()).or_default()[usize::from(applied)] += 1;
                Ok(())
            },
        )
        .unwrap();
    // The cases are random, and worth something only if each transition was both let through and refused.
    for (name, [refused, applied]) in met {
        assert!(
            refused > 10 && applied > 10,
            "{name}: {refused} refused, {applied} applied"
        );
    }
}

async fn compare(
    store: &SqliteKeyStore,
    record: &Record,
    expect: Expect,
    change: &Transition,
    now: i64,
) -> Result<bool, TestCaseError> {
    let now = Timestamp::from_micros(now);
    let before = store.load(&record.id).await.unwrap().unwrap();
    prop_assert_eq!(&*before.record, record);
    prop_assert_eq!(before.now, now);

    let outcome = store.transition(&record.id, expect, change).await.unwrap();
    let after = store.load(&record.id).await.unwrap();
    let applied = match record.apply(expect, change, Moment::exact(now)) {
        Ok(Applied::Changed(next)) => {
            let stored = Record {
                // The column ends where the largest revision does, which nobody reaches.
                revision: next.revision.min(Revision::new(i64::MAX.unsigned_abs())),
                ..*next
            };
            let revision = stored.revision;
            prop_assert_eq!(outcome, TransitionOutcome::Applied { revision, now });
            prop_assert_eq!(&*after.unwrap().record, &stored);
            true
        }
        Ok(Applied::Removed) => {
            let revision = record.revision;
            prop_assert_eq!(outcome, TransitionOutcome::Applied { revision, now });
            prop_assert_eq!(after, None);
            true
        }
        Ok(Applied::Unchanged)
        | Err(Rejected::Lost | Rejected::Superseded | Rejected::Conflict) => {
            prop_assert_eq!(outcome, TransitionOutcome::Lost(Some(before.clone())));
            prop_assert_eq!(after, Some(before));
            false
        }
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    };
    Ok(applied)
}
