//! Which revision an update wrote.
//!
//! `RETURNING` would say so as well. SQLite puts the rows that it returns into a table of their own, though, which makes
//! an update cost twice as much.

use std::cell::Cell;

use idem_core::Revision;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

thread_local! {
    static LAST: Cell<i64> = const { Cell::new(0) };
}

/// Gives the connection the function `idem_written`, which returns its argument and remembers it.
pub(crate) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("idem_written", 1, flags, |arguments| {
        let revision = arguments.get(0)?;
        // SQLite calls it on the thread that runs the statement.
        LAST.set(revision);
        Ok(revision)
    })
}

/// The revision that the last update on this thread wrote.
pub(crate) fn last() -> Revision {
    Revision::new(u64::try_from(LAST.get()).unwrap_or(0))
}
