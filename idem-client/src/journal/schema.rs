//! The tables: whether they are there, whose they are, and how they get there.

use idem_core::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{JournalError, JournalErrorKind};

/// One step of the schema. Steps are only ever added.
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "operations",
    sql: include_str!("migrations/0001_operations.sql"),
}];

/// What this version needs.
const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// `idjl`, in the header of the file, for `file` and its like.
const APPLICATION_ID: i64 = 0x6964_6a6c;

/// What kind of database a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// There is nothing in it.
    Empty,
    /// It has this crate's tables, in this version.
    Ours { version: i64 },
    /// It has other tables, or another application's mark.
    Foreign,
}

/// Refuses what is somebody else's, or of a later version. Reads only.
pub(crate) fn refuse_others(connection: &Connection) -> Result<(), JournalError> {
    refuse(inspect(connection).map_err(reading)?).map(drop)
}

/// Sees to it that the tables are there. Several processes may be here at once: the first one makes them, and the others find
/// them when they get the lock.
pub(crate) fn prepare(connection: &mut Connection, now: Timestamp) -> Result<(), JournalError> {
    let failed = |error| JournalError::sqlite("making the tables of the journal", error);
    if inspect(connection).map_err(reading)? != (Held::Ours { version: VERSION }) {
        let transaction =
            Transaction::new(connection, TransactionBehavior::Immediate).map_err(failed)?;
        let version = refuse(inspect(&transaction).map_err(reading)?)?;
        for migration in MIGRATIONS.iter().filter(|step| step.version > version) {
            transaction.execute_batch(migration.sql).map_err(failed)?;
            transaction
                .execute(
                    "INSERT INTO idem_client_migration (version, name, applied_at) VALUES (?1, ?2, ?3)",
                    (migration.version, migration.name, now.as_micros()),
                )
                .map_err(failed)?;
        }
        transaction
            .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}"))
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

/// The version, if it is one of ours.
fn refuse(held: Held) -> Result<i64, JournalError> {
    match held {
        Held::Empty => Ok(0),
        Held::Ours { version } if version <= VERSION => Ok(version),
        Held::Ours { version } => Err(JournalError::new(
            JournalErrorKind::Newer,
            format!(
                "the journal has schema version {version}, and this program knows none after {VERSION}; use a newer program"
            ),
        )),
        Held::Foreign => Err(JournalError::new(
            JournalErrorKind::Foreign,
            "the file is another application's database; a journal has a file of its own: check the path",
        )),
    }
}

fn reading(error: rusqlite::Error) -> JournalError {
    JournalError::sqlite("reading the schema of the journal", error)
}

fn inspect(connection: &Connection) -> rusqlite::Result<Held> {
    // One statement, which sees one state of the file. Between two, another process may make its tables, which would seem
    // to be somebody else's.
    let marks: (bool, i64, i64, i64) = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'idem_client_migration'), \
                (SELECT count(*) FROM sqlite_schema), \
                (SELECT application_id FROM pragma_application_id), \
                (SELECT user_version FROM pragma_user_version)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )?;
    match marks {
        (true, ..) => {
            let version = connection.query_row(
                "SELECT coalesce(max(version), 0) FROM idem_client_migration",
                [],
                |row| row.get(0),
            )?;
            Ok(Held::Ours { version })
        }
        (false, 0, 0 | APPLICATION_ID, 0) => Ok(Held::Empty),
        (false, ..) => Ok(Held::Foreign),
    }
}
