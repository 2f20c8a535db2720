use std::time::{Duration, Instant};

use crate::entry::Entry;

/// What this process knows of an attempt in progress, until when it may be said to others, by this process's own
/// monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) entry: Entry,
    pub(crate) until: Instant,
}

impl Sighting {
    /// It is good for `left` from `asked`, when the question was sent: before it was answered.
    pub(crate) fn new(entry: Entry, asked: Instant, left: Duration) -> Self {
        Self {
            entry,
            until: asked + left,
        }
    }

    /// For how much longer than `asked` it is good.
    pub(crate) fn left(&self, asked: Instant) -> Duration {
        // Whoever asked before it was learnt is told what was learnt.
        let left = self.until.saturating_duration_since(asked);
        left.min(self.entry.lifetime.as_duration())
    }
}
