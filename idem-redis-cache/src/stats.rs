use std::sync::atomic::{AtomicU64, Ordering};

use crate::{BreakerState, Namespace};

/// What a cache has done since it was made, and where it stands with its Redis.
///
/// Every claim that was answered is one of the hits, shared hits, misses, unanswered and bypassed ones. The numbers only
/// grow. They are read one after the other, so of two that change together one may be a step ahead.
///
/// ```
/// use idem_core::{MemoryKeyStore, SystemClock};
/// use idem_redis_cache::{BreakerState, Namespace, NegativeCache};
///
/// let store = MemoryKeyStore::new(SystemClock);
/// let cache = NegativeCache::open(store, "redis://127.0.0.1/", Namespace::new("charges")?)?;
/// let stats = cache.stats();
/// assert_eq!((stats.hits, stats.misses), (0, 0));
/// assert_eq!(stats.breaker, BreakerState::Open); // nobody has asked yet, so there is no connection
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Claims that were refused without asking the store, because of what Redis said.
    pub hits: u64,
    /// Claims that were answered without asking the store, because of what this process had just learnt: from a claim of
    /// the same key that was under way, from the local tier, or, where Redis could not be asked, from the store within
    /// the [cap](crate::CacheOptions::cap).
    pub shared_hits: u64,
    /// Claims for which Redis had nothing to say, and the store was asked.
    pub misses: u64,
    /// Those among the misses for which Redis held something that this version would not have written, for this record:
    /// another type, another format, an entry without an end.
    pub odd: u64,
    /// Claims that asked Redis in vain, and then the store.
    pub unanswered: u64,
    /// Claims that went to the store without asking Redis: it was away, or too much was under way, or another claim of the
    /// same key had been told what said nothing about them.
    pub bypassed: u64,
    /// Commands that were not answered in time.
    pub timeouts: u64,
    /// Commands that failed in another way, and probes that did not come through.
    pub errors: u64,
    /// Entries that were written.
    pub written: u64,
    /// Entries that were removed because their attempt was over.
    pub removed: u64,
    /// Writes and removals that were not made, because too much was under way already or Redis was away. Entries end by
    /// themselves.
    pub dropped: u64,
    /// How often the breaker opened.
    pub opened: u64,
    /// Where the breaker is now.
    pub breaker: BreakerState,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Hit,
    SharedHit,
    Miss,
    Odd,
    Unanswered,
    Bypassed,
    Timeout,
    Error,
    Written,
    Removed,
    Dropped,
    Opened,
}

impl Event {
    const KINDS: usize = Self::Opened as usize + 1;
}

/// What the numbers are counted in.
#[derive(Debug)]
pub(crate) struct Counters {
    numbers: [AtomicU64; Event::KINDS],
    #[cfg(feature = "metrics")]
    meter: crate::meter::Meter,
}

impl Counters {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = namespace;
        Self {
            numbers: std::array::from_fn(|_| AtomicU64::new(0)),
            #[cfg(feature = "metrics")]
            meter: crate::meter::Meter::new(namespace),
        }
    }

    pub(crate) fn count(&self, event: Event) {
        // Nothing is decided by these numbers, so they need no order.
        self.numbers[event as usize].fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        self.meter.count(event);
    }

    /// The breaker is in this state from now on.
    pub(crate) fn breaker(&self, state: BreakerState) {
        #[cfg(feature = "metrics")]
        self.meter.breaker(state);
        #[cfg(not(feature = "metrics"))]
        let _ = state;
    }

    pub(crate) fn read(&self, breaker: BreakerState) -> CacheStats {
        let number = |event: Event| self.numbers[event as usize].load(Ordering::Relaxed);
        CacheStats {
            hits: number(Event::Hit),
            shared_hits: number(Event::SharedHit),
            misses: number(Event::Miss),
            odd: number(Event::Odd),
            unanswered: number(Event::Unanswered),
            bypassed: number(Event::Bypassed),
            timeouts: number(Event::Timeout),
            errors: number(Event::Error),
            written: number(Event::Written),
            removed: number(Event::Removed),
            dropped: number(Event::Dropped),
            opened: number(Event::Opened),
            breaker,
        }
    }
}
