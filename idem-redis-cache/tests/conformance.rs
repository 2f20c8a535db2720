//! The conformance suite with the cache in front: over the store in memory, SQLite and Postgres, with the local tier, and
//! over a connection of the caller's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{ManualClock, Span, async_trait};
use idem_redis_cache::{CacheOptions, Namespace, NegativeCache, redis};
use idem_test_servers::shared_redis;
use idem_testkit::{Harness, Missing, Unavailable};
use support::backends::{Backend, Memory, Postgres, Sqlite};

/// Short, because cases wait for it where an entry was not removed.
const CAP: Duration = Duration::from_millis(100);

/// What one case has for itself: a clock, records, and a part of Redis.
struct Place<B: Backend> {
    clock: Arc<ManualClock>,
    records: B::Data,
    /// Of stores that have nothing in common with it.
    beside: Mutex<Vec<B::Data>>,
    namespace: Namespace,
    url: String,
}

impl<B: Backend> Place<B> {
    async fn new() -> Result<Self, Unavailable> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let name = format!("suite-{}-{number}", std::process::id());
        let url = shared_redis().ok_or_else(|| Unavailable::new("there is no Redis"))?;
        let clock = support::clock();
        Ok(Self {
            records: B::create(&name, &clock).await?,
            beside: Mutex::default(),
            clock,
            namespace: Namespace::new(name).unwrap(),
            url,
        })
    }

    async fn store(&self) -> Result<B::Store, Unavailable> {
        B::open(&self.records, &self.clock).await
    }

    fn options(&self) -> CacheOptions {
        CacheOptions::new(self.namespace.clone())
            .cap(CAP)
            .connect_timeout(Duration::from_secs(5))
            .command_timeout(Duration::from_secs(1))
    }

    fn advance(&self, by: Span) -> Result<(), Missing> {
        if !B::HAS_A_CLOCK {
            return Err(Missing::new("the store goes by a clock of its own"));
        }
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

/// A cache with a connection of its own.
struct InFrontOf<B> {
    options: fn(CacheOptions) -> CacheOptions,
    backend: PhantomData<fn() -> B>,
}

impl<B> InFrontOf<B> {
    fn with(options: fn(CacheOptions) -> CacheOptions) -> Self {
        Self {
            options,
            backend: PhantomData,
        }
    }
}

#[async_trait]
impl<B: Backend> Harness for InFrontOf<B> {
    type Data = Place<B>;
    type Store = NegativeCache<B::Store>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        Place::new().await
    }

    async fn open(&self, place: &Self::Data) -> Result<Self::Store, Unavailable> {
        let options = (self.options)(place.options());
        let cache = options.open(place.store().await?, &place.url);
        connected(cache.map_err(Unavailable::new)?).await
    }

    async fn destroy(&self, place: &Self::Data) {
        B::destroy(&place.records).await;
        let beside = std::mem::take(&mut *place.beside.lock().unwrap());
        for records in beside {
            B::destroy(&records).await;
        }
    }

    fn contention_bound(&self) -> Duration {
        B::CONTENTION_BOUND
    }

    async fn open_beside(&self, place: &Self::Data) -> Result<Self::Store, Missing> {
        let name = format!("{}-beside", place.namespace);
        let records = B::create(&name, &place.clock).await.map_err(Missing::new)?;
        let store = B::open(&records, &place.clock).await;
        place.beside.lock().unwrap().push(records);
        let store = store.map_err(Missing::new)?;
        let cache = CacheOptions::new(Namespace::new(name).unwrap()).cap(CAP);
        let cache = cache.open(store, &place.url).map_err(Missing::new)?;
        connected(cache).await.map_err(Missing::new)
    }

    async fn advance(&self, place: &Self::Data, by: Span) -> Result<(), Missing> {
        place.advance(by)
    }
}

/// A cache over a connection that the program made.
struct Brought;

#[async_trait]
impl Harness for Brought {
    type Data = Place<Memory>;
    type Store = NegativeCache<<Memory as Backend>::Store>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        Place::new().await
    }

    async fn open(&self, place: &Self::Data) -> Result<Self::Store, Unavailable> {
        let client = redis::Client::open(place.url.as_str()).map_err(Unavailable::new)?;
        let connection = client.get_multiplexed_async_connection().await;
        let connection = connection.map_err(Unavailable::new)?;
        let cache = place.options().over(place.store().await?, connection);
        connected(cache.map_err(Unavailable::new)?).await
    }

    async fn advance(&self, place: &Self::Data, by: Span) -> Result<(), Missing> {
        place.advance(by)
    }
}

mod memory {
    idem_testkit::conformance!(super::InFrontOf::<super::Memory>::with(|options| options));
}

mod memory_with_the_local_tier {
    idem_testkit::conformance!(super::InFrontOf::<super::Memory>::with(
        |options| options.local_tier(super::NonZeroUsize::new(1000).unwrap())
    ));
}

mod memory_over_a_connection_that_was_brought {
    idem_testkit::conformance!(super::Brought);
}

mod postgres {
    idem_testkit::conformance!(super::InFrontOf::<super::Postgres>::with(|options| options));
}

mod sqlite {
    idem_testkit::conformance!(super::InFrontOf::<super::Sqlite>::with(|options| options));
}
