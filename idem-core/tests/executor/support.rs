//! What the executor's tests share: a request, a store on virtual time, and a store that misbehaves on cue.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Expect, Fingerprints, IdempotencyKey, KeyStore, MemoryKeyStore, Nulls,
    Operation, Profile, RecordId, Request, Response, Rules, Scope, Snapshot, Span, StoreError,
    Swept, Timestamp, TokioClock, Transition, TransitionOutcome, async_trait,
};
use tokio::sync::Semaphore;

pub(crate) type Store = MemoryKeyStore<TokioClock>;

pub(crate) fn store() -> Arc<Store> {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    Arc::new(MemoryKeyStore::new(TokioClock::starting_at(start)))
}

pub(crate) fn id() -> RecordId {
    RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new("k-1").unwrap(),
    )
}

pub(crate) fn request() -> Request {
    request_for("POST /v1/charges", 1000)
}

pub(crate) fn request_for(operation: &str, amount: u32) -> Request {
    let operation = Operation::new(operation).unwrap();
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let body = format!("{{\"amount\":{amount}}}");
    let fingerprint = rules.of(&operation).json(body.as_bytes()).unwrap().finish();
    Request::new(id(), operation, Fingerprints::new(fingerprint))
}

pub(crate) fn response(body: &'static str) -> Response {
    Response::new(201)
        .header("content-type", "text/plain")
        .body(body)
}

pub(crate) async fn held(store: &Store) -> Option<Arc<idem_core::Record>> {
    store
        .load(&id())
        .await
        .unwrap()
        .map(|snapshot| snapshot.record)
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It goes through.
    None,
    /// It is not applied, and says so.
    Unavailable,
    /// It is applied, and its answer is lost.
    AppliedAndLost,
    /// It is not applied, and nobody can tell.
    NotAppliedAndLost,
    /// It says that what it should write is too large.
    TooLarge,
    /// It says that somebody is just writing the record.
    Contended,
    /// It stands still before it is applied, until the gate is opened.
    GateBefore,
    /// It is applied, and stands still until the gate is opened.
    GateAfter,
    /// It never comes back, and is not applied.
    Hang,
}

/// A store whose next calls go wrong as planned; calls without a plan go through.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) inner: Arc<Store>,
    pub(crate) claims: Mutex<VecDeque<Fault>>,
    pub(crate) transitions: Mutex<VecDeque<Fault>>,
    /// For every call after the planned ones.
    pub(crate) always: Mutex<Fault>,
    pub(crate) gate: Semaphore,
    pub(crate) at_gate: Semaphore,
    pub(crate) loads: AtomicUsize,
    pub(crate) sent: Mutex<Vec<&'static str>>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            claims: Mutex::default(),
            transitions: Mutex::default(),
            always: Mutex::new(Fault::None),
            gate: Semaphore::new(0),
            at_gate: Semaphore::new(0),
            loads: AtomicUsize::new(0),
            sent: Mutex::default(),
        })
    }

    pub(crate) fn plan_claims(&self, faults: impl IntoIterator<Item = Fault>) {
        self.claims.lock().unwrap().extend(faults);
    }

    pub(crate) fn plan_transitions(&self, faults: impl IntoIterator<Item = Fault>) {
        self.transitions.lock().unwrap().extend(faults);
    }

    pub(crate) fn set_from_now_on(&self, fault: Fault) {
        *self.always.lock().unwrap() = fault;
    }

    /// Resolves when a call stands at the gate.
    pub(crate) async fn someone_at_gate(&self) {
        self.at_gate.acquire().await.unwrap().forget();
    }

    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(1);
    }

    fn next(&self, plan: &Mutex<VecDeque<Fault>>) -> Fault {
        plan.lock()
            .unwrap()
            .pop_front()
            .unwrap_or(*self.always.lock().unwrap())
    }

    async fn stand_at_gate(&self) {
        self.at_gate.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
    }

    async fn with<T>(
        &self,
        fault: Fault,
        contended: T,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match fault {
            Fault::None => call.await,
            Fault::Unavailable => Err(StoreError::unavailable("planned")),
            Fault::AppliedAndLost => {
                call.await?;
                Err(StoreError::ambiguous("planned"))
            }
            Fault::NotAppliedAndLost => Err(StoreError::ambiguous("planned")),
            Fault::TooLarge => Err(StoreError::too_large("planned")),
            Fault::Contended => Ok(contended),
            Fault::GateBefore => {
                self.stand_at_gate().await;
                call.await
            }
            Fault::GateAfter => {
                let answer = call.await;
                self.stand_at_gate().await;
                answer
            }
            Fault::Hang => std::future::pending().await,
        }
    }
}

const RETRY_AFTER: Duration = Duration::from_millis(10);

#[async_trait]
impl KeyStore for Faulty {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.sent.lock().unwrap().push("claim");
        let fault = self.next(&self.claims);
        let contended = ClaimOutcome::Contended {
            retry_after: RETRY_AFTER,
        };
        self.with(fault, contended, self.inner.claim(claim)).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        self.sent.lock().unwrap().push(change.name());
        let fault = self.next(&self.transitions);
        let contended = TransitionOutcome::Contended {
            retry_after: RETRY_AFTER,
        };
        self.with(fault, contended, self.inner.transition(id, expect, change))
            .await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.inner.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

/// A store whose times may be off by so much.
#[derive(Debug)]
pub(crate) struct Skewed {
    inner: Arc<Store>,
    skew: Span,
}

impl Skewed {
    pub(crate) fn new(inner: Arc<Store>, skew: Span) -> Self {
        Self { inner, skew }
    }

    fn skewed(&self, snapshot: Snapshot) -> Snapshot {
        Snapshot {
            skew: self.skew,
            ..snapshot
        }
    }
}

#[async_trait]
impl KeyStore for Skewed {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        Ok(match self.inner.claim(claim).await? {
            ClaimOutcome::Won(snapshot) => ClaimOutcome::Won(self.skewed(snapshot)),
            ClaimOutcome::Held(snapshot) => ClaimOutcome::Held(self.skewed(snapshot)),
            other => other,
        })
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        Ok(match self.inner.transition(id, expect, change).await? {
            TransitionOutcome::Lost(held) => {
                TransitionOutcome::Lost(held.map(|held| self.skewed(held)))
            }
            other => other,
        })
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let held = self.inner.load(id).await?;
        Ok(held.map(|held| self.skewed(held)))
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.inner.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}
