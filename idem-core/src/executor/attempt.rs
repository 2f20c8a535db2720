use std::sync::Arc;

use thiserror::Error;

use crate::identity::RecordId;
use crate::machine::{Expect, Transition};
use crate::record::{AttemptNumber, Fence, ProviderKey, RecoveryPoint};
use crate::store::StoreError;

use super::ownership::{Ownership, Written};

/// One try at the work, as its handler sees it.
///
/// It can be cloned and handed to whatever does parts of the work.
///
/// ```
/// use idem_core::executor::{Attempt, AttemptError, Outcome};
/// use idem_core::{RecoveryPoint, Response};
///
/// async fn charge(attempt: Attempt) -> Result<Outcome<Response>, Box<dyn std::error::Error + Send + Sync>> {
///     let id = match attempt.recovery_point() {
///         // An earlier attempt came this far: go on from there.
///         Some(point) if point.name() == "charged" => point.data().cloned().unwrap_or_default(),
///         _ => {
///             let key = attempt.provider_key("charge")?;
///             let id = call_the_provider(&key.to_string()).await;
///             attempt.checkpoint(RecoveryPoint::new("charged")?.with_data(id)?).await?;
///             id.into()
///         }
///     };
///     Ok(Outcome::Completed(Response::new(201).body(id)))
/// }
/// # async fn call_the_provider(_key: &str) -> &'static str { "ch_1" }
/// ```
#[derive(Debug, Clone)]
pub struct Attempt(pub(super) Arc<Ownership>);

/// How many times in a row a store may fail before a checkpoint or a renewal gives up.
const PATIENCE: u32 = 5;

impl Attempt {
    /// Which try this is, from 1.
    #[must_use]
    pub fn number(&self) -> AttemptNumber {
        self.0.record().attempt
    }

    /// The fencing number to hand to downstream systems that can refuse a late owner by themselves.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.record().fence()
    }

    /// Whose key this is, and which.
    #[must_use]
    pub fn id(&self) -> &RecordId {
        &self.0.record().id
    }

    /// Where an earlier attempt had got to. Checkpoints of this attempt do not show here.
    #[must_use]
    pub fn recovery_point(&self) -> Option<&RecoveryPoint> {
        self.0
            .record()
            .recovery
            .as_ref()
            .map(|recovery| &recovery.point)
    }

    /// Stores how far the work has come, so that the next attempt can go on from there, and renews the lease.
    ///
    /// From then on the key stays bound to its request, even if the handler answers that it rejects it.
    ///
    /// # Errors
    ///
    /// [`AttemptError::LeaseLost`] when somebody else owns the record: stop. [`AttemptError::Superseded`] when
    /// a later checkpoint of this attempt overtook this one. [`AttemptError::Store`] when the store failed
    /// several times; the checkpoint may have been stored.
    ///
    /// # Cancellation
    ///
    /// A checkpoint that is dropped may still be stored, unless a later one is already.
    pub async fn checkpoint(&self, point: RecoveryPoint) -> Result<(), AttemptError> {
        self.write(&self.next_checkpoint(point)).await
    }

    /// Renews the lease now. The heartbeat does so by itself; this is for work without one.
    ///
    /// # Errors
    ///
    /// [`AttemptError::LeaseLost`] when somebody else owns the record: stop. [`AttemptError::Store`] when the
    /// store failed several times.
    pub async fn renew(&self) -> Result<(), AttemptError> {
        self.write(&Transition::Renew {
            lease: self.0.lease.length(),
        })
        .await
    }

    /// The key to send to the provider with one step of the work: the same on every attempt.
    ///
    /// Asking for it says that the step may be made now. From then on the key stays bound to its request: a
    /// `Rejected` or `Retryable` is stored as a failure that may have had an effect, so no validation that
    /// comes too late can free the key after a charge.
    ///
    /// # Errors
    ///
    /// [`NoProviderKey::Forgotten`] when a side effect may be older than the provider's memory: the provider
    /// would take the key for a new one. Answer [`Outcome::Unknown`](super::Outcome::Unknown), and look the step
    /// up. [`NoProviderKey::Ended`] when the handler has answered `Rejected` or `Retryable` already, before
    /// anything had begun: the key may be free by now, and nothing may be done under it any more.
    pub fn provider_key(&self, step: &str) -> Result<ProviderKey, NoProviderKey> {
        if !self.0.begin() {
            return Err(NoProviderKey::Ended);
        }
        if self.0.is_provider_memory_over() {
            return Err(NoProviderKey::Forgotten);
        }
        Ok(ProviderKey::derive(self.0.record().origin, step))
    }

    /// Whether the lease is lost: a write was refused, or the time is over in which no renewal came through.
    #[must_use]
    pub fn is_lease_lost(&self) -> bool {
        self.0.lease.is_lost()
    }

    /// Resolves when the lease is lost, so that long work can stop: select on it.
    ///
    /// It goes by a local timer that was started before the last claim or renewal was sent, so it resolves in
    /// time even when the store cannot be reached and the provider can.
    ///
    /// # Cancellation
    ///
    /// Dropping it does nothing; call it again to go on waiting.
    pub async fn lease_lost(&self) {
        self.0.lease.lost().await;
    }

    /// What a write of this attempt's owner expects, for a store that writes its outcome in a transaction of the work's own.
    #[must_use]
    pub fn owner(&self) -> Expect {
        self.0.expect()
    }

    /// The next checkpoint of this attempt, for a store that writes it in a transaction of the work's own. As
    /// [`Attempt::checkpoint`] does, it binds the key to its request from now on.
    #[must_use]
    pub fn next_checkpoint(&self, point: RecoveryPoint) -> Transition {
        self.0.begin();
        Transition::Checkpoint {
            point,
            sequence: self.0.next_sequence(),
            lease: self.0.lease.length(),
        }
    }

    async fn write(&self, change: &Transition) -> Result<(), AttemptError> {
        match self.0.write(change, PATIENCE).await? {
            Written::Applied => Ok(()),
            Written::Superseded => Err(AttemptError::Superseded),
            Written::Conflict => Err(AttemptError::Conflict),
            Written::Lost(_) => Err(AttemptError::LeaseLost),
        }
    }
}

/// Why an attempt could not write.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// The record has another owner, or is settled. Stop the work: whatever this attempt does now, it does
    /// beside somebody else.
    #[error("the lease is lost: the record has another owner or is settled")]
    LeaseLost,
    /// A later checkpoint is stored already, and this one changed nothing.
    #[error("a later checkpoint is stored already")]
    Superseded,
    /// Another checkpoint is stored under the same number, which a single attempt never does.
    #[error("another checkpoint is stored under the same number")]
    Conflict,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// Why an attempt has no key for the provider, so that the step must not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoProviderKey {
    /// The provider may have forgotten the key that was sent to it first, so sending it again is not safe.
    #[error(
        "a side effect may be older than the provider's memory, so its key does not protect from a second one; look the step up at the provider"
    )]
    Forgotten,
    /// The attempt has ended, and its record says that nothing was begun.
    #[error("the handler has answered that nothing was begun; do no more for this request")]
    Ended,
}
