//! Transitions to test with.

use idem_core::{
    Claim, Decision, Expect, Note, OwnerToken, Record, RecoveryPoint, Response, Snapshot, Span,
    Transition, Verdict, decide,
};

use crate::failure::{Failure, failure};
use crate::wish::Bits;

/// Another answer for each number.
pub(crate) fn response(number: u32) -> Response {
    Response::new(201)
        .header("content-type", "application/json")
        .header("x-number", number.to_string())
        .body(format!("{{\"number\": {number}}}"))
}

pub(crate) fn complete(number: u32) -> Transition {
    Transition::Complete(response(number))
}

pub(crate) fn fail_final(number: u32) -> Transition {
    Transition::FailFinal(response(number))
}

pub(crate) fn fail_retryable(uncertain: bool) -> Transition {
    Transition::FailRetryable {
        reason: Note::new("the provider answered 429"),
        uncertain,
    }
}

pub(crate) fn renew() -> Transition {
    Transition::Renew { lease: Span::MAX }
}

pub(crate) fn renew_lapsed() -> Transition {
    Transition::Renew { lease: Span::ZERO }
}

pub(crate) fn point(name: &str) -> Result<RecoveryPoint, Failure> {
    RecoveryPoint::new(name)
        .map_err(|error| failure!("the suite made a bad recovery point: {error}"))
}

pub(crate) fn checkpoint(sequence: u32) -> Result<Transition, Failure> {
    checkpoint_named(sequence, &format!("point-{sequence}"), Span::MAX)
}

pub(crate) fn checkpoint_named(
    sequence: u32,
    name: &str,
    lease: Span,
) -> Result<Transition, Failure> {
    Ok(Transition::Checkpoint {
        point: point(name)?,
        sequence,
        lease,
    })
}

pub(crate) fn fresh_token() -> OwnerToken {
    OwnerToken::from_bytes(Bits::fresh())
}

/// A takeover by somebody new, with the longest lease.
pub(crate) fn take_over() -> Transition {
    take_over_as(fresh_token(), Span::MAX)
}

pub(crate) fn take_over_as(token: OwnerToken, lease: Span) -> Transition {
    Transition::TakeOver { token, lease }
}

pub(crate) fn restart(claim: &Claim) -> Transition {
    Transition::Restart(Box::new(claim.clone()))
}

pub(crate) fn resolve(verdict: Verdict) -> Transition {
    Transition::Resolve {
        verdict,
        token: fresh_token(),
        note: Note::new("an operator looked into it"),
    }
}

/// One verdict of each kind.
pub(crate) fn verdicts() -> [Verdict; 4] {
    [
        Verdict::Completed(response(71)),
        Verdict::Failed(response(72)),
        Verdict::Retryable,
        Verdict::Released,
    ]
}

/// Everything that an owner can do.
pub(crate) fn owner_moves() -> Result<Vec<Transition>, Failure> {
    Ok(vec![
        renew(),
        checkpoint(1)?,
        checkpoint(u32::MAX)?,
        complete(1),
        fail_final(2),
        fail_retryable(false),
        fail_retryable(true),
        Transition::Release,
    ])
}

/// Everything that somebody else can do.
pub(crate) fn other_moves(claim: &Claim) -> Vec<Transition> {
    let mut moves = vec![take_over(), restart(claim)];
    moves.extend(verdicts().map(resolve));
    moves
}

/// The expectation that goes with the record, and is right.
pub(crate) fn right(record: &Record, change: &Transition) -> Expect {
    match change {
        Transition::TakeOver { .. } | Transition::Restart(_) | Transition::Resolve { .. } => {
            Expect::unchanged(record)
        }
        _ => Expect::Owner(record.token),
    }
}

/// What a claim means for a snapshot, by name.
pub(crate) fn decision(claim: &Claim, held: Option<&Snapshot>) -> &'static str {
    match decide(claim, held) {
        Decision::Claim => "Claim",
        Decision::Resume => "Resume",
        Decision::Restart(_) => "Restart",
        Decision::TakeOver(_) => "TakeOver",
        Decision::Mismatch(idem_core::Mismatch::Operation) => "Mismatch(Operation)",
        Decision::Mismatch(idem_core::Mismatch::Payload) => "Mismatch(Payload)",
        Decision::Incomparable { .. } => "Incomparable",
        Decision::Replay(_) => "Replay",
        Decision::Busy { .. } => "Busy",
        Decision::OutcomeUnknown => "OutcomeUnknown",
    }
}
