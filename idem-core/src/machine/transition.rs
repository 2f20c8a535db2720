use crate::record::{Note, OwnerToken, RecoveryPoint, Response};
use crate::time::Span;

use super::Claim;

/// Everything that can happen to a record after it was claimed.
///
/// The first six are the owner's and go with [`Expect::Owner`](super::Expect::Owner); the others are for
/// whoever saw the record and go with [`Expect::Unchanged`](super::Expect::Unchanged).
#[derive(Debug, Clone)]
pub enum Transition {
    /// The lease begins anew.
    Renew {
        /// How long it is, from the store's now.
        lease: Span,
    },
    /// The work has come this far. Marks the record uncertain, and renews the lease.
    Checkpoint {
        /// Where it has got to.
        point: RecoveryPoint,
        /// Which of this attempt's checkpoints it is. A lower one than is stored changes nothing.
        sequence: u32,
        /// How long the lease is, from the store's now.
        lease: Span,
    },
    /// The work was done: this is its answer from now on.
    Complete(Response),
    /// The work failed after it may have had an effect: this is its answer from now on.
    FailFinal(Response),
    /// The work failed and left no answer. The same request may try again.
    FailRetryable {
        /// Why.
        reason: Note,
        /// Whether a side effect may have begun all the same.
        uncertain: bool,
    },
    /// The request was refused before anything was done: the key becomes unused. An uncertain record is failed
    /// as retryable instead, which keeps its key bound to its payload.
    Release,
    /// Somebody else runs the work: the lease is over, or the last attempt failed and left no answer.
    TakeOver {
        /// The new owner.
        token: OwnerToken,
        /// How long the lease is, from the store's now.
        lease: Span,
    },
    /// A finished record has expired, and the key begins anew with this claim.
    Restart(Box<Claim>),
    /// An operator or a reconciler found out what happened.
    Resolve {
        /// What happened.
        verdict: Verdict,
        /// A fresh token, so that the owner of before is shut out.
        token: OwnerToken,
        /// Who says so, and why.
        note: Note,
    },
}

/// What an operator or a reconciler found out about a record that nobody could settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was done, and this is its answer.
    Completed(Response),
    /// It failed for good, and this is its answer.
    Failed(Response),
    /// It was not done: the same request may try again if the record's terms still allow that, under the same
    /// origin and so with the same key at the provider. An owner that wakes up late cannot charge beside the
    /// retry.
    ///
    /// It does not widen the terms. Under [`Hold`](crate::Contract::Hold), or when the reclaim window is over
    /// or no reclaims are left, the outcome stays unknown.
    Retryable,
    /// The key is free. For operators only: an owner that sleeps may yet call the provider under the old
    /// origin, and then a new request would be a second effect.
    Released,
}

impl Transition {
    /// The transition's name, for errors, logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Renew { .. } => "renew",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Complete(_) => "complete",
            Self::FailFinal(_) => "fail_final",
            Self::FailRetryable { .. } => "fail_retryable",
            Self::Release => "release",
            Self::TakeOver { .. } => "take_over",
            Self::Restart(_) => "restart",
            Self::Resolve { .. } => "resolve",
        }
    }
}
