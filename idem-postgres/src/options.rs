use std::num::NonZeroUsize;
use std::time::Duration;

use idem_core::Span;
use sqlx::PgPool;

use crate::names::{InvalidName, Names};
use crate::settings::Settings;
use crate::store::PgKeyStore;

/// How a [`PgKeyStore`] works.
///
/// ```
/// use idem_postgres::PgOptions;
/// use sqlx::PgPool;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPool::connect("postgres://localhost/shop").await?;
/// let store = PgOptions::new().schema("money")?.table("idempotency")?.build(pool);
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct PgOptions {
    names: Names,
    pooling: Pooling,
    coalescing: Coalescing,
    lock_wait: Duration,
    response_limit: usize,
    skew: Span,
    pub(crate) durability: Durability,
}

/// What is between the pool and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooling {
    /// Nothing, or a pooler that gives each client a server connection of its own for as long as it is connected. Statements are
    /// prepared once for each connection.
    #[default]
    Session,
    /// A pooler that may give each transaction to another server connection, as PgBouncer does with
    /// `pool_mode = transaction`. Statements are sent whole, in one message each, and with their values in them.
    ///
    /// The other mode is not only slow there, it is **wrong**: sqlx sends a statement in two messages, and between them the
    /// server connection may change; another client's statement is then carried out instead. See the
    /// [crate's documentation](crate#behind-a-transaction-pooler).
    Transaction,
}

/// Whether calls of many tasks travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Coalescing {
    /// Each call sends a statement of its own.
    Off,
    /// While `in_flight` statements are under way, what comes in the meantime waits for one of them to come back, and then
    /// goes together, up to `batch` calls in one statement. Nothing ever waits for a batch to fill. Claims, answers and
    /// renewals are counted apart.
    Natural {
        /// How many statements of each kind are under way at once. Each takes a connection.
        in_flight: NonZeroUsize,
        /// How many calls go together at most.
        batch: NonZeroUsize,
    },
}

/// Whether a server that may forget what it acknowledged is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Required,
    Forgone,
}

impl Default for Coalescing {
    fn default() -> Self {
        const ONE: NonZeroUsize = NonZeroUsize::MIN;
        Self::Natural {
            in_flight: ONE,
            batch: ONE.saturating_add(127),
        }
    }
}

impl PgOptions {
    /// The options that [`PgKeyStore::new`] uses.
    pub fn new() -> Self {
        Self {
            names: Names::default(),
            pooling: Pooling::default(),
            coalescing: Coalescing::default(),
            lock_wait: Duration::from_millis(50),
            response_limit: 16 * 1024 * 1024,
            skew: Span::ZERO,
            durability: Durability::Required,
        }
    }

    /// The schema in which the table is. By default the `search_path` of the connection decides.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] for anything but 1 to 63 ASCII letters, digits and underscores that do not begin with a digit.
    pub fn schema(mut self, schema: impl Into<String>) -> Result<Self, InvalidName> {
        self.names = self.names.in_schema(schema.into())?;
        Ok(self)
    }

    /// The name of the table, `idem_record` by default. Indexes and the table of migrations are named after it.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] for anything but 1 to 52 ASCII letters, digits and underscores that do not begin with a digit.
    pub fn table(mut self, table: impl Into<String>) -> Result<Self, InvalidName> {
        self.names = self.names.of_table(table.into())?;
        Ok(self)
    }

    /// What is between the pool and the server. [`Pooling::Session`] by default.
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Whether calls of many tasks travel together. They do by default, up to 128 in a statement.
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// How long a statement waits at most for a row that somebody else is just creating or writing, before the call is
    /// [`Contended`](idem_core::ClaimOutcome::Contended). 50 ms by default; whole milliseconds, from 2 ms to 10 s.
    ///
    /// Postgres makes a statement wait twice where others are waiting too: until it is the first of them, and then for the
    /// row. Each of the two gets half of this. Renewals do not wait at all, or for no more than a millisecond each time: they
    /// share one connection.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        let (shortest, longest) = (Duration::from_millis(2), Duration::from_secs(10));
        self.lock_wait = wait.clamp(shortest, longest);
        self
    }

    /// The largest response that is stored, headers and body together, in bytes. 16 MiB by default. The executor stores a
    /// larger one without its body.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// How far apart the clocks can be that a statement may be carried out by. Zero by default: one server has one clock.
    ///
    /// Where another server can become the primary, and in a database of several nodes, say how far apart their clocks are
    /// kept. Leases and retentions then end by that much later, and reclaim windows earlier, so that none ends by one clock
    /// that lasts by another.
    pub fn clock_skew(mut self, skew: Span) -> Self {
        self.skew = skew;
        self
    }

    /// Lets [`PgKeyStore::check`] accept a server with `synchronous_commit = off` or `fsync = off`.
    ///
    /// Such a server may forget what it has acknowledged: after a crash, a charge that was made has no record, and the
    /// retry makes it again. For tests.
    pub fn without_durability(mut self) -> Self {
        self.durability = Durability::Forgone;
        self
    }

    /// A store on this pool. Nothing is sent yet.
    #[must_use]
    pub fn build(self, pool: PgPool) -> PgKeyStore {
        let settings = Settings {
            names: self.names,
            pooling: self.pooling,
            lock_wait: self.lock_wait,
            response_limit: self.response_limit,
            skew: self.skew,
        };
        PgKeyStore::start(pool, settings, self.coalescing, self.durability)
    }
}

impl Default for PgOptions {
    fn default() -> Self {
        Self::new()
    }
}
