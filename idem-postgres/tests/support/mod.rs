//! A harness over a schema of its own for each case, on a server that may be shared.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and each file of tests uses its own part of this"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use idem_core::{Claim, RecordId, Span, async_trait};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions, Pooling};
use idem_test_servers::{PgBouncer, PoolMode, Postgres, Version, shared_postgres, unless_missing};
use idem_testkit::{Foreign, Harness, LockScope, Missing, OpenWrite, Unavailable};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool};

/// A way to have a store.
pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) coalescing: fn() -> Coalescing,
    pub(crate) table: Option<&'static str>,
    pub(crate) shape: Shape,
    pub(crate) connections: u32,
    /// How far apart the clocks are said to be.
    pub(crate) skew: Span,
}

/// What the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As `migrate` makes it.
    Whole,
    /// In partitions, by a migration of the user's.
    Partitioned,
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// The one that is shared, in the version that the machine has.
    Shared,
    /// One of version 18.
    Version18,
    /// A pooler that gives each transaction another one of two server connections.
    TransactionPooler,
}

impl Server {
    /// The address for stores.
    fn url(self) -> Result<String, Unavailable> {
        match self {
            Self::Shared => {
                shared_postgres().ok_or_else(|| Unavailable::new("there is no Postgres"))
            }
            Self::Version18 => {
                static SERVER: LazyLock<Option<String>> =
                    LazyLock::new(|| keep(unless_missing(Postgres::start(Version::V18))?));
                SERVER
                    .clone()
                    .ok_or_else(|| Unavailable::new("there is no Postgres 18"))
            }
            Self::TransactionPooler => pooler().map(|(pooler, _)| pooler),
        }
    }

    /// The address for what must be the same connection from one statement to the next.
    fn direct_url(self) -> Result<String, Unavailable> {
        match self {
            Self::TransactionPooler => pooler().map(|(_, server)| server),
            other => other.url(),
        }
    }

    pub(crate) fn pooling(self) -> Pooling {
        match self {
            Self::TransactionPooler => Pooling::Transaction,
            _ => Pooling::Session,
        }
    }
}

/// Servers that live as long as the process: a static is never dropped, but their watchdogs see the process end.
static SERVERS: Mutex<Vec<Postgres>> = Mutex::new(Vec::new());

fn keep(postgres: Postgres) -> Option<String> {
    let url = postgres.url();
    SERVERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(postgres);
    Some(url)
}

/// The addresses of a pooler and of the server behind it.
fn pooler() -> Result<(String, String), Unavailable> {
    static POOLER: LazyLock<Option<(PgBouncer, Postgres)>> = LazyLock::new(|| {
        let postgres = unless_missing(Postgres::start(Version::V15))?;
        let pooler = unless_missing(PgBouncer::start(&postgres, PoolMode::Transaction, 2))?;
        Some((pooler, postgres))
    });
    let (pooler, postgres) = POOLER
        .as_ref()
        .ok_or_else(|| Unavailable::new("there is no PgBouncer"))?;
    Ok((pooler.url(), postgres.url()))
}

/// A schema of its own.
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) table: String,
    url: String,
    direct_url: String,
}

impl Schema {
    pub(crate) fn new(server: Server, table: Option<&str>) -> Result<Self, Unavailable> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let process = std::process::id();
        Ok(Self {
            name: format!("test_{}_{process}_{number}", now.as_millis()),
            table: table.unwrap_or("idem_record").to_owned(),
            url: server.url()?,
            direct_url: server.direct_url()?,
        })
    }

    /// A pool of so many connections, on which statements are traced by nobody.
    pub(crate) fn pool(&self, connections: u32) -> PgPool {
        let options: PgConnectOptions = self.url.parse().unwrap();
        PgPoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(options)
    }

    /// A connection that stays the same.
    pub(crate) async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.direct_url).await.unwrap()
    }

    pub(crate) fn options(&self, pooling: Pooling) -> PgOptions {
        PgOptions::new()
            .schema(&self.name)
            .unwrap()
            .table(&self.table)
            .unwrap()
            .pooling(pooling)
    }

    /// The table, as it stands in a statement.
    pub(crate) fn records(&self) -> String {
        format!("\"{}\".\"{}\"", self.name, self.table)
    }

    pub(crate) async fn run(&self, sql: String) {
        let mut connection = self.connection().await;
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        connection.execute(sql).await.unwrap();
        connection.close().await.unwrap();
    }

    pub(crate) async fn drop_it(&self) {
        self.run(format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.name))
            .await;
    }
}

impl Setup {
    pub(crate) fn options(&self, data: &Schema) -> PgOptions {
        data.options(self.server.pooling())
            .coalescing((self.coalescing)())
            .clock_skew(self.skew)
    }

    fn store(&self, data: &Schema, connections: u32) -> PgKeyStore {
        self.options(data).build(data.pool(connections))
    }
}

#[async_trait]
impl Harness for Setup {
    type Data = Schema;
    type Store = PgKeyStore;

    async fn create(&self) -> Result<Schema, Unavailable> {
        let data = Schema::new(self.server, self.table)?;
        let store = self.store(&data, 1);
        store.migrate().await.map_err(Unavailable::new)?;
        if self.shape == Shape::Partitioned {
            let partitions = include_str!("../../src/partitions.sql");
            data.run(format!(
                "SET search_path TO \"{}\"; {partitions}",
                data.name
            ))
            .await;
        }
        store.check().await.map_err(Unavailable::new)?;
        store.pool().close().await;
        Ok(data)
    }

    async fn open(&self, data: &Schema) -> Result<PgKeyStore, Unavailable> {
        Ok(self.store(data, self.connections))
    }

    async fn destroy(&self, data: &Schema) {
        data.drop_it().await;
    }

    async fn open_with_one_connection(&self, data: &Schema) -> Result<PgKeyStore, Missing> {
        Ok(self.store(data, 1))
    }

    async fn open_beside(&self, data: &Schema) -> Result<PgKeyStore, Missing> {
        let store = self
            .options(data)
            .table("beside")
            .unwrap()
            .build(data.pool(self.connections));
        store.migrate().await.map_err(Missing::new)?;
        Ok(store)
    }

    async fn corrupt(&self, data: &Schema, id: &RecordId) -> Result<(), Missing> {
        let mut connection = data.connection().await;
        let sql = format!(
            "UPDATE {} SET status = 'paused' WHERE scope = $1 AND \"key\" = $2",
            data.records()
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(id.scope().as_str())
            .bind(id.key().as_str())
            .execute(&mut connection)
            .await
            .unwrap();
        assert_eq!(done.rows_affected(), 1);
        connection.close().await.unwrap();
        Ok(())
    }

    async fn interfere(
        &self,
        data: &Schema,
        write: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        let mut connection = data.connection().await;
        connection.execute("BEGIN").await.unwrap();
        match write {
            Foreign::Creating(claim) => insert(&mut connection, &data.records(), claim).await,
            Foreign::Locking(id) => lock(&mut connection, &data.records(), id).await,
            _ => return Err(Missing::new("another kind of write")),
        }
        Ok(Box::new(Open(connection)))
    }
}

/// A claim's record, as a statement by hand.
pub(crate) async fn insert(connection: &mut PgConnection, table: &str, claim: &Claim) {
    let sql = format!(
        "INSERT INTO {table} (scope, \"key\", operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, \
         origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, \
         created_at, effect_since, locked_at, locked_until) VALUES ($1, $2, $3, $4, $5, $6, 'in_progress', $7, $8, 1, 1, 0, \
         false, $9, $10, $11, $12, now(), now(), now(), now() + interval '1 hour')"
    );
    let micros = |span: Span| i64::try_from(span.as_micros()).unwrap();
    let terms = claim.terms();
    sqlx::query(AssertSqlSafe(sql))
        .bind(claim.id().scope().as_str())
        .bind(claim.id().key().as_str())
        .bind(claim.operation().as_str())
        .bind(i64::from(claim.fingerprint().scheme().encoding()))
        .bind(i64::from(claim.fingerprint().scheme().profile().number()))
        .bind(claim.fingerprint().digest().as_slice())
        .bind(claim.origin().as_bytes().as_slice())
        .bind(claim.token().as_bytes().as_slice())
        .bind(terms.contract.as_str())
        .bind(micros(terms.retention))
        .bind(micros(terms.reclaim_window))
        .bind(i64::from(terms.max_reclaims))
        .execute(connection)
        .await
        .unwrap();
}

/// Locks a record that is there.
pub(crate) async fn lock(connection: &mut PgConnection, table: &str, id: &RecordId) {
    let sql = format!("SELECT 1 FROM {table} WHERE scope = $1 AND \"key\" = $2 FOR UPDATE");
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(id.scope().as_str())
        .bind(id.key().as_str())
        .fetch_all(connection)
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
}

/// A transaction that is open. Dropping the connection rolls it back.
struct Open(PgConnection);

#[async_trait]
impl OpenWrite for Open {
    async fn commit(mut self: Box<Self>) {
        self.0.execute("COMMIT").await.unwrap();
        self.0.close().await.unwrap();
    }

    async fn roll_back(mut self: Box<Self>) {
        self.0.execute("ROLLBACK").await.unwrap();
        self.0.close().await.unwrap();
    }

    fn scope(&self) -> LockScope {
        LockScope::Record
    }
}
