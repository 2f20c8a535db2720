//! What the server's errors mean for the promise that a store makes. Only ever by their codes, never by their texts,
//! which are in the language of the server.

use std::sync::Arc;

use idem_core::{StoreError, StoreErrorKind};

/// What to do about a statement that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It met another transaction, was undone, and is to be tried again.
    Restart,
    /// It waited for somebody else's lock until its time was up.
    LockedOut,
    /// Anything else.
    Failed,
}

/// Whether a statement changes anything, which decides what a lost answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
}

pub(crate) fn fate(error: &sqlx::Error) -> Fate {
    match code(error).as_deref() {
        // serialization_failure, deadlock_detected
        Some("40001" | "40P01") => Fate::Restart,
        // lock_not_available
        Some("55P03") => Fate::LockedOut,
        _ => Fate::Failed,
    }
}

/// Whether the server itself answered, and so the statement was undone: another one can be tried on the same
/// connection.
pub(crate) fn is_answer(error: &sqlx::Error) -> bool {
    match code(error) {
        Some(code) => !is_end_of_connection(&code),
        None => false,
    }
}

/// An error that several callers may have to be told.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    kind: StoreErrorKind,
    context: String,
    source: Arc<sqlx::Error>,
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::of_kind(fault.kind, fault.context).because(fault.source)
    }
}

/// The error of a statement that was sent.
pub(crate) fn sent(doing: &'static str, effect: Effect, error: sqlx::Error) -> Fault {
    let kind = match (kind(&error), effect) {
        (StoreErrorKind::Ambiguous, Effect::Read) => StoreErrorKind::Unavailable,
        (kind, _) => kind,
    };
    Fault {
        kind,
        context: format!("{doing}{}", advice(&error)),
        source: Arc::new(error),
    }
}

/// The error of a call that had no connection to send its statement on.
pub(crate) fn not_sent(doing: &'static str, error: sqlx::Error) -> Fault {
    let kind = match &error {
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => StoreErrorKind::Misconfigured,
        sqlx::Error::Database(_) => match kind(&error) {
            // A password that is wrong, a database that is not there.
            StoreErrorKind::Misconfigured => StoreErrorKind::Misconfigured,
            _ => StoreErrorKind::Unavailable,
        },
        _ => StoreErrorKind::Unavailable,
    };
    Fault {
        kind,
        context: format!("{doing}, which got no connection"),
        source: Arc::new(error),
    }
}

fn kind(error: &sqlx::Error) -> StoreErrorKind {
    let Some(code) = code(error) else {
        return match error {
            // None of these came as far as the server.
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Encode(_)
            | sqlx::Error::InvalidArgument(_) => StoreErrorKind::Unavailable,
            sqlx::Error::Configuration(_) => StoreErrorKind::Misconfigured,
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::Decode(_) => StoreErrorKind::Corrupt,
            // The connection broke: the server may have done it.
            _ => StoreErrorKind::Ambiguous,
        };
    };
    match code.as_str() {
        code if is_end_of_connection(code) => StoreErrorKind::Ambiguous,
        // cannot_connect_now and too_many_connections, and a server that is read-only, as a standby is: by and by, another
        // one is the primary. A statement that was cancelled was undone.
        "57P03" | "25006" | "57014" => StoreErrorKind::Unavailable,
        // program_limit_exceeded
        code if code.starts_with("54") => StoreErrorKind::TooLarge,
        // data_corrupted, index_corrupted
        "XX001" | "XX002" => StoreErrorKind::Corrupt,
        // Syntax errors and missing rights, tables and columns; constraints and triggers that somebody added; values that
        // the database's encoding cannot hold; wrong passwords and databases.
        code if [
            "42", "23", "22", "28", "3D", "3F", "0A", "09", "27", "44", "P0",
        ]
        .iter()
        .any(|class| code.starts_with(class)) =>
        {
            StoreErrorKind::Misconfigured
        }
        _ => StoreErrorKind::Unavailable,
    }
}

/// Whether the server said no more than that the connection ends, in the middle of whatever it was doing.
fn is_end_of_connection(code: &str) -> bool {
    // admin_shutdown, crash_shutdown, idle_session_timeout and the like; statement_completion_unknown is in class 40.
    matches!(code, "57P01" | "57P02" | "57P05" | "40003") || code.starts_with("08")
}

fn advice(error: &sqlx::Error) -> &'static str {
    match code(error).as_deref() {
        Some("42P01") => {
            "; the table is not there: run `migrate`, or check schema, table name and search_path"
        }
        Some("42703") => {
            "; a column is not there: run `migrate`, or use the version that made the table"
        }
        Some("42P10") => {
            "; the table has no unique index on scope and key, without which two claims could win: it was altered"
        }
        Some("42501") => "; the database user lacks a right to the table",
        Some("25006") => {
            "; the server is read-only: it is a standby, and keys are written on the primary"
        }
        Some("25P02") => "; the transaction had failed before",
        _ => "",
    }
}

pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}
