use crate::fingerprint::Fingerprint;
use crate::identity::{Operation, RecordId};
use crate::record::{AttemptNumber, Fence, Origin, OwnerToken, Record, Revision, State, Terms};
use crate::time::{Span, Timestamp};

use super::{Policy, Request};

/// One attempt's wish to run a request: the request, who would own it, and on what terms.
///
/// It carries all that a first claim writes. Until it was answered, the same claim may be sent again: the token
/// shows that the record is its own. A new attempt needs a new claim, since neither an origin nor a token may be
/// used for two.
#[derive(Debug, Clone)]
pub struct Claim {
    request: Request,
    origin: Origin,
    token: OwnerToken,
    terms: Terms,
    lease: Span,
    witness: Option<Fence>,
}

impl Claim {
    /// A claim of `request` under `policy`, with an origin and a token that nobody has used before.
    #[must_use]
    pub fn new(request: Request, policy: &Policy, origin: Origin, token: OwnerToken) -> Self {
        Self {
            request,
            origin,
            token,
            terms: policy.terms(),
            lease: policy.lease(),
            witness: None,
        }
    }

    /// This claim by somebody who saw that attempt running and waited for it. What the attempt then stored is
    /// the answer, even if its retention is zero.
    #[must_use]
    pub fn having_seen(mut self, attempt: Fence) -> Self {
        self.witness = Some(attempt);
        self
    }

    /// Whose key, and which.
    #[must_use]
    pub fn id(&self) -> &RecordId {
        &self.request.id
    }

    /// What the key is used for.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.request.operation
    }

    /// The fingerprint that is written with the record.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        self.request.fingerprints.written()
    }

    /// The request that is claimed.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The origin of a first claim or a restart. A takeover keeps the record's.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Who will own the record.
    #[must_use]
    pub fn token(&self) -> OwnerToken {
        self.token
    }

    /// What is promised. A takeover keeps the record's terms.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// How long the lease is.
    #[must_use]
    pub fn lease(&self) -> Span {
        self.lease
    }

    /// The attempt that this claim waited for.
    #[must_use]
    pub fn witness(&self) -> Option<Fence> {
        self.witness
    }

    /// The record that a first claim writes when it is `now` in the store.
    #[must_use]
    pub fn first_record(&self, now: Timestamp) -> Record {
        Record {
            id: self.id().clone(),
            operation: self.operation().clone(),
            fingerprint: *self.fingerprint(),
            origin: self.origin,
            token: self.token,
            revision: Revision::FIRST,
            attempt: AttemptNumber::FIRST,
            reclaims: 0,
            uncertain: false,
            recovery: None,
            terms: self.terms,
            created_at: now,
            effect_since: now,
            locked_at: now,
            locked_until: now + self.lease,
            state: State::InProgress,
            note: None,
        }
    }
}
