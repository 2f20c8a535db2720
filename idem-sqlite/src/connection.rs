//! Opening connections, and the settings that the guarantees rest on.

use std::path::Path;
use std::time::{Duration, Instant};

use idem_core::StoreError;
use rusqlite::{Connection, OpenFlags};

use crate::backoff::Backoff;
use crate::error::{Reach, not_opened, reach};
use crate::options::{Durability, FilePolicy, FilesystemPolicy, Location, SqliteOptions};
use crate::place::Place;
use crate::{filesystem, schema, written};

const OPENING: &str = "opening the database";

/// Opens the connections of one store.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) location: Location,
    pub(crate) options: SqliteOptions,
}

impl Opener {
    /// A connection that writes, to a database whose tables are as this version needs them, and the place of its file.
    /// Databases in memory and those of a URI have none.
    pub(crate) fn writer(&self) -> Result<(Connection, Option<Place>), StoreError> {
        self.refuse_unsuitable_place()?;
        let connection = self.connect()?;
        let place = match &self.location {
            Location::File(path) => Some(Place::of(path)?),
            Location::Uri(_) | Location::Memory => None,
        };
        let deadline = Instant::now() + self.options.busy_timeout;

        // What is somebody else's is left as it is, so this comes before the first setting that is written.
        schema::refuse_foreign(&connection, self.options.neighbours, deadline)?;
        self.refuse_read_only(&connection)?;
        self.enter_wal_mode(&connection, deadline)?;
        self.set_durability(&connection)?;
        written::register(&connection).map_err(|error| not_opened(OPENING, error))?;
        schema::prepare(&connection, &self.options, deadline)?;

        // The writer waits for the lock by itself: SQLite would sleep up to a tenth of a second between two
        // looks, and a process that commits without a pause would hardly ever be caught in between.
        connection
            .busy_timeout(Duration::ZERO)
            .map_err(|error| not_opened(OPENING, error))?;
        Ok((connection, place))
    }

    /// A connection that reads, to a database that a writer has prepared.
    pub(crate) fn reader(&self) -> Result<Connection, StoreError> {
        let connection = self.connect()?;
        // Opened for writing and kept from it, instead of opened for reading: a reader that comes first after a
        // crash has to recover the log.
        pragma(&connection, "PRAGMA query_only = ON")?;
        Ok(connection)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.location == Location::Memory
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if self.options.file == FilePolicy::Create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let opened = match &self.location {
            Location::File(path) => Connection::open_with_flags(path, flags),
            Location::Uri(uri) => {
                Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
            }
            Location::Memory => Connection::open_in_memory_with_flags(flags),
        };
        let connection = opened.map_err(|error| not_opened(OPENING, error))?;
        connection
            .busy_timeout(self.options.busy_timeout)
            .map_err(|error| not_opened(OPENING, error))?;
        connection.set_prepared_statement_cache_capacity(64);
        if let Some(prepare) = &self.options.on_connect {
            prepare(&connection).map_err(|error| {
                not_opened("preparing a connection in the program's hook", error)
            })?;
        }
        Ok(connection)
    }

    fn refuse_unsuitable_place(&self) -> Result<(), StoreError> {
        let Location::File(path) = &self.location else {
            return Ok(());
        };
        if path.as_os_str().is_empty() || path == Path::new(":memory:") {
            return Err(StoreError::misconfigured(
                "this path is SQLite's name for a database that each connection has for itself; use \
                 `open_in_memory`, or name a file",
            ));
        }
        if self.options.filesystem == FilesystemPolicy::Trust {
            return Ok(());
        }
        match filesystem::remote(path) {
            None => Ok(()),
            Some(kind) => Err(StoreError::misconfigured(format!(
                "the file is on a network filesystem ({kind}), whose locks and shared memory SQLite cannot rely on; \
                 put it on a local disk, or use a database server for several machines"
            ))),
        }
    }

    fn refuse_read_only(&self, connection: &Connection) -> Result<(), StoreError> {
        match connection.is_readonly(rusqlite::MAIN_DB) {
            Ok(false) => Ok(()),
            Ok(true) => Err(StoreError::misconfigured(
                "the file is read-only for this program; idempotency keys are written",
            )),
            Err(error) => Err(not_opened(OPENING, error)),
        }
    }

    /// Readers that neither wait for the writer nor make it wait need the write-ahead log. The switch wants the
    /// database for itself for a moment, and does not wait for it: two processes that open a new file at once
    /// meet here.
    fn enter_wal_mode(&self, connection: &Connection, deadline: Instant) -> Result<(), StoreError> {
        if self.is_in_memory() {
            return Ok(());
        }
        let mode: String = patiently(deadline, || {
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        })
        .map_err(|error| not_opened("switching the database to its write-ahead log", error))?;
        if mode == "wal" {
            return Ok(());
        }
        Err(StoreError::misconfigured(format!(
            "the database stays in journal mode `{mode}` instead of WAL: it is in memory, or its filesystem has \
             no shared memory; use `open_in_memory`, or a file on a local disk"
        )))
    }

    fn set_durability(&self, connection: &Connection) -> Result<(), StoreError> {
        match self.options.durability {
            Durability::Synced => {
                // What a plain `fsync` does not do on macOS.
                pragma(connection, "PRAGMA fullfsync = ON")?;
                pragma(connection, "PRAGMA checkpoint_fullfsync = ON")?;
                pragma(connection, "PRAGMA synchronous = FULL")?;
            }
            Durability::Forgetful => pragma(connection, "PRAGMA synchronous = NORMAL")?,
        }
        // A log that a long reader made grow does not keep its size for ever.
        pragma(connection, "PRAGMA journal_size_limit = 67108864")
    }
}

/// Runs what SQLite does not wait for by itself again, as long as it is busy and the deadline has not come.
pub(crate) fn patiently<T>(
    deadline: Instant,
    mut run: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut backoff = Backoff::default();
    loop {
        match run() {
            Err(error) if reach(&error) == Reach::Restart && Instant::now() < deadline => {
                backoff.sleep();
            }
            result => return result,
        }
    }
}

/// A setting whose answer, if it has one, does not matter.
fn pragma(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection
        .execute_batch(sql)
        .map_err(|error| not_opened(OPENING, error))
}
