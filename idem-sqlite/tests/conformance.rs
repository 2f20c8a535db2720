//! The conformance suite over a file, over a file with the system's clock, and in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;
mod support;

use std::sync::Arc;

use harness::{File, by_hand, left_by_a_kill};
use idem_core::{ManualClock, RecordId, Span, async_trait};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use idem_testkit::{Foreign, Harness, Missing, OpenWrite, Unavailable};

/// In memory: the data is there as long as the store is.
struct Memory;

#[async_trait]
impl Harness for Memory {
    type Data = (Arc<SqliteKeyStore>, Arc<ManualClock>);
    type Store = Arc<SqliteKeyStore>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        let clock = Arc::new(by_hand().unwrap());
        let options = SqliteOptions::new().clock(clock.clone());
        let store = options.open_in_memory().await.map_err(Unavailable::new)?;
        Ok((Arc::new(store), clock))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        Ok(data.0.clone())
    }

    async fn advance(&self, data: &Self::Data, by: Span) -> Result<(), Missing> {
        data.1.advance(by);
        Ok(())
    }

    /// The one connection that there is.
    async fn open_with_one_connection(&self, data: &Self::Data) -> Result<Self::Store, Missing> {
        Ok(data.0.clone())
    }

    async fn open_beside(&self, _: &Self::Data) -> Result<Self::Store, Missing> {
        Err(only_its_own())
    }

    async fn crash(&self, _: &Self::Data) -> Result<(), Missing> {
        Err(Missing::new(
            "a database in memory does not outlive its process, and says so",
        ))
    }

    async fn corrupt(&self, _: &Self::Data, _: &RecordId) -> Result<(), Missing> {
        Err(only_its_own())
    }

    async fn interfere(
        &self,
        _: &Self::Data,
        _: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        Err(only_its_own())
    }
}

fn only_its_own() -> Missing {
    Missing::new("nobody but its own store gets at a database in memory")
}

const fn file(clock: fn() -> Option<ManualClock>) -> File {
    File {
        clock,
        options: SqliteOptions::new,
        left: left_by_a_kill,
    }
}

mod file {
    idem_testkit::conformance!(super::file(super::by_hand));
}

mod file_with_the_systems_clock {
    idem_testkit::conformance!(super::file(|| None));
}

mod in_memory {
    idem_testkit::conformance!(super::Memory);
}
