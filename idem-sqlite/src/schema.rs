//! The tables: whether they are there, whose they are, and how they get there.

use std::time::Instant;

use idem_core::{Clock as _, StoreError};
use rusqlite::Connection;

use crate::connection::patiently;
use crate::error::{Reach, not_opened, reach};
use crate::options::{NeighbourPolicy, SqliteOptions, TablePolicy};
use crate::statement;

/// One step of the schema. Steps are only ever added.
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "records",
    sql: include_str!("migrations/0001_records.sql"),
}];

/// What this version needs.
const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// `idem`, in the header of a file that holds nothing else, for `file` and its like.
const APPLICATION_ID: i64 = 0x6964_656d;

const READING: &str = "reading the schema";
const MIGRATING: &str = "migrating the schema";

/// What kind of database a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// There is nothing in it.
    Empty,
    /// It has this crate's tables, in this version.
    Ours { version: i64 },
    /// It has other tables only, or another application's mark.
    Foreign,
}

/// Refuses a database of somebody else's, unless the program says that it is to be shared. Reads only.
pub(crate) fn refuse_foreign(
    connection: &Connection,
    neighbours: NeighbourPolicy,
    deadline: Instant,
) -> Result<(), StoreError> {
    let held =
        patiently(deadline, || inspect(connection)).map_err(|error| not_opened(READING, error))?;
    match held {
        Held::Foreign if neighbours == NeighbourPolicy::Refuse => Err(foreign()),
        Held::Foreign | Held::Empty => Ok(()),
        Held::Ours { version } => refuse_newer(version),
    }
}

/// Sees to it that the tables are there, in this version: by migrating, or by refusing.
pub(crate) fn prepare(
    connection: &Connection,
    options: &SqliteOptions,
    deadline: Instant,
) -> Result<(), StoreError> {
    let held =
        patiently(deadline, || inspect(connection)).map_err(|error| not_opened(READING, error))?;
    if held != (Held::Ours { version: VERSION }) {
        match options.tables {
            TablePolicy::Migrate => migrate(connection, options, deadline)?,
            TablePolicy::CheckOnly => {
                return Err(StoreError::misconfigured(format!(
                    "the database is not at schema version {VERSION}, and opening it was to check only; open it once \
                     without that option to migrate it"
                )));
            }
        }
    }
    // A table that was altered by hand is found out now, and not by the first request.
    for sql in [statement::LOAD, statement::CLAIM, statement::SWEEP] {
        connection
            .prepare_cached(sql)
            .map_err(|error| not_opened("preparing the statements", error))?;
    }
    Ok(())
}

/// All missing steps in one transaction. Several processes may be here at once: the first one migrates, and the
/// others find it done when they get the lock.
fn migrate(
    connection: &Connection,
    options: &SqliteOptions,
    deadline: Instant,
) -> Result<(), StoreError> {
    let failed = |error| not_opened(MIGRATING, error);
    loop {
        patiently(deadline, || connection.execute_batch("BEGIN IMMEDIATE")).map_err(failed)?;
        let migrated = migrate_locked(connection, options);
        let committed = match migrated {
            Ok(()) => connection.execute_batch("COMMIT").map_err(Refusal::Sqlite),
            refused => refused,
        };
        let Err(refusal) = committed else {
            return Ok(());
        };
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK").map_err(failed)?;
        }
        match refusal {
            Refusal::Sqlite(error)
                if reach(&error) == Reach::Restart && Instant::now() < deadline => {}
            Refusal::Sqlite(error) => return Err(failed(error)),
            Refusal::Store(error) => return Err(error),
        }
    }
}

fn migrate_locked(connection: &Connection, options: &SqliteOptions) -> Result<(), Refusal> {
    let held = inspect(connection)?;
    let version = match held {
        Held::Foreign if options.neighbours == NeighbourPolicy::Refuse => {
            return Err(Refusal::Store(foreign()));
        }
        Held::Foreign | Held::Empty => 0,
        Held::Ours { version } => version,
    };
    refuse_newer(version).map_err(Refusal::Store)?;
    for migration in MIGRATIONS.iter().filter(|step| step.version > version) {
        connection.execute_batch(migration.sql)?;
        connection.execute(
            "INSERT INTO idem_migration (version, name, applied_at) VALUES (?1, ?2, ?3)",
            (
                migration.version,
                migration.name,
                options.clock.now().as_micros(),
            ),
        )?;
    }
    // A program that shares its database keeps its own mark.
    if held == Held::Empty && options.neighbours == NeighbourPolicy::Refuse {
        connection.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}"))?;
    }
    Ok(())
}

enum Refusal {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn inspect(connection: &Connection) -> rusqlite::Result<Held> {
    // One statement, which sees one state of the file. Between two, another process may migrate it, and its tables
    // would seem to be somebody else's.
    let marks: (bool, i64, i64, i64) = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'idem_migration'), \
                (SELECT count(*) FROM sqlite_schema), \
                (SELECT application_id FROM pragma_application_id), \
                (SELECT user_version FROM pragma_user_version)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )?;
    match marks {
        (true, ..) => {
            let version = connection.query_row(
                "SELECT coalesce(max(version), 0) FROM idem_migration",
                [],
                |row| row.get(0),
            )?;
            Ok(Held::Ours { version })
        }
        (false, 0, 0 | APPLICATION_ID, 0) => Ok(Held::Empty),
        (false, ..) => Ok(Held::Foreign),
    }
}

fn foreign() -> StoreError {
    StoreError::misconfigured(
        "the database is another application's; check the path, or open it with `beside_other_tables` if the keys \
         are to live in it",
    )
}

fn refuse_newer(version: i64) -> Result<(), StoreError> {
    if version <= VERSION {
        return Ok(());
    }
    Err(StoreError::misconfigured(format!(
        "the database has schema version {version}, and this program knows none after {VERSION}; use a newer program"
    )))
}
