//! Work whose rows and whose record commit together or not at all.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_core::executor::{Answer, Attempt, Outcome, Storable, TxAttempt, TxEnd};
use idem_core::{
    Applied, Claim, CorruptRow, Decision, Expect, Moment, OnBusy, Policy, Record, RecordId,
    RecoveryPoint, Request, Response, Settled, Span, StoreError, StoreErrorKind, Swap, Transition,
    decide, settle,
};
use sqlx::{Connection as _, Executor as _, PgConnection};
use thiserror::Error as ThisError;

use crate::calls::{is_decided, read_claim, read_load, revision};
use crate::database::{Database, pause};
use crate::error::{Fate, code, fate, is_answer};
use crate::settings::Place;
use crate::store::PgKeyStore;
use crate::tx::{Lent, Tx, failed};
use crate::{row, statement};

const COMMITTING: &str = "committing the work";

/// How often work is done again whose transaction the server has undone because of another one.
const RESTARTS: u32 = 16;

/// How often a transaction's end is looked for whose commit was not acknowledged.
const SETTLINGS: u32 = 8;

/// How often a race for a record is lost before the transaction is begun again.
const ROUNDS: u32 = 16;

/// The longest pause between two looks at a record that somebody else is writing.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl PgKeyStore {
    /// Does the work of `request` if nobody has, in a transaction of its own: the rows that the work writes and the record of
    /// its answer commit together or not at all.
    ///
    /// The claim is the first statement of the transaction. While it is open, nobody else can claim the key: whoever tries
    /// waits for at most [`lock_wait`](crate::PgOptions::lock_wait), gives its connection back, and, where the policy says
    /// [`OnBusy::Wait`], tries again until its time is up. If the transaction rolls back, a waiter does the work.
    ///
    /// | the work says | what commits | the answer |
    /// |---|---|---|
    /// | `Completed` | its rows and its answer | `Fresh` |
    /// | `Failed` | its answer, and none of its rows | `Fresh` |
    /// | `Retryable`, `Rejected` | nothing | `Fresh`; the key is unused |
    /// | `Unknown` | nothing | [`InTransactionError::OutcomeUnknown`]: what is undone cannot be looked up later |
    /// | an error | nothing | [`InTransactionError::Work`] |
    /// | it panics, or is dropped | nothing | |
    ///
    /// **The work may be done several times**, and all but the last are undone: when the server ends a transaction because
    /// of another one (a serialization failure or a deadlock, also at the commit), and when the acknowledgement of a commit
    /// is lost and it turns out that there was none. So it must do nothing that a rollback does not undo. An error that comes
    /// from the server has to be found for that: see [`WorkError`].
    ///
    /// The transaction is `READ COMMITTED`. The work gets it as a [`Tx`], and must not end it.
    ///
    /// # Errors
    ///
    /// [`InTransactionError`]. After [`Ambiguous`](StoreErrorKind::Ambiguous) the work may be done, and the same request says
    /// so; after any other, nothing of it is there.
    ///
    /// # Cancellation
    ///
    /// Dropped before the commit, everything is undone. Dropped during it, the work may be done; the same request says so.
    ///
    /// ```
    /// use idem_core::executor::{Answer, Outcome};
    /// use idem_core::{Policy, Request, Response};
    /// use idem_postgres::{InTransactionError, PgKeyStore};
    ///
    /// async fn order(
    ///     store: &PgKeyStore,
    ///     request: &Request,
    /// ) -> Result<Answer<Response>, InTransactionError<sqlx::Error>> {
    ///     store
    ///         .execute_in_tx(request, &Policy::default(), |mut tx| async move {
    ///             sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind("book").execute(&mut *tx).await?;
    ///             Ok(Outcome::Completed(Response::new(201).body("{}")))
    ///         })
    ///         .await
    /// }
    /// ```
    pub async fn execute_in_tx<T, E, W, F>(
        &self,
        request: &Request,
        policy: &Policy,
        work: W,
    ) -> Result<Answer<T>, InTransactionError<E>>
    where
        T: Storable,
        E: WorkError,
        W: Fn(Tx<'static>) -> F,
        F: Future<Output = Result<Outcome<T>, E>>,
    {
        let until = match policy.on_busy() {
            OnBusy::Reject => Instant::now(),
            OnBusy::Wait(longest) => Instant::now() + longest.as_duration(),
        };
        // One claim for all tries: if the commit of one of them was not acknowledged, the record is recognised by it.
        let claim = Claim::fresh(request.clone(), policy)?;
        let id = claim.id();
        let (mut restarts, mut looks, mut settlings) = (0, 0, 0);
        let mut unacknowledged: Option<Outcome<T>> = None;
        loop {
            let tried = self.try_once(&claim, policy, &work).await;
            let tried = match tried {
                Ok(tried) => tried,
                // Until it is known how the commit ended, no error of another try says anything about it.
                Err(InTransactionError::Store(error)) if unacknowledged.is_some() => {
                    settlings += 1;
                    if settlings > SETTLINGS || !error.is_retryable() {
                        let lost = StoreError::ambiguous(COMMITTING).because(error).about(id);
                        return Err(lost.into());
                    }
                    tokio::time::sleep(pause(settlings + 3)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match tried {
                Tried::Done(outcome) => return Ok(Answer::Fresh(outcome.into_answer())),
                Tried::Unacknowledged(outcome) => {
                    settlings += 1;
                    if settlings > SETTLINGS {
                        return Err(StoreError::ambiguous(COMMITTING).about(id).into());
                    }
                    unacknowledged = Some(outcome);
                    tokio::time::sleep(pause(settlings + 3)).await;
                }
                Tried::Ours => {
                    // The record has our token, and nobody else's try could have given it that.
                    if let Some(outcome) = unacknowledged {
                        return Ok(Answer::Fresh(outcome.into_answer()));
                    }
                    return Ok(Answer::OutcomeUnknown);
                }
                Tried::Refused(Decision::Busy { remaining }) => {
                    if !wait(until, &mut looks).await {
                        return Ok(Answer::Busy { remaining });
                    }
                }
                Tried::Contended => {
                    if !wait(until, &mut looks).await {
                        let remaining = Span::ZERO;
                        return Ok(Answer::Busy { remaining });
                    }
                }
                Tried::Refused(decision) => return Ok(Answer::refused(decision)),
                Tried::Undone => {
                    restarts += 1;
                    if restarts > RESTARTS {
                        let kept =
                            "working in one transaction, which other transactions kept undoing";
                        return Err(StoreError::unavailable(kept).about(id).into());
                    }
                    tokio::time::sleep(pause(restarts)).await;
                }
            }
        }
    }

    /// One transaction, from its beginning to its end.
    async fn try_once<T, E, W, F>(
        &self,
        claim: &Claim,
        policy: &Policy,
        work: &W,
    ) -> Result<Tried<T>, InTransactionError<E>>
    where
        T: Storable,
        E: WorkError,
        W: Fn(Tx<'static>) -> F,
        F: Future<Output = Result<Outcome<T>, E>>,
    {
        let id = claim.id();
        let mut lent = Lent::begun(self.database.pool())
            .await
            .map_err(|error| error.about(id))?;
        let ended = within(&self.database, &mut lent, claim, policy, work).await;
        let outcome = match ended {
            Ok(Within::Commit(outcome)) => outcome,
            Ok(Within::RollBack(tried)) => {
                lent.roll_back().await;
                return Ok(tried);
            }
            Err(error) => {
                lent.roll_back().await;
                return Err(error);
            }
        };
        match lent.commit().await {
            Ok(()) => Ok(Tried::Done(outcome)),
            Err(error) if fate(&error) == Fate::Restart => Ok(Tried::Undone),
            // The server has looked at it and refused: a deferred constraint, say.
            Err(error) if is_answer(&error) => Err(InTransactionError::Commit(error)),
            Err(_) => Ok(Tried::Unacknowledged(outcome)),
        }
    }
}

impl PgKeyStore {
    /// Does the work of `request` if nobody has, inside a transaction of the caller's: what the work writes and the record of
    /// its answer are between two savepoints of it, and commit with it or not at all.
    ///
    /// As [`execute_in_tx`](Self::execute_in_tx), with these differences. **Nothing that it answers holds before the caller has
    /// committed.** It waits for nobody for longer than [`lock_wait`](crate::PgOptions::lock_wait), whatever the policy says,
    /// since the caller's locks are held meanwhile. What has to be done again is the caller's whole transaction, and so the
    /// caller does that.
    ///
    /// Of a refused request, and of work that did not complete, nothing is left in the transaction, which can go on.
    ///
    /// # Errors
    ///
    /// [`InTransactionError`]. After [`InTransactionError::RestartTransaction`] and [`InTransactionError::Store`] the
    /// transaction has to be rolled back; after the others it can go on.
    ///
    /// # Cancellation
    ///
    /// A transaction in which this was dropped has to be rolled back. Dropping the future of the whole does both.
    ///
    /// ```
    /// use idem_core::executor::{Answer, Outcome};
    /// use idem_core::{Policy, Request, Response};
    /// use idem_postgres::{InTransactionError, PgKeyStore};
    /// use sqlx::PgPool;
    ///
    /// async fn order(pool: &PgPool, store: &PgKeyStore, request: &Request) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut transaction = pool.begin().await?;
    ///     let answer: Answer<Response> = store
    ///         .execute_within(&mut transaction, request, &Policy::default(), |mut tx| async move {
    ///             sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind("book").execute(&mut *tx).await?;
    ///             Ok::<_, sqlx::Error>(Outcome::Completed(Response::new(201)))
    ///         })
    ///         .await?;
    ///     transaction.commit().await?;
    ///     println!("{answer:?}");
    ///     Ok(())
    /// }
    /// ```
    pub async fn execute_within<'c, T, E, W, F>(
        &self,
        connection: &'c mut PgConnection,
        request: &Request,
        policy: &Policy,
        work: W,
    ) -> Result<Answer<T>, InTransactionError<E>>
    where
        T: Storable,
        E: WorkError,
        W: FnOnce(Tx<'c>) -> F,
        F: Future<Output = Result<Outcome<T>, E>>,
    {
        let claim = Claim::fresh(request.clone(), policy)?;
        let about = |error: StoreError| InTransactionError::Store(error.about(claim.id()));
        savepoint(connection, "SAVEPOINT idem_claim")
            .await
            .map_err(about)?;
        let mut lent = Lent::from(connection);
        let ended = within(&self.database, &mut lent, &claim, policy, work).await;
        let connection = lent.connection().map_err(about)?;
        let (undo, answer) = match ended {
            Ok(Within::Commit(outcome)) => (false, Ok(Answer::Fresh(outcome.into_answer()))),
            Ok(Within::RollBack(Tried::Done(outcome))) => {
                (true, Ok(Answer::Fresh(outcome.into_answer())))
            }
            Ok(Within::RollBack(Tried::Refused(decision))) => (true, Ok(Answer::refused(decision))),
            Ok(Within::RollBack(Tried::Ours | Tried::Unacknowledged(_))) => {
                (true, Ok(Answer::OutcomeUnknown))
            }
            Ok(Within::RollBack(Tried::Contended)) => (true, Err(InTransactionError::Contended)),
            Ok(Within::RollBack(Tried::Undone)) => {
                return Err(InTransactionError::RestartTransaction);
            }
            Err(error) => (true, Err(error)),
        };
        if undo {
            savepoint(connection, "ROLLBACK TO SAVEPOINT idem_claim")
                .await
                .map_err(about)?;
        }
        // A transaction that has failed refuses this, so no answer is given in one.
        savepoint(connection, "RELEASE SAVEPOINT idem_claim")
            .await
            .map_err(about)?;
        answer
    }

    /// Stores the answer of an attempt inside a transaction of the caller's: it commits with the rows that the caller writes,
    /// or not at all. The claim was committed before, by [`Idempotency`](idem_core::executor::Idempotency).
    ///
    /// It is fenced: if somebody else has taken the record over, this is an error, and `?` rolls the caller's rows back. After
    /// the commit, return the same answer from the handler, or call
    /// [`Execution::finish_joined`](idem_core::executor::Execution::finish_joined). Between this and the commit, the heartbeat
    /// meets the transaction's lock on the record, which it does not take for a lost lease; but the lease does run, so commit
    /// soon.
    ///
    /// # Errors
    ///
    /// [`JoinError`]. After [`JoinError::LeaseLost`] the transaction works on, but its rows must not be committed; after the
    /// others it has failed.
    ///
    /// # Cancellation
    ///
    /// A transaction in which this was dropped has to be rolled back.
    pub async fn complete_in(
        &self,
        connection: &mut PgConnection,
        attempt: &Attempt,
        response: &Response,
    ) -> Result<(), JoinError> {
        let limit = self.database.settings.response_limit;
        let change = fitting(Transition::Complete(response.clone()), limit);
        self.join(connection, attempt, &change).await
    }

    /// Stores how far an attempt has come inside a transaction of the caller's: it commits with the rows that the caller
    /// writes, or not at all. Otherwise as [`complete_in`](Self::complete_in) and
    /// [`Attempt::checkpoint`].
    ///
    /// # Errors
    ///
    /// [`JoinError`], as for [`complete_in`](Self::complete_in).
    ///
    /// # Cancellation
    ///
    /// A transaction in which this was dropped has to be rolled back.
    pub async fn checkpoint_in(
        &self,
        connection: &mut PgConnection,
        attempt: &Attempt,
        point: RecoveryPoint,
    ) -> Result<(), JoinError> {
        self.join(connection, attempt, &attempt.next_checkpoint(point))
            .await
    }

    async fn join(
        &self,
        connection: &mut PgConnection,
        attempt: &Attempt,
        change: &Transition,
    ) -> Result<(), JoinError> {
        let (id, expect) = (attempt.id(), attempt.owner());
        let about = |error: StoreError| JoinError::Store(error.about(id));
        // By itself the statement would be committed at once, with nothing beside it.
        if !is_in_transaction(connection).await.map_err(about)? {
            return Err(about(not_in_a_transaction()));
        }
        for round in 0..ROUNDS {
            match write(&self.database, connection, id, expect, change).await {
                Ok(Wrote::Applied(_)) => return Ok(()),
                Ok(Wrote::Contended) => return Err(JoinError::Contended),
                Ok(Wrote::Undone) => return Err(JoinError::RestartTransaction),
                Ok(Wrote::Nothing) => {}
                Err(error) => return Err(about(error)),
            }
            let sql = statement::load(&self.database.settings, id);
            let rows = match sql.fetch(&mut *connection).await {
                Ok(rows) => rows,
                Err(error) if fate(&error) == Fate::Restart => {
                    return Err(JoinError::RestartTransaction);
                }
                Err(error) => return Err(about(failed(error))),
            };
            let held =
                read_load(&self.database.settings, id, &rows).map_err(|row| about(row.into()))?;
            let record = held.as_ref().map(|held| &*held.record);
            return match settle(expect, change, record) {
                Settled::AlreadyApplied => Ok(()),
                Settled::Superseded => Err(JoinError::Superseded),
                Settled::Conflict | Settled::Lost => {
                    let admits = |held: &idem_core::Snapshot| {
                        let patch = change.patch(expect);
                        patch.is_ok_and(|patch| patch.guard.admits(&held.record, held.moment()))
                    };
                    if held.as_ref().is_some_and(admits) {
                        // It was read before what the write has lost to.
                        tokio::time::sleep(pause(round)).await;
                        continue;
                    }
                    Err(JoinError::LeaseLost)
                }
            };
        }
        Err(JoinError::Contended)
    }
}

/// What came of one transaction.
enum Tried<T> {
    /// The work ended so, and what had to be kept is committed.
    Done(Outcome<T>),
    /// The work ended so, and the commit was sent, and the connection broke.
    Unacknowledged(Outcome<T>),
    /// The record is finished under the token of this very call.
    Ours,
    /// Somebody else's record decides so.
    Refused(Decision),
    /// Somebody else is creating or writing the record.
    Contended,
    /// The server has undone it because of another transaction.
    Undone,
}

/// How the transaction is to end.
enum Within<T> {
    Commit(Outcome<T>),
    RollBack(Tried<T>),
}

/// Claims, works, and writes the outcome, in a transaction that is open.
async fn within<'c, T, E, W, F>(
    database: &Database,
    lent: &mut Lent<'c>,
    claim: &Claim,
    policy: &Policy,
    work: W,
) -> Result<Within<T>, InTransactionError<E>>
where
    T: Storable,
    E: WorkError,
    W: FnOnce(Tx<'c>) -> F,
    F: Future<Output = Result<Outcome<T>, E>>,
{
    let id = claim.id();
    let about = |error: StoreError| InTransactionError::Store(error.about(id));
    let connection = lent.connection().map_err(about)?;
    let record = match own(database, connection, claim).await.map_err(about)? {
        Owned::Yes(record) => record,
        Owned::No(tried) => return Ok(Within::RollBack(tried.of())),
    };
    let expect = Expect::Owner(record.token);
    savepoint(connection, "SAVEPOINT idem_work")
        .await
        .map_err(about)?;
    let tx = lent.lend(TxAttempt::new(record)).map_err(about)?;
    let worked = work(tx).await;
    let connection = lent.back().map_err(about)?;
    let outcome = match worked {
        Ok(outcome) => outcome,
        Err(error) => {
            let undone = database_error(error.as_error());
            if undone.is_some_and(|error| fate(error) == Fate::Restart) {
                return Ok(Within::RollBack(Tried::Undone));
            }
            return Err(InTransactionError::Work(error));
        }
    };
    if let Outcome::Unknown(_) = outcome {
        return Err(InTransactionError::OutcomeUnknown);
    }
    let change = match TxEnd::of(&outcome, policy) {
        TxEnd::Commit(change) => change,
        TxEnd::CommitWithoutRows(change) => {
            savepoint(connection, "ROLLBACK TO SAVEPOINT idem_work")
                .await
                .map_err(about)?;
            change
        }
        TxEnd::RollBack => return Ok(Within::RollBack(Tried::Done(outcome))),
    };
    let change = fitting(change, database.settings.response_limit);
    match write(database, connection, id, expect, &change)
        .await
        .map_err(about)?
    {
        Wrote::Applied(_) => Ok(Within::Commit(outcome)),
        Wrote::Undone => Ok(Within::RollBack(Tried::Undone)),
        Wrote::Contended => Ok(Within::RollBack(Tried::Contended)),
        // Nobody else sees the record, or it is locked.
        Wrote::Nothing => Err(about(StoreError::of_kind(
            StoreErrorKind::Misuse,
            "storing the answer: the work has ended its transaction, or has written the record itself",
        ))),
    }
}

/// Without a body that is larger than the store takes: the work is done.
fn fitting(change: Transition, limit: usize) -> Transition {
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

enum Owned {
    Yes(Arc<Record>),
    No(NotOwned),
}

enum NotOwned {
    Ours,
    Refused(Decision),
    Contended,
    Undone,
}

impl NotOwned {
    fn of<T>(self) -> Tried<T> {
        match self {
            Self::Ours => Tried::Ours,
            Self::Refused(decision) => Tried::Refused(decision),
            Self::Contended => Tried::Contended,
            Self::Undone => Tried::Undone,
        }
    }
}

/// Makes the record this claim's, if the table of decisions says so.
async fn own(
    database: &Database,
    connection: &mut PgConnection,
    claim: &Claim,
) -> Result<Owned, StoreError> {
    for _ in 0..ROUNDS {
        let sql = statement::claim(&database.settings, Place::Transaction, claim);
        let rows = match sql.fetch(&mut *connection).await {
            Ok(rows) => rows,
            Err(error) => return stopped(error).map(Owned::No),
        };
        let Some(row) = rows.first().filter(|row| is_decided(row)) else {
            continue;
        };
        let held = match read_claim(&database.settings, claim, row, 0)? {
            idem_core::ClaimOutcome::Won(won) => return Ok(Owned::Yes(won.record)),
            idem_core::ClaimOutcome::Held(held) => held,
            _ => continue,
        };
        let Swap { expect, change } = match decide(claim, Some(&held)) {
            Decision::Resume => return Ok(Owned::Yes(held.record)),
            Decision::Restart(swap) | Decision::TakeOver(swap) => swap,
            Decision::Claim => continue,
            refused if held.record.token != claim.token() => {
                return Ok(Owned::No(NotOwned::Refused(refused)));
            }
            _ => return Ok(Owned::No(NotOwned::Ours)),
        };
        match write(database, connection, claim.id(), expect, &change).await? {
            Wrote::Applied(moment) => {
                if let Ok(Applied::Changed(record)) = held.record.apply(expect, &change, moment) {
                    return Ok(Owned::Yes(Arc::from(record)));
                }
            }
            Wrote::Nothing => {}
            Wrote::Contended => return Ok(Owned::No(NotOwned::Contended)),
            Wrote::Undone => return Ok(Owned::No(NotOwned::Undone)),
        }
    }
    Ok(Owned::No(NotOwned::Contended))
}

/// What a statement did that was sent in a transaction.
enum Wrote {
    Applied(Moment),
    Nothing,
    Contended,
    Undone,
}

async fn write(
    database: &Database,
    connection: &mut PgConnection,
    id: &RecordId,
    expect: Expect,
    change: &Transition,
) -> Result<Wrote, StoreError> {
    let patch = change.patch(expect)?;
    let sql = statement::write(&database.settings, Place::Transaction, id, &patch);
    let rows = match sql.fetch(connection).await {
        Ok(rows) => rows,
        Err(error) => {
            return stopped(error).map(|stopped| match stopped {
                NotOwned::Undone => Wrote::Undone,
                _ => Wrote::Contended,
            });
        }
    };
    let row = rows.first().ok_or(CorruptRow::in_column("revision"))?;
    if revision(row, 1)?.is_none() {
        return Ok(Wrote::Nothing);
    }
    Ok(Wrote::Applied(
        database.settings.moment(row::timestamp(row, 0)?),
    ))
}

fn stopped(error: sqlx::Error) -> Result<NotOwned, StoreError> {
    match fate(&error) {
        Fate::Restart => Ok(NotOwned::Undone),
        Fate::LockedOut => Ok(NotOwned::Contended),
        Fate::Failed => Err(failed(error)),
    }
}

async fn savepoint(connection: &mut PgConnection, sql: &'static str) -> Result<(), StoreError> {
    match connection.execute(sql).await {
        Ok(_) => Ok(()),
        // no_active_sql_transaction
        Err(error) if code(&error).as_deref() == Some("25P01") => Err(not_in_a_transaction()),
        Err(error) => Err(failed(error)),
    }
}

async fn is_in_transaction(connection: &mut PgConnection) -> Result<bool, StoreError> {
    if connection.is_in_transaction() {
        return Ok(true);
    }
    // The driver knows of those that were begun through it. Of others the server knows.
    let sql = "SAVEPOINT idem_join; RELEASE SAVEPOINT idem_join";
    match connection.execute(sqlx::raw_sql(sql)).await {
        Ok(_) => Ok(true),
        Err(error) if code(&error).as_deref() == Some("25P01") => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

fn not_in_a_transaction() -> StoreError {
    StoreError::of_kind(
        StoreErrorKind::Misuse,
        "joining a transaction on a connection that is in none; begin one first",
    )
}

/// Waits before the next look, if there is time for one.
async fn wait(until: Instant, looks: &mut u32) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    *looks += 1;
    let longest = (pause(*looks) * 4).min(LONGEST_PAUSE);
    tokio::time::sleep(longest.min(left)).await;
    true
}

/// Why work in one transaction has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum InTransactionError<E> {
    /// The store failed.
    Store(StoreError),
    /// The work failed, and what it wrote is undone.
    Work(E),
    /// The work says that it does not know its own outcome. What it wrote is undone, so there is nothing to look up later.
    OutcomeUnknown,
    /// The server refused to commit what the work wrote: a deferred constraint, say. It is undone.
    Commit(sqlx::Error),
    /// Only from [`PgKeyStore::execute_within`]: somebody else is creating or writing the record. Try again later.
    Contended,
    /// Only from [`PgKeyStore::execute_within`]: the server has ended the transaction in favour of another one. Roll it back,
    /// and do all of it again.
    RestartTransaction,
}

impl<E> fmt::Display for InTransactionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store(_) => "the store failed",
            Self::Work(_) => "the work failed, and what it wrote is undone",
            Self::OutcomeUnknown => {
                "the work does not know its own outcome, and what it wrote is undone; what calls others belongs outside of a \
                 transaction"
            }
            Self::Commit(_) => "the server refused to commit what the work wrote",
            Self::Contended => "somebody else is creating or writing the record; try again later",
            Self::RestartTransaction => {
                "the server has ended the transaction in favour of another one; roll it back and do all of it again"
            }
        })
    }
}

impl<E: WorkError> Error for InTransactionError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Work(error) => Some(error.as_error()),
            Self::Commit(error) => Some(error),
            Self::OutcomeUnknown | Self::Contended | Self::RestartTransaction => None,
        }
    }
}

impl<E> From<StoreError> for InTransactionError<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Why an attempt could not write in the caller's transaction.
#[derive(Debug, ThisError)]
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
    /// Somebody else holds the record locked. The transaction has failed; roll it back, and try again.
    #[error("somebody else holds the record locked; roll the transaction back and try again")]
    Contended,
    /// The server has ended the transaction in favour of another one. Roll it back, and do all of it again.
    #[error(
        "the server has ended the transaction in favour of another one; roll it back and do all of it again"
    )]
    RestartTransaction,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// An error of work in a transaction.
///
/// The work may fail because the server has ended its transaction in favour of another one, and then it is done again. For
/// that, the error of the server has to be found in the work's own: it is looked for along
/// [`source`](std::error::Error::source).
///
/// ```
/// use std::error::Error;
///
/// use idem_postgres::WorkError;
///
/// #[derive(Debug, thiserror::Error)]
/// enum OrderError {
///     #[error("the database failed")]
///     Database(#[from] sqlx::Error),
///     #[error("sold out")]
///     SoldOut,
/// }
///
/// impl WorkError for OrderError {
///     fn as_error(&self) -> &(dyn Error + 'static) {
///         self
///     }
/// }
/// ```
pub trait WorkError: fmt::Debug {
    /// This error, as one that has a source.
    fn as_error(&self) -> &(dyn Error + 'static);
}

impl WorkError for sqlx::Error {
    fn as_error(&self) -> &(dyn Error + 'static) {
        self
    }
}

impl WorkError for std::convert::Infallible {
    fn as_error(&self) -> &(dyn Error + 'static) {
        self
    }
}

impl WorkError for Box<dyn Error + Send + Sync> {
    fn as_error(&self) -> &(dyn Error + 'static) {
        &**self
    }
}

fn database_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e sqlx::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
