//! Whether the file that a store has open is still the one at its path.

#[cfg(unix)]
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use idem_core::{StoreError, StoreErrorKind};

/// The file that was at a path when it was opened.
///
/// A file that is deleted or replaced while it is open works on, for whoever has it open. Whoever opens the path
/// finds another, in which no key is used: what was won in the one would be won again in the other.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    identity: Identity,
    /// Once it was lost it stays so, even if somebody puts it back: meanwhile others may have used another file.
    is_lost: AtomicBool,
}

/// Why the open file is not to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// There is none at the path, or another one.
    Lost,
    /// What is at the path cannot be seen.
    Hidden,
}

impl Place {
    /// The place of a file that was just opened.
    pub(crate) fn of(path: &Path) -> Result<Self, Misplaced> {
        // Where the program's working directory is later makes no difference. A symbolic link does: if it comes to
        // lead elsewhere, others open another file.
        let path = std::path::absolute(path).map_err(|_| Misplaced::Hidden)?;
        Ok(Self {
            identity: identity(&path)?,
            path,
            is_lost: AtomicBool::new(false),
        })
    }

    /// Looks whether the file is still there. It takes a few microseconds.
    pub(crate) fn check(&self) -> Result<(), Misplaced> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Misplaced::Lost);
        }
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => Ok(()),
            Ok(_) | Err(Misplaced::Lost) => {
                self.is_lost.store(true, Ordering::Relaxed);
                Err(Misplaced::Lost)
            }
            Err(Misplaced::Hidden) => Err(Misplaced::Hidden),
        }
    }

    /// Whether this path leads to the file.
    pub(crate) fn is_at(&self, path: &Path) -> Result<bool, Misplaced> {
        self.check()?;
        Ok(is_same(&self.path, &self.identity, path))
    }

    /// Whether both are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Misplaced {
    pub(crate) fn kind(self) -> StoreErrorKind {
        match self {
            Self::Lost => StoreErrorKind::Misconfigured,
            Self::Hidden => StoreErrorKind::Unavailable,
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Lost => {
                "the database file was deleted, moved or replaced while the store had it open; find out by whom, \
                 and open the store again"
            }
            Self::Hidden => {
                "the system does not say whether the database file is still at its path; its directory has to be \
                 searchable for this program"
            }
        }
    }
}

impl From<Misplaced> for StoreError {
    fn from(misplaced: Misplaced) -> Self {
        Self::of_kind(misplaced.kind(), misplaced.message())
    }
}

/// Device and inode. The number of a deleted file is not used again while it is open.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Result<Identity, Misplaced> {
    use std::os::unix::fs::MetadataExt as _;

    match std::fs::metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Misplaced::Lost,
            _ => Misplaced::Hidden,
        }),
    }
}

#[cfg(unix)]
fn is_same(_: &Path, ours: &Identity, path: &Path) -> bool {
    identity(path).is_ok_and(|identity| identity == *ours)
}

/// Windows does not let anybody delete or replace a file that SQLite has open.
#[cfg(not(unix))]
type Identity = ();

#[cfg(not(unix))]
fn identity(_: &Path) -> Result<Identity, Misplaced> {
    Ok(())
}

#[cfg(not(unix))]
fn is_same(ours: &Path, _: &Identity, path: &Path) -> bool {
    let names = (ours.canonicalize(), path.canonicalize());
    matches!(names, (Ok(ours), Ok(theirs)) if ours == theirs)
}
