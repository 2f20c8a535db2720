use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use idempotent::fingerprint::{DefaultFingerprintStrategy, FingerprintStrategy as _};
use idempotent::store::valkey::ValkeyStore;
use idempotent::store::{IdempotencyStore as _, InsertResult};
use idempotent::{CachedResponse, Fingerprint, IdempotencyEntry, IdempotencyKey, Metadata};
use tokio::runtime::Runtime;

use super::servers::{Persistence, Servers};
use super::{ANSWER, BODY, OPERATION, key, warm_up};
use crate::contest::{Contestant, Fault, Plan};
use crate::load::{Caller, Round, runtime, tasks};

/// As long as our default retention.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The crate `idempotent` over a Redis: one connection, on which the calls of all tasks are pipelined.
pub(super) struct OverRedis {
    servers: Arc<Servers>,
    runtime: Runtime,
    persistence: Persistence,
}

impl OverRedis {
    pub(super) fn new(servers: &Arc<Servers>, persistence: Persistence) -> Result<Self, Fault> {
        Ok(Self {
            servers: Arc::clone(servers),
            runtime: runtime()?,
            persistence,
        })
    }
}

impl Contestant for OverRedis {
    fn name(&self) -> String {
        match self.persistence {
            Persistence::Always => "idempotent 0.3.0, Redis synced".to_owned(),
            Persistence::None => "idempotent 0.3.0, Redis in memory".to_owned(),
        }
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let client = redis::Client::open(self.servers.redis(self.persistence)?)?;
        let store = self.runtime.block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("FLUSHALL").exec_async(&mut connection).await?;
            Ok::<_, Fault>(Arc::new(ValkeyStore::new(client).await?))
        })?;
        let callers = |first: u32| {
            (first..first + plan.callers)
                .map(|number| RedisCaller {
                    store: Arc::clone(&store),
                    fingerprint: DefaultFingerprintStrategy.compute(OPERATION, BODY),
                    number,
                    next: 0,
                })
                .collect()
        };
        warm_up(&self.runtime, plan, callers(plan.callers))?;
        tasks(&self.runtime, plan, callers(0))
    }
}

struct RedisCaller {
    store: Arc<ValkeyStore>,
    fingerprint: Fingerprint,
    number: u32,
    next: u64,
}

impl Caller for RedisCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        let key = IdempotencyKey::new(key(self.number, self.next))?;
        self.next += 1;
        let entry = IdempotencyEntry::new(self.fingerprint, KEPT);
        let InsertResult::Claimed { fencing_token } =
            self.store.try_insert(&key, entry.clone()).await?
        else {
            return Err("a fresh key was held".into());
        };
        let completed = entry.complete(CachedResponse {
            status_code: 201,
            metadata: Metadata::default(),
            body: Bytes::from_static(ANSWER.as_bytes()),
        });
        self.store.complete(&key, completed, fencing_token).await?;
        Ok(())
    }
}
