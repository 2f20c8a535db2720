//! What SQLite's errors mean for the promise that a store makes.

use idem_core::{CorruptRow, StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

/// How far an error inside a transaction reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Somebody else holds a lock: the whole transaction is begun again. Repeating the one statement would not
    /// help where the snapshot is the old one.
    Restart,
    /// The transaction is not to be trusted: it is rolled back, whatever else was in it.
    Transaction,
    /// The statement was undone by itself, and the transaction goes on.
    Statement,
}

pub(crate) fn reach(error: &rusqlite::Error) -> Reach {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Reach::Restart,
        Some(
            ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch
            // A statement that cannot be prepared, say because a column is missing.
            | ErrorCode::Unknown,
        ) => Reach::Statement,
        Some(_) => Reach::Transaction,
        // A statement that cannot be prepared, a value that cannot be converted.
        None => Reach::Statement,
    }
}

/// The error for a caller whose call certainly changed nothing.
pub(crate) fn not_applied(doing: &'static str, error: rusqlite::Error) -> StoreError {
    StoreError::of_kind(kind(&error), doing).because(error)
}

/// What kind of failure it is, given that nothing was applied.
pub(crate) fn kind(error: &rusqlite::Error) -> StoreErrorKind {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => return StoreErrorKind::Corrupt,
        // A statement that cannot be prepared: a table or a column is not there.
        rusqlite::Error::SqlInputError { .. } => return StoreErrorKind::Misconfigured,
        _ => {}
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::TooBig) => StoreErrorKind::TooLarge,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreErrorKind::Corrupt,
        // A constraint or a trigger that somebody added.
        Some(
            ErrorCode::Unknown
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::AuthorizationForStatementDenied,
        ) => StoreErrorKind::Misconfigured,
        _ => StoreErrorKind::Unavailable,
    }
}

/// The error for a file that cannot be opened. What would be a passing trouble later is a wrong path or a
/// wrong permission here.
pub(crate) fn not_opened(doing: &'static str, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) => StoreError::misconfigured(format!(
            "{doing}: SQLite cannot open the file; its directory has to exist and to be writable, for the \
             database and for the -wal and -shm files beside it"
        )),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::misconfigured(
            format!("{doing}: the file or its directory is read-only; idempotency keys are written"),
        ),
        _ => StoreError::of_kind(kind(&error), doing),
    }
    .because(error)
}

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Sqlite(rusqlite::Error),
    Row(CorruptRow),
}

impl ReadError {
    pub(crate) fn into_store_error(self, doing: &'static str) -> StoreError {
        match self {
            Self::Sqlite(error) => not_applied(doing, error),
            Self::Row(row) => row.into(),
        }
    }
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<CorruptRow> for ReadError {
    fn from(row: CorruptRow) -> Self {
        Self::Row(row)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Error::SqliteFailure;
    use rusqlite::ffi;

    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn how_far_an_error_reaches() {
        for (code, expected) in [
            (ffi::SQLITE_BUSY, Reach::Restart),
            (ffi::SQLITE_BUSY_SNAPSHOT, Reach::Restart),
            (ffi::SQLITE_LOCKED, Reach::Restart),
            (ffi::SQLITE_TOOBIG, Reach::Statement),
            (ffi::SQLITE_CONSTRAINT, Reach::Statement),
            (ffi::SQLITE_MISMATCH, Reach::Statement),
            (ffi::SQLITE_ERROR, Reach::Statement),
            (ffi::SQLITE_FULL, Reach::Transaction),
            (ffi::SQLITE_IOERR, Reach::Transaction),
            (ffi::SQLITE_CORRUPT, Reach::Transaction),
            (ffi::SQLITE_NOMEM, Reach::Transaction),
        ] {
            assert_eq!(reach(&failure(code)), expected, "{code}");
        }
        assert_eq!(reach(&rusqlite::Error::InvalidQuery), Reach::Statement);
    }

    #[test]
    fn what_kind_of_failure_an_error_is() {
        for (code, while_working, while_opening) in [
            (
                ffi::SQLITE_TOOBIG,
                StoreErrorKind::TooLarge,
                StoreErrorKind::TooLarge,
            ),
            (
                ffi::SQLITE_CORRUPT,
                StoreErrorKind::Corrupt,
                StoreErrorKind::Corrupt,
            ),
            (
                ffi::SQLITE_NOTADB,
                StoreErrorKind::Corrupt,
                StoreErrorKind::Corrupt,
            ),
            (
                ffi::SQLITE_ERROR,
                StoreErrorKind::Misconfigured,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_CONSTRAINT,
                StoreErrorKind::Misconfigured,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_MISMATCH,
                StoreErrorKind::Misconfigured,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_AUTH,
                StoreErrorKind::Misconfigured,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_BUSY,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unavailable,
            ),
            (
                ffi::SQLITE_FULL,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unavailable,
            ),
            (
                ffi::SQLITE_IOERR,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unavailable,
            ),
            // What passes later may be a wrong path at first.
            (
                ffi::SQLITE_CANTOPEN,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_READONLY,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Misconfigured,
            ),
            (
                ffi::SQLITE_PERM,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Misconfigured,
            ),
        ] {
            assert_eq!(kind(&failure(code)), while_working, "{code}");
            assert_eq!(
                not_applied("a test", failure(code)).kind(),
                while_working,
                "{code}"
            );
            assert_eq!(
                not_opened("a test", failure(code)).kind(),
                while_opening,
                "{code}"
            );
        }
        let unreadable = rusqlite::Error::IntegralValueOutOfRange(0, 1);
        assert_eq!(kind(&unreadable), StoreErrorKind::Corrupt);
        let unknown_column = rusqlite::Error::SqlInputError {
            error: ffi::Error::new(ffi::SQLITE_ERROR),
            msg: String::new(),
            sql: String::new(),
            offset: 0,
        };
        assert_eq!(kind(&unknown_column), StoreErrorKind::Misconfigured);
    }
}
