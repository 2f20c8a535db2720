//! A store of idempotency keys on [redb], an embedded database, from scratch.
//!
//! redb has one writer at a time and syncs before a commit returns, so a transaction that looks and then writes
//! is a compare-and-swap. All that is left is to say so to [`KeyValue`].

use std::num::NonZeroU32;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use idem_core::key_value::{self, Entry, KeyValue, KeyValueStore};
use idem_core::{Clock, Moment, StoreError, Timestamp, async_trait};
use redb::{Database, Error, ReadableDatabase as _, ReadableTable as _, TableDefinition};

/// The encoded records, by key.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
/// From when on a record may be removed, and its key: what a sweep reads instead of everything.
const EXPIRY: TableDefinition<'_, (i64, &[u8]), ()> = TableDefinition::new("expiry");

/// A redb database as a [`KeyValue`].
#[derive(Debug, Clone)]
pub struct Redb {
    database: Arc<Database>,
    clock: Arc<dyn Clock>,
}

impl Redb {
    /// Opens the file, or makes it. One process at a time can have it open, so its clock is the only one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the file cannot be opened.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<KeyValueStore<Self>, StoreError> {
        let open = || -> Result<Database, Error> {
            let database = Database::create(path)?;
            let transaction = database.begin_write()?;
            transaction.open_table(RECORDS)?;
            transaction.open_table(EXPIRY)?;
            transaction.commit()?;
            Ok(database)
        };
        let failed = StoreError::unavailable("opening the file");
        let database = Arc::new(open().map_err(|error| failed.because(error))?);
        Ok(KeyValueStore::new(Self { database, clock }))
    }

    /// Works on a thread that may block. If the call is dropped, the thread still ends its transaction.
    async fn block<T: Send + 'static>(
        &self,
        failure: fn(&'static str) -> StoreError,
        work: impl FnOnce(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let database = Arc::clone(&self.database);
        let done = tokio::task::spawn_blocking(move || work(&database)).await;
        done.map_err(|error| failure("a thread").because(error))?
            .map_err(|error| failure("a transaction").because(error))
    }

    /// Gives a key the value `new`, or none, if its value is `old`, or if it has none.
    async fn swap(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<Bytes>,
    ) -> Result<bool, StoreError> {
        let (key, old) = (key.to_vec(), old.map(<[u8]>::to_vec));
        // Nobody can say whether a commit that failed is on the disk.
        self.block(StoreError::ambiguous, move |database| {
            let transaction = database.begin_write()?;
            {
                let mut records = transaction.open_table(RECORDS)?;
                let mut expiry = transaction.open_table(EXPIRY)?;
                let held = records.get(&*key)?.map(|held| held.value().to_vec());
                if held != old {
                    return Ok(false);
                }
                if let Some(at) = held.as_deref().and_then(due) {
                    expiry.remove((at, &*key))?;
                }
                if let Some(at) = new.as_deref().and_then(due) {
                    expiry.insert((at, &*key), ())?;
                }
                match &new {
                    Some(new) => records.insert(&*key, &**new)?,
                    None => records.remove(&*key)?,
                };
            }
            transaction.commit()?;
            Ok(true)
        })
        .await
    }
}

/// From when on the record in this value may be removed. What this version cannot read stays.
fn due(value: &[u8]) -> Option<i64> {
    Some(key_value::expires_at(value).ok()??.as_micros())
}

fn entry(key: &[u8], value: &[u8]) -> Entry {
    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    Entry { key, value }
}

#[async_trait]
impl KeyValue for Redb {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let key = key.to_vec();
        self.block(StoreError::unavailable, move |database| {
            // Kept until what was read is copied: a writer may use the pages again when no transaction reads them.
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            let held = records.get(&*key)?;
            Ok(held.map(|held| Bytes::copy_from_slice(held.value())))
        })
        .await
    }

    async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError> {
        self.swap(key, None, Some(value)).await
    }

    async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError> {
        self.swap(key, Some(old), Some(new)).await
    }

    async fn remove_if(&self, key: &[u8], old: &[u8]) -> Result<bool, StoreError> {
        self.swap(key, Some(old), None).await
    }

    async fn scan(&self, after: Option<&[u8]>, most: NonZeroU32) -> Result<Vec<Entry>, StoreError> {
        // No key is empty, so after the empty one is everything.
        let after = after.unwrap_or_default().to_vec();
        self.block(StoreError::unavailable, move |database| {
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            let later = (Bound::Excluded(&*after), Bound::Unbounded);
            let later = records.range::<&[u8]>(later)?.take(most.get() as usize);
            later
                .map(|row| {
                    row.map(|(key, value)| entry(key.value(), value.value()))
                        .map_err(Error::from)
                })
                .collect()
        })
        .await
    }

    async fn scan_expired(
        &self,
        by: Timestamp,
        most: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError> {
        self.block(StoreError::unavailable, move |database| {
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            let until = (by.as_micros().saturating_add(1), [].as_slice());
            let mut found = Vec::new();
            for row in transaction
                .open_table(EXPIRY)?
                .range(..until)?
                .take(most.get() as usize)
            {
                let (row, _) = row?;
                let (_, key) = row.value();
                found.extend(records.get(key)?.map(|value| entry(key, value.value())));
            }
            Ok(found)
        })
        .await
    }

    async fn moment(&self) -> Result<Moment, StoreError> {
        Ok(Moment::exact(self.clock.now()))
    }
}
