//! Caches that refuse what they must not, and the honest one that they are made from.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use idem_core::{
    Claim, ClaimOutcome, Expect, Fingerprint, Operation, OwnerToken, RecordId, Span, State,
    StoreError, Transition, TransitionOutcome,
};

use super::Saboteur;
use super::engine::{Engine, Sabotage};

/// How long an entry lives.
const CAP: Duration = Duration::from_millis(20);

/// In what a cache is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    IgnoresTheRequest,
    IgnoresTheToken,
    NeverForgets,
    DeclaresNothing,
}

#[derive(Debug)]
struct Entry {
    operation: Operation,
    fingerprint: Fingerprint,
    token: OwnerToken,
    learnt: Instant,
}

/// Remembers of what is in progress that it is.
#[derive(Debug)]
struct Cache {
    flaw: Flaw,
    entries: Mutex<BTreeMap<RecordId, Entry>>,
}

impl Cache {
    fn with(flaw: Flaw) -> Box<dyn Sabotage> {
        Box::new(Self {
            flaw,
            entries: Mutex::default(),
        })
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<RecordId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self, claim: &Claim) -> Option<ClaimOutcome> {
        let entries = self.entries();
        let entry = entries.get(claim.id())?;
        let fresh = self.flaw == Flaw::NeverForgets || entry.learnt.elapsed() < CAP;
        let same = self.flaw == Flaw::IgnoresTheRequest
            || (entry.operation == *claim.operation() && entry.fingerprint == *claim.fingerprint());
        let other = self.flaw == Flaw::IgnoresTheToken || entry.token != claim.token();
        (fresh && same && other).then_some(ClaimOutcome::Refused {
            token: entry.token,
            remaining: Span::from_secs(1),
        })
    }
}

pub(super) fn honest() -> Box<dyn Sabotage> {
    Cache::with(Flaw::None)
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        Saboteur::new(
            "cache_ignores_the_request",
            "refuses other operations and payloads as well",
            || Cache::with(Flaw::IgnoresTheRequest),
        ),
        Saboteur::new(
            "cache_ignores_the_token",
            "refuses the owner's own claim",
            || Cache::with(Flaw::IgnoresTheToken),
        ),
        Saboteur::new(
            "cache_never_forgets",
            "refuses for ever what was in progress once",
            || Cache::with(Flaw::NeverForgets),
        ),
        Saboteur::new(
            "cache_declares_nothing",
            "refuses, and declares that it does not",
            || Cache::with(Flaw::DeclaresNothing),
        ),
    ]
}

#[async_trait]
impl Sabotage for Cache {
    async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        if let Some(refused) = self.refusal(claim) {
            return Ok(refused);
        }
        let outcome = engine.claim(claim)?;
        if let ClaimOutcome::Held(held) = &outcome
            && held.record.state == State::InProgress
            && !held.record.is_lease_over(held.moment())
        {
            let entry = Entry {
                operation: held.record.operation.clone(),
                fingerprint: held.record.fingerprint,
                token: held.record.token,
                learnt: Instant::now(),
            };
            self.entries().insert(claim.id().clone(), entry);
        }
        Ok(outcome)
    }

    async fn transition(
        &self,
        engine: Engine<'_>,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        let outcome = engine.transition(id, expect, change)?;
        if let TransitionOutcome::Applied { .. } = outcome
            && self.flaw != Flaw::NeverForgets
        {
            self.entries().remove(id);
        }
        Ok(outcome)
    }

    fn refusal_staleness(&self) -> Duration {
        match self.flaw {
            Flaw::DeclaresNothing => Duration::ZERO,
            _ => CAP,
        }
    }
}
