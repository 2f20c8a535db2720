use std::time::Duration;

use idem_core::{Moment, Record, Snapshot, Span, Timestamp};

use crate::names::Names;
use crate::options::Pooling;

/// What every statement is written by.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) names: Names,
    pub(crate) pooling: Pooling,
    /// How long a statement waits for a lock of somebody else.
    pub(crate) lock_wait: Duration,
    /// The largest response that is taken, in bytes.
    pub(crate) response_limit: usize,
    /// How far the server's clock may be off.
    pub(crate) skew: Span,
}

impl Settings {
    /// What the server is told. It applies that to each lock, and a statement may wait for two of one row, one after the
    /// other: the place at the head of those who wait, and then the row. Zero would mean forever.
    pub(crate) fn lock_timeout(&self) -> Duration {
        (self.lock_wait / 2).max(Duration::from_millis(1))
    }

    pub(crate) fn moment(&self, now: Timestamp) -> Moment {
        Moment {
            now,
            skew: self.skew,
        }
    }

    pub(crate) fn snapshot(&self, record: Record, now: Timestamp) -> Snapshot {
        Snapshot {
            record: record.into(),
            now,
            skew: self.skew,
        }
    }
}

/// Where a statement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// By itself: it is its own transaction.
    Statement,
    /// In a transaction of the caller's, whose settings are his.
    Transaction,
}
