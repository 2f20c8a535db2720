//! The suite over the adapter for key-value databases, on a map.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use idem_core::key_value::{self, Entry, KeyValue, KeyValueStore};
use idem_core::{
    Clock, ManualClock, Moment, RecordId, Span, StoreError, SystemClock, Timestamp, async_trait,
};
use idem_testkit::{Harness, Missing, Unavailable};

#[derive(Debug)]
struct Map {
    entries: Mutex<BTreeMap<Vec<u8>, Bytes>>,
    /// None is the system's.
    clock: Option<ManualClock>,
    skew: Span,
    hosts: AtomicU64,
}

impl Map {
    /// A store on a host of its own.
    fn open(self: &Arc<Self>) -> Shared {
        // The first is as far ahead as it may be, and the second goes by the right time.
        let host = self.hosts.fetch_add(1, Ordering::Relaxed);
        let ahead = self.skew.as_micros() / 2 * ((host + 2) % 3);
        Shared {
            map: Arc::clone(self),
            ahead: Span::from_micros(ahead).unwrap(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Bytes>> {
        self.entries.lock().unwrap()
    }
}

/// One of several stores on one map.
#[derive(Debug, Clone)]
struct Shared {
    map: Arc<Map>,
    ahead: Span,
}

#[async_trait]
impl KeyValue for Shared {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        tokio::task::yield_now().await;
        Ok(self.map.entries().get(key).cloned())
    }

    async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        let mut entries = self.map.entries();
        let absent = !entries.contains_key(key);
        if absent {
            entries.insert(key.to_vec(), value);
        }
        Ok(absent)
    }

    async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        let mut entries = self.map.entries();
        let unchanged = entries.get(key).is_some_and(|held| held == old);
        if unchanged {
            entries.insert(key.to_vec(), new);
        }
        Ok(unchanged)
    }

    async fn remove_if(&self, key: &[u8], old: &[u8]) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        let mut entries = self.map.entries();
        let unchanged = entries.get(key).is_some_and(|held| held == old);
        if unchanged {
            entries.remove(key);
        }
        Ok(unchanged)
    }

    async fn scan(
        &self,
        after: Option<&[u8]>,
        limit: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError> {
        let entries = self.map.entries();
        let later = entries
            .iter()
            .filter(|(key, _)| after.is_none_or(|after| key.as_slice() > after));
        let entry = |(key, value): (&Vec<u8>, &Bytes)| Entry {
            key: key.clone().into(),
            value: value.clone(),
        };
        Ok(later.map(entry).take(limit.get() as usize).collect())
    }

    async fn scan_expired(
        &self,
        by: Timestamp,
        limit: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError> {
        let due = |entry: &Entry| {
            key_value::expires_at(&entry.value).is_ok_and(|at| at.is_some_and(|at| at <= by))
        };
        let all = self.scan(None, NonZeroU32::MAX).await?;
        Ok(all
            .into_iter()
            .filter(due)
            .take(limit.get() as usize)
            .collect())
    }

    async fn moment(&self) -> Result<Moment, StoreError> {
        let now = match &self.map.clock {
            Some(clock) => clock.now(),
            None => SystemClock.now(),
        };
        Ok(Moment {
            now: now + self.ahead,
            skew: self.map.skew,
        })
    }
}

struct Adapter {
    /// How far apart the hosts' clocks are said to be, and are.
    skew: Span,
    clock: fn() -> Option<ManualClock>,
}

fn by_hand() -> Option<ManualClock> {
    Some(ManualClock::new(Timestamp::from_micros(
        1_700_000_000_000_000,
    )))
}

#[async_trait]
impl Harness for Adapter {
    type Data = Arc<Map>;
    type Store = KeyValueStore<Shared>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        Ok(Arc::new(Map {
            entries: Mutex::default(),
            clock: (self.clock)(),
            skew: self.skew,
            hosts: AtomicU64::new(0),
        }))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        Ok(KeyValueStore::new(data.open()))
    }

    async fn advance(&self, data: &Self::Data, by: Span) -> Result<(), Missing> {
        let clock = data.clock.as_ref();
        let clock = clock.ok_or_else(|| Missing::new("the clock is the system's"))?;
        clock.advance(by);
        Ok(())
    }

    async fn corrupt(&self, data: &Self::Data, id: &RecordId) -> Result<(), Missing> {
        let mut entries = data.entries();
        let ends = |key: &[u8]| {
            let (scope, name) = (id.scope().as_str().as_bytes(), id.key().as_str().as_bytes());
            key[1..].starts_with(scope) && key.ends_with(name)
        };
        let (_, value) = entries
            .iter_mut()
            .find(|(key, _)| ends(key))
            .ok_or_else(|| Missing::new("no such entry"))?;
        // The word is in the value as it is; a newer version has another one in its place.
        let mut bytes = value.to_vec();
        let word = [b"in_progress".as_slice(), b"completed"]
            .into_iter()
            .find_map(|word| Some((bytes.windows(word.len()).position(|at| at == word)?, word)));
        let (at, word) = word.ok_or_else(|| Missing::new("no status in the value"))?;
        bytes[at..at + word.len()].fill(b'x');
        *value = bytes.into();
        Ok(())
    }
}

mod one_clock {
    idem_testkit::conformance!(super::Adapter {
        skew: idem_core::Span::ZERO,
        clock: super::by_hand,
    });
}

mod clocks_apart {
    idem_testkit::conformance!(super::Adapter {
        skew: idem_core::Span::from_secs(30),
        clock: super::by_hand,
    });
}

mod running_clocks_apart {
    idem_testkit::conformance!(super::Adapter {
        skew: idem_core::Span::from_millis(1),
        clock: || None,
    });
}
