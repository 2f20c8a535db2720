use crate::fingerprint::Fingerprint;
use crate::identity::{Operation, RecordId};
use crate::time::Timestamp;

use super::{
    AttemptNumber, Contract, Fence, Moment, Note, Origin, OwnerToken, Recovery, Response, Revision,
    Status, Terms,
};

/// Everything that is known about one key.
///
/// A store reads a record by filling a [`RecordRow`](super::RecordRow) and writes it by carrying out a
/// [`Patch`](crate::Patch); the fields are here to be looked at. What may happen to a record is decided by
/// [`decide`](crate::decide) and [`Record::apply`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Whose key, and which.
    pub id: RecordId,
    /// What it was used for.
    pub operation: Operation,
    /// The meaning of the request that claimed it.
    pub fingerprint: Fingerprint,
    /// The name of the logical operation, kept through takeovers.
    pub origin: Origin,
    /// Who may write it, or last could.
    pub token: OwnerToken,
    /// Which version of the record this is.
    pub revision: Revision,
    /// Which try at the operation this is.
    pub attempt: AttemptNumber,
    /// How often it was taken over while a side effect may already have existed.
    pub reclaims: u32,
    /// Whether an earlier attempt, or this one, may have begun a side effect. Never cleared within an origin.
    pub uncertain: bool,
    /// How far the work has got.
    pub recovery: Option<Recovery>,
    /// What was promised at the claim.
    pub terms: Terms,
    /// When it was first claimed, or restarted.
    pub created_at: Timestamp,
    /// Since when a side effect may have existed.
    pub effect_since: Timestamp,
    /// When the lease began: the last claim or renewal.
    pub locked_at: Timestamp,
    /// When the lease is over. From then on the owner may be replaced.
    pub locked_until: Timestamp,
    /// How far it has come, with what belongs to that.
    pub state: State,
    /// Why it failed, or who resolved it.
    pub note: Option<Note>,
}

/// How far a record has come, with what exists only there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Claimed, and no outcome stored.
    InProgress,
    /// Done.
    Completed {
        /// What replays.
        response: Response,
        /// When that was, and until when it replays.
        finish: Finish,
    },
    /// Failed for good.
    FailedFinal {
        /// What replays.
        response: Response,
        /// When that was, and until when it replays.
        finish: Finish,
    },
    /// Failed without an answer.
    FailedRetryable {
        /// When that was, and until when the key stays bound to its request.
        finish: Finish,
    },
}

/// When a record finished and when it is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// When the outcome was stored.
    pub finished_at: Timestamp,
    /// From when on the key is a new request, if the record is [finished](Record::is_finished).
    pub expires_at: Timestamp,
}

impl State {
    /// The state's name.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::InProgress => Status::InProgress,
            Self::Completed { .. } => Status::Completed,
            Self::FailedFinal { .. } => Status::FailedFinal,
            Self::FailedRetryable { .. } => Status::FailedRetryable,
        }
    }

    /// The stored answer, if there is one.
    #[must_use]
    pub fn response(&self) -> Option<&Response> {
        match self {
            Self::Completed { response, .. } | Self::FailedFinal { response, .. } => Some(response),
            Self::InProgress | Self::FailedRetryable { .. } => None,
        }
    }

    /// When an outcome was stored, if one was.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        match self {
            Self::InProgress => None,
            Self::Completed { finish, .. }
            | Self::FailedFinal { finish, .. }
            | Self::FailedRetryable { finish } => Some(*finish),
        }
    }
}

impl Record {
    /// How far the record has come.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// The fencing number of the current attempt.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence {
            origin: self.origin,
            attempt: self.attempt,
        }
    }

    /// Whether the outcome is known: there is an answer, or a failure that certainly had no effect. Everything
    /// else is unresolved, and age alone never makes it a new request.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match self.state {
            State::InProgress => false,
            State::Completed { .. } | State::FailedFinal { .. } => true,
            State::FailedRetryable { .. } => !self.uncertain,
        }
    }

    /// Whether the record is finished and its retention is over: the key is a new request, and the record may
    /// be removed.
    #[must_use]
    pub fn is_expired(&self, moment: Moment) -> bool {
        self.is_finished()
            && self
                .state
                .finish()
                .is_some_and(|finish| finish.expires_at <= moment.earliest())
    }

    /// Whether the lease is over.
    #[must_use]
    pub fn is_lease_over(&self, moment: Moment) -> bool {
        self.locked_until <= moment.earliest()
    }

    /// Whether the record is in progress past its lease: an operation that is stuck right now.
    #[must_use]
    pub fn is_stuck(&self, moment: Moment) -> bool {
        self.state == State::InProgress && self.is_lease_over(moment)
    }

    /// Whether the terms still allow to run uncertain work once more: the contract is to reclaim, the window
    /// is open, and there are reclaims left.
    #[must_use]
    pub fn is_within_reclaim_terms(&self, moment: Moment) -> bool {
        self.terms.contract == Contract::Reclaim
            && moment.latest() < self.effect_since + self.terms.reclaim_window
            && self.reclaims < self.terms.max_reclaims
    }

    /// Whether somebody may take over and run the work.
    #[must_use]
    pub fn is_reclaimable(&self, moment: Moment) -> bool {
        match self.state {
            State::InProgress => self.is_lease_over(moment) && self.is_within_reclaim_terms(moment),
            State::FailedRetryable { .. } => {
                !self.uncertain || self.is_within_reclaim_terms(moment)
            }
            State::Completed { .. } | State::FailedFinal { .. } => false,
        }
    }

    /// Whether a verdict from outside may settle the record: its owner's lease is over, or it failed with an
    /// unknown outcome that nobody may run again.
    #[must_use]
    pub fn is_resolvable(&self, moment: Moment) -> bool {
        match self.state {
            State::InProgress => self.is_lease_over(moment),
            State::FailedRetryable { .. } => !self.is_reclaimable(moment),
            State::Completed { .. } | State::FailedFinal { .. } => false,
        }
    }
}
