//! The calls of which many may go together, and how each of them goes.

use std::collections::HashMap;
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, CorruptRow, Expect, OwnerToken, RecordId, Response, Revision, Snapshot,
    Span, Status, StoreError, Transition, TransitionOutcome,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::batch::{self, Finish};
use crate::coalesce::{Coalesce, Together};
use crate::database::{Database, Lane, Met, RETRY_AFTER, pause};
use crate::error::{self, Effect, Fate, Fault, fate, is_answer};
use crate::hot::Heat;
use crate::row;
use crate::settings::{Place, Settings};
use crate::sql::Sql;
use crate::statement;

const CLAIMING: &str = "claiming";

/// How often a call writes again that found nothing to write although there is a row to be written, and how often a claim
/// looks again that saw neither that it won nor who did. Each time somebody else was faster.
const ROUNDS: u32 = 16;

/// The shortest wait for a lock.
const BRIEF: Duration = Duration::from_millis(1);

/// A claim.
#[derive(Debug)]
pub(crate) struct ClaimCall(pub(crate) Claim);

/// An owner's answer.
#[derive(Debug)]
pub(crate) struct FinishCall {
    pub(crate) id: RecordId,
    pub(crate) token: OwnerToken,
    pub(crate) change: Transition,
}

/// An owner's renewal.
#[derive(Debug)]
pub(crate) struct RenewCall {
    pub(crate) id: RecordId,
    pub(crate) token: OwnerToken,
    pub(crate) lease: Span,
}

impl Coalesce for ClaimCall {
    type Answer = ClaimOutcome;
    type Context = Database;

    /// Of many claims of one new id the first round creates it, and the second shows it to the others.
    const ROUNDS: usize = 2;

    const BY_A_TASK: bool = false;

    fn size(&self) -> usize {
        512
    }

    /// It would keep its key for a lease.
    fn is_pointless_alone(&self) -> bool {
        true
    }

    fn is_hot(&self, database: &Database) -> bool {
        database.hot.is_hot(self.0.id())
    }

    async fn alone(&self, database: &Database) -> Result<ClaimOutcome, StoreError> {
        let id = self.0.id();
        let claimed = match database.hot.heat(id) {
            Heat::Contended => return Ok(contended_claim()),
            Heat::Cold => claim(database, &self.0).await,
            Heat::Probe(probe) => {
                let claimed = claim(database, &self.0).await;
                if !matches!(claimed, Ok(ClaimOutcome::Contended { .. })) {
                    probe.has_cooled();
                }
                claimed
            }
        };
        claimed.map_err(|error| error.about(id))
    }

    async fn together(items: &[&Self], database: &Database) -> Together<ClaimOutcome> {
        let mut claims: Vec<(&Claim, bool)> = items.iter().map(|item| (&item.0, false)).collect();
        // One of each id may insert, in the order in which everybody's statements insert.
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|a, b| items[*a].0.id().cmp(items[*b].0.id()));
        order.dedup_by(|a, b| items[*a].0.id() == items[*b].0.id());
        for index in order {
            claims[index].1 = !database.hot.is_hot(items[index].0.id());
        }
        let sql = || batch::claim(&database.settings, &claims);
        let rows = match batched(database, Lane::Shared, CLAIMING, sql).await {
            Ok(rows) => rows,
            Err(stopped) => {
                if let Stopped::LockedOut = stopped {
                    let inserting = claims.iter().filter(|(_, first)| *first);
                    database.hot.suspect(inserting.map(|(claim, _)| claim.id()));
                }
                return stopped.into();
            }
        };
        // Of each id one item may have been won.
        let firsts: HashMap<(&str, &str), usize> = (0..claims.len())
            .filter(|index| claims[*index].1)
            .map(|index| (name(claims[index].0.id()), index))
            .collect();
        let won = row::after_columns(CLAIMED_RECORD);
        let index_of = |row: &PgRow| {
            let scope: Option<&str> = row.try_get(won).ok()?;
            let Some(scope) = scope else {
                return numbered(row);
            };
            firsts.get(&(scope, row.try_get(won + 1).ok()?)).copied()
        };
        answers(items.len(), &rows, index_of, |row, index| {
            let claim = &items[index].0;
            read_claim(&database.settings, claim, row, 1)
                .map_err(|corrupt| StoreError::from(corrupt).about(claim.id()))
        })
    }
}

/// Where the record begins in a row of [`batch::claim`].
const CLAIMED_RECORD: usize = 3;

fn name(id: &RecordId) -> (&str, &str) {
    (id.scope().as_str(), id.key().as_str())
}

impl Coalesce for FinishCall {
    type Answer = TransitionOutcome;
    type Context = Database;

    const ROUNDS: usize = 1;

    const BY_A_TASK: bool = false;

    fn size(&self) -> usize {
        512 + self.response().map_or(0, Response::size)
    }

    /// It says what has happened.
    fn is_pointless_alone(&self) -> bool {
        false
    }

    fn is_hot(&self, database: &Database) -> bool {
        database.locked.is_hot(&self.id)
    }

    async fn alone(&self, database: &Database) -> Result<TransitionOutcome, StoreError> {
        write_of_owner(database, Lane::Shared, &self.id, self.token, &self.change).await
    }

    async fn together(items: &[&Self], database: &Database) -> Together<TransitionOutcome> {
        let finishes: Option<Vec<Finish<'_>>> = items
            .iter()
            .map(|item| {
                Some(Finish {
                    id: &item.id,
                    token: item.token,
                    status: match item.change {
                        Transition::Complete(_) => Status::Completed,
                        _ => Status::FailedFinal,
                    },
                    response: item.response()?,
                })
            })
            .collect();
        // All of them have a response, or they were not made into this call.
        let Some(finishes) = finishes else {
            return Together::Undone;
        };
        let sql = || batch::finish(&database.settings, &finishes);
        match batched(database, Lane::Shared, "storing answers", sql).await {
            Ok(rows) => applied(items.len(), &rows),
            Err(stopped) => stopped.into(),
        }
    }
}

impl FinishCall {
    fn response(&self) -> Option<&Response> {
        match &self.change {
            Transition::Complete(response) | Transition::FailFinal(response) => Some(response),
            _ => None,
        }
    }
}

impl Coalesce for RenewCall {
    type Answer = TransitionOutcome;
    type Context = Database;

    const ROUNDS: usize = 1;

    /// There is one connection for all of them.
    const BY_A_TASK: bool = true;

    fn size(&self) -> usize {
        128
    }

    /// Its owner may go on with the lease that it has.
    fn is_pointless_alone(&self) -> bool {
        true
    }

    fn is_hot(&self, database: &Database) -> bool {
        database.locked.is_hot(&self.id)
    }

    async fn alone(&self, database: &Database) -> Result<TransitionOutcome, StoreError> {
        let change = Transition::Renew { lease: self.lease };
        write_of_owner(database, Lane::Renewals, &self.id, self.token, &change).await
    }

    async fn together(items: &[&Self], database: &Database) -> Together<TransitionOutcome> {
        let renewals: Vec<_> = items
            .iter()
            .map(|item| (&item.id, item.token, item.lease))
            .collect();
        let sql = || batch::renew(&database.settings, &renewals);
        match batched(database, Lane::Renewals, "renewing leases", sql).await {
            Ok(rows) => applied(items.len(), &rows),
            Err(stopped) => stopped.into(),
        }
    }
}

/// Why a batch has no rows.
enum Stopped {
    /// It waited for somebody else's lock until its time was up.
    LockedOut,
    /// Whatever the server did not like may be about one item alone.
    Undone,
    Failed(Fault),
}

impl<A> From<Stopped> for Together<A> {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::LockedOut | Stopped::Undone => Self::Undone,
            Stopped::Failed(fault) => Self::Failed(fault),
        }
    }
}

/// Sends a batch once.
async fn batched(
    database: &Database,
    lane: Lane,
    doing: &'static str,
    sql: impl Fn() -> Sql + Send,
) -> Result<Vec<PgRow>, Stopped> {
    let sent = match database.acquire(lane, doing).await {
        Ok(mut connection) => sql().fetch(&mut *connection).await,
        Err(fault) => return Err(Stopped::Failed(fault)),
    };
    sent.map_err(|error| match fate(&error) {
        Fate::LockedOut => Stopped::LockedOut,
        _ if is_answer(&error) => Stopped::Undone,
        _ => Stopped::Failed(error::sent(doing, Effect::Write, error)),
    })
}

/// The index of the item whose number a row begins with.
fn numbered(row: &PgRow) -> Option<usize> {
    let number: i64 = row.try_get(0).ok()?;
    usize::try_from(number.checked_sub(1)?).ok()
}

/// The answers of a batch, of whose rows each is about one item.
fn answers<A>(
    items: usize,
    rows: &[PgRow],
    index_of: impl Fn(&PgRow) -> Option<usize>,
    answer: impl Fn(&PgRow, usize) -> Result<A, StoreError>,
) -> Together<A> {
    let mut answers: Vec<_> = std::iter::repeat_with(|| None).take(items).collect();
    for row in rows {
        let index = index_of(row);
        let Some((index, place)) = index.and_then(|index| Some((index, answers.get_mut(index)?)))
        else {
            // The server answers about an item that was not sent: no row of it can be trusted, and what each item came to
            // is found out singly.
            return Together::Undone;
        };
        *place = Some(answer(row, index));
    }
    Together::Answers(answers)
}

fn applied(items: usize, rows: &[PgRow]) -> Together<TransitionOutcome> {
    answers(items, rows, numbered, |row, _| {
        Ok(TransitionOutcome::Applied {
            now: row::timestamp(row, 1)?,
            revision: revision(row, 2)?.ok_or(CorruptRow::in_column("revision"))?,
        })
    })
}

/// What a row says of a claim, in which the time is at `first`.
pub(crate) fn read_claim(
    settings: &Settings,
    claim: &Claim,
    row: &PgRow,
    first: usize,
) -> Result<ClaimOutcome, CorruptRow> {
    let now = row::timestamp(row, first)?;
    let won: bool = row
        .try_get(first + 1)
        .map_err(|_| CorruptRow::in_column("token"))?;
    Ok(if won {
        ClaimOutcome::Won(settings.snapshot(claim.first_record(now), now))
    } else {
        ClaimOutcome::Held(settings.snapshot(row::record(claim.id(), row, first + 2)?, now))
    })
}

/// Whether a row of [`statement::claim`] says anything: somebody else may have won after it had looked.
pub(crate) fn is_decided(row: &PgRow) -> bool {
    let won = row.try_get::<bool, _>(1).unwrap_or(true);
    let held = row.try_get::<Option<i64>, _>(statement::CLAIMED_RECORD + 1);
    won || !matches!(held, Ok(None))
}

pub(crate) fn revision(row: &PgRow, index: usize) -> Result<Option<Revision>, CorruptRow> {
    let corrupt = || CorruptRow::in_column("revision");
    let revision: Option<i64> = row.try_get(index).map_err(|_| corrupt())?;
    let Some(revision) = revision else {
        return Ok(None);
    };
    let revision = u64::try_from(revision).map_err(|_| corrupt())?;
    Ok(Some(Revision::new(revision)))
}

fn contended_claim() -> ClaimOutcome {
    ClaimOutcome::Contended {
        retry_after: RETRY_AFTER,
    }
}

fn contended_write() -> TransitionOutcome {
    TransitionOutcome::Contended {
        retry_after: RETRY_AFTER,
    }
}

async fn claim(database: &Database, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
    let sql = || statement::claim(&database.settings, Place::Statement, claim);
    for _ in 0..ROUNDS {
        let rows = match database.write(Lane::Shared, CLAIMING, sql).await? {
            Met::Rows(rows) => rows,
            Met::Contended => {
                database.hot.timed_out(claim.id());
                return Ok(contended_claim());
            }
        };
        match rows.first() {
            Some(row) if is_decided(row) => {
                return Ok(read_claim(&database.settings, claim, row, 0)?);
            }
            _ => {}
        }
    }
    Ok(contended_claim())
}

/// Sends an owner's write by itself, unless another one has just waited for the record's lock in vain, or is waiting.
async fn write_of_owner(
    database: &Database,
    lane: Lane,
    id: &RecordId,
    token: OwnerToken,
    change: &Transition,
) -> Result<TransitionOutcome, StoreError> {
    let probe = match database.locked.heat(id) {
        Heat::Contended => return Ok(contended_write()),
        Heat::Cold => None,
        Heat::Probe(probe) => Some(probe),
    };
    // On the connection that all renewals share, one asks whether there is a lock, and does not wait until it is gone: behind
    // it are all the others.
    let brief = Settings {
        lock_wait: BRIEF,
        ..database.settings.clone()
    };
    let settings = match lane {
        Lane::Renewals => &brief,
        Lane::Shared => &database.settings,
    };
    let expect = Expect::Owner(token);
    let written = write_or_load(database, settings, lane, id, expect, change).await;
    let written = written.map_err(|error| error.about(id));
    match (&written, probe) {
        // A renewal has not waited, so it cannot tell a lock that stays from one that is about to go.
        (Ok(TransitionOutcome::Contended { .. }), _) if lane == Lane::Renewals => {}
        (Ok(TransitionOutcome::Contended { .. }), _) => database.locked.timed_out(id),
        (_, Some(probe)) => probe.has_cooled(),
        (_, None) => {}
    }
    written
}

/// Sends a transition by itself.
pub(crate) async fn transition(
    database: &Database,
    lane: Lane,
    id: &RecordId,
    expect: Expect,
    change: &Transition,
) -> Result<TransitionOutcome, StoreError> {
    let attempt = write_or_load(database, &database.settings, lane, id, expect, change).await;
    attempt.map_err(|error| error.about(id))
}

async fn write_or_load(
    database: &Database,
    settings: &Settings,
    lane: Lane,
    id: &RecordId,
    expect: Expect,
    change: &Transition,
) -> Result<TransitionOutcome, StoreError> {
    let patch = change.patch(expect)?;
    let sql = || statement::write(settings, Place::Statement, id, &patch);
    for round in 0..ROUNDS {
        let rows = match database.write(lane, change.name(), sql).await? {
            Met::Rows(rows) => rows,
            Met::Contended => return Ok(contended_write()),
        };
        let row = rows.first().ok_or(CorruptRow::in_column("revision"))?;
        if let Some(revision) = revision(row, 1)? {
            let now = row::timestamp(row, 0)?;
            return Ok(TransitionOutcome::Applied { revision, now });
        }
        // A new statement, which sees what the write has waited for and lost to.
        let held = load(database, lane, id).await?;
        match held {
            Some(held) if patch.guard.admits(&held.record, held.moment()) => {
                tokio::time::sleep(pause(round)).await;
            }
            held => return Ok(TransitionOutcome::Lost(held)),
        }
    }
    Ok(contended_write())
}

pub(crate) async fn load(
    database: &Database,
    lane: Lane,
    id: &RecordId,
) -> Result<Option<Snapshot>, StoreError> {
    let rows = database
        .read(lane, "loading", || statement::load(&database.settings, id))
        .await?;
    Ok(read_load(&database.settings, id, &rows)?)
}

/// What the rows of [`statement::load`] hold.
pub(crate) fn read_load(
    settings: &Settings,
    id: &RecordId,
    rows: &[PgRow],
) -> Result<Option<Snapshot>, CorruptRow> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let now = row::timestamp(row, 0)?;
    let record = row::record(id, row, statement::LOADED_RECORD)?;
    Ok(Some(settings.snapshot(record, now)))
}
