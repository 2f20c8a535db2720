use std::time::Duration;

use super::random;

/// Delays that double, up to a bound, with the upper half of each left to chance.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    pub(super) fn next(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.longest);
        delay / 2 + delay * u32::from(random::jitter()) / 512
    }
}
