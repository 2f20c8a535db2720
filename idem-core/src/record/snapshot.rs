use std::sync::Arc;

use crate::time::{Span, Timestamp};

use super::Record;

/// A record and what time it was in the store when it was read.
///
/// Whether a lease is over, or a retention, is judged by this `now` and by nothing else. The clock of the
/// application's host never comes into it, so two hosts that are 45 seconds apart decide alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// What the store holds. Shared, because a snapshot is handed on, to everybody who waits for the record for
    /// one, and nobody changes it.
    pub record: Arc<Record>,
    /// The store's own time, read in the same statement as the record.
    pub now: Timestamp,
    /// How far apart two readings of the store's time can be. Zero for a store with one clock; more for one
    /// whose clock is somebody's host, or whose primary may change.
    pub skew: Span,
}

impl Snapshot {
    /// A snapshot of a store that has one clock.
    #[must_use]
    pub fn new(record: impl Into<Arc<Record>>, now: Timestamp) -> Self {
        Self {
            record: record.into(),
            now,
            skew: Span::ZERO,
        }
    }

    /// The snapshot's time with its doubt.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            skew: self.skew,
        }
    }
}

/// A reading of a clock that may be off by so much.
///
/// Whatever lets somebody replace an owner or forget a record is judged by the earliest time that it can be
/// ([`Moment::earliest`]); whatever forbids it, by the latest. A doubtful clock makes things later, never wrong.
///
/// ```
/// use idem_core::{Moment, Span, Timestamp};
///
/// let moment = Moment { now: Timestamp::from_micros(100), skew: Span::from_micros(30)? };
/// assert_eq!(moment.earliest(), Timestamp::from_micros(70));
/// assert_eq!(moment.latest(), Timestamp::from_micros(130));
/// # Ok::<(), idem_core::SpanTooLong>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// What the clock shows.
    pub now: Timestamp,
    /// How far off it may be.
    pub skew: Span,
}

impl Moment {
    /// A reading that is not in doubt.
    #[must_use]
    pub const fn exact(now: Timestamp) -> Self {
        Self {
            now,
            skew: Span::ZERO,
        }
    }

    /// The earliest time that it can be.
    #[must_use]
    pub fn earliest(self) -> Timestamp {
        self.now - self.skew
    }

    /// The latest time that it can be.
    #[must_use]
    pub fn latest(self) -> Timestamp {
        self.now + self.skew
    }
}
