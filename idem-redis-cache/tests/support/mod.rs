//! What the tests share: claims, a store that counts, and servers.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test is a crate of its own, and none uses everything"
)]

pub mod backends;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::{
    Claim, ClaimOutcome, Expect, Fingerprint, IdempotencyKey, KeyStore, ManualClock,
    MemoryKeyStore, Operation, Origin, OwnerToken, Policy, Profile, RecordId, Request, Response,
    Scheme, Scope, Snapshot, StoreError, Swept, Timestamp, Transition, TransitionOutcome,
    async_trait,
};
use idem_redis_cache::{CacheOptions, Namespace, NegativeCache};
use idem_test_servers::Redis;

/// Long, so that an entry is there on a machine that is short of time as well.
pub const CAP: Duration = Duration::from_secs(30);

pub fn clock() -> Arc<ManualClock> {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    Arc::new(ManualClock::new(now))
}

/// A store in memory that counts what reaches it, and lets a claim be held up.
#[derive(Debug)]
pub struct Counting {
    store: MemoryKeyStore<Arc<ManualClock>>,
    pub claims: AtomicU64,
    pub transitions: AtomicU64,
    pub loads: AtomicU64,
    /// Claims wait here while it has no permits, after they were answered.
    pub gate: tokio::sync::Semaphore,
    pub waiting: AtomicUsize,
    /// What it answers instead of doing anything, if there is something here.
    pub instead: Mutex<Option<Instead>>,
}

/// What a store answers that cannot do its work.
#[derive(Debug, Clone, Copy)]
pub enum Instead {
    Unavailable,
    Contended,
}

impl Counting {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryKeyStore::new(clock()),
            claims: AtomicU64::new(0),
            transitions: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            gate: tokio::sync::Semaphore::new(tokio::sync::Semaphore::MAX_PERMITS),
            waiting: AtomicUsize::new(0),
            instead: Mutex::default(),
        })
    }

    pub fn clock(&self) -> &ManualClock {
        self.store.clock()
    }

    pub fn claims(&self) -> u64 {
        self.claims.load(Ordering::SeqCst)
    }

    pub fn close_the_gate(&self) {
        self.gate
            .forget_permits(tokio::sync::Semaphore::MAX_PERMITS);
    }

    pub fn open_the_gate(&self) {
        self.gate.add_permits(1 << 20);
    }
}

#[async_trait]
impl KeyStore for Counting {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let outcome = match *self.instead.lock().unwrap() {
            None => None,
            Some(Instead::Unavailable) => Some(Err(StoreError::unavailable("testing"))),
            Some(Instead::Contended) => Some(Ok(ClaimOutcome::Contended {
                retry_after: Duration::from_millis(7),
            })),
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => self.store.claim(claim).await,
        };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await.unwrap();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        self.transitions.fetch_add(1, Ordering::SeqCst);
        self.store.transition(id, expect, change).await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.store.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

pub type Cache = NegativeCache<Arc<Counting>>;

/// More patient than one is in a service: on a machine that tests other things beside, everything is late now and then.
pub fn options() -> CacheOptions {
    CacheOptions::new(Namespace::new("tests").unwrap())
        .cap(CAP)
        .connect_timeout(Duration::from_secs(5))
        .command_timeout(Duration::from_secs(5))
}

pub fn cache(store: &Arc<Counting>, url: &str) -> Cache {
    options().open(Arc::clone(store), url).unwrap()
}

/// A cache that is connected.
pub async fn ready(store: &Arc<Counting>, url: &str) -> Cache {
    let cache = cache(store, url);
    assert!(cache.ready(Duration::from_secs(10)).await, "{cache:?}");
    cache
}

pub fn id(key: &str) -> RecordId {
    RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new(key).unwrap(),
    )
}

pub fn request(key: &str, operation: &str, payload: u8) -> Request {
    let fingerprint = Fingerprint::from_parts(Scheme::current(Profile::new(1)), [payload; 32]);
    Request::new(
        id(key),
        Operation::new(operation).unwrap(),
        fingerprint.into(),
    )
}

pub fn claim_for(request: Request, lease: Duration) -> Claim {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    let mut bits = [0; 16];
    bits[..8].copy_from_slice(&number.to_be_bytes());
    let policy = Policy::builder()
        .lease(lease)
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    Claim::new(
        request,
        &policy,
        Origin::from_bytes(bits),
        OwnerToken::from_bytes(bits),
    )
}

/// A new attempt at the usual request under this key.
pub fn claim(key: &str) -> Claim {
    claim_for(request(key, "POST /x", 1), Duration::from_secs(90))
}

pub fn complete() -> Transition {
    Transition::Complete(Response::new(201).body("done"))
}

pub async fn finish(cache: &impl KeyStore, owner: &Claim) {
    let expect = Expect::Owner(owner.token());
    let outcome = cache.transition(owner.id(), expect, &complete()).await;
    assert!(
        matches!(outcome, Ok(TransitionOutcome::Applied { .. })),
        "{outcome:?}"
    );
}

pub fn is_refused(outcome: &Result<ClaimOutcome, StoreError>, owner: &Claim) -> bool {
    matches!(outcome, Ok(ClaimOutcome::Refused { token, .. }) if *token == owner.token())
}

/// Waits until something is so, and says what was waited for if it does not come.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Every key that Redis holds.
pub fn keys(redis: &Redis) -> Vec<String> {
    let keys = redis.cli(&["KEYS", "*"]).unwrap();
    keys.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
