use std::time::Duration;

use crate::record::{OwnerToken, Revision, Snapshot};
use crate::time::{Span, Timestamp};

/// What a store answers to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// There was no record, and now there is this one.
    Won(Snapshot),
    /// There is a record. It may be the claim's own, from an earlier sending whose answer was lost.
    Held(Snapshot),
    /// Somebody else is just creating or writing this record, and nothing more is known. Try again.
    Contended {
        /// After how long.
        retry_after: Duration,
    },
    /// A cache remembers that the key is in progress, with this claim's operation and fingerprint. Stores
    /// never answer so.
    Refused {
        /// Whose it was.
        token: OwnerToken,
        /// How long its lease was when the cache learnt of it, less the time since.
        remaining: Span,
    },
}

/// What a store answers to a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransitionOutcome {
    /// It was written.
    Applied {
        /// The record's revision after it. For a removal: the revision that was removed.
        revision: Revision,
        /// When it was written, by the store's own clock.
        now: Timestamp,
    },
    /// The guard did not let it through, and nothing was written. This is what the store holds instead.
    Lost(Option<Snapshot>),
    /// Somebody else is just writing this record, and nothing more is known. Try again.
    Contended {
        /// After how long.
        retry_after: Duration,
    },
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// How many records were removed.
    pub removed: u32,
    /// How many records are in progress past their lease: operations that are stuck right now. Counted up to
    /// the limit of the sweep.
    pub stuck: u32,
}
