//! Claiming, working and storing the outcome, inside a transaction that somebody else begins and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use idem_core::executor::{Outcome, Storable, TxAttempt, TxEnd};
use idem_core::{
    Applied, Claim, Clock, CorruptRow, Decision, Expect, Moment, Policy, Record, Response,
    StoreError, StoreErrorKind, Swap, Timestamp, Transition, TransitionOutcome, decide,
};
use rusqlite::{Connection, ffi};

use crate::error::{Reach, ReadError, reach};
use crate::in_transaction_error::InTransactionError;
use crate::savepoint::{Savepoint, over};
use crate::statement::Whose;
use crate::work::{Claimed, OneWrite, carry_out_claim};

const WORKING: &str = "working in a transaction";

/// Everything about one try at work in a transaction.
#[derive(Debug)]
pub(crate) struct Within<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) claim: &'a Claim,
    pub(crate) policy: &'a Policy,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) response_limit: usize,
    pub(crate) whose: Whose,
}

/// How the transaction is to end after work in it.
#[derive(Debug)]
pub(crate) enum Worked<T> {
    Commit(Outcome<T>),
    RollBack(Tried<T>),
}

/// What came of one try.
#[derive(Debug)]
pub(crate) enum Tried<T> {
    /// The work ended so.
    Done(Outcome<T>),
    /// The record is finished under the token of this very call.
    Ours,
    /// Somebody else's record decides so.
    Refused(Decision),
}

impl Within<'_> {
    pub(crate) fn run<T: Storable, E>(
        &self,
        work: impl FnOnce(&TxAttempt) -> Result<Outcome<T>, InTransactionError<E>>,
    ) -> Result<Worked<T>, InTransactionError<E>> {
        let record = match self.own().map_err(|error| self.stopped(error))? {
            Owned::Yes(record) => record,
            Owned::Already => return Ok(Worked::RollBack(Tried::Ours)),
            Owned::No(decision) => return Ok(Worked::RollBack(Tried::Refused(decision))),
        };
        let expect = Expect::Owner(record.token);
        let about = |error: StoreError| InTransactionError::Store(error.about(self.claim.id()));
        let savepoint = Savepoint::begin(self.connection, "work", record.token).map_err(about)?;
        let outcome = work(&TxAttempt::new(record))?;
        if self.connection.is_autocommit() {
            return Err(about(over()));
        }
        if let Outcome::Unknown(_) = outcome {
            return Err(InTransactionError::OutcomeUnknown);
        }
        // Writing an answer is the program's code too.
        let end = catch_unwind(AssertUnwindSafe(|| TxEnd::of(&outcome, self.policy)))
            .map_err(|_| InTransactionError::Panicked)?;
        let change = match end {
            TxEnd::Commit(change) => change,
            TxEnd::CommitWithoutRows(change) => {
                savepoint.roll_back().map_err(about)?;
                change
            }
            TxEnd::RollBack => return Ok(Worked::RollBack(Tried::Done(outcome))),
        };
        savepoint.release().map_err(about)?;
        let change = fitting(change, self.response_limit);
        let written = self.write(expect, &change, self.clock.now());
        match written.map_err(|error| self.stopped(error))? {
            TransitionOutcome::Applied { .. } => Ok(Worked::Commit(outcome)),
            // Nobody else can have written it.
            TransitionOutcome::Lost(_) | TransitionOutcome::Contended { .. } => {
                Err(about(StoreError::of_kind(
                    StoreErrorKind::Misuse,
                    "storing the answer: the work has written the record itself",
                )))
            }
        }
    }

    /// Makes the record this claim's, if the table of decisions says so.
    fn own(&self) -> Result<Owned, ReadError> {
        let now = self.clock.now();
        let held = match carry_out_claim(self.connection, self.claim, now)? {
            Claimed::Won(now) => return Ok(Owned::Yes(Arc::new(self.claim.first_record(now)))),
            Claimed::Held(held) => held,
        };
        let Swap { expect, change } = match decide(self.claim, Some(&held)) {
            Decision::Resume => return Ok(Owned::Yes(held.record)),
            Decision::Restart(swap) | Decision::TakeOver(swap) => swap,
            _ if held.record.token == self.claim.token() => return Ok(Owned::Already),
            refused => return Ok(Owned::No(refused)),
        };
        match self.write(expect, &change, now)? {
            TransitionOutcome::Applied { now, .. } => {
                match held.record.apply(expect, &change, Moment::exact(now)) {
                    Ok(Applied::Changed(record)) => Ok(Owned::Yes(Arc::from(record))),
                    // What the statement has let through, the model has to as well.
                    _ => Err(CorruptRow::in_column("status").into()),
                }
            }
            // Under the write lock it is still the record that was decided about.
            TransitionOutcome::Lost(_) | TransitionOutcome::Contended { .. } => {
                Err(CorruptRow::in_column("status").into())
            }
        }
    }

    fn write(
        &self,
        expect: Expect,
        change: &Transition,
        now: Timestamp,
    ) -> Result<TransitionOutcome, ReadError> {
        let write = OneWrite {
            id: self.claim.id(),
            expect,
            change,
            now,
        };
        write.carry_out(self.connection, &mut String::new(), self.whose)
    }

    fn stopped<E>(&self, error: ReadError) -> InTransactionError<E> {
        match Obstacle::of(&error) {
            Some(Obstacle::Lock) => InTransactionError::Contended,
            Some(Obstacle::Snapshot) => InTransactionError::RestartTransaction,
            None => error
                .into_store_error(WORKING)
                .about(self.claim.id())
                .into(),
        }
    }
}

/// Whether a record is this claim's.
enum Owned {
    Yes(Arc<Record>),
    /// It is, and it is finished.
    Already,
    No(Decision),
}

/// What another connection has in a transaction's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A lock that it holds.
    Lock,
    /// It has written since this transaction first read, which therefore can never write.
    Snapshot,
}

impl Obstacle {
    pub(crate) fn of(error: &ReadError) -> Option<Self> {
        match error {
            ReadError::Sqlite(error) if reach(error) == Reach::Restart => {
                let code = error.sqlite_error().map(|error| error.extended_code);
                Some(match code {
                    Some(ffi::SQLITE_BUSY_SNAPSHOT) => Self::Snapshot,
                    _ => Self::Lock,
                })
            }
            ReadError::Sqlite(_) | ReadError::Row(_) => None,
        }
    }
}

/// Without a body that is larger than the store takes: the work is done.
pub(crate) fn fitting(change: Transition, limit: usize) -> Transition {
    let fit = |response: Response| {
        if response.size() > limit {
            response.without_body()
        } else {
            response
        }
    };
    match change {
        Transition::Complete(response) => Transition::Complete(fit(response)),
        Transition::FailFinal(response) => Transition::FailFinal(fit(response)),
        other => other,
    }
}
