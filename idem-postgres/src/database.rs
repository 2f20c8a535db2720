use std::sync::OnceLock;
use std::time::Duration;

use idem_core::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{PgPool, Postgres};

use crate::error::{self, Effect, Fate, Fault, fate};
use crate::hot::Hot;
use crate::settings::Settings;
use crate::sql::Sql;

/// The caller's pool, and how statements are sent on it.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) settings: Settings,
    pool: PgPool,
    renewals: OnceLock<PgPool>,
    /// The ids that somebody is creating.
    pub(crate) hot: Hot,
    /// The records that somebody holds locked.
    pub(crate) locked: Hot,
}

/// Which connections a statement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The caller's pool.
    Shared,
    /// The connection that is kept for renewals. Work that has all of the caller's pool in its hands must not lose its leases
    /// by that.
    Renewals,
}

/// What came of a statement that may meet somebody else's lock.
#[derive(Debug)]
pub(crate) enum Met {
    Rows(Vec<PgRow>),
    /// Somebody holds the lock for longer than the statement waits, or wins every race.
    Contended,
}

/// How often a statement is tried again that the server has undone because of another transaction.
const RESTARTS: u32 = 8;

/// What a caller is asked to wait after that.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(10);

impl Database {
    pub(crate) fn new(pool: PgPool, settings: Settings) -> Self {
        let hot = Hot::new(settings.lock_wait);
        let locked = Hot::new(settings.lock_wait);
        Self {
            settings,
            pool,
            renewals: OnceLock::new(),
            hot,
            locked,
        }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub(crate) async fn acquire(
        &self,
        lane: Lane,
        doing: &'static str,
    ) -> Result<PoolConnection<Postgres>, Fault> {
        let pool = match lane {
            Lane::Shared => &self.pool,
            Lane::Renewals => self
                .renewals
                .get_or_init(|| one_connection_like(&self.pool)),
        };
        let connection = pool.acquire().await;
        connection.map_err(|error| error::not_sent(doing, error))
    }

    /// Sends a read.
    pub(crate) async fn read(
        &self,
        lane: Lane,
        doing: &'static str,
        sql: impl Fn() -> Sql + Send,
    ) -> Result<Vec<PgRow>, StoreError> {
        match self.meet(lane, doing, Effect::Read, sql).await? {
            Met::Rows(rows) => Ok(rows),
            Met::Contended => Err(StoreError::unavailable(format!(
                "{doing}, which other transactions kept undoing"
            ))),
        }
    }

    /// Sends a write. It is its own transaction, and done when this returns.
    pub(crate) async fn write(
        &self,
        lane: Lane,
        doing: &'static str,
        sql: impl Fn() -> Sql + Send,
    ) -> Result<Met, Fault> {
        self.meet(lane, doing, Effect::Write, sql).await
    }

    async fn meet(
        &self,
        lane: Lane,
        doing: &'static str,
        effect: Effect,
        sql: impl Fn() -> Sql + Send,
    ) -> Result<Met, Fault> {
        for restart in 0..RESTARTS {
            if restart > 0 {
                // Not at once: those who met would meet again.
                tokio::time::sleep(pause(restart)).await;
            }
            let sent = {
                let mut connection = self.acquire(lane, doing).await?;
                sql().fetch(&mut *connection).await
            };
            match sent {
                Ok(rows) => return Ok(Met::Rows(rows)),
                Err(error) => match fate(&error) {
                    Fate::Restart => {}
                    Fate::LockedOut => return Ok(Met::Contended),
                    Fate::Failed => return Err(error::sent(doing, effect, error)),
                },
            }
        }
        Ok(Met::Contended)
    }
}

/// Up to one millisecond the first time, twice that the next time, and so on.
pub(crate) fn pause(restart: u32) -> Duration {
    let longest = 1000_u64 << restart.min(6);
    // If the system has no random numbers, everybody waits for the longest time.
    let random = getrandom::u64().unwrap_or(longest);
    Duration::from_micros(1 + random % longest)
}

/// A pool of one connection with everything that the caller has told his own, opened when it is first needed.
fn one_connection_like(pool: &PgPool) -> PgPool {
    let options: PgPoolOptions = pool.options().clone().min_connections(0).max_connections(1);
    options.connect_lazy_with((*pool.connect_options()).clone())
}
