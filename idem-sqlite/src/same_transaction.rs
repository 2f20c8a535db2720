//! Work whose rows and whose record commit together or not at all.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use idem_core::executor::{Answer, Attempt, Outcome, Storable, TxAttempt};
use idem_core::{
    Claim, Decision, OnBusy, Policy, RecoveryPoint, Request, Response, StoreError, Transition,
};
use rusqlite::{Connection, Transaction};

use crate::in_transaction_error::InTransactionError;
use crate::joined::{self, JoinError};
use crate::savepoint::Savepoint;
use crate::statement::Whose;
use crate::store::SqliteKeyStore;
use crate::within::{Tried, Within, Worked, fitting};
use crate::work_error::WorkError;
use crate::working::{Terms, Working};

/// How long to wait between two looks at a record that somebody else's work is bound to.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl SqliteKeyStore {
    /// Does the work of `request` if nobody has, in a transaction of its own: the rows that the work writes and the record of
    /// its answer commit together or not at all.
    ///
    /// The transaction is a `BEGIN IMMEDIATE` on the store's own writing connection, and no other caller's write is in it. The
    /// work is a plain function that runs on the store's writer thread. **While it runs nobody else writes to the file**,
    /// because SQLite has one lock for all of it: so it should be short, and wait for nothing. The claim is the first thing in
    /// the transaction; if it is rolled back, whoever comes next does the work.
    ///
    /// | the work says | what commits | the answer |
    /// |---|---|---|
    /// | `Completed` | its rows and its answer | `Fresh` |
    /// | `Failed` | its answer, and none of its rows | `Fresh` |
    /// | `Retryable`, `Rejected` | nothing | `Fresh`; the record is as it was before |
    /// | `Unknown` | nothing | [`InTransactionError::OutcomeUnknown`]: what is undone cannot be looked up later |
    /// | an error | nothing | [`InTransactionError::Work`] |
    /// | it panics | nothing | [`InTransactionError::Panicked`]; the store works on |
    ///
    /// **The work may be done several times**, and all but the last are undone: when it fails because a lock is held, say in a
    /// database that is attached, and when a commit fails in a way that leaves open whether it was one, and it turns out that
    /// it was none. So it must do nothing that a rollback does not undo. An error that comes from SQLite has to be found for
    /// that: see [`WorkError`].
    ///
    /// It has to return every error after which it cannot go on. SQLite ends the transaction by itself after some of them, a
    /// full disk for one, and what is executed after that is in no transaction.
    ///
    /// The work must not end the transaction, nor change the settings of the connection, nor wait for another write to this
    /// store: such a write fails as [`Misuse`](idem_core::StoreErrorKind::Misuse), since it would wait for the work. Another request can
    /// be worked on inside of it with [`execute_within`](Self::execute_within).
    ///
    /// An answer that is larger than the [response limit](crate::SqliteOptions::response_limit) is kept without its body.
    /// With [`OnBusy::Wait`] in the policy this needs a runtime with its timer enabled.
    ///
    /// # Errors
    ///
    /// [`InTransactionError`]. After [`Ambiguous`](idem_core::StoreErrorKind::Ambiguous) the work may be done, and the same request says
    /// so; after any other, nothing of it is there.
    ///
    /// # Cancellation
    ///
    /// Dropped before the work has begun, nothing is done. Dropped after that, it is done all the same.
    ///
    /// ```
    /// use idem_core::executor::{Answer, Outcome};
    /// use idem_core::{Policy, Request, Response};
    /// use idem_sqlite::{InTransactionError, SqliteKeyStore, rusqlite};
    ///
    /// async fn order(
    ///     store: &SqliteKeyStore,
    ///     request: &Request,
    /// ) -> Result<Answer<Response>, InTransactionError<rusqlite::Error>> {
    ///     store
    ///         .execute_in_tx(request, &Policy::default(), |tx, _attempt| {
    ///             tx.execute("INSERT INTO orders (item) VALUES (?1)", ["book"])?;
    ///             Ok(Outcome::Completed(Response::new(201).body("{}")))
    ///         })
    ///         .await
    /// }
    /// ```
    pub async fn execute_in_tx<T, E, W>(
        &self,
        request: &Request,
        policy: &Policy,
        work: W,
    ) -> Result<Answer<T>, InTransactionError<E>>
    where
        T: Storable + Send + 'static,
        E: WorkError + Send + 'static,
        W: Fn(&Transaction<'_>, &TxAttempt) -> Result<Outcome<T>, E> + Send + 'static,
    {
        let until = match policy.on_busy() {
            OnBusy::Reject => Instant::now(),
            OnBusy::Wait(longest) => Instant::now() + longest.as_duration(),
        };
        let terms = Terms {
            claim: Claim::fresh(request.clone(), policy)?,
            policy: *policy,
            clock: self.clock().clone(),
            response_limit: self.response_limit(),
            underway: self.underway().clone(),
        };
        let mut parts = (terms, work);
        let mut pause = FIRST_PAUSE;
        loop {
            let (terms, work) = parts;
            let (tried, back) = self
                .exclusively(|reply| Box::new(Working::new(terms, work, reply)))
                .await?;
            parts = back;
            let remaining = match tried? {
                Tried::Done(outcome) => return Ok(Answer::Fresh(outcome.into_answer())),
                Tried::Ours => return Ok(Answer::OutcomeUnknown),
                Tried::Refused(Decision::Busy { remaining }) => remaining,
                Tried::Refused(decision) => return Ok(Answer::refused(decision)),
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Answer::Busy { remaining });
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Does the work of `request` if nobody has, inside a transaction of the caller's: what the work writes and the record of
    /// its answer are between two savepoints of it, and commit with it or not at all.
    ///
    /// `connection` is one of the caller's own whose main database is the same file, in a transaction or a savepoint, or the one
    /// that [`execute_in_tx`](Self::execute_in_tx) hands to its work. One to another file is refused as
    /// [`Misuse`](idem_core::StoreErrorKind::Misuse), and so is one to which the store's file is only attached: in WAL mode the
    /// files of a transaction do not commit together, so the rows have to be in the store's own. Begin the transaction with `BEGIN IMMEDIATE`: one that reads
    /// first may find that it cannot write any more. What the caller's connection commits is as durable as its settings are:
    /// `synchronous = FULL` is what the store itself uses.
    ///
    /// As [`execute_in_tx`](Self::execute_in_tx), with these differences. **Nothing that it answers holds before the caller has
    /// committed.** It never waits, whatever the policy says, but for what the busy timeout of the caller's connection allows. A
    /// panic of the work goes through, and what it wrote is undone. What has to be done again is the caller's whole transaction, and so the caller does that.
    ///
    /// Of a refused request, and of work that did not complete, nothing is left in the transaction, which can go on.
    ///
    /// # Errors
    ///
    /// [`InTransactionError`]. After [`InTransactionError::RestartTransaction`] and [`InTransactionError::Store`] the
    /// transaction has to be rolled back, after [`InTransactionError::TransactionOver`] it is over, and after [`InTransactionError::Contended`] nothing has happened in it; after the
    /// others it can go on.
    ///
    /// ```
    /// use idem_core::executor::{Answer, Outcome};
    /// use idem_core::{Policy, Request, Response};
    /// use idem_sqlite::SqliteKeyStore;
    /// use idem_sqlite::rusqlite::{self, Connection, TransactionBehavior};
    ///
    /// fn order(
    ///     connection: &mut Connection,
    ///     store: &SqliteKeyStore,
    ///     request: &Request,
    /// ) -> Result<Answer<Response>, Box<dyn std::error::Error>> {
    ///     let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     let answer = store.execute_within(&tx, request, &Policy::default(), |tx, _attempt| {
    ///         tx.execute("INSERT INTO orders (item) VALUES (?1)", ["book"])?;
    ///         Ok::<_, rusqlite::Error>(Outcome::Completed(Response::new(201)))
    ///     })?;
    ///     tx.commit()?;
    ///     Ok(answer)
    /// }
    /// ```
    pub fn execute_within<T, E, W>(
        &self,
        connection: &Connection,
        request: &Request,
        policy: &Policy,
        work: W,
    ) -> Result<Answer<T>, InTransactionError<E>>
    where
        T: Storable,
        E: WorkError,
        W: FnOnce(&Connection, &TxAttempt) -> Result<Outcome<T>, E>,
    {
        self.refuse_unfit(connection)?;
        let claim = Claim::fresh(request.clone(), policy)?;
        let about = |error: StoreError| InTransactionError::Store(error.about(claim.id()));
        let savepoint = Savepoint::begin(connection, "claim", claim.token()).map_err(about)?;
        let within = Within {
            connection,
            claim: &claim,
            policy,
            clock: &**self.clock(),
            response_limit: self.response_limit(),
            whose: Whose::Callers,
        };
        // The transaction is the caller's, who may catch the panic and commit it.
        let worked = catch_unwind(AssertUnwindSafe(|| {
            within.run(|attempt| work(connection, attempt).map_err(InTransactionError::Work))
        }));
        let worked = worked.unwrap_or_else(|panic| {
            let _ = savepoint.roll_back();
            resume_unwind(panic)
        });
        let (undo, answer) = match worked {
            Ok(Worked::Commit(outcome)) => (false, Ok(Answer::Fresh(outcome.into_answer()))),
            Ok(Worked::RollBack(Tried::Done(outcome))) => {
                (true, Ok(Answer::Fresh(outcome.into_answer())))
            }
            Ok(Worked::RollBack(Tried::Refused(decision))) => (true, Ok(Answer::refused(decision))),
            Ok(Worked::RollBack(Tried::Ours)) => (true, Ok(Answer::OutcomeUnknown)),
            Err(error) => (true, Err(error)),
        };
        if undo && let Err(error) = savepoint.roll_back() {
            return Err(match answer {
                // There is nothing to go back to: SQLite has ended it by itself, as it does when the disk is full.
                Err(InTransactionError::Work(error)) if connection.is_autocommit() => {
                    InTransactionError::TransactionOver(error)
                }
                Err(first @ InTransactionError::Store(_)) if connection.is_autocommit() => first,
                _ => about(error),
            });
        }
        savepoint.release().map_err(about)?;
        answer
    }

    /// Stores the answer of an attempt inside a transaction of the caller's: it commits with the rows that the caller writes,
    /// or not at all. The claim was committed before, by [`Idempotency`](idem_core::executor::Idempotency).
    ///
    /// `connection` is one of the caller's own whose main database is the same file, in a transaction or a savepoint; begin it
    /// with `BEGIN IMMEDIATE`. Any other is refused as [`Misuse`](idem_core::StoreErrorKind::Misuse). What it commits is as durable as its settings are: `synchronous = FULL` is what the store itself uses.
    ///
    /// It is fenced: if somebody else has taken the record over, this is an error, and `?` rolls the caller's rows back. After
    /// the commit, return the same answer from the handler, or call
    /// [`Execution::finish_joined`](idem_core::executor::Execution::finish_joined). Between this and the commit, the heartbeat
    /// waits for the transaction's lock on the file, which it does not take for a lost lease; but the lease does run, so commit
    /// soon.
    ///
    /// # Errors
    ///
    /// [`JoinError`]. After any of them the transaction's rows must not be committed.
    ///
    /// ```
    /// use idem_core::Response;
    /// use idem_core::executor::Attempt;
    /// use idem_sqlite::SqliteKeyStore;
    /// use idem_sqlite::rusqlite::{Connection, TransactionBehavior};
    ///
    /// fn order(
    ///     connection: &mut Connection,
    ///     store: &SqliteKeyStore,
    ///     attempt: &Attempt,
    /// ) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    ///     let response = Response::new(201).body("{}");
    ///     let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     tx.execute("INSERT INTO orders (item) VALUES (?1)", ["book"])?;
    ///     store.complete_in(&tx, attempt, &response)?;
    ///     tx.commit()?;
    ///     Ok(response)
    /// }
    /// ```
    pub fn complete_in(
        &self,
        connection: &Connection,
        attempt: &Attempt,
        response: &Response,
    ) -> Result<(), JoinError> {
        let change = fitting(
            Transition::Complete(response.clone()),
            self.response_limit(),
        );
        self.refuse_unfit(connection)?;
        joined::write(connection, attempt, &change, self.clock().now())
    }

    /// Stores how far an attempt has come inside a transaction of the caller's: it commits with the rows that the caller
    /// writes, or not at all. Otherwise as [`complete_in`](Self::complete_in) and [`Attempt::checkpoint`].
    ///
    /// # Errors
    ///
    /// [`JoinError`], as for [`complete_in`](Self::complete_in).
    pub fn checkpoint_in(
        &self,
        connection: &Connection,
        attempt: &Attempt,
        point: RecoveryPoint,
    ) -> Result<(), JoinError> {
        let change = attempt.next_checkpoint(point);
        self.refuse_unfit(connection)?;
        joined::write(connection, attempt, &change, self.clock().now())
    }
}
