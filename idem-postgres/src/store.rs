use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_core::{
    Claim, ClaimOutcome, CorruptRow, Counts, Expect, Filter, Inspect, KeyStore, RecordId, Response,
    Snapshot, Status, StoreError, Swept, Transition, TransitionOutcome, Verdict,
};
use sqlx::{PgPool, Row as _};

use crate::calls::{self, ClaimCall, FinishCall, RenewCall};
use crate::coalesce::Coalescer;
use crate::database::{Database, Lane, Met};
use crate::options::{Coalescing, Durability, PgOptions};
use crate::settings::Settings;
use crate::{row, schema, statement};

/// A [`KeyStore`] in a Postgres database.
///
/// It is a handle on the caller's pool, cheap to clone. It holds no connection between calls.
///
/// # Cancellation
///
/// Dropping the future of a call leaves the old record or the new one, and the connection as clean as it was: each write is
/// one statement, and a transaction by itself. Calls that travel with others go on without the one that was dropped.
#[derive(Clone)]
pub struct PgKeyStore {
    pub(crate) database: Arc<Database>,
    calls: Arc<Calls>,
    durability: Durability,
}

#[derive(Debug)]
struct Calls {
    claims: Coalescer<ClaimCall>,
    finishes: Coalescer<FinishCall>,
    renewals: Coalescer<RenewCall>,
}

impl PgKeyStore {
    /// A store on this pool with the default [options](PgOptions). Nothing is sent yet.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        PgOptions::new().build(pool)
    }

    pub(crate) fn start(
        pool: PgPool,
        settings: Settings,
        coalescing: Coalescing,
        durability: Durability,
    ) -> Self {
        let wait = settings.lock_wait;
        let database = Arc::new(Database::new(pool, settings));
        Self {
            calls: Arc::new(Calls {
                claims: Coalescer::new(coalescing, wait, database.clone()),
                finishes: Coalescer::new(coalescing, wait, database.clone()),
                renewals: Coalescer::new(coalescing, wait, database.clone()),
            }),
            database,
            durability,
        }
    }

    /// The pool that was given.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    /// Creates the schema and the tables if they are missing, and brings older ones up to this version. Any number of
    /// processes may do so at once. The SQL is in `src/migrations/`, for those who review it or use a tool of their own.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](idem_core::StoreErrorKind::Misconfigured) when the tables are of a newer version, or the database
    /// user may not create them; otherwise as for any call.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.database).await
    }

    /// Whether this program can work with the database: the tables are there, in this version, and the server does not
    /// forget what it acknowledged.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](idem_core::StoreErrorKind::Misconfigured), saying what is wrong and what to do; otherwise as for any
    /// call.
    pub async fn check(&self) -> Result<(), StoreError> {
        schema::check(&self.database, self.durability).await
    }

    fn refuse_too_large(&self, id: &RecordId, change: &Transition) -> Result<(), StoreError> {
        let limit = self.database.settings.response_limit;
        let size = stored_response(change).map_or(0, Response::size);
        if size <= limit {
            return Ok(());
        }
        Err(StoreError::too_large(format!(
            "a response of {size} bytes, where this store takes {limit}"
        ))
        .about(id))
    }
}

impl fmt::Debug for PgKeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool's options hold a password.
        f.debug_struct("PgKeyStore")
            .field("table", &self.database.settings.names.display())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl KeyStore for PgKeyStore {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.calls.claims.call(ClaimCall(claim.clone())).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        change.patch(expect)?;
        self.refuse_too_large(id, change)?;
        match (change, expect) {
            (Transition::Complete(_) | Transition::FailFinal(_), Expect::Owner(token)) => {
                let (id, change) = (id.clone(), change.clone());
                let call = FinishCall { id, token, change };
                self.calls.finishes.call(call).await
            }
            (Transition::Renew { lease }, Expect::Owner(token)) => {
                let (id, lease) = (id.clone(), *lease);
                let call = RenewCall { id, token, lease };
                self.calls.renewals.call(call).await
            }
            _ => calls::transition(&self.database, Lane::Shared, id, expect, change).await,
        }
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let loaded = calls::load(&self.database, Lane::Shared, id).await;
        loaded.map_err(|error| error.about(id))
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        let settings = &self.database.settings;
        let sql = || statement::sweep(settings, limit.get());
        match self.database.write(Lane::Shared, "sweeping", sql).await? {
            Met::Rows(rows) => {
                let row = rows.first().ok_or(CorruptRow::in_column("count"))?;
                Ok(Swept {
                    removed: number(row.try_get(0))?,
                    stuck: number(row.try_get(1))?,
                })
            }
            // Other sweepers are at it.
            Met::Contended => Ok(Swept::default()),
        }
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

#[async_trait]
impl Inspect for PgKeyStore {
    async fn count(&self) -> Result<Counts, StoreError> {
        let settings = &self.database.settings;
        let rows = self
            .database
            .read(Lane::Shared, "counting", || statement::count(settings))
            .await?;
        let mut counts = Counts::default();
        for row in rows {
            let status: &str = row
                .try_get(0)
                .map_err(|_| CorruptRow::in_column("status"))?;
            let status = Status::parse(status).map_err(|_| CorruptRow::in_column("status"))?;
            let all = number(row.try_get(1))?;
            match status {
                Status::InProgress => {
                    counts.in_progress = all;
                    counts.stuck = number(row.try_get(4))?;
                    if counts.stuck > 0 {
                        counts.oldest_stuck = Some(row::timestamp(&row, 5)?);
                    }
                }
                Status::Completed => counts.completed = all,
                Status::FailedFinal => counts.failed_final = all,
                Status::FailedRetryable => {
                    counts.failed_retryable = all;
                    counts.uncertain_failures = number(row.try_get(2))?;
                }
            }
            counts.expired += number::<u64>(row.try_get(3))?;
        }
        Ok(counts)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError> {
        let settings = &self.database.settings;
        let sql = || statement::list(settings, filter, after, limit.get());
        let rows = self.database.read(Lane::Shared, "listing", sql).await?;
        rows.iter()
            .map(|row| {
                let now = row::timestamp(row, 0)?;
                Ok(settings.snapshot(row::listed(row, statement::LISTED_RECORD)?, now))
            })
            .collect()
    }
}

fn number<T: TryFrom<i64>>(count: sqlx::Result<i64>) -> Result<T, CorruptRow> {
    let corrupt = || CorruptRow::in_column("count");
    T::try_from(count.map_err(|_| corrupt())?).map_err(|_| corrupt())
}

/// The response that a transition stores, if it stores one.
fn stored_response(change: &Transition) -> Option<&Response> {
    match change {
        Transition::Complete(response)
        | Transition::FailFinal(response)
        | Transition::Resolve {
            verdict: Verdict::Completed(response) | Verdict::Failed(response),
            ..
        } => Some(response),
        _ => None,
    }
}
