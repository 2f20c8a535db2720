//! The whole suite over the store from scratch.

use std::sync::Arc;
use std::time::Duration;

use custom_store::Redb;
use idem_core::key_value::KeyValueStore;
use idem_core::{ManualClock, Span, Timestamp, async_trait};
use idem_testkit::{Harness, Instances, Missing, Unavailable};
use tempfile::TempDir;

struct Embedded;

#[async_trait]
impl Harness for Embedded {
    type Data = (TempDir, Arc<ManualClock>);
    type Store = KeyValueStore<Redb>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let directory = TempDir::new().map_err(Unavailable::new)?;
        Ok((directory, Arc::new(clock)))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        let path = data.0.path().join("records.redb");
        // A call that was dropped keeps the file for as long as its write takes.
        for _ in 0..100 {
            match Redb::open(&path, data.1.clone()) {
                Ok(store) => return Ok(store),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        Redb::open(&path, data.1.clone()).map_err(Unavailable::new)
    }

    fn instances(&self) -> Instances {
        Instances::One
    }

    async fn advance(&self, data: &Self::Data, by: Span) -> Result<(), Missing> {
        data.1.advance(by);
        Ok(())
    }
}

mod redb {
    idem_testkit::conformance!(super::Embedded);
}
