use std::sync::atomic::{AtomicU64, Ordering};

use crate::BreakerState;

/// What a cache has done since it was made, and where it stands with its Redis.
///
/// The numbers only grow. They are read one after the other, so of two that change together one may be a step ahead.
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
    /// Claims that were refused without asking the store, because of what this process had just learnt: from a claim of
    /// the same key that was under way, or from the local tier.
    pub shared_hits: u64,
    /// Claims for which Redis had nothing to say, and the store was asked.
    pub misses: u64,
    /// Those among the misses for which Redis held something that this version would not have written, for this record:
    /// another type, another format, an entry without an end.
    pub odd: u64,
    /// Claims that went to the store without asking Redis: it was away, or too much was under way.
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

/// What the numbers are counted in.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: Counter,
    pub(crate) shared_hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) odd: Counter,
    pub(crate) bypassed: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) errors: Counter,
    pub(crate) written: Counter,
    pub(crate) removed: Counter,
    pub(crate) dropped: Counter,
    pub(crate) opened: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) {
        // Nothing is decided by these numbers, so they need no order.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn read(&self, breaker: BreakerState) -> CacheStats {
        CacheStats {
            hits: self.hits.read(),
            shared_hits: self.shared_hits.read(),
            misses: self.misses.read(),
            odd: self.odd.read(),
            bypassed: self.bypassed.read(),
            timeouts: self.timeouts.read(),
            errors: self.errors.read(),
            written: self.written.read(),
            removed: self.removed.read(),
            dropped: self.dropped.read(),
            opened: self.opened.read(),
            breaker,
        }
    }
}
