use crate::record::{Record, Response, Status};

use super::{Expect, Transition};

/// What it means that a transition found nothing to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It had been applied before: this was the second sending of a write whose acknowledgement was lost.
    AlreadyApplied,
    /// It is a delayed checkpoint, and a newer one is stored.
    Superseded,
    /// It is a checkpoint, and another one with the same number is stored.
    Conflict,
    /// The record is somebody else's, or in another state.
    Lost,
}

/// Says what it means that `change` found nothing to write and that the store now holds `record`.
///
/// A finish is already applied when the record is finished under the same token with the same answer; a
/// release, when the record is gone; a checkpoint, when it is the one that is stored. A release whose record
/// stands as a retryable failure under its own token was applied too: it was an uncertain one.
///
/// A `Complete` that was ambiguous when it was sent first and whose record is gone may have been applied and
/// swept, or not: this function answers `Lost`, and the caller, who knows that it was ambiguous, tells its
/// caller that the outcome is unknown.
#[must_use]
pub fn settle(expect: Expect, change: &Transition, record: Option<&Record>) -> Settled {
    let Some(record) = record else {
        return match change {
            Transition::Release => Settled::AlreadyApplied,
            _ => Settled::Lost,
        };
    };
    let Expect::Owner(token) = expect else {
        return settle_swap(change, record);
    };
    if record.token != token {
        return Settled::Lost;
    }
    let applied = match change {
        Transition::Complete(response) => is_answer(record, Status::Completed, response),
        Transition::FailFinal(response) => is_answer(record, Status::FailedFinal, response),
        Transition::FailRetryable { reason, uncertain } => {
            record.status() == Status::FailedRetryable
                && record.note.as_ref() == Some(reason)
                && (record.uncertain || !uncertain)
        }
        Transition::Release => record.status() == Status::FailedRetryable && record.uncertain,
        Transition::Checkpoint {
            point, sequence, ..
        } => {
            if record.status() != Status::InProgress {
                return Settled::Lost;
            }
            let Some(stored) = &record.recovery else {
                return Settled::Lost;
            };
            return match (stored.attempt, stored.sequence).cmp(&(record.attempt, *sequence)) {
                std::cmp::Ordering::Less => Settled::Lost,
                std::cmp::Ordering::Equal if stored.point == *point => Settled::AlreadyApplied,
                std::cmp::Ordering::Equal => Settled::Conflict,
                std::cmp::Ordering::Greater => Settled::Superseded,
            };
        }
        Transition::Renew { .. }
        | Transition::TakeOver { .. }
        | Transition::Restart(_)
        | Transition::Resolve { .. } => false,
    };
    if applied {
        Settled::AlreadyApplied
    } else {
        Settled::Lost
    }
}

/// A takeover, a restart or a verdict brings its own new token: if the record has it, the write was applied.
fn settle_swap(change: &Transition, record: &Record) -> Settled {
    let token = match change {
        Transition::TakeOver { token, .. } | Transition::Resolve { token, .. } => *token,
        Transition::Restart(claim) => claim.token(),
        _ => return Settled::Lost,
    };
    if record.token == token {
        Settled::AlreadyApplied
    } else {
        Settled::Lost
    }
}

fn is_answer(record: &Record, status: Status, response: &Response) -> bool {
    record.status() == status && record.state.response() == Some(response)
}
