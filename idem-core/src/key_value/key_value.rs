use std::fmt::Debug;
use std::num::NonZeroU32;

use async_trait::async_trait;
use bytes::Bytes;

use crate::record::Moment;
use crate::store::StoreError;
use crate::time::Timestamp;

/// A key-value database with a compare-and-swap.
///
/// Keys are at most 511 bytes, any bytes, and compared exactly. Values are opaque; each one is different from
/// every value that its key ever had, so comparing whole values is a correct compare-and-swap, and so is
/// comparing a version that the database keeps, if it was read together with the value.
///
/// # To be correct
///
/// - `create`, `replace_if` and `remove_if` are each one atomic step, and `Ok(true)` is durable.
/// - `Ok(false)` means that nothing was written because the condition did not hold, and nothing else: a lost
///   connection is an error ([`StoreError::ambiguous`] if it may have been written).
/// - `get` sees every write that was acknowledged before it began. No replicas, no caches.
/// - Dropping a future leaves the old value or the new one, and nothing locked.
///
/// # A whole one
///
/// ```
/// use std::collections::BTreeMap;
/// use std::num::NonZeroU32;
/// use std::sync::Mutex;
///
/// use bytes::Bytes;
/// use idem_core::key_value::{self, Entry, KeyValue, KeyValueStore};
/// use idem_core::{async_trait, Clock, Moment, StoreError, SystemClock, Timestamp};
///
/// #[derive(Debug, Default)]
/// struct Map(Mutex<BTreeMap<Vec<u8>, Bytes>>);
///
/// #[async_trait]
/// impl KeyValue for Map {
///     async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
///         Ok(self.0.lock().unwrap().get(key).cloned())
///     }
///
///     async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError> {
///         let mut map = self.0.lock().unwrap();
///         let absent = !map.contains_key(key);
///         if absent {
///             map.insert(key.to_vec(), value);
///         }
///         Ok(absent)
///     }
///
///     async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError> {
///         let mut map = self.0.lock().unwrap();
///         let unchanged = map.get(key).is_some_and(|held| held == old);
///         if unchanged {
///             map.insert(key.to_vec(), new);
///         }
///         Ok(unchanged)
///     }
///
///     async fn remove_if(&self, key: &[u8], old: &[u8]) -> Result<bool, StoreError> {
///         let mut map = self.0.lock().unwrap();
///         let unchanged = map.get(key).is_some_and(|held| held == old);
///         if unchanged {
///             map.remove(key);
///         }
///         Ok(unchanged)
///     }
///
///     async fn scan(&self, after: Option<&[u8]>, limit: NonZeroU32) -> Result<Vec<Entry>, StoreError> {
///         let map = self.0.lock().unwrap();
///         let entries = map.iter().filter(|(key, _)| after.is_none_or(|after| key.as_slice() > after));
///         let entry = |(key, value): (&Vec<u8>, &Bytes)| Entry { key: key.clone().into(), value: value.clone() };
///         Ok(entries.map(entry).take(limit.get() as usize).collect())
///     }
///
///     async fn scan_expired(&self, by: Timestamp, limit: NonZeroU32) -> Result<Vec<Entry>, StoreError> {
///         // A large database keeps an index on `expires_at` instead of looking at everything.
///         let all = self.scan(None, NonZeroU32::MAX).await?;
///         let due = |entry: &Entry| key_value::expires_at(&entry.value).is_ok_and(|at| at.is_some_and(|at| at <= by));
///         Ok(all.into_iter().filter(due).take(limit.get() as usize).collect())
///     }
///
///     async fn moment(&self) -> Result<Moment, StoreError> {
///         Ok(Moment::exact(SystemClock.now()))
///     }
/// }
///
/// let store = KeyValueStore::new(Map::default()); // is a `KeyStore`
/// # let _ = store;
/// ```
#[async_trait]
pub trait KeyValue: Debug + Send + Sync {
    /// The value of a key, if it has one.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; never `Ok(None)` for a value that could not be read.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Gives a key this value if it has none, and says whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError>;

    /// Gives a key the value `new` if its value is `old`, and says whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError>;

    /// Removes a key if its value is `old`, and says whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn remove_if(&self, key: &[u8], old: &[u8]) -> Result<bool, StoreError>;

    /// Up to `limit` entries in the order of their keys, from the first one after `after`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn scan(&self, after: Option<&[u8]>, limit: NonZeroU32)
    -> Result<Vec<Entry>, StoreError>;

    /// Up to `limit` entries whose [`expires_at`](super::expires_at) is not after `by`, in any order.
    ///
    /// Each is looked at again before it is removed, so one that is not due is not lost by being among them. But
    /// it takes a place of one that is: a scan that is filled with others lets the database grow for ever.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn scan_expired(
        &self,
        by: Timestamp,
        limit: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError>;

    /// The time, and how far it may be off. A database with one clock for everybody reads that; any other
    /// uses its host's clock and says how far apart the hosts' clocks can be.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the time cannot be read.
    async fn moment(&self) -> Result<Moment, StoreError>;
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
}
