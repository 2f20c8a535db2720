//! A database in memory with everything that a harness can ask for: several stores on the same data, a clock
//! to set, a loss of power, uncommitted rows, connections that run out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use idem_core::{Claim, Record, RecordId, Span, Timestamp};

#[derive(Debug)]
pub(crate) struct Database {
    tables: Mutex<Tables>,
    clock: AtomicI64,
    /// A host's own clock, which nobody moves.
    host: AtomicI64,
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// What everybody sees.
    pub(crate) live: BTreeMap<RecordId, Record>,
    /// What survives a loss of power.
    synced: BTreeMap<RecordId, Record>,
    /// What each record was before its last write: what a replica shows that lags behind.
    pub(crate) before: BTreeMap<RecordId, Option<Record>>,
    /// Rows with a status that nobody knows.
    pub(crate) unknown: BTreeSet<RecordId>,
    /// Rows that somebody else has written and not committed.
    uncommitted: BTreeMap<RecordId, Option<Box<Claim>>>,
}

impl Database {
    pub(crate) fn new() -> Self {
        Self {
            tables: Mutex::default(),
            clock: AtomicI64::new(1_700_000_000_000_000),
            host: AtomicI64::new(1_700_000_000_000_000),
        }
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time. No two calls see the same.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.fetch_add(1, Ordering::SeqCst))
    }

    pub(crate) fn host_now(&self) -> Timestamp {
        Timestamp::from_micros(self.host.fetch_add(1, Ordering::SeqCst))
    }

    pub(crate) fn advance(&self, by: Span) {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.clock.fetch_add(by, Ordering::SeqCst);
    }

    /// Everything that was not synced is as it was before.
    pub(crate) fn lose_power(&self) {
        let mut tables = self.tables();
        tables.live = tables.synced.clone();
        tables.before.clear();
    }

    pub(crate) fn lock(&self, id: &RecordId, creating: Option<&Claim>) {
        let creating = creating.cloned().map(Box::new);
        self.tables().uncommitted.insert(id.clone(), creating);
    }

    pub(crate) fn unlock(&self, id: &RecordId, commit: bool) {
        let now = self.now();
        let mut tables = self.tables();
        if let Some(Some(claim)) = tables.uncommitted.remove(id)
            && commit
        {
            tables.write(id, Some(claim.first_record(now)));
        }
    }
}

impl Tables {
    /// Writes a row, or removes it, and syncs it.
    pub(crate) fn write(&mut self, id: &RecordId, record: Option<Record>) {
        self.write_unsynced(id, record);
        self.sync(id);
    }

    pub(crate) fn write_unsynced(&mut self, id: &RecordId, record: Option<Record>) {
        let before = match record {
            Some(record) => self.live.insert(id.clone(), record),
            None => self.live.remove(id),
        };
        self.before.insert(id.clone(), before);
    }

    pub(crate) fn sync(&mut self, id: &RecordId) {
        match self.live.get(id) {
            Some(record) => self.synced.insert(id.clone(), record.clone()),
            None => self.synced.remove(id),
        };
    }

    pub(crate) fn is_uncommitted(&self, id: &RecordId) -> bool {
        self.uncommitted.contains_key(id)
    }

    pub(crate) fn is_anything_uncommitted(&self) -> bool {
        !self.uncommitted.is_empty()
    }
}
