//! Any record, any transition, any moment: as far as their types let them be, extremes included.

use std::num::NonZeroU32;

use idem_core::{
    AttemptNumber, Body, Claim, Contract, Expect, Fingerprint, Fingerprints, Finish, Headers,
    IdempotencyKey, Moment, Note, Operation, Origin, OwnerToken, Policy, Profile, Record, RecordId,
    Recovery, RecoveryPoint, Request, Response, Revision, Scheme, Scope, Span, State, Terms,
    Timestamp, Transition, Verdict,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::START;

pub(crate) fn timestamp() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        6 => (-2_000_i64..2_000).prop_map(|micros| START + micros),
        2 => any::<i64>(),
        1 => select(vec![i64::MIN, i64::MIN + 1, 0, i64::MAX - 1, i64::MAX]),
    ]
    .prop_map(Timestamp::from_micros)
}

pub(crate) fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        6 => 0_u64..2_000,
        1 => 0..=Span::MAX.as_micros(),
        1 => select(vec![0, Span::MAX.as_micros()]),
    ]
    .prop_map(|micros| Span::from_micros(micros).unwrap())
}

pub(crate) fn moment() -> impl Strategy<Value = Moment> {
    (timestamp(), prop_oneof![Just(Span::ZERO), span()])
        .prop_map(|(now, skew)| Moment { now, skew })
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..4, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn attempt() -> impl Strategy<Value = AttemptNumber> {
    number()
        .prop_map(|number| AttemptNumber::new(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)))
}

pub(crate) fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..12)
}

pub(crate) fn id() -> impl Strategy<Value = RecordId> {
    let scope = prop_oneof!["[^\0]{1,12}", Just("s".repeat(255))];
    let key = prop_oneof!["[ -~]{1,12}", Just("k".repeat(255))];
    (scope, key).prop_map(|(scope, key)| {
        RecordId::new(
            Scope::new(scope).unwrap(),
            IdempotencyKey::new(key).unwrap(),
        )
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    "[^\0]{1,20}".prop_map(|text| Operation::new(text).unwrap())
}

fn fingerprint() -> impl Strategy<Value = Fingerprint> {
    (0_u16..3, any::<u16>(), any::<[u8; 32]>()).prop_map(|(encoding, profile, digest)| {
        Fingerprint::from_parts(Scheme::new(encoding, Profile::new(profile)), digest)
    })
}

pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    vec((bytes(), bytes()), 0..5).prop_map(Headers::from_iter)
}

pub(crate) fn response() -> impl Strategy<Value = Response> {
    let body = prop_oneof![
        4 => bytes().prop_map(|bytes| Body::Bytes(bytes.into())),
        1 => Just(Body::Omitted),
    ];
    (any::<u16>(), headers(), body)
        .prop_map(|(code, headers, body)| Response::from_parts(code, headers, body))
}

fn note() -> impl Strategy<Value = Note> {
    "\\PC{0,20}".prop_map(Note::new)
}

fn point() -> impl Strategy<Value = RecoveryPoint> {
    ("[^\0]{1,8}", option::of(bytes())).prop_map(|(name, data)| {
        let point = RecoveryPoint::new(name).unwrap();
        match data {
            Some(data) => point.with_data(data).unwrap(),
            None => point,
        }
    })
}

fn recovery() -> impl Strategy<Value = Recovery> {
    (point(), attempt(), number()).prop_map(|(point, attempt, sequence)| Recovery {
        point,
        attempt,
        sequence,
    })
}

pub(crate) fn terms() -> impl Strategy<Value = Terms> {
    (select(&Contract::ALL[..]), span(), span(), number()).prop_map(
        |(contract, retention, reclaim_window, max_reclaims)| Terms {
            contract,
            retention,
            reclaim_window,
            max_reclaims,
        },
    )
}

fn state() -> impl Strategy<Value = State> {
    let finish = || {
        (timestamp(), timestamp()).prop_map(|(finished_at, expires_at)| Finish {
            finished_at,
            expires_at,
        })
    };
    prop_oneof![
        3 => Just(State::InProgress),
        1 => (response(), finish()).prop_map(|(response, finish)| State::Completed { response, finish }),
        1 => (response(), finish()).prop_map(|(response, finish)| State::FailedFinal { response, finish }),
        2 => finish().prop_map(|finish| State::FailedRetryable { finish }),
    ]
}

pub(crate) fn token() -> impl Strategy<Value = OwnerToken> {
    any::<[u8; 16]>().prop_map(OwnerToken::from_bytes)
}

pub(crate) fn origin() -> impl Strategy<Value = Origin> {
    any::<[u8; 16]>().prop_map(Origin::from_bytes)
}

/// Any record whose revision fits the columns of a database.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    let revision = prop_oneof![4 => 1_u64..9, 1 => 0..=i64::MAX as u64];
    (
        (id(), operation(), fingerprint(), origin(), token()),
        (revision, attempt(), number(), any::<bool>()),
        (option::of(recovery()), terms(), option::of(note()), state()),
        (timestamp(), timestamp(), timestamp(), timestamp()),
    )
        .prop_map(|(identity, counters, contents, times)| Record {
            id: identity.0,
            operation: identity.1,
            fingerprint: identity.2,
            origin: identity.3,
            token: identity.4,
            revision: Revision::new(counters.0),
            attempt: counters.1,
            reclaims: counters.2,
            uncertain: counters.3,
            recovery: contents.0,
            terms: contents.1,
            note: contents.2,
            state: contents.3,
            created_at: times.0,
            effect_since: times.1,
            locked_at: times.2,
            locked_until: times.3,
        })
}

/// What an owner may write.
pub(crate) fn owners_transition() -> impl Strategy<Value = Transition> {
    prop_oneof![
        span().prop_map(|lease| Transition::Renew { lease }),
        (point(), number(), span()).prop_map(|(point, sequence, lease)| Transition::Checkpoint {
            point,
            sequence,
            lease
        }),
        response().prop_map(Transition::Complete),
        response().prop_map(Transition::FailFinal),
        (note(), any::<bool>())
            .prop_map(|(reason, uncertain)| Transition::FailRetryable { reason, uncertain }),
        Just(Transition::Release),
    ]
}

/// What somebody else may write.
pub(crate) fn others_transition() -> impl Strategy<Value = Transition> {
    let verdict = prop_oneof![
        response().prop_map(Verdict::Completed),
        response().prop_map(Verdict::Failed),
        Just(Verdict::Retryable),
        Just(Verdict::Released),
    ];
    prop_oneof![
        2 => (token(), span()).prop_map(|(token, lease)| Transition::TakeOver { token, lease }),
        1 => (id(), operation(), fingerprint(), origin(), token()).prop_map(
            |(id, operation, fingerprint, origin, token)| {
                let request = Request::new(id, operation, Fingerprints::new(fingerprint));
                Transition::Restart(Box::new(Claim::new(
                    request,
                    &Policy::default(),
                    origin,
                    token,
                )))
            }
        ),
        2 => (verdict, token(), note()).prop_map(|(verdict, token, note)| Transition::Resolve {
            verdict,
            token,
            note
        }),
    ]
}

/// Any transition with the kind of expectation that goes with it, mostly met by `record`.
pub(crate) fn write_to(record: &Record) -> impl Strategy<Value = (Expect, Transition)> + use<> {
    let (owner, seen) = (record.token, Expect::unchanged(record));
    let owners = (
        prop_oneof![3 => Just(owner), 1 => token()].prop_map(Expect::Owner),
        owners_transition(),
    );
    let others = (Just(seen), others_transition());
    prop_oneof![owners, others]
}

/// A claim of this very request by somebody else.
pub(crate) fn retry_of(record: &Record, number: u8) -> Claim {
    let request = Request::new(
        record.id.clone(),
        record.operation.clone(),
        Fingerprints::new(record.fingerprint),
    );
    Claim::new(
        request,
        &Policy::default(),
        super::origin(number),
        super::token(number),
    )
}
