//! The writes that callers ask for, and how one of them is carried out inside a transaction.

use idem_core::{
    Claim, Expect, Moment, RecordId, Snapshot, StoreError, Timestamp, Transition,
    TransitionOutcome, Write,
};
use rusqlite::Connection;

use crate::error::{Reach, ReadError, not_applied, reach};
use crate::reader::{self, Reply};
use crate::statement::{self, Removable, Statement, Whose};

/// A write that somebody waits for.
#[derive(Debug)]
pub(crate) enum Work {
    Claim {
        claim: Claim,
        reply: Reply<Claimed>,
    },
    Transition {
        id: RecordId,
        expect: Expect,
        change: Transition,
        reply: Reply<TransitionOutcome>,
    },
}

/// What became of a claim. The record of one that was won is built by whoever claimed, from its own claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    Won(Timestamp),
    Held(Snapshot),
}

/// What a write's caller is told once the transaction is committed.
#[derive(Debug)]
pub(crate) enum Answer {
    Claim(Result<Claimed, StoreError>),
    Transition(Result<TransitionOutcome, StoreError>),
}

impl Work {
    /// Whether nobody waits for it any more and it is better not begun. A claim whose caller has gone would keep its key
    /// for a lease. An owner's write is done all the same: it says what has happened.
    pub(crate) fn is_pointless(&self) -> bool {
        match self {
            Self::Claim { reply, .. } => reply.is_closed(),
            Self::Transition { .. } => false,
        }
    }

    /// About how much it writes, in bytes.
    pub(crate) fn size(&self) -> usize {
        const ROW: usize = 512;
        ROW + match self {
            Self::Transition { change, .. } => match change {
                Transition::Complete(response) | Transition::FailFinal(response) => response.size(),
                Transition::Checkpoint { point, .. } => point.data().map_or(0, bytes::Bytes::len),
                _ => 0,
            },
            Self::Claim { .. } => 0,
        }
    }

    /// Carries it out inside a transaction. `Err` is an error that the transaction does not survive; one that
    /// concerns this write alone is its answer.
    pub(crate) fn carry_out(
        &self,
        connection: &Connection,
        text: &mut String,
        now: Timestamp,
    ) -> rusqlite::Result<Answer> {
        match self {
            Self::Claim { claim, .. } => {
                let claimed = carry_out_claim(connection, claim, now);
                settle(connection, claimed, "claiming", claim.id()).map(Answer::Claim)
            }
            Self::Transition {
                id, expect, change, ..
            } => {
                let write = OneWrite {
                    id,
                    expect: *expect,
                    change,
                    now,
                };
                let outcome = write.carry_out(connection, text, Whose::Ours);
                settle(connection, outcome, change.name(), id).map(Answer::Transition)
            }
        }
    }

    /// Tells the caller. It may have gone, which is nobody's fault.
    pub(crate) fn reply(self, answer: Answer) {
        match (self, answer) {
            (Self::Claim { reply, .. }, Answer::Claim(claimed)) => drop(reply.send(claimed)),
            (Self::Transition { reply, .. }, Answer::Transition(outcome)) => {
                drop(reply.send(outcome));
            }
            // Answers are made from their own work. If they ever were not, the dropped reply says that the
            // outcome is unknown.
            (Self::Claim { .. } | Self::Transition { .. }, _) => {}
        }
    }

    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Claim { claim, reply } => drop(reply.send(Err(error.about(claim.id())))),
            Self::Transition { id, reply, .. } => drop(reply.send(Err(error.about(&id)))),
        }
    }
}

pub(crate) fn carry_out_claim(
    connection: &Connection,
    claim: &Claim,
    now: Timestamp,
) -> Result<Claimed, ReadError> {
    if statement::claim(connection, claim, now)? {
        return Ok(Claimed::Won(now));
    }
    match reader::load(connection, claim.id(), now)? {
        Some(held) => Ok(Claimed::Held(held)),
        // Under the write lock, what was in the way cannot have gone, unless somebody put a trigger there.
        None => Err(ReadError::Sqlite(rusqlite::Error::StatementChangedRows(0))),
    }
}

/// A transition of one record, at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneWrite<'a> {
    pub(crate) id: &'a RecordId,
    pub(crate) expect: Expect,
    pub(crate) change: &'a Transition,
    pub(crate) now: Timestamp,
}

impl OneWrite<'_> {
    /// Carries it out inside a transaction that has the write lock, or gets it now.
    pub(crate) fn carry_out(
        self,
        connection: &Connection,
        text: &mut String,
        whose: Whose,
    ) -> Result<TransitionOutcome, ReadError> {
        let Self {
            id,
            expect,
            change,
            now,
        } = self;
        let Ok(patch) = change.patch(expect) else {
            // The caller was told before it came here.
            return Err(rusqlite::Error::InvalidQuery.into());
        };
        let guard = &patch.guard;
        let revision = match &patch.write {
            Write::Set(columns) => {
                Statement::update(text, id, now, guard, columns, whose).run(connection)?
            }
            Write::Remove => {
                Statement::delete(text, id, now, guard, Removable::Any).run(connection)?
            }
            // Two statements, of which at most one finds the row: nobody writes between them.
            Write::RemoveUnlessUncertain(columns) => {
                match Statement::delete(text, id, now, guard, Removable::Certain).run(connection)? {
                    Some(revision) => Some(revision),
                    None => {
                        Statement::update(text, id, now, guard, columns, whose).run(connection)?
                    }
                }
            }
        };
        if let Some(revision) = revision {
            return Ok(TransitionOutcome::Applied { revision, now });
        }
        // The same transaction still holds the write lock, so this is the record that the write did not match.
        let held = reader::load(connection, id, now)?;
        match held {
            // Nobody can have written in between, so a guard that lets this record through contradicts the statement
            // that was made from it. To say "lost" would tell an owner that it has lost to itself.
            Some(held) if guard.admits(&held.record, Moment::exact(now)) => {
                Err(idem_core::CorruptRow::in_column("status").into())
            }
            held => Ok(TransitionOutcome::Lost(held)),
        }
    }
}

/// Separates the errors of one write from those of the transaction.
fn settle<T>(
    connection: &Connection,
    result: Result<T, ReadError>,
    doing: &'static str,
    id: &RecordId,
) -> rusqlite::Result<Result<T, StoreError>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        // Some errors roll the transaction back by themselves. What else was in it is gone with it then.
        Err(ReadError::Sqlite(error))
            if reach(&error) != Reach::Statement || connection.is_autocommit() =>
        {
            Err(error)
        }
        Err(ReadError::Sqlite(error)) => Ok(Err(not_applied(doing, error).about(id))),
        Err(error @ ReadError::Row(_)) => Ok(Err(error.into_store_error(doing).about(id))),
    }
}
