//! The suite over the reference store, with a clock set by hand and with the system's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use idem_core::{Clock, ManualClock, MemoryKeyStore, Span, Timestamp, async_trait};
use idem_testkit::{Harness, Missing, Unavailable};

struct Manual;

#[async_trait]
impl Harness for Manual {
    type Data = Arc<MemoryKeyStore<ManualClock>>;
    type Store = Arc<MemoryKeyStore<ManualClock>>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        Ok(Arc::new(MemoryKeyStore::new(clock)))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        Ok(data.clone())
    }

    async fn advance(&self, data: &Self::Data, by: Span) -> Result<(), Missing> {
        data.clock().advance(by);
        Ok(())
    }
}

/// The system's clock, as programs have it.
#[derive(Debug)]
struct Wall;

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp::from_micros(i64::try_from(age.as_micros()).unwrap())
    }
}

struct Real;

#[async_trait]
impl Harness for Real {
    type Data = Arc<MemoryKeyStore<Wall>>;
    type Store = Arc<MemoryKeyStore<Wall>>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        Ok(Arc::new(MemoryKeyStore::new(Wall)))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        Ok(data.clone())
    }
}

mod manual_clock {
    idem_testkit::conformance!(super::Manual);
}

mod real_clock {
    idem_testkit::conformance!(super::Real);
}
