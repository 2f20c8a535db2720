use idem_core::{OwnerToken, StoreError, StoreErrorKind};
use rusqlite::Connection;

use crate::error::not_applied;

/// A place in a transaction to go back to.
///
/// Its name has the attempt's token in it. A savepoint of the program's own, even one that it has left open, is never
/// taken for it.
#[derive(Debug)]
pub(crate) struct Savepoint<'c> {
    connection: &'c Connection,
    name: String,
}

impl<'c> Savepoint<'c> {
    pub(crate) fn begin(
        connection: &'c Connection,
        what: &str,
        token: OwnerToken,
    ) -> Result<Self, StoreError> {
        let token = u128::from_be_bytes(*token.as_bytes());
        let name = format!("idem_{what}_{token:032x}");
        connection
            .execute_batch(&format!("SAVEPOINT {name}"))
            .map_err(|error| not_applied("setting a savepoint", error))?;
        Ok(Self { connection, name })
    }

    /// Undoes what was written since, and leaves the savepoint there.
    pub(crate) fn roll_back(&self) -> Result<(), StoreError> {
        self.execute("ROLLBACK TO")
    }

    pub(crate) fn release(self) -> Result<(), StoreError> {
        self.execute("RELEASE")
    }

    fn execute(&self, verb: &str) -> Result<(), StoreError> {
        let done = self
            .connection
            .execute_batch(&format!("{verb} {}", self.name));
        done.map_err(|error| {
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown) {
                return over().because(error);
            }
            not_applied("going back to a savepoint", error)
        })
    }
}

/// The error for work in whose middle the transaction has ended.
pub(crate) fn over() -> StoreError {
    StoreError::of_kind(
        StoreErrorKind::Misuse,
        "the transaction was over before the work was: the work has ended it, or SQLite has after an error that the work \
         has not returned",
    )
}
