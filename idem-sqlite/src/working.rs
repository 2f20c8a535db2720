//! Work that has the writer and a transaction to itself.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use idem_core::executor::{Outcome, Storable, TxAttempt};
use idem_core::{Claim, Clock, Policy, StoreError};
use rusqlite::{Connection, Transaction};
use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::in_transaction_error::InTransactionError;
use crate::statement::Whose;
use crate::transaction::{Ended, Ending, Extent, Failure, WriteConnection};
use crate::underway::Underway;
use crate::within::{Tried, Within, Worked};
use crate::work_error::{WorkError, is_locked_out};
use crate::writer::{Exclusive, Progress};

/// How often a transaction's end is looked for whose commit failed in a way that leaves it open.
const SETTLINGS: u32 = 8;

thread_local! {
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
    static CLOSING: Cell<bool> = const { Cell::new(false) };
}

/// Whose work this thread is at, and on which connection. The two are compared and never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Here {
    store: *const Underway,
    connection: *const Connection,
}

/// Whether this thread is a writer that is at somebody's work. What waits for the writer there waits for ever.
pub(crate) fn is_here() -> bool {
    HERE.get().is_some()
}

/// Whether this thread is the writer of this very store, and at somebody's work.
pub(crate) fn is_here_for(store: &Arc<Underway>) -> bool {
    HERE.get()
        .is_some_and(|here| here.store == Arc::as_ptr(store))
}

/// Whether this is the connection that the work has which this thread is at, for this store.
pub(crate) fn has(store: &Arc<Underway>, connection: &Connection) -> bool {
    let here = Here {
        store: Arc::as_ptr(store),
        connection,
    };
    HERE.get() == Some(here)
}

/// Has the store closed when the work is over that this thread is at.
pub(crate) fn close_afterwards() {
    CLOSING.set(true);
}

/// Whether the work that this thread was at wants the store closed.
pub(crate) fn is_to_close() -> bool {
    CLOSING.take()
}

/// On what terms the work is done.
#[derive(Debug)]
pub(crate) struct Terms {
    /// One for all tries: if it is not known how the commit of one of them ended, the record is recognised by it.
    pub(crate) claim: Claim,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) response_limit: usize,
    /// Of the store whose work it is.
    pub(crate) underway: Arc<Underway>,
}

/// What came of it, and what it came with, for another time.
type Came<T, E, W> = (Result<Tried<T>, InTransactionError<E>>, (Terms, W));

/// Where to send that.
type Waiting<T, E, W> = oneshot::Sender<Came<T, E, W>>;

/// Work that is to be done, and who waits for it.
pub(crate) struct Working<T, E, W> {
    /// There until it is answered.
    waiting: Option<(Terms, W, Waiting<T, E, W>)>,
    /// What the work said whose commit may have been one.
    unknown: Option<Outcome<T>>,
    settlings: u32,
}

impl<T, E, W> Working<T, E, W> {
    pub(crate) fn new(terms: Terms, work: W, reply: Waiting<T, E, W>) -> Self {
        Self {
            waiting: Some((terms, work, reply)),
            unknown: None,
            settlings: 0,
        }
    }
}

impl<T, E, W> fmt::Debug for Working<T, E, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Working").finish_non_exhaustive()
    }
}

/// What one transaction came to.
enum Step<T, E> {
    Over(Result<Tried<T>, InTransactionError<E>>),
    /// A lock is in the way. This is the error if there is no time left.
    LockedOut(InTransactionError<E>),
    /// It may have been committed.
    Unknown(Outcome<T>, Failure),
}

impl<T, E, W> Exclusive for Working<T, E, W>
where
    T: Storable + Send,
    E: WorkError + Send,
    W: Fn(&Transaction<'_>, &TxAttempt) -> Result<Outcome<T>, E> + Send,
{
    fn attempt(&mut self, database: &mut WriteConnection, deadline: Instant) -> Progress {
        let Some((terms, work, reply)) = self.waiting.take() else {
            return Progress::Made;
        };
        if reply.is_closed() && self.unknown.is_none() {
            return Progress::Made;
        }
        match self.settle(database, deadline, &terms, &work) {
            Some(over) => {
                // Whoever waited may have gone, which is nobody's fault.
                let _ = reply.send((over, (terms, work)));
                Progress::Made
            }
            None => {
                self.waiting = Some((terms, work, reply));
                Progress::LockedOut
            }
        }
    }
}

impl<T, E, W> Working<T, E, W>
where
    T: Storable,
    E: WorkError,
    W: Fn(&Transaction<'_>, &TxAttempt) -> Result<Outcome<T>, E>,
{
    /// Tries until it is known what came of it, or a lock is in the way.
    fn settle(
        &mut self,
        database: &mut WriteConnection,
        deadline: Instant,
        terms: &Terms,
        work: &W,
    ) -> Option<Result<Tried<T>, InTransactionError<E>>> {
        let mut backoff = Backoff::default();
        loop {
            let over = match terms.try_once(database, work) {
                Step::LockedOut(_) if Instant::now() < deadline => return None,
                Step::Over(over) => over,
                Step::LockedOut(error) => Err(error),
                Step::Unknown(outcome, failure) => {
                    self.unknown = Some(outcome);
                    Err(InTransactionError::Store(failure.store_error()))
                }
            };
            return Some(match (over, self.unknown.take()) {
                // The record has the token of this call, and only its own commit can have given it that.
                (Ok(Tried::Ours), Some(outcome)) => Ok(Tried::Done(outcome)),
                // As long as it is not known how that commit ended, no error of another try says anything about it.
                (Err(InTransactionError::Store(error)), Some(outcome)) => {
                    self.settlings += 1;
                    if self.settlings <= SETTLINGS && Instant::now() < deadline {
                        self.unknown = Some(outcome);
                        backoff.sleep();
                        continue;
                    }
                    let lost = StoreError::ambiguous("committing the work").because(error);
                    Err(lost.about(terms.claim.id()).into())
                }
                // The write lock was held and the record was not there: that commit was none, and this is what came after it.
                (over, _) => over,
            });
        }
    }
}

impl Terms {
    /// One transaction, from its beginning to its end.
    fn try_once<T, E, W>(&self, database: &mut WriteConnection, work: &W) -> Step<T, E>
    where
        T: Storable,
        E: WorkError,
        W: Fn(&Transaction<'_>, &TxAttempt) -> Result<Outcome<T>, E>,
    {
        let ended = database.exclusive(|transaction| {
            let within = Within {
                connection: transaction,
                claim: &self.claim,
                policy: &self.policy,
                clock: &*self.clock,
                response_limit: self.response_limit,
                whose: Whose::Ours,
            };
            let here = Here {
                store: Arc::as_ptr(&self.underway),
                connection: &raw const **transaction,
            };
            match within.run(|attempt| guarded(here, || work(transaction, attempt))) {
                Ok(Worked::Commit(outcome)) => Ending::Commit(Ok(Tried::Done(outcome))),
                Ok(Worked::RollBack(tried)) => Ending::RollBack(Ok(tried)),
                Err(error) => Ending::RollBack(Err(error)),
            }
        });
        let about = |failure: Failure| {
            InTransactionError::Store(failure.store_error().about(self.claim.id()))
        };
        match ended {
            Ok(Ended::RolledBack(Err(InTransactionError::Work(error))))
                if is_locked_out(error.as_error()) =>
            {
                Step::LockedOut(InTransactionError::Work(error))
            }
            Ok(Ended::Committed(over) | Ended::RolledBack(over)) => Step::Over(over),
            Ok(Ended::Refused(error)) => Step::Over(Err(InTransactionError::Commit(error))),
            Ok(Ended::Unknown(Ok(Tried::Done(outcome)), failure)) => {
                Step::Unknown(outcome, failure)
            }
            Err(failure) if failure.extent == Extent::Busy => Step::LockedOut(about(failure)),
            Ok(Ended::Unknown(_, failure)) | Err(failure) => Step::Over(Err(about(failure))),
        }
    }
}

/// Does somebody's work, which may panic.
fn guarded<T, E>(
    here: Here,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, InTransactionError<E>> {
    HERE.set(Some(here));
    let worked = catch_unwind(AssertUnwindSafe(work));
    HERE.set(None);
    match worked {
        Ok(worked) => worked.map_err(InTransactionError::Work),
        Err(_panic) => Err(InTransactionError::Panicked),
    }
}
