//! Claims to test with.

use std::sync::atomic::{AtomicU64, Ordering};

use idem_core::{
    Claim, Contract, Fingerprint, Fingerprints, IdempotencyKey, Operation, Origin, OwnerToken,
    Policy, Profile, RecordId, Request, Scheme, Scope, Span,
};

use crate::failure::{Failure, failure};

/// A claim in the making. The lease and the retention are as long as they can be, unless said otherwise, so
/// that no case depends on how fast the store is.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) operation: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Span,
    pub(crate) retention: Span,
    pub(crate) window: Span,
    pub(crate) max_reclaims: u32,
    pub(crate) contract: Contract,
}

/// The scheme of all fingerprints that are not about schemes.
pub(crate) fn scheme() -> Scheme {
    Scheme::new(1, Profile::new(1))
}

impl Wish {
    pub(crate) fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            scope: scope.into(),
            key: key.into(),
            operation: "POST /v1/charges".to_owned(),
            fingerprint: Fingerprint::from_parts(scheme(), [0x51; 32]),
            lease: Span::MAX,
            retention: Span::MAX,
            window: Span::MAX,
            max_reclaims: 10,
            contract: Contract::Reclaim,
        }
    }

    pub(crate) fn operation(mut self, operation: impl Into<String>) -> Self {
        self.operation = operation.into();
        self
    }

    /// Another payload for each number.
    pub(crate) fn payload(self, number: u8) -> Self {
        self.fingerprint(Fingerprint::from_parts(scheme(), [number; 32]))
    }

    pub(crate) fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    pub(crate) fn lease(mut self, lease: Span) -> Self {
        self.lease = lease;
        self
    }

    /// A lease that is over at once.
    pub(crate) fn lapsed(self) -> Self {
        self.lease(Span::ZERO)
    }

    pub(crate) fn retention(mut self, retention: Span) -> Self {
        self.retention = retention;
        self
    }

    /// A retention that is over at once.
    pub(crate) fn forgotten(self) -> Self {
        self.retention(Span::ZERO)
    }

    pub(crate) fn window(mut self, window: Span) -> Self {
        self.window = window;
        self
    }

    pub(crate) fn max_reclaims(mut self, reclaims: u32) -> Self {
        self.max_reclaims = reclaims;
        self
    }

    pub(crate) fn hold(mut self) -> Self {
        self.contract = Contract::Hold;
        self
    }

    pub(crate) fn id(&self) -> Result<RecordId, Failure> {
        let scope = Scope::new(&self.scope)
            .map_err(|error| failure!("the suite made a bad scope: {error}"))?;
        let key = IdempotencyKey::new(&self.key)
            .map_err(|error| failure!("the suite made a bad key: {error}"))?;
        Ok(RecordId::new(scope, key))
    }

    /// A claim with an origin and a token that nobody has.
    pub(crate) fn claim(&self) -> Result<Claim, Failure> {
        self.claim_as(
            Origin::from_bytes(Bits::fresh()),
            OwnerToken::from_bytes(Bits::fresh()),
        )
    }

    pub(crate) fn claim_as(&self, origin: Origin, token: OwnerToken) -> Result<Claim, Failure> {
        let operation = Operation::new(&self.operation)
            .map_err(|error| failure!("the suite made a bad operation: {error}"))?;
        let policy = Policy::builder()
            .lease(self.lease.as_duration())
            .heartbeat(std::time::Duration::ZERO)
            .heartbeat_ceiling(std::time::Duration::ZERO)
            .retention(self.retention.as_duration())
            .reclaim_window(self.window.as_duration())
            .max_reclaims(self.max_reclaims)
            .contract(self.contract)
            .provider_memory(Span::MAX.as_duration())
            .build()
            .map_err(|error| failure!("the suite made a bad policy: {error}"))?;
        let request = Request::new(self.id()?, operation, Fingerprints::new(self.fingerprint));
        Ok(Claim::new(request, &policy, origin, token))
    }
}

/// Sixteen bytes that look random and never come twice in a process.
///
/// Every value of a byte turns up in them, so a store that cannot keep some of them is found out sooner or later.
pub(crate) struct Bits;

static COUNTER: AtomicU64 = AtomicU64::new(1);

impl Bits {
    pub(crate) fn fresh() -> [u8; 16] {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&mix(number).to_be_bytes());
        bits[8..].copy_from_slice(&mix(!number).to_be_bytes());
        bits
    }
}

/// SplitMix64: a bijection, so different numbers give different bits.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
