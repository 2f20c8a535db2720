//! Who has a journal open, and whether they still live.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::Transaction;

use super::JournalError;
use crate::key::hex;

/// One opening of a journal. As long as it lives, it holds a lock on a file of its own, which the system takes from it when
/// its process ends, however that ends. So nobody has to wait for a lease of one that was killed.
#[derive(Debug)]
pub(crate) struct Owner {
    name: [u8; 16],
    /// None for a journal in memory, which nobody shares.
    lock: Option<(PathBuf, File)>,
}

impl Owner {
    /// One that nobody else can meet.
    pub(crate) fn alone(name: [u8; 16]) -> Self {
        Self { name, lock: None }
    }

    /// Registers one, and forgets those that have ended. The transaction keeps others from doing so at the same time.
    pub(crate) fn register(
        transaction: &Transaction<'_>,
        journal: &Path,
        name: [u8; 16],
    ) -> Result<Self, JournalError> {
        let failed = |error| JournalError::sqlite("registering with the journal", error);
        let others: Vec<[u8; 16]> = transaction
            .prepare("SELECT owner FROM idem_client_owner")
            .and_then(|mut owners| owners.query_map([], |row| row.get(0))?.collect())
            .map_err(failed)?;
        for other in others {
            if !lives(journal, &other)? {
                forget(transaction, journal, &other)?;
            }
        }
        let path = lock_path(journal, &name);
        let file = open(OpenOptions::new().write(true).create_new(true), &path)
            .map_err(|error| JournalError::of_io("making a lock file beside the journal", error))?;
        // From here on it is removed again if something fails.
        let owner = Self {
            name,
            lock: Some((path, file)),
        };
        if let Some((_, file)) = &owner.lock {
            file.try_lock().map_err(|error| {
                JournalError::of_io("locking a file beside the journal", error.into())
            })?;
        }
        transaction
            .execute("INSERT INTO idem_client_owner (owner) VALUES (?1)", [name])
            .map_err(failed)?;
        Ok(owner)
    }

    pub(crate) fn name(&self) -> [u8; 16] {
        self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some((path, file)) = self.lock.take() {
            // What cannot be removed is removed by whoever opens the journal next.
            let _ = std::fs::remove_file(path);
            drop(file);
        }
    }
}

/// Whether another one still has the journal open.
pub(crate) fn lives(journal: &Path, owner: &[u8; 16]) -> Result<bool, JournalError> {
    let file = match OpenOptions::new()
        .write(true)
        .open(lock_path(journal, owner))
    {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            return Err(JournalError::of_io(
                "opening a lock file beside the journal",
                error,
            ));
        }
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(JournalError::of_io(
            "locking a file beside the journal",
            error,
        )),
    }
}

/// What an owner that has ended was sending is anybody's.
pub(crate) fn forget(
    transaction: &Transaction<'_>,
    journal: &Path,
    owner: &[u8; 16],
) -> Result<(), JournalError> {
    let failed = |error| JournalError::sqlite("taking over from a process that has ended", error);
    transaction
        .execute(
            "UPDATE idem_client_operation SET owner = NULL WHERE owner = ?1",
            [owner],
        )
        .map_err(failed)?;
    transaction
        .execute("DELETE FROM idem_client_owner WHERE owner = ?1", [owner])
        .map_err(failed)?;
    // It may be gone, or another's to remove.
    let _ = std::fs::remove_file(lock_path(journal, owner));
    Ok(())
}

fn lock_path(journal: &Path, owner: &[u8; 16]) -> PathBuf {
    let mut path = journal.as_os_str().to_owned();
    path.push(format!("-owner-{}", hex(owner)));
    path.into()
}

fn open(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}
