use crate::fingerprint::Scheme;
use crate::record::Response;
use crate::time::Span;

use super::{Expect, Transition};

/// What a request means for what the store holds.
#[derive(Debug, Clone)]
pub enum Decision {
    /// Nothing is held: claim the key, and run the work as its first attempt.
    Claim,
    /// The record is this very attempt's own: its claim was answered and the answer was lost. Run the work.
    Resume,
    /// What is held has expired: begin anew by this swap, and run the work as a first attempt.
    Restart(Swap),
    /// The owner is gone, or failed and left no answer: take over by this swap, and run the work.
    TakeOver(Swap),
    /// The key was used with something else. Nothing runs.
    Mismatch(Mismatch),
    /// The record was written under a scheme that this caller does not declare, so nobody here can say whether
    /// the request is the same. Nothing runs; another node may know.
    Incomparable {
        /// The scheme that it was written under.
        stored: Scheme,
    },
    /// The work was done, or failed for good: this is the answer.
    Replay(Response),
    /// Somebody is running the work.
    Busy {
        /// How long the lease still is.
        remaining: Span,
    },
    /// Nobody knows whether the work was done, and nobody may run it again. A reconciler or an operator
    /// resolves the record.
    OutcomeUnknown,
}

/// A write that hands a record to a new owner, if it is still as it was seen.
#[derive(Debug, Clone)]
pub struct Swap {
    /// The version that was seen.
    pub expect: Expect,
    /// What to write.
    pub change: Transition,
}

/// In what a request differs from the one that its key is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// It is another operation.
    Operation,
    /// It is the same operation with another payload.
    Payload,
}

impl Decision {
    /// Whether the work is run after this decision.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(
            self,
            Self::Claim | Self::Resume | Self::Restart(_) | Self::TakeOver(_)
        )
    }
}
