use std::error::Error;
use std::fmt;

use idem_core::StoreError;

use crate::work_error::WorkError;

/// Why work in one transaction has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum InTransactionError<E> {
    /// The store failed.
    Store(StoreError),
    /// The work failed, and what it wrote is undone.
    Work(E),
    /// The work, or writing its answer, panicked, and what it wrote is undone.
    Panicked,
    /// The work says that it does not know its own outcome. What it wrote is undone, so there is nothing to look up later.
    OutcomeUnknown,
    /// SQLite refused to commit what the work wrote: a deferred constraint, say. It is undone.
    Commit(rusqlite::Error),
    /// Only from [`execute_within`](crate::SqliteKeyStore::execute_within): another connection holds the lock for longer than
    /// the busy timeout of the caller's. Try again later.
    Contended,
    /// Only from [`execute_within`](crate::SqliteKeyStore::execute_within): another connection has written since the
    /// transaction first read, so it cannot write any more. Roll it back, and do all of it again; a transaction that begins
    /// with `BEGIN IMMEDIATE` does not come to this.
    RestartTransaction,
    /// Only from [`execute_within`](crate::SqliteKeyStore::execute_within): the work failed with this error, and the caller's
    /// transaction is over. SQLite rolls all of it back by itself when the disk is full, say; or the work has ended it. What
    /// is executed on the connection from now on commits by itself.
    TransactionOver(E),
}

impl<E> fmt::Display for InTransactionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store(_) => "the store failed",
            Self::Work(_) => "the work failed, and what it wrote is undone",
            Self::Panicked => "the work panicked, and what it wrote is undone",
            Self::OutcomeUnknown => {
                "the work does not know its own outcome, and what it wrote is undone; what calls others belongs outside of a \
                 transaction"
            }
            Self::TransactionOver(_) => {
                "the work failed, and the caller's transaction is over; begin another, and do all of it again"
            }
            Self::Commit(_) => "SQLite refused to commit what the work wrote",
            Self::Contended => "another connection holds the lock; try again later",
            Self::RestartTransaction => {
                "another connection has written since the transaction first read; roll it back, and begin it with BEGIN IMMEDIATE"
            }
        })
    }
}

impl<E: WorkError> Error for InTransactionError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Work(error) | Self::TransactionOver(error) => Some(error.as_error()),
            Self::Commit(error) => Some(error),
            Self::Panicked | Self::OutcomeUnknown | Self::Contended | Self::RestartTransaction => {
                None
            }
        }
    }
}

impl<E> From<StoreError> for InTransactionError<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
