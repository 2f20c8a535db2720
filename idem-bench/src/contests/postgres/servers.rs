use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use idem_test_servers::{AppendFsync, Postgres, Redis, Version};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::contest::Fault;

/// The servers of all contests, each started when it is first asked for.
#[derive(Default)]
pub(super) struct Servers {
    postgres: Mutex<Option<Postgres>>,
    durable_redis: Mutex<Option<Redis>>,
    volatile_redis: Mutex<Option<Redis>>,
}

/// Whether a connection is asked if it is alive before each use, which takes a round trip. sqlx does unless it is told
/// not to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ping {
    BeforeEachUse,
    Never,
}

/// What a Redis keeps when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// Every write is synced before it is answered, as a commit is.
    Always,
    None,
}

/// More connections than this do not help a server with two cores.
const MOST_CONNECTIONS: u32 = 32;

impl Servers {
    /// The URL of the Postgres server.
    pub(super) fn postgres(&self) -> Result<String, Fault> {
        let mut postgres = self.postgres.lock().unwrap_or_else(PoisonError::into_inner);
        let postgres = match &mut *postgres {
            Some(postgres) => postgres,
            none => {
                let builder = Postgres::builder(Version::V15)
                    .setting("shared_buffers", "1GB")
                    // No checkpoint falls into one contestant's round and not into another's.
                    .setting("max_wal_size", "8GB")
                    .setting("checkpoint_timeout", "1h");
                none.insert(builder.start()?)
            }
        };
        Ok(postgres.url())
    }

    /// The URL of a Redis server.
    pub(super) fn redis(&self, persistence: Persistence) -> Result<String, Fault> {
        let redis = match persistence {
            Persistence::Always => &self.durable_redis,
            Persistence::None => &self.volatile_redis,
        };
        let mut redis = redis.lock().unwrap_or_else(PoisonError::into_inner);
        let redis = match &mut *redis {
            Some(redis) => redis,
            none => {
                let builder = match persistence {
                    Persistence::Always => Redis::builder().append_only(AppendFsync::Always),
                    Persistence::None => Redis::builder(),
                };
                none.insert(builder.start()?)
            }
        };
        Ok(redis.url())
    }

    /// A pool for so many callers, the same for everybody, with all of its connections open.
    pub(super) async fn pool(&self, callers: u32, ping: Ping) -> Result<PgPool, Fault> {
        let connections = callers.clamp(1, MOST_CONNECTIONS);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .acquire_timeout(Duration::from_secs(60))
            .test_before_acquire(ping == Ping::BeforeEachUse)
            .connect(&self.postgres()?)
            .await?;
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(pool.acquire().await?);
        }
        drop(open);
        Ok(pool)
    }
}
