//! The writer's connection, and one transaction on it.

use std::cell::Cell;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use idem_core::{StoreError, StoreErrorKind};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use crate::connection::Opener;
use crate::error::{self, Reach, reach};
use crate::options::FilePolicy;
use crate::place::{Misplaced, Place};

/// The connection that writes. It is opened again when it cannot be trusted any more.
#[derive(Debug)]
pub(crate) struct WriteConnection {
    opener: Opener,
    connection: Option<Connection>,
    /// Of the file that was opened first.
    place: Option<Arc<Place>>,
}

impl WriteConnection {
    pub(crate) fn open(mut opener: Opener) -> Result<Self, StoreError> {
        let (connection, place) = opener.writer()?;
        if place.is_some() {
            // The readers, and the writer after an error, open this file and never make another.
            opener.options.file = FilePolicy::MustExist;
        }
        Ok(Self {
            opener,
            connection: Some(connection),
            place: place.map(Arc::new),
        })
    }

    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.clone()
    }

    /// Fails if the file that is open is not the one that others would open.
    pub(crate) fn check_place(&self) -> Result<(), Failure> {
        match &self.place {
            None => Ok(()),
            Some(place) => place.check().map_err(Failure::misplaced),
        }
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// The connection, outside any transaction.
    pub(crate) fn get(&mut self) -> Result<&Connection, Failure> {
        if self.connection.is_none() {
            if self.opener.is_in_memory() {
                return Err(Failure::without_source(
                    Extent::NoConnection,
                    StoreErrorKind::Unavailable,
                    "the database in memory was lost with its connection",
                ));
            }
            self.check_place()?;
            let (opened, place) = self.opener.writer().map_err(|error| Failure {
                extent: Extent::NoConnection,
                kind: error.kind(),
                doing: "opening the database again after an error",
                source: Some(Arc::new(error)),
            })?;
            if let (Some(first), Some(now)) = (&self.place, &place)
                && !first.is(now)
            {
                return Err(Failure::misplaced(Misplaced::Lost));
            }
            self.connection = Some(opened);
        }
        self.connection.as_ref().ok_or_else(|| {
            Failure::without_source(
                Extent::NoConnection,
                StoreErrorKind::Unavailable,
                "there is no connection",
            )
        })
    }

    /// Takes the write lock, runs `body`, and commits. `Ok` means that what was written is on the disk.
    ///
    /// `body` returns an error only if the transaction cannot go on. It may panic. Whatever happens, no
    /// transaction is open afterwards.
    pub(crate) fn transaction<T>(
        &mut self,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let committing = Cell::new(false);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.check_place()?;
            let connection = self.get()?;
            // The write lock before the first read. A transaction that reads first holds a snapshot, and when
            // somebody else commits meanwhile it can never write, however long it waits.
            execute(connection, "BEGIN IMMEDIATE").map_err(Failure::rolled_back)?;
            let value = body(connection).map_err(Failure::rolled_back)?;
            committing.set(true);
            execute(connection, "COMMIT").map_err(Failure::of_commit)?;
            Ok(value)
        }));
        let failure = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(_panic) => Failure::without_source(
                if committing.get() {
                    Extent::Unknown
                } else {
                    Extent::RolledBack
                },
                StoreErrorKind::Unavailable,
                "the writer panicked",
            ),
        };
        self.clean_up(&failure);
        Err(failure)
    }

    /// Takes the write lock, runs `body`, and ends the transaction as that says.
    ///
    /// `body` may panic, and may have ended the transaction itself. Whatever happens, none is open afterwards.
    pub(crate) fn exclusive<T>(
        &mut self,
        body: impl FnOnce(&Transaction<'_>) -> Ending<T>,
    ) -> Result<Ended<T>, Failure> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.check_place()?;
            let connection = self.get()?;
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
                    .map_err(Failure::rolled_back)?;
            Ok(match body(&transaction) {
                // It is rolled back with the transaction's end, if there still is one.
                Ending::RollBack(value) => Ended::RolledBack(value),
                Ending::Commit(value) => match transaction.commit() {
                    Ok(()) => Ended::Committed(value),
                    // A constraint that is only checked now, or a hook of the program's.
                    Err(error)
                        if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
                    {
                        Ended::Refused(error)
                    }
                    Err(error) => match Failure::of_commit(error) {
                        failure if failure.extent == Extent::Unknown => {
                            Ended::Unknown(value, failure)
                        }
                        failure => return Err(failure),
                    },
                },
            })
        }));
        let panicked = || {
            let doing = "the writer panicked";
            Failure::without_source(Extent::RolledBack, StoreErrorKind::Unavailable, doing)
        };
        let ended = outcome.unwrap_or_else(|_panic| Err(panicked()));
        match &ended {
            Ok(Ended::Unknown(_, failure)) | Err(failure) => self.clean_up(failure),
            Ok(Ended::Committed(_) | Ended::RolledBack(_) | Ended::Refused(_)) => {
                // A rollback that fails leaves a connection that is in a transaction.
                if self
                    .connection
                    .as_ref()
                    .is_some_and(|open| !open.is_autocommit())
                {
                    self.connection = None;
                }
            }
        }
        ended
    }

    /// Leaves a connection without a transaction, or none.
    fn clean_up(&mut self, failure: &Failure) {
        let Some(connection) = &self.connection else {
            return;
        };
        if !connection.is_autocommit() {
            // Its error does not matter, but whether the transaction is over.
            let _ = execute(connection, "ROLLBACK");
        }
        // A database in memory is its connection, so that is kept while it works.
        let is_suspect = failure.taints_the_connection() && !self.opener.is_in_memory();
        if is_suspect || !connection.is_autocommit() {
            self.connection = None;
        }
    }
}

/// How a transaction is to end.
#[derive(Debug)]
pub(crate) enum Ending<T> {
    Commit(T),
    RollBack(T),
}

/// How a transaction has ended.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// It is on the disk.
    Committed(T),
    /// There is nothing of it.
    RolledBack(T),
    /// There is nothing of it, because what was written is not to be committed.
    Refused(rusqlite::Error),
    /// It may have been committed.
    Unknown(T, Failure),
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// A transaction that was not committed, or perhaps was.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) extent: Extent,
    kind: StoreErrorKind,
    doing: &'static str,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// What became of a transaction that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// It was rolled back because somebody else holds a lock.
    Busy,
    /// It was rolled back.
    RolledBack,
    /// It was not begun: there is no connection to the file, and none can be had.
    NoConnection,
    /// It may have been committed.
    Unknown,
}

impl Failure {
    /// One caller's copy of it.
    pub(crate) fn store_error(&self) -> StoreError {
        let error = match self.extent {
            Extent::Busy | Extent::RolledBack | Extent::NoConnection => {
                StoreError::of_kind(self.kind, self.doing)
            }
            Extent::Unknown => StoreError::ambiguous(self.doing),
        };
        match &self.source {
            None => error,
            Some(source) => error.because(Source(source.clone())),
        }
    }

    fn without_source(extent: Extent, kind: StoreErrorKind, doing: &'static str) -> Self {
        Self {
            extent,
            kind,
            doing,
            source: None,
        }
    }

    fn misplaced(misplaced: Misplaced) -> Self {
        Self::without_source(Extent::NoConnection, misplaced.kind(), misplaced.message())
    }

    fn rolled_back(error: rusqlite::Error) -> Self {
        match reach(&error) {
            Reach::Restart => Self {
                extent: Extent::Busy,
                kind: StoreErrorKind::Unavailable,
                doing: "waiting for the write lock, which another connection holds",
                source: Some(Arc::new(error)),
            },
            Reach::Transaction | Reach::Statement => Self {
                extent: Extent::RolledBack,
                kind: error::kind(&error),
                doing: "writing in a transaction, which was rolled back",
                source: Some(Arc::new(error)),
            },
        }
    }

    /// A commit that fails because it is busy, or because the disk is full, has not written the frame that makes
    /// it one. After anything else, that frame may be in the file: it is lost if the next commit overwrites it,
    /// and found if the next thing is a crash.
    fn of_commit(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
                Self::rolled_back(error)
            }
            _ => Self {
                extent: Extent::Unknown,
                kind: StoreErrorKind::Ambiguous,
                doing: "committing",
                source: Some(Arc::new(error)),
            },
        }
    }

    /// Whether the connection is better opened anew.
    fn taints_the_connection(&self) -> bool {
        let code = self
            .source
            .as_ref()
            .and_then(|source| source.downcast_ref::<rusqlite::Error>())
            .and_then(rusqlite::Error::sqlite_error_code);
        match code {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
                false
            }
            Some(_) => true,
            // A panic left the connection between two calls, where it is whole.
            None => false,
        }
    }
}

/// One error as the source of many.
#[derive(Debug)]
struct Source(Arc<dyn Error + Send + Sync>);

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Source {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
