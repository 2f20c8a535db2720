//! The store under test, called the way a program calls it: again when it is contended, and never for ever.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore, RecordId, Revision, Snapshot, StoreError, Swept,
    Transition, TransitionOutcome,
};

use crate::failure::{Failure, ensure, failure, unexpected};

#[derive(Debug, Clone)]
pub(crate) struct Subject {
    store: Arc<dyn KeyStore>,
    patience: Duration,
}

/// How long a contended call waits at most before it tries again, whatever the store asks for: cases are in a
/// hurry.
const BACK_OFF: Duration = Duration::from_millis(2);

impl Subject {
    pub(crate) fn new(store: Arc<dyn KeyStore>, patience: Duration) -> Self {
        Self { store, patience }
    }

    /// The same, over another store.
    pub(crate) fn over(&self, store: Arc<dyn KeyStore>) -> Self {
        Self::new(store, self.patience)
    }

    /// The store itself, for calls that may fail or be dropped.
    pub(crate) fn raw(&self) -> &Arc<dyn KeyStore> {
        &self.store
    }

    /// Waits for a call as long as the suite is patient.
    pub(crate) async fn in_time<T>(
        &self,
        call: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(self.patience, future)
            .await
            .map_err(|_| {
                failure!(
                    "{call} did not answer within {:?}: something is locked, lost or leaked",
                    self.patience
                )
            })
    }

    /// `claim`, until it is neither contended nor refused: `Won` or `Held`.
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, Failure> {
        let started = Instant::now();
        let staleness = self.store.refusal_staleness();
        loop {
            let outcome = self.in_time("claim", self.store.claim(claim)).await?;
            match outcome.map_err(|error| unexpected("claim", &error))? {
                ClaimOutcome::Contended { .. } => {
                    self.still_patient("claim", started)?;
                    tokio::time::sleep(BACK_OFF).await;
                }
                ClaimOutcome::Refused { token, .. } => {
                    ensure!(
                        !staleness.is_zero(),
                        "claim was Refused by a store whose refusal_staleness is zero"
                    );
                    ensure!(
                        token != claim.token(),
                        "a claim was Refused because of its own token"
                    );
                    if let Some(held) = self.load(claim.id()).await?
                        && held.record.operation == *claim.operation()
                        && held.record.fingerprint == *claim.fingerprint()
                        && held.record.state == idem_core::State::InProgress
                        && held.record.token == token
                    {
                        return Ok(ClaimOutcome::Held(held));
                    }
                    ensure!(
                        started.elapsed() <= staleness + Duration::from_millis(250),
                        "claim is still Refused {:?} after the refusal stopped to be true; refusal_staleness is {staleness:?}",
                        started.elapsed()
                    );
                    tokio::time::sleep(BACK_OFF).await;
                }
                decided => return Ok(decided),
            }
        }
    }

    /// A claim that must win.
    pub(crate) async fn win(&self, claim: &Claim) -> Result<Snapshot, Failure> {
        match self.claim(claim).await? {
            ClaimOutcome::Won(won) => Ok(won),
            other => Err(failure!(
                "a claim of an id without a record must be Won, and was {}",
                name_of(&other)
            )),
        }
    }

    /// A claim that must find a record.
    pub(crate) async fn find(&self, claim: &Claim) -> Result<Snapshot, Failure> {
        match self.claim(claim).await? {
            ClaimOutcome::Held(held) => Ok(held),
            other => Err(failure!(
                "a claim of an id that has a record must be Held, and was {}",
                name_of(&other)
            )),
        }
    }

    /// `transition`, until it is not contended: `Applied` or `Lost`.
    pub(crate) async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, Failure> {
        self.try_transition(id, expect, change)
            .await?
            .map_err(|error| unexpected(change.name(), &error))
    }

    /// The same, with the error as it is.
    pub(crate) async fn try_transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<Result<TransitionOutcome, StoreError>, Failure> {
        let started = Instant::now();
        loop {
            let call = self.store.transition(id, expect, change);
            match self.in_time(change.name(), call).await? {
                Ok(TransitionOutcome::Contended { .. }) => {
                    self.still_patient(change.name(), started)?;
                    tokio::time::sleep(BACK_OFF).await;
                }
                decided => return Ok(decided),
            }
        }
    }

    /// A transition that must be applied.
    pub(crate) async fn apply(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<Revision, Failure> {
        match self.transition(id, expect, change).await? {
            TransitionOutcome::Applied { revision, .. } => Ok(revision),
            other => Err(failure!(
                "{} must be Applied, and was {}",
                change.name(),
                outcome_name(&other)
            )),
        }
    }

    pub(crate) async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, Failure> {
        self.in_time("load", self.store.load(id))
            .await?
            .map_err(|error| unexpected("load", &error))
    }

    /// A record that must be there.
    pub(crate) async fn held(&self, id: &RecordId) -> Result<Snapshot, Failure> {
        self.load(id)
            .await?
            .ok_or_else(|| Failure::new("load finds no record where there must be one"))
    }

    /// A record that must not be there.
    pub(crate) async fn absent(&self, id: &RecordId) -> Result<(), Failure> {
        match self.load(id).await? {
            None => Ok(()),
            Some(_) => Err(Failure::new("load finds a record where there must be none")),
        }
    }

    pub(crate) async fn sweep(&self, limit: u32) -> Result<Swept, Failure> {
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        self.in_time("sweep", self.store.sweep(limit))
            .await?
            .map_err(|error| unexpected("sweep", &error))
    }

    /// Sweeps until nothing is removed any more, and says how much was.
    pub(crate) async fn sweep_all(&self, limit: u32) -> Result<u32, Failure> {
        let mut removed = 0;
        loop {
            let swept = self.sweep(limit).await?;
            ensure!(
                swept.removed <= limit,
                "sweep({limit}) says that it removed {}",
                swept.removed
            );
            if swept.removed == 0 {
                return Ok(removed);
            }
            removed += swept.removed;
            ensure!(
                removed < 100_000,
                "sweep removes more records than there are"
            );
        }
    }

    fn still_patient(&self, call: &str, started: Instant) -> Result<(), Failure> {
        ensure!(
            started.elapsed() < self.patience,
            "{call} was Contended for {:?}, although every other write was over long before",
            self.patience
        );
        Ok(())
    }
}

pub(crate) fn name_of(outcome: &ClaimOutcome) -> &'static str {
    match outcome {
        ClaimOutcome::Won(_) => "Won",
        ClaimOutcome::Held(_) => "Held",
        ClaimOutcome::Contended { .. } => "Contended",
        ClaimOutcome::Refused { .. } => "Refused",
    }
}

pub(crate) fn outcome_name(outcome: &TransitionOutcome) -> &'static str {
    match outcome {
        TransitionOutcome::Applied { .. } => "Applied",
        TransitionOutcome::Lost(Some(_)) => "Lost to a record",
        TransitionOutcome::Lost(None) => "Lost to nothing",
        TransitionOutcome::Contended { .. } => "Contended",
    }
}
