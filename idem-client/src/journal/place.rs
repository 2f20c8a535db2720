//! Whether the file that a journal has open is still the one at its path.

use std::path::{Path, PathBuf};

use super::{JournalError, JournalErrorKind};

/// The file that was at a path when it was opened.
///
/// A file that is deleted or replaced while it is open works on, for whoever has it open, and is gone when the process ends:
/// what it says was sent would be forgotten.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    identity: Identity,
}

impl Place {
    /// The place of a file that was just opened.
    pub(crate) fn of(path: &Path) -> Result<Self, JournalError> {
        Ok(Self {
            identity: identity(path).ok_or_else(lost)?,
            path: path.to_owned(),
        })
    }

    /// Looks whether the file is still there. It takes a few microseconds.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match identity(&self.path) {
            Some(identity) if identity == self.identity => Ok(()),
            _ => Err(lost()),
        }
    }
}

fn lost() -> JournalError {
    JournalError::new(
        JournalErrorKind::Lost,
        "the journal's file was deleted, moved or replaced while it was open; find out by whom, and open it again",
    )
}

/// Device and inode. The number of a deleted file is not used again while it is open.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;

    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Windows does not let anybody delete or replace a file that SQLite has open.
#[cfg(not(unix))]
type Identity = ();

#[cfg(not(unix))]
fn identity(_: &Path) -> Option<Identity> {
    Some(())
}
