use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Since when the writer has been at what it is at, for callers that choose their way by it.
#[derive(Debug)]
pub(crate) struct Underway {
    epoch: Instant,
    /// Microseconds since the epoch, or zero while it is at nothing.
    since: AtomicU64,
}

/// What is shorter than this is waited for: it takes about as long to have a reader look, and costs less.
const LONG: Duration = Duration::from_millis(1);

impl Underway {
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            since: AtomicU64::new(0),
        }
    }

    /// It is at something new.
    pub(crate) fn begin(&self) {
        self.since.store(self.now().max(1), Ordering::Relaxed);
    }

    /// It is at nothing.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Whether it has been at the same for long: the disk is slow.
    pub(crate) fn is_long(&self) -> bool {
        match self.since.load(Ordering::Relaxed) {
            0 => false,
            since => Duration::from_micros(self.now().saturating_sub(since)) > LONG,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_long_only_while_it_goes_on_for_long() {
        let underway = Underway::new();
        std::thread::sleep(LONG * 2);
        assert!(!underway.is_long());
        underway.begin();
        std::thread::sleep(LONG * 2);
        assert!(underway.is_long());
        underway.end();
        assert!(!underway.is_long());
    }
}
