//! The conformance suite with the cache in front: over the store in memory, SQLite and Postgres, with the local tier, and
//! over a connection of the caller's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_core::{Clock, ManualClock, MemoryKeyStore, Span, Timestamp, async_trait};
use idem_postgres::{PgKeyStore, PgOptions};
use idem_redis_cache::{CacheOptions, Namespace, NegativeCache, redis};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use idem_test_servers::{shared_postgres, shared_redis};
use idem_testkit::{Harness, Missing, Unavailable};
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;

/// Short, because cases wait for it where an entry was not removed.
const CAP: Duration = Duration::from_millis(100);

/// What one case has for itself: a clock, and a part of Redis.
struct Place {
    clock: Arc<ManualClock>,
    namespace: Namespace,
    url: String,
}

impl Place {
    fn new() -> Result<Self, Unavailable> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let namespace = format!("suite-{}-{number}", std::process::id());
        let url = shared_redis().ok_or_else(|| Unavailable::new("there is no Redis"))?;
        Ok(Self {
            clock: Arc::new(ManualClock::new(Timestamp::from_micros(
                1_700_000_000_000_000,
            ))),
            namespace: Namespace::new(namespace).unwrap(),
            url,
        })
    }

    fn options(&self) -> CacheOptions {
        CacheOptions::new(self.namespace.clone())
            .cap(CAP)
            .connect_timeout(Duration::from_secs(5))
            .command_timeout(Duration::from_secs(1))
    }

    fn advance(&self, by: Span) -> Result<(), Missing> {
        self.clock.advance(by);
        Ok(())
    }
}

async fn connected<S>(cache: NegativeCache<S>) -> Result<NegativeCache<S>, Unavailable> {
    if cache.ready(Duration::from_secs(10)).await {
        Ok(cache)
    } else {
        Err(Unavailable::new("Redis does not answer"))
    }
}

/// In front of the store in memory.
struct Memory {
    options: fn(CacheOptions) -> CacheOptions,
}

type InMemory = Arc<MemoryKeyStore<Arc<ManualClock>>>;

#[async_trait]
impl Harness for Memory {
    type Data = (Place, InMemory);
    type Store = NegativeCache<InMemory>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let place = Place::new()?;
        let store = MemoryKeyStore::new(place.clock.clone());
        Ok((place, Arc::new(store)))
    }

    async fn open(&self, (place, store): &Self::Data) -> Result<Self::Store, Unavailable> {
        let options = (self.options)(place.options());
        let cache = options.open(store.clone(), &place.url);
        connected(cache.map_err(Unavailable::new)?).await
    }

    async fn open_beside(&self, (place, _): &Self::Data) -> Result<Self::Store, Missing> {
        let store = MemoryKeyStore::new(place.clock.clone());
        let namespace = Namespace::new(format!("{}-beside", place.namespace)).unwrap();
        let cache = CacheOptions::new(namespace).cap(CAP);
        let cache = cache.open(Arc::new(store), &place.url);
        connected(cache.map_err(Missing::new)?)
            .await
            .map_err(Missing::new)
    }

    async fn advance(&self, (place, _): &Self::Data, by: Span) -> Result<(), Missing> {
        place.advance(by)
    }
}

/// In front of the store in memory, over a connection that the program made.
struct Brought;

#[async_trait]
impl Harness for Brought {
    type Data = (Place, InMemory);
    type Store = NegativeCache<InMemory>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let place = Place::new()?;
        let store = MemoryKeyStore::new(place.clock.clone());
        Ok((place, Arc::new(store)))
    }

    async fn open(&self, (place, store): &Self::Data) -> Result<Self::Store, Unavailable> {
        let client = redis::Client::open(place.url.as_str()).map_err(Unavailable::new)?;
        let connection = client.get_multiplexed_async_connection().await;
        let connection = connection.map_err(Unavailable::new)?;
        let cache = place.options().over(store.clone(), connection);
        connected(cache.map_err(Unavailable::new)?).await
    }

    async fn advance(&self, (place, _): &Self::Data, by: Span) -> Result<(), Missing> {
        place.advance(by)
    }
}

/// In front of SQLite, in a file.
struct Sqlite;

#[async_trait]
impl Harness for Sqlite {
    type Data = (Place, TempDir);
    type Store = NegativeCache<SqliteKeyStore>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        Ok((Place::new()?, TempDir::new().map_err(Unavailable::new)?))
    }

    async fn open(&self, (place, directory): &Self::Data) -> Result<Self::Store, Unavailable> {
        let clock: Arc<dyn Clock> = place.clock.clone();
        let store = SqliteOptions::new().clock(clock);
        let store = store.open(directory.path().join("records.db")).await;
        let cache = place
            .options()
            .open(store.map_err(Unavailable::new)?, &place.url);
        connected(cache.map_err(Unavailable::new)?).await
    }

    fn contention_bound(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn advance(&self, (place, _): &Self::Data, by: Span) -> Result<(), Missing> {
        place.advance(by)
    }
}

/// In front of Postgres, in a table of its own.
struct Postgres;

#[async_trait]
impl Harness for Postgres {
    type Data = (Place, String);
    type Store = NegativeCache<PgKeyStore>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let place = Place::new()?;
        let table = place.namespace.as_str().replace('-', "_");
        let data = (place, table);
        self.store(&data).await?;
        Ok(data)
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        let store = self.store(data).await?;
        let (place, _) = data;
        let cache = place.options().open(store, &place.url);
        connected(cache.map_err(Unavailable::new)?).await
    }

    async fn destroy(&self, data: &Self::Data) {
        if let Ok(store) = self.store(data).await {
            let drop = format!("DROP TABLE {}", data.1);
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
                .execute(store.pool())
                .await;
        }
    }
}

impl Postgres {
    async fn store(&self, (_, table): &(Place, String)) -> Result<PgKeyStore, Unavailable> {
        let url = shared_postgres().ok_or_else(|| Unavailable::new("there is no Postgres"))?;
        let pool = PgPoolOptions::new().max_connections(6);
        let pool = pool.connect_lazy(&url).map_err(Unavailable::new)?;
        let options = PgOptions::new().table(table).map_err(Unavailable::new)?;
        let store = options.build(pool);
        store.migrate().await.map_err(Unavailable::new)?;
        Ok(store)
    }
}

mod memory {
    idem_testkit::conformance!(super::Memory {
        options: |options| options
    });
}

mod memory_with_the_local_tier {
    idem_testkit::conformance!(super::Memory {
        options: |options| options.local_tier(super::NonZeroUsize::new(1000).unwrap())
    });
}

mod memory_over_a_connection_that_was_brought {
    idem_testkit::conformance!(super::Brought);
}

mod postgres {
    idem_testkit::conformance!(super::Postgres);
}

mod sqlite {
    idem_testkit::conformance!(super::Sqlite);
}
