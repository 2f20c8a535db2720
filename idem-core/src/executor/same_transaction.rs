//! What a SQL store needs to run work whose rows and whose record commit together or not at all.
//!
//! The store has the transaction; what an outcome means for it is decided here, so that it means the same in every
//! database.

use std::sync::Arc;

use crate::identity::RecordId;
use crate::machine::{Claim, Decision, Policy, Request, Transition};
use crate::record::{AttemptNumber, Fence, Record, RecoveryPoint, Response};
use crate::store::StoreError;
use crate::time::Span;

use super::answer::Answer;
use super::outcome::Outcome;
use super::random;
use super::storable::Storable;

/// One try at work inside a transaction, as the work sees it.
///
/// There is no lease to lose and no checkpoint to make: until the transaction commits nobody sees the record, and its lock is
/// the lease. There is no key for a provider either. A transaction that is rolled back leaves nothing behind that the next
/// attempt could make the same key from, so what calls a provider belongs in [`Idempotency::execute`](super::Idempotency),
/// whose claim is committed before it.
#[derive(Debug, Clone)]
pub struct TxAttempt(Arc<Record>);

impl TxAttempt {
    /// The attempt that owns this record. For stores.
    #[must_use]
    pub fn new(record: Arc<Record>) -> Self {
        Self(record)
    }

    /// Which try this is, from 1. Tries that were rolled back are not counted.
    #[must_use]
    pub fn number(&self) -> AttemptNumber {
        self.0.attempt
    }

    /// The fencing number to hand to downstream systems that can refuse a late owner by themselves.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// Whose key this is, and which.
    #[must_use]
    pub fn id(&self) -> &RecordId {
        &self.0.id
    }

    /// Where an earlier attempt had got to, if that one ran outside of a transaction and made a checkpoint.
    #[must_use]
    pub fn recovery_point(&self) -> Option<&RecoveryPoint> {
        self.0.recovery.as_ref().map(|recovery| &recovery.point)
    }
}

/// What an outcome means for the transaction that the work was done in.
#[derive(Debug, Clone)]
pub enum TxEnd {
    /// Write this, and commit it with the work's rows.
    Commit(Transition),
    /// Undo what the work wrote, but not the claim; write this, and commit it.
    CommitWithoutRows(Transition),
    /// Undo everything, the claim included: the request is as if it had never come.
    RollBack,
}

impl TxEnd {
    /// What this outcome means.
    ///
    /// An outcome that nobody knows cannot be kept: what the work wrote is undone, and that it called somebody else is not
    /// visible to anyone. So it is rolled back, as what may be tried again is.
    ///
    /// ```
    /// use idem_core::executor::{Outcome, TxEnd};
    /// use idem_core::{Policy, Response, Transition};
    ///
    /// let outcome = Outcome::Completed(Response::new(201));
    /// let end = TxEnd::of(&outcome, &Policy::default());
    /// assert!(matches!(end, TxEnd::Commit(Transition::Complete(_))));
    /// ```
    pub fn of<T: Storable>(outcome: &Outcome<T>, policy: &Policy) -> Self {
        let kept = |answer: &T| kept(answer.to_response(), policy);
        match outcome {
            Outcome::Completed(answer) => Self::Commit(Transition::Complete(kept(answer))),
            Outcome::Failed(answer) => Self::CommitWithoutRows(Transition::FailFinal(kept(answer))),
            Outcome::Retryable(_) | Outcome::Rejected(_) | Outcome::Unknown(_) => Self::RollBack,
        }
    }
}

/// The response as it is kept under a policy: without its body, if that is larger than the policy keeps.
pub(super) fn kept(response: Response, policy: &Policy) -> Response {
    let size = response.body_ref().bytes().map_or(0, |body| body.len());
    if size > policy.response_limit() {
        response.without_body()
    } else {
        response
    }
}

impl Claim {
    /// A claim under an origin and a token of its own, from the system's random numbers.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the system has none.
    pub fn fresh(request: Request, policy: &Policy) -> Result<Self, StoreError> {
        let (origin, token) = random::origin_and_token()?;
        Ok(Self::new(request, policy, origin, token))
    }
}

impl<T: Storable> Answer<T> {
    /// A decision that runs nothing, as an answer.
    ///
    /// A decision to run is none of these; if it comes here all the same, the answer is that somebody is busy, since asking
    /// again is safe.
    pub fn refused(decision: Decision) -> Self {
        match decision {
            Decision::Replay(response) => Self::replayed(response),
            Decision::Busy { remaining } => Self::Busy { remaining },
            Decision::Mismatch(mismatch) => Self::Mismatch(mismatch),
            Decision::Incomparable { stored } => Self::Incomparable { stored },
            Decision::OutcomeUnknown => Self::OutcomeUnknown,
            Decision::Claim | Decision::Resume | Decision::Restart(_) | Decision::TakeOver(_) => {
                Self::Busy {
                    remaining: Span::ZERO,
                }
            }
        }
    }
}
