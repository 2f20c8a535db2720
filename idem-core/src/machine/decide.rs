use crate::record::{Record, Snapshot, State, Status};

use super::{Claim, Decision, Expect, Mismatch, Swap, Transition};

/// Decides what `claim` means for what the store holds. Total, and without side effects; the first row that
/// matches wins.
///
/// | # | what the store holds | decision |
/// |---|---|---|
/// | 1 | nothing | [`Claim`](Decision::Claim) |
/// | 2 | finished and expired | [`Restart`](Decision::Restart); operation and payload are not compared: it is a new request |
/// | 3 | in progress under this claim's own token | [`Resume`](Decision::Resume) |
/// | 4 | another operation | [`Mismatch`](Decision::Mismatch) |
/// | 5 | a fingerprint under a scheme that the caller does not declare | [`Incomparable`](Decision::Incomparable) |
/// | 6 | another fingerprint | [`Mismatch`](Decision::Mismatch) |
/// | 7 | completed | [`Replay`](Decision::Replay) |
/// | 8 | failed for good | [`Replay`](Decision::Replay) |
/// | 9 | failed retryable, and either certain or within the reclaim terms | [`TakeOver`](Decision::TakeOver) |
/// | 10 | failed retryable, otherwise | [`OutcomeUnknown`](Decision::OutcomeUnknown) |
/// | 11 | in progress within its lease | [`Busy`](Decision::Busy) |
/// | 12 | in progress, lease over, within the reclaim terms | [`TakeOver`](Decision::TakeOver) |
/// | 13 | in progress, lease over, otherwise | [`OutcomeUnknown`](Decision::OutcomeUnknown) |
///
/// *Within the reclaim terms* is [`Record::is_within_reclaim_terms`], by the terms that are stored: a
/// configuration that changed since cannot break them. A claim that waited for an attempt
/// ([`Claim::having_seen`]) takes that attempt's answer even if it has expired meanwhile, so a retention of
/// zero does not make waiters run the work again.
///
/// Time comes from the snapshot alone.
#[must_use]
pub fn decide(claim: &Claim, held: Option<&Snapshot>) -> Decision {
    let Some(snapshot) = held else {
        return Decision::Claim;
    };
    let record = &snapshot.record;
    let moment = snapshot.moment();

    if record.is_expired(moment) && !is_awaited_answer(claim, record) {
        let restart = Transition::Restart(Box::new(claim.clone()));
        return Decision::Restart(Swap {
            expect: Expect::unchanged(record),
            change: restart,
        });
    }
    if record.status() == Status::InProgress && record.token == claim.token() {
        return Decision::Resume;
    }
    if record.operation != *claim.operation() {
        return Decision::Mismatch(Mismatch::Operation);
    }
    let stored = record.fingerprint.scheme();
    match claim.request().fingerprints.under(stored) {
        None => return Decision::Incomparable { stored },
        Some(fingerprint) if *fingerprint != record.fingerprint => {
            return Decision::Mismatch(Mismatch::Payload);
        }
        Some(_) => {}
    }
    match &record.state {
        State::Completed { response, .. } | State::FailedFinal { response, .. } => {
            Decision::Replay(response.clone())
        }
        State::InProgress if !record.is_lease_over(moment) => Decision::Busy {
            remaining: record.locked_until.since(moment.earliest()),
        },
        State::InProgress | State::FailedRetryable { .. } if record.is_reclaimable(moment) => {
            let take_over = Transition::TakeOver {
                token: claim.token(),
                lease: claim.lease(),
            };
            Decision::TakeOver(Swap {
                expect: Expect::unchanged(record),
                change: take_over,
            })
        }
        State::InProgress | State::FailedRetryable { .. } => Decision::OutcomeUnknown,
    }
}

fn is_awaited_answer(claim: &Claim, record: &Record) -> bool {
    claim.witness() == Some(record.fence()) && record.state.response().is_some()
}
