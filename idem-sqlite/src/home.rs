//! Which database a store has, for connections that the program opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use idem_core::{StoreError, StoreErrorKind};
use rusqlite::Connection;

use crate::options::Location;
use crate::place::Place;
use crate::transaction::{Failure, WriteConnection};

/// The database of a store.
///
/// What is written on a connection to another one does not commit with the store's records. That holds for a database
/// that is attached as well: in WAL mode each file of a transaction commits by itself.
#[derive(Debug)]
pub(crate) enum Home {
    /// In this file.
    File(Arc<Place>),
    /// By this name, which is not one of a file that the system shows.
    Name(PathBuf),
    /// In memory, on the one connection that the store has.
    Memory,
}

impl Home {
    /// The database that this connection was opened to.
    pub(crate) fn of(database: &mut WriteConnection) -> Result<Self, Failure> {
        match (&database.opener().location, database.place()) {
            (Location::Memory, _) => return Ok(Self::Memory),
            (Location::File(_) | Location::Uri(_), Some(place)) => return Ok(Self::File(place)),
            (Location::File(_) | Location::Uri(_), None) => {}
        }
        let name = name_of(database.get()?).unwrap_or_default();
        Ok(match Place::of(&name) {
            Ok(place) => Self::File(Arc::new(place)),
            Err(_) => Self::Name(name),
        })
    }

    /// Refuses a connection whose main database is another one.
    pub(crate) fn refuse_others(&self, connection: &Connection) -> Result<(), StoreError> {
        let name = name_of(connection).filter(|name| !name.as_os_str().is_empty());
        let is_ours = match (self, name) {
            (Self::File(place), Some(name)) => place.is_at(&name)?,
            (Self::Name(ours), Some(name)) => *ours == name,
            (Self::File(_) | Self::Name(_), None) | (Self::Memory, _) => false,
        };
        if is_ours {
            return Ok(());
        }
        Err(StoreError::of_kind(
            StoreErrorKind::Misuse,
            match self {
                Self::File(_) | Self::Name(_) => {
                    "joining a transaction on a connection to another database than the store's, with whose records it \
                     would not commit; open the connection on the store's own file, and not by attaching that"
                }
                Self::Memory => {
                    "joining a transaction on a connection of the program's, when the store is in memory and has the only \
                     one; use a file, or the connection that the work in `execute_in_tx` is given"
                }
            },
        ))
    }
}

/// What SQLite calls the main database of a connection: the path of its file, or nothing.
fn name_of(connection: &Connection) -> Option<PathBuf> {
    match connection.path() {
        Some(path) => Some(Path::new(path).to_path_buf()),
        // Not UTF-8.
        None => listed(connection),
    }
}

#[cfg(unix)]
fn listed(connection: &Connection) -> Option<PathBuf> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let sql = "SELECT file FROM pragma_database_list WHERE name = 'main'";
    let name = connection.query_row(sql, [], |row| {
        let bytes = row.get_ref(0)?.as_bytes()?;
        Ok(PathBuf::from(OsStr::from_bytes(bytes)))
    });
    name.ok()
}

#[cfg(not(unix))]
fn listed(_: &Connection) -> Option<PathBuf> {
    None
}
