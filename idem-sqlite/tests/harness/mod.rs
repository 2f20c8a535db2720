//! SQLite for the conformance suite: a file of its own for each case.

#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Clock, Expect, KeyStore, ManualClock, RecordId, Snapshot, Span,
    StoreError, Swept, SystemClock, Timestamp, Transition, TransitionOutcome, async_trait,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use idem_testkit::{Foreign, Harness, LockScope, Missing, OpenWrite, Unavailable};
use tempfile::TempDir;

use crate::support;

const BUSY: Duration = Duration::from_secs(1);

/// A file of its own for each case.
pub(crate) struct File {
    pub(crate) clock: fn() -> Option<ManualClock>,
    pub(crate) options: fn() -> SqliteOptions,
    /// What there is of the files when the program comes to its end with them open.
    pub(crate) left: fn(&Path) -> Left,
}

/// Where the file of a case is.
pub(crate) struct Place {
    directory: Mutex<TempDir>,
    clock: Option<Arc<ManualClock>>,
    left: Arc<Mutex<Left>>,
}

pub(crate) const NAME: &str = "records.db";
pub(crate) const LOG: &str = "records.db-wal";

/// Files by name, and what is in them.
pub(crate) type Left = Vec<(&'static str, Vec<u8>)>;

impl Place {
    fn path(&self) -> PathBuf {
        self.directory.lock().unwrap().path().join(NAME)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        match &self.clock {
            Some(clock) => clock.clone(),
            None => Arc::new(SystemClock),
        }
    }

    fn connect(&self) -> Result<rusqlite::Connection, Missing> {
        let connection = rusqlite::Connection::open(self.path()).map_err(Missing::new)?;
        connection.busy_timeout(BUSY).map_err(Missing::new)?;
        Ok(connection)
    }
}

pub(crate) fn by_hand() -> Option<ManualClock> {
    Some(ManualClock::new(Timestamp::from_micros(
        1_700_000_000_000_000,
    )))
}

/// What a process leaves that is killed: what it has written is in the files, and the index of the log, which only says
/// where in it things are, is gone. The log may go on with half of a write that nobody was told of.
pub(crate) fn left_by_a_kill(directory: &Path) -> Left {
    let mut left = Vec::new();
    for name in [NAME, LOG] {
        // Elsewhere than in the case about crashes, another store may be closing its log just now.
        let Ok(mut bytes) = std::fs::read(directory.join(name)) else {
            continue;
        };
        if name == LOG && bytes.len() > LOG_HEADER {
            let half = bytes[LOG_HEADER..].len().min(2000);
            bytes.extend_from_within(LOG_HEADER..LOG_HEADER + half);
        }
        left.push((name, bytes));
    }
    left
}

const LOG_HEADER: usize = 32;

#[async_trait]
impl Harness for File {
    type Data = Place;
    type Store = Mortal;

    async fn create(&self) -> Result<Place, Unavailable> {
        Ok(Place {
            directory: Mutex::new(TempDir::new().map_err(Unavailable::new)?),
            clock: (self.clock)().map(Arc::new),
            left: Arc::default(),
        })
    }

    async fn open(&self, data: &Place) -> Result<Mortal, Unavailable> {
        self.open_with(data, (self.options)())
            .await
            .map_err(Unavailable::new)
    }

    fn contention_bound(&self) -> Duration {
        BUSY * 2
    }

    /// The writer's and one reader's, which is as few as a file can do with, and one place in each line.
    async fn open_with_one_connection(&self, data: &Place) -> Result<Mortal, Missing> {
        let options = (self.options)()
            .readers(NonZeroUsize::MIN)
            .queue_capacity(NonZeroUsize::MIN)
            .batch_limit(NonZeroUsize::MIN);
        self.open_with(data, options).await.map_err(Missing::new)
    }

    async fn open_beside(&self, _: &Place) -> Result<Mortal, Missing> {
        Err(Missing::new(
            "the table has one name, so all stores on a file are one store",
        ))
    }

    async fn advance(&self, data: &Place, by: Span) -> Result<(), Missing> {
        let clock = data.clock.as_ref();
        let clock = clock.ok_or_else(|| Missing::new("the clock is the system's"))?;
        clock.advance(by);
        Ok(())
    }

    /// Puts what there was when the last store came to its end into another directory. The store itself closes its files
    /// in an orderly way, where nobody sees it.
    async fn crash(&self, data: &Place) -> Result<(), Missing> {
        let directory = TempDir::new().map_err(Missing::new)?;
        let left = std::mem::take(&mut *data.left.lock().unwrap());
        assert!(!left.is_empty(), "the store is not dropped yet");
        for (name, bytes) in left {
            let path = directory.path().join(name);
            let mut file = std::fs::File::create(path).map_err(Missing::new)?;
            file.write_all(&bytes).map_err(Missing::new)?;
            file.sync_all().map_err(Missing::new)?;
        }
        *data.directory.lock().unwrap() = directory;
        Ok(())
    }

    async fn corrupt(&self, data: &Place, id: &RecordId) -> Result<(), Missing> {
        let id = (id.scope().as_str(), id.key().as_str());
        let update =
            r#"UPDATE idem_record SET status = 'archived' WHERE scope = ?1 AND "key" = ?2"#;
        data.connect()?.execute(update, id).map_err(Missing::new)?;
        Ok(())
    }

    /// A write locks the whole file, whatever it writes. Readers see what was there before it, so the row of a claim
    /// that is not committed is not there, and only the lock is in the way.
    async fn interfere(
        &self,
        data: &Place,
        write: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        let connection = data.connect()?;
        connection
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(Missing::new)?;
        match write {
            Foreign::Creating(claim) => {
                support::put(&connection, &claim.first_record(data.clock().now()));
            }
            Foreign::Locking(_) => {}
            _ => return Err(Missing::new("this harness does not know that write")),
        }
        Ok(Box::new(Locked(Mutex::new(connection))))
    }
}

impl File {
    async fn open_with(&self, data: &Place, options: SqliteOptions) -> Result<Mortal, StoreError> {
        let path = data.path();
        let options = options.busy_timeout(BUSY).clock(data.clock());
        Ok(Mortal {
            store: options.open(&path).await?,
            directory: path.parent().unwrap().to_owned(),
            look: self.left,
            left: data.left.clone(),
        })
    }
}

/// Another process in the middle of a write. Dropping the connection rolls it back.
struct Locked(Mutex<rusqlite::Connection>);

#[async_trait]
impl OpenWrite for Locked {
    async fn commit(self: Box<Self>) {
        self.0.lock().unwrap().execute_batch("COMMIT").unwrap();
    }

    async fn roll_back(self: Box<Self>) {
        self.0.lock().unwrap().execute_batch("ROLLBACK").unwrap();
    }

    fn scope(&self) -> LockScope {
        LockScope::Database
    }
}

/// A store that looks, at the moment of its end and before it closes anything, at what it would leave if it could not.
#[derive(Debug)]
pub(crate) struct Mortal {
    store: SqliteKeyStore,
    directory: PathBuf,
    look: fn(&Path) -> Left,
    left: Arc<Mutex<Left>>,
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // At the end of a case the directory may be gone first.
        if self.directory.exists() {
            *self.left.lock().unwrap() = (self.look)(&self.directory);
        }
    }
}

#[async_trait]
impl KeyStore for Mortal {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.store.claim(claim).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        self.store.transition(id, expect, change).await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        self.store.refusal_staleness()
    }
}
