use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};

use super::{Span, Timestamp};

/// Where a store that has no clock of its own gets the time.
///
/// A database server has one clock for everybody and needs none of this. An embedded store (memory, SQLite, a
/// key-value file) uses its host's, and takes it as an argument so that tests can hold it still.
///
/// # To be correct
///
/// Everybody who opens the same data must see the same clock, or the store declares the difference as
/// [`Snapshot::skew`](crate::Snapshot). A clock that runs ahead for one process lets it take over a lease that
/// is alive for another.
pub trait Clock: Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// A clock that stands still until it is told otherwise.
///
/// ```
/// use idem_core::{Clock, ManualClock, Span, Timestamp};
///
/// let clock = ManualClock::new(Timestamp::from_micros(0));
/// clock.advance(Span::from_secs(90));
/// assert_eq!(clock.now(), Timestamp::from_micros(90_000_000));
/// ```
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.as_micros()))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Span) {
        let next = |now: i64| Some((Timestamp::from_micros(now) + by).as_micros());
        // The closure never returns `None`, so there is nothing to handle.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }

    /// Sets the clock, backwards if need be.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}
