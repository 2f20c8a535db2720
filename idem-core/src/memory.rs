//! The store that keeps everything in memory, and is the reference for all others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::identity::RecordId;
use crate::machine::{Applied, Claim, Expect, Rejected, Transition};
use crate::record::{Moment, Record, Snapshot};
use crate::store::{
    ClaimOutcome, Counts, Filter, Inspect, KeyStore, StoreError, Swept, TransitionOutcome,
};
use crate::time::Clock;

/// A [`KeyStore`] in memory: [`Record::apply`] under a lock.
///
/// It forgets everything with the process, so it is for tests, and for programs that have one process and
/// nothing to lose. There is no lock for each key that could be left behind: ids are spread over a fixed number
/// of maps, each behind a lock that no await is ever made under.
///
/// ```
/// use std::sync::Arc;
/// use idem_core::{ManualClock, MemoryKeyStore, Timestamp};
///
/// let clock = Arc::new(ManualClock::new(Timestamp::from_micros(0)));
/// let store = MemoryKeyStore::new(clock.clone());
/// assert!(store.is_empty());
/// ```
pub struct MemoryKeyStore<C> {
    clock: C,
    shards: [Mutex<Shard>; SHARDS],
}

/// Ordered, so that listing has an order and no seed for a hash is needed.
type Shard = BTreeMap<Place, Arc<Record>>;

/// Where a record is kept: by a hash of its id, which is what most comparisons are decided by, and the id.
type Place = (u64, RecordId);

/// More than the cores of most machines, so that tasks seldom meet at a lock.
const SHARDS: usize = 64;

impl<C: Clock> MemoryKeyStore<C> {
    /// An empty store whose time is that of `clock`.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// The clock that the store goes by.
    #[must_use]
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// How many records it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether it holds no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a record there, whatever was there before. For tests that need a certain state.
    pub fn put(&self, record: Record) {
        let place = place(&record.id);
        self.shard(&place).insert(place, Arc::new(record));
    }

    fn shard(&self, place: &Place) -> MutexGuard<'_, Shard> {
        // The first bits, so that the shards one after the other are in the order of places.
        lock(&self.shards[(place.0 >> (u64::BITS - SHARDS.ilog2())) as usize])
    }

    fn snapshot(&self, record: &Arc<Record>) -> Snapshot {
        Snapshot::new(Arc::clone(record), self.clock.now())
    }
}

/// The hash is FNV-1a. It need not resist anybody: ids that share one are still told apart.
fn place(id: &RecordId) -> Place {
    let bytes = id.scope().as_str().bytes().chain(id.key().as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash, id.clone())
}

/// A panic under the lock cannot leave half a record behind, since records are replaced whole.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: fmt::Debug> fmt::Debug for MemoryKeyStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryKeyStore")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: Clock> KeyStore for MemoryKeyStore<C> {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        let place = place(claim.id());
        let mut shard = self.shard(&place);
        match shard.entry(place) {
            Entry::Occupied(held) => Ok(ClaimOutcome::Held(self.snapshot(held.get()))),
            Entry::Vacant(vacant) => {
                let now = self.clock.now();
                let record = vacant.insert(Arc::new(claim.first_record(now)));
                Ok(ClaimOutcome::Won(Snapshot::new(Arc::clone(record), now)))
            }
        }
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        change.patch(expect)?;
        let place = place(id);
        let mut shard = self.shard(&place);
        let now = self.clock.now();
        let Some(held) = shard.get_mut(&place) else {
            return Ok(TransitionOutcome::Lost(None));
        };
        match held.apply(expect, change, Moment::exact(now)) {
            Ok(Applied::Changed(next)) => {
                let revision = next.revision;
                *held = Arc::from(next);
                Ok(TransitionOutcome::Applied { revision, now })
            }
            Ok(Applied::Removed) => {
                let revision = held.revision;
                shard.remove(&place);
                Ok(TransitionOutcome::Applied { revision, now })
            }
            Err(Rejected::Misuse(misuse)) => Err(misuse.into()),
            Ok(Applied::Unchanged) | Err(_) => Ok(TransitionOutcome::Lost(Some(Snapshot::new(
                held.clone(),
                now,
            )))),
        }
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let place = place(id);
        Ok(self
            .shard(&place)
            .get(&place)
            .map(|record| self.snapshot(record)))
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        let moment = Moment::exact(self.clock.now());
        let mut swept = Swept::default();
        for shard in &self.shards {
            lock(shard).retain(|_, record| {
                if record.is_stuck(moment) && swept.stuck < limit.get() {
                    swept.stuck += 1;
                }
                let remove = swept.removed < limit.get() && record.is_expired(moment);
                swept.removed += u32::from(remove);
                !remove
            });
        }
        Ok(swept)
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

#[async_trait]
impl<C: Clock> Inspect for MemoryKeyStore<C> {
    async fn count(&self) -> Result<Counts, StoreError> {
        let moment = Moment::exact(self.clock.now());
        let mut counts = Counts::default();
        for shard in &self.shards {
            for record in lock(shard).values() {
                counts.add(record, moment);
            }
        }
        Ok(counts)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError> {
        let now = self.clock.now();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(place(after)));
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let matching = shard
                .range((from.clone(), Bound::Unbounded))
                .filter(|(_, record)| filter.admits(record, Moment::exact(now)))
                .map(|(_, record)| Snapshot::new(Arc::clone(record), now));
            found.extend(matching.take(limit.get() as usize - found.len()));
        }
        Ok(found)
    }
}
