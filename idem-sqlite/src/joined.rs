//! Writes of an attempt that join a transaction of the program's.

use idem_core::executor::Attempt;
use idem_core::{
    Settled, StoreError, StoreErrorKind, Timestamp, Transition, TransitionOutcome, settle,
};
use rusqlite::Connection;
use thiserror::Error;

use crate::statement::Whose;
use crate::within::Obstacle;
use crate::work::OneWrite;

/// Refuses a connection on which every statement commits by itself.
pub(crate) fn in_transaction(connection: &Connection) -> Result<(), StoreError> {
    if !connection.is_autocommit() {
        return Ok(());
    }
    Err(StoreError::of_kind(
        StoreErrorKind::Misuse,
        "joining a transaction on a connection that is in none; begin one first",
    ))
}

/// Carries out what the owner of a record writes.
pub(crate) fn write(
    connection: &Connection,
    attempt: &Attempt,
    change: &Transition,
    now: Timestamp,
) -> Result<(), JoinError> {
    let expect = attempt.owner();
    let write = OneWrite {
        id: attempt.id(),
        expect,
        change,
        now,
    };
    let held = match write.carry_out(connection, &mut String::new(), Whose::Callers) {
        Ok(TransitionOutcome::Applied { .. }) => return Ok(()),
        Ok(TransitionOutcome::Lost(held)) => held,
        Ok(TransitionOutcome::Contended { .. }) => return Err(JoinError::Contended),
        Err(error) => {
            return Err(match Obstacle::of(&error) {
                Some(Obstacle::Lock) => JoinError::Contended,
                Some(Obstacle::Snapshot) => JoinError::RestartTransaction,
                None => error
                    .into_store_error("writing in a transaction of the program's")
                    .about(attempt.id())
                    .into(),
            });
        }
    };
    match settle(expect, change, held.as_ref().map(|held| &*held.record)) {
        Settled::AlreadyApplied => Ok(()),
        Settled::Superseded => Err(JoinError::Superseded),
        Settled::Conflict | Settled::Lost => Err(JoinError::LeaseLost),
    }
}

/// Why an attempt could not write in the caller's transaction.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The record has another owner, or is settled. Roll back: what this attempt writes, it writes beside somebody else.
    #[error(
        "the lease is lost: the record has another owner or is settled; roll the transaction back"
    )]
    LeaseLost,
    /// A later checkpoint is stored already, and this one changed nothing.
    #[error("a later checkpoint is stored already")]
    Superseded,
    /// Another connection holds the lock for longer than the busy timeout of the caller's. Roll back, and try again.
    #[error("another connection holds the lock; roll the transaction back and try again")]
    Contended,
    /// Another connection has written since this transaction first read, so this one cannot write any more. Roll it back, and
    /// do all of it again; a transaction that begins with `BEGIN IMMEDIATE` does not come to this.
    #[error(
        "another connection has written since this transaction first read; roll it back, and begin it with BEGIN IMMEDIATE"
    )]
    RestartTransaction,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}
