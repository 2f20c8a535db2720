use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use idem_core::{Clock, StoreError, SystemClock};
use rusqlite::Connection;

use crate::SqliteKeyStore;

/// How a [`SqliteKeyStore`] opens its database, and how it works.
///
/// ```
/// use std::time::Duration;
/// use idem_sqlite::SqliteOptions;
///
/// # async fn example() -> Result<(), idem_core::StoreError> {
/// # let directory = std::env::temp_dir();
/// let store = SqliteOptions::new()
///     .busy_timeout(Duration::from_secs(2))
///     .open(directory.join("keys.sqlite"))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct SqliteOptions {
    pub(crate) busy_timeout: Duration,
    pub(crate) readers: NonZeroUsize,
    pub(crate) queue_capacity: NonZeroUsize,
    pub(crate) batch_limit: NonZeroUsize,
    pub(crate) response_limit: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) file: FilePolicy,
    pub(crate) tables: TablePolicy,
    pub(crate) neighbours: NeighbourPolicy,
    pub(crate) filesystem: FilesystemPolicy,
    pub(crate) durability: Durability,
    pub(crate) on_connect: Option<OnConnect>,
}

/// What a program does with each connection before this crate does anything with it.
pub(crate) type OnConnect = Arc<dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync>;

/// What to do about a file that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePolicy {
    Create,
    MustExist,
}

/// What to do about tables that are missing or old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TablePolicy {
    Migrate,
    CheckOnly,
}

/// What to do about a database that belongs to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighbourPolicy {
    Refuse,
    LiveBeside,
}

/// What to do about a network filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilesystemPolicy {
    RefuseNetwork,
    Trust,
}

/// Whether an acknowledged write has reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Synced,
    Forgetful,
}

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    File(PathBuf),
    Uri(String),
    Memory,
}

impl SqliteOptions {
    /// The options that [`SqliteKeyStore::open`] uses.
    pub fn new() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            readers: at_least_one(2),
            queue_capacity: at_least_one(1024),
            batch_limit: at_least_one(256),
            response_limit: 16 * 1024 * 1024,
            clock: Arc::new(SystemClock),
            file: FilePolicy::Create,
            tables: TablePolicy::Migrate,
            neighbours: NeighbourPolicy::Refuse,
            filesystem: FilesystemPolicy::RefuseNetwork,
            durability: Durability::Synced,
            on_connect: None,
        }
    }

    /// How long a call waits at most for a lock that another process, or the program's own other connections,
    /// hold. Past it the call fails as unavailable, and nothing was applied. Five seconds by default.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How many threads, each with a connection, answer `load`, `count` and `list`, and claims of keys that are
    /// held already while the writer is busy. Two by default.
    pub fn readers(mut self, readers: NonZeroUsize) -> Self {
        self.readers = readers;
        self
    }

    /// How many calls wait in line for the writer, and as many for the readers. Callers beyond that wait for a
    /// place in the line, without blocking their thread. 1024 by default.
    pub fn queue_capacity(mut self, calls: NonZeroUsize) -> Self {
        self.queue_capacity = calls;
        self
    }

    /// How many writes are committed together at most. 256 by default; 1 switches group commit off.
    pub fn batch_limit(mut self, writes: NonZeroUsize) -> Self {
        self.batch_limit = writes;
        self
    }

    /// Up to what [size](idem_core::Response::size), in bytes, a response is stored; a larger one is refused as
    /// [`TooLarge`](idem_core::StoreErrorKind::TooLarge). 16 MiB by default. SQLite itself takes a little less
    /// than 1 GB.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// The clock that leases and retentions go by, instead of the host's. Every process that opens the file has
    /// to see the same one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Refuses to open a file that is not there, instead of creating it: for programs that would rather stop
    /// than begin anew beside a path that is wrong, or a volume that is not mounted.
    pub fn must_exist(mut self) -> Self {
        self.file = FilePolicy::MustExist;
        self
    }

    /// Refuses to open a database whose tables are missing or old, instead of migrating it.
    pub fn check_only(mut self) -> Self {
        self.tables = TablePolicy::CheckOnly;
        self
    }

    /// Accepts a database that has other tables or another application's id, and puts its own tables, whose names
    /// begin with `idem_`, beside them.
    ///
    /// Without this such a file is refused, because the likeliest reason for it is a wrong path.
    pub fn beside_other_tables(mut self) -> Self {
        self.neighbours = NeighbourPolicy::LiveBeside;
        self
    }

    /// Accepts any filesystem. Without this the ones that are known to be on another machine are refused on Linux:
    /// the index of the write-ahead log is shared memory, which two machines cannot share, and the locks of
    /// network filesystems have lost many a database.
    pub fn trust_filesystem(mut self) -> Self {
        self.filesystem = FilesystemPolicy::Trust;
        self
    }

    /// Acknowledges writes before they are on the disk. After a loss of power the last of them are gone, and work
    /// that was done is run again. For tests, and for data that may be lost.
    pub fn without_durability(mut self) -> Self {
        self.durability = Durability::Forgetful;
        self
    }

    /// Runs this on every connection, the writer's and the readers', right after it was opened: for a cipher's key,
    /// a page size, a cache size. The settings that the guarantees rest on are made afterwards and checked.
    ///
    /// It must neither leave a transaction open nor take the database out of WAL mode.
    pub fn on_connect(
        mut self,
        prepare: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_connect = Some(Arc::new(prepare));
        self
    }

    /// Opens the database in this file. The path is taken as it is: neither a URI nor `:memory:`.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](idem_core::StoreErrorKind::Misconfigured) for a path that cannot be opened or written, a
    /// database of somebody else's or of a newer version, a filesystem that is on another machine;
    /// [`Corrupt`](idem_core::StoreErrorKind::Corrupt) for a file that is no database or a damaged one;
    /// [`Unavailable`](idem_core::StoreErrorKind::Unavailable) for a full disk, or a lock that lasted longer than
    /// the busy timeout. The file is changed by a migration only.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteKeyStore, StoreError> {
        let path = path.as_ref().to_path_buf();
        SqliteKeyStore::start(Location::File(path), self).await
    }

    /// Opens the database that this [URI](https://sqlite.org/uri.html) names, with whatever its parameters ask for
    /// (`vfs=`, `psow=`). It has to be a file: `mode=memory` and `immutable=1` are refused.
    ///
    /// # Errors
    ///
    /// As for [`SqliteOptions::open`].
    pub async fn open_uri(self, uri: impl Into<String>) -> Result<SqliteKeyStore, StoreError> {
        SqliteKeyStore::start(Location::Uri(uri.into()), self).await
    }

    /// Opens a database in memory that is gone with the store. It has one connection, which reads and writes.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the thread cannot be started or the hook fails.
    pub async fn open_in_memory(self) -> Result<SqliteKeyStore, StoreError> {
        SqliteKeyStore::start(Location::Memory, self).await
    }
}

const fn at_least_one(number: usize) -> NonZeroUsize {
    match NonZeroUsize::new(number) {
        Some(number) => number,
        None => NonZeroUsize::MIN,
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("busy_timeout", &self.busy_timeout)
            .field("readers", &self.readers)
            .field("queue_capacity", &self.queue_capacity)
            .field("batch_limit", &self.batch_limit)
            .field("response_limit", &self.response_limit)
            .field("clock", &self.clock)
            .field("file", &self.file)
            .field("tables", &self.tables)
            .field("neighbours", &self.neighbours)
            .field("filesystem", &self.filesystem)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}
