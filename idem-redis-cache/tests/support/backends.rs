use std::sync::Arc;
use std::time::Duration;

use idem_core::{Clock, KeyStore, ManualClock, MemoryKeyStore, async_trait};
use idem_postgres::{PgKeyStore, PgOptions};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use idem_test_servers::shared_postgres;
use idem_testkit::Unavailable;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;

/// A kind of store that a cache is put in front of.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Where its records are.
    type Data: Send + Sync + 'static;
    type Store: KeyStore + 'static;

    /// Whether it goes by the clock that it is given.
    const HAS_A_CLOCK: bool;

    /// How long a call may wait for another one's write.
    const CONTENTION_BOUND: Duration = Duration::from_secs(1);

    /// A place without records, under a name that nobody else has.
    async fn create(name: &str, clock: &Arc<ManualClock>) -> Result<Self::Data, Unavailable>;

    async fn open(data: &Self::Data, clock: &Arc<ManualClock>) -> Result<Self::Store, Unavailable>;

    async fn destroy(data: &Self::Data) {
        let _ = data;
    }
}

/// In memory.
pub struct Memory;

#[async_trait]
impl Backend for Memory {
    type Data = Self::Store;
    type Store = Arc<MemoryKeyStore<Arc<ManualClock>>>;

    const HAS_A_CLOCK: bool = true;

    async fn create(_: &str, clock: &Arc<ManualClock>) -> Result<Self::Data, Unavailable> {
        Ok(Arc::new(MemoryKeyStore::new(Arc::clone(clock))))
    }

    async fn open(store: &Self::Data, _: &Arc<ManualClock>) -> Result<Self::Store, Unavailable> {
        Ok(Arc::clone(store))
    }
}

/// SQLite, in a file.
pub struct Sqlite;

#[async_trait]
impl Backend for Sqlite {
    type Data = TempDir;
    type Store = SqliteKeyStore;

    const HAS_A_CLOCK: bool = true;
    const CONTENTION_BOUND: Duration = Duration::from_secs(10);

    async fn create(_: &str, _: &Arc<ManualClock>) -> Result<Self::Data, Unavailable> {
        TempDir::new().map_err(Unavailable::new)
    }

    async fn open(
        directory: &Self::Data,
        clock: &Arc<ManualClock>,
    ) -> Result<Self::Store, Unavailable> {
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        let options = SqliteOptions::new().clock(clock);
        let store = options.open(directory.path().join("records.db")).await;
        store.map_err(Unavailable::new)
    }
}

/// Postgres, in a table of its own.
pub struct Postgres;

#[async_trait]
impl Backend for Postgres {
    /// The table's name.
    type Data = String;
    type Store = PgKeyStore;

    const HAS_A_CLOCK: bool = false;

    async fn create(name: &str, clock: &Arc<ManualClock>) -> Result<Self::Data, Unavailable> {
        let table = name.replace('-', "_");
        let store = Self::open(&table, clock).await?;
        store.migrate().await.map_err(Unavailable::new)?;
        Ok(table)
    }

    async fn open(table: &Self::Data, _: &Arc<ManualClock>) -> Result<Self::Store, Unavailable> {
        let url = shared_postgres().ok_or_else(|| Unavailable::new("there is no Postgres"))?;
        let pool = PgPoolOptions::new().max_connections(6);
        let pool = pool.connect_lazy(&url).map_err(Unavailable::new)?;
        let options = PgOptions::new().table(table).map_err(Unavailable::new)?;
        Ok(options.build(pool))
    }

    async fn destroy(table: &Self::Data) {
        if let Ok(store) = Self::open(table, &super::clock()).await {
            let drop = sqlx::AssertSqlSafe(format!("DROP TABLE {table}"));
            let _ = sqlx::raw_sql(drop).execute(store.pool()).await;
        }
    }
}
