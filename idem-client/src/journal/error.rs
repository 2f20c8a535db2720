use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};

use rusqlite::ErrorCode;

/// Why a journal did not do what it was asked for. What it could not write down is not sent.
#[derive(Debug)]
pub struct JournalError {
    kind: JournalErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What kind of [`JournalError`] it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalErrorKind {
    /// The path names no file that can be used: its directory is missing, say, or its filesystem has no locks.
    Misplaced,
    /// The file, or its directory, must not be written.
    ReadOnly,
    /// The file is another application's.
    Foreign,
    /// A later version of this crate has written the file.
    Newer,
    /// The file, or a row of it, holds what it cannot hold.
    Corrupt,
    /// There is no room for it.
    Full,
    /// The file was deleted, moved or replaced while it was open. The journal has to be opened again.
    Lost,
    /// Another process kept the file locked for longer than the journal waits.
    Busy,
    /// The system's clock is behind an attempt that was made before, so nobody knows how old the operation is.
    ClockBehind,
    /// The journal was closed.
    Closed,
    /// Something else failed, in the filesystem most likely.
    Unavailable,
}

impl JournalError {
    pub(crate) fn new(kind: JournalErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub(crate) fn corrupt(what: impl fmt::Display) -> Self {
        let message = format!(
            "a row of the journal cannot be read: {what}; keep the file, and look at the row with `sqlite3`"
        );
        Self::new(JournalErrorKind::Corrupt, message)
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            JournalErrorKind::Closed,
            "the journal was closed; open it again",
        )
    }

    /// What SQLite's error means, while this was being done.
    pub(crate) fn sqlite(doing: &str, error: rusqlite::Error) -> Self {
        let (kind, advice) = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => (
                JournalErrorKind::Full,
                "there is no room for it; make some, and try again",
            ),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
                JournalErrorKind::ReadOnly,
                "the file or its directory is read-only; a journal is written",
            ),
            Some(ErrorCode::CannotOpen) => (
                JournalErrorKind::Misplaced,
                "SQLite cannot open the file; its directory has to exist and to be writable",
            ),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
                JournalErrorKind::Corrupt,
                "the file is no database, or a damaged one; keep it, and find out what it was",
            ),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
                JournalErrorKind::Busy,
                "another process keeps the file locked; find out which, and try again",
            ),
            _ => match error {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..) => (
                    JournalErrorKind::Corrupt,
                    "a row holds what it cannot hold; keep the file, and look at it with `sqlite3`",
                ),
                // A statement that cannot be prepared: somebody has altered the tables.
                rusqlite::Error::SqlInputError { .. } => (
                    JournalErrorKind::Corrupt,
                    "the tables are not those of this version; find out who altered them",
                ),
                _ => (
                    JournalErrorKind::Unavailable,
                    "look at the disk, and try again",
                ),
            },
        };
        Self::new(kind, format!("{doing}: {advice}")).because(error)
    }

    /// What the system's error means, when a file could not be had.
    pub(crate) fn of_io(doing: &str, error: io::Error) -> Self {
        let (kind, advice) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (JournalErrorKind::Full, "there is no room for it")
            }
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => (
                JournalErrorKind::ReadOnly,
                "the directory has to be writable for this program",
            ),
            _ => (
                JournalErrorKind::Misplaced,
                "the directory has to exist, on a local filesystem that has locks",
            ),
        };
        Self::new(kind, format!("{doing}: {advice}")).because(error)
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> JournalErrorKind {
        self.kind
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for JournalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn what_kind_of_failure_an_error_is() {
        for (code, expected) in [
            (ffi::SQLITE_FULL, JournalErrorKind::Full),
            (ffi::SQLITE_READONLY, JournalErrorKind::ReadOnly),
            (ffi::SQLITE_PERM, JournalErrorKind::ReadOnly),
            (ffi::SQLITE_CANTOPEN, JournalErrorKind::Misplaced),
            (ffi::SQLITE_CORRUPT, JournalErrorKind::Corrupt),
            (ffi::SQLITE_NOTADB, JournalErrorKind::Corrupt),
            (ffi::SQLITE_BUSY, JournalErrorKind::Busy),
            (ffi::SQLITE_LOCKED, JournalErrorKind::Busy),
            (ffi::SQLITE_IOERR, JournalErrorKind::Unavailable),
            (ffi::SQLITE_CONSTRAINT, JournalErrorKind::Unavailable),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let error = JournalError::sqlite("a test", error);
            assert_eq!(error.kind(), expected, "{code}");
            assert!(error.to_string().starts_with("a test: "), "{error}");
            assert!(error.source().is_some());
        }
        for (kind, expected) in [
            (ErrorKind::StorageFull, JournalErrorKind::Full),
            (ErrorKind::QuotaExceeded, JournalErrorKind::Full),
            (ErrorKind::PermissionDenied, JournalErrorKind::ReadOnly),
            (ErrorKind::ReadOnlyFilesystem, JournalErrorKind::ReadOnly),
            (ErrorKind::NotFound, JournalErrorKind::Misplaced),
            (ErrorKind::Unsupported, JournalErrorKind::Misplaced),
        ] {
            let error = JournalError::of_io("a test", kind.into());
            assert_eq!(error.kind(), expected, "{kind:?}");
        }
    }
}
