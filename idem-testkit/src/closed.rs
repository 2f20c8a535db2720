//! What stands where the store was while it is closed.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore, RecordId, Snapshot, StoreError, Swept, Transition,
    TransitionOutcome,
};

#[derive(Debug)]
pub(crate) struct Closed;

fn closed() -> StoreError {
    StoreError::unavailable("calling a store that the suite has closed")
}

#[async_trait]
impl KeyStore for Closed {
    async fn claim(&self, _: &Claim) -> Result<ClaimOutcome, StoreError> {
        Err(closed())
    }

    async fn transition(
        &self,
        _: &RecordId,
        _: Expect,
        _: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        Err(closed())
    }

    async fn load(&self, _: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        Err(closed())
    }

    async fn sweep(&self, _: NonZeroU32) -> Result<Swept, StoreError> {
        Err(closed())
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}
