//! Small constructors that the tests of the state machine share. Nothing here decides anything: what is right
//! is stated in the tests.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    reason = "the arguments are constants of the tests"
)]

pub(crate) mod arbitrary;
pub(crate) mod cell;

use std::num::NonZeroU32;

use idem_core::{
    AttemptNumber, Claim, Contract, Fingerprint, Fingerprints, IdempotencyKey, Operation, Origin,
    OwnerToken, Policy, Profile, RecordId, RecoveryPoint, Request, Response, Scheme, Scope, Span,
    Terms, Timestamp,
};

/// A moment in 2023 to begin at, in microseconds.
pub(crate) const START: i64 = 1_700_000_000_000_000;

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const HOUR: i64 = 3600 * SECOND;
pub(crate) const DAY: i64 = 24 * HOUR;

/// So many microseconds after [`START`].
pub(crate) fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(START + micros)
}

pub(crate) fn span(micros: i64) -> Span {
    Span::from_micros(u64::try_from(micros).unwrap()).unwrap()
}

pub(crate) fn token(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

pub(crate) fn origin(number: u8) -> Origin {
    Origin::from_bytes([number; 16])
}

pub(crate) fn attempt(number: u32) -> AttemptNumber {
    AttemptNumber::new(NonZeroU32::new(number).unwrap())
}

pub(crate) fn id() -> RecordId {
    RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new("k-1").unwrap(),
    )
}

pub(crate) fn charge() -> Operation {
    Operation::new("POST /v1/charges").unwrap()
}

pub(crate) fn refund() -> Operation {
    Operation::new("POST /v1/refunds").unwrap()
}

/// The fingerprint of payload number `payload` under the caller's rules number `profile`.
pub(crate) fn fingerprint(profile: u16, payload: u8) -> Fingerprint {
    Fingerprint::from_parts(Scheme::current(Profile::new(profile)), [payload; 32])
}

/// A charge with payload number `payload`, by a caller that writes under one set of rules only.
pub(crate) fn request(payload: u8) -> Request {
    Request::new(id(), charge(), Fingerprints::new(fingerprint(1, payload)))
}

pub(crate) fn response(code: u16) -> Response {
    Response::new(code)
        .header("x-trace", "7")
        .body(format!("answer {code}"))
}

pub(crate) fn point(name: &str) -> RecoveryPoint {
    RecoveryPoint::new(name).unwrap()
}

/// A claim under the default policy, with an origin and a token of that number.
pub(crate) fn claim(number: u8, request: Request) -> Claim {
    Claim::new(request, &Policy::default(), origin(number), token(number))
}

/// The default terms, under this contract.
pub(crate) fn terms(contract: Contract) -> Terms {
    Terms {
        contract,
        ..Policy::default().terms()
    }
}
