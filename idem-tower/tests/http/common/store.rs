use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore, ManualClock, MemoryKeyStore, RecordId, Snapshot,
    StoreError, Swept, Timestamp, Transition, TransitionOutcome, async_trait,
};

use super::Gate;

pub(crate) type Clock = Arc<ManualClock>;

/// The store in memory, which can be out of reach, and be stopped before its calls.
#[derive(Debug)]
pub(crate) struct TestStore {
    pub(crate) inner: MemoryKeyStore<Clock>,
    pub(crate) clock: Clock,
    pub(crate) claims: AtomicUsize,
    is_down: AtomicBool,
    claim_gate: Mutex<Option<Gate>>,
    finish_gate: Mutex<Option<Gate>>,
    load_gate: Mutex<Option<Gate>>,
}

impl TestStore {
    pub(crate) fn new() -> Arc<Self> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        Arc::new(Self {
            inner: MemoryKeyStore::new(Arc::clone(&clock)),
            clock,
            claims: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
            claim_gate: Mutex::default(),
            finish_gate: Mutex::default(),
            load_gate: Mutex::default(),
        })
    }

    pub(crate) fn go_down(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }

    pub(crate) fn come_up(&self) {
        self.is_down.store(false, Ordering::SeqCst);
    }

    pub(crate) fn claims(&self) -> usize {
        self.claims.load(Ordering::SeqCst)
    }

    /// Stops the next claim before it reaches the store.
    pub(crate) fn stop_claim(&self) -> Gate {
        let gate = Gate::closed();
        *self.claim_gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// Stops the next outcome before it reaches the store.
    pub(crate) fn stop_finish(&self) -> Gate {
        let gate = Gate::closed();
        *self.finish_gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// Stops the next load before it reaches the store.
    pub(crate) fn stop_load(&self) -> Gate {
        let gate = Gate::closed();
        *self.load_gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    fn reach(&self) -> Result<(), StoreError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("connection refused"));
        }
        Ok(())
    }
}

#[async_trait]
impl KeyStore for TestStore {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.reach()?;
        self.claims.fetch_add(1, Ordering::SeqCst);
        let gate = self.claim_gate.lock().unwrap().take();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.inner.claim(claim).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        self.reach()?;
        if let Transition::Complete(_) | Transition::FailFinal(_) = change {
            let gate = self.finish_gate.lock().unwrap().take();
            if let Some(gate) = gate {
                gate.pass().await;
            }
        }
        self.inner.transition(id, expect, change).await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.reach()?;
        let gate = self.load_gate.lock().unwrap().take();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.inner.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.inner.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}
