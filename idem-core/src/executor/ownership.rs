use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::machine::{Expect, Settled, Transition, settle};
use crate::record::{Moment, Record, Snapshot};
use crate::store::{KeyStore, StoreError, TransitionOutcome};
use crate::time::Span;

use super::backoff::Backoff;
use super::lease::Lease;

/// A record that this process owns, or owned until somebody else did: the state that an attempt, its heartbeat
/// and the storing of its outcome share.
#[derive(Debug)]
pub(super) struct Ownership {
    store: Arc<dyn KeyStore>,
    record: Arc<Record>,
    pub(super) lease: Lease,
    /// How long a side effect may already have existed when the record was read, at most: two readings of the
    /// store's time may be apart.
    effect_age: Span,
    read_at: Instant,
    provider_memory: Span,
    progress: AtomicU8,
    sequence: AtomicU32,
}

/// What became of an owner's write.
#[derive(Debug)]
pub(super) enum Written {
    /// It is in the store, from this sending or an earlier one.
    Applied,
    /// It was a delayed checkpoint, and a newer one is stored.
    Superseded,
    /// It was a checkpoint whose number is taken.
    Conflict,
    /// The record is somebody else's, or in another state.
    Lost(Option<Snapshot>),
}

/// How far an attempt may have come with its side effects: not at all, some may exist, or not at all and for
/// good.
const UNTOUCHED: u8 = 0;
const BEGUN: u8 = 1;
const ENDED: u8 = 2;

/// How long to wait before a write is sent again whose refusal makes no sense: what the store says it holds
/// would have let it through.
const READ_TOO_EARLY: Duration = Duration::from_millis(5);

impl Ownership {
    /// Of the record in `snapshot`, as a call that was sent at `sent` wrote or found it.
    ///
    /// What was left of the lease when the store answered was left at `sent` too, so a timer that starts there
    /// is over first.
    pub(super) fn new(
        store: Arc<dyn KeyStore>,
        snapshot: Snapshot,
        lease: Span,
        provider_memory: Span,
        sent: Instant,
    ) -> Self {
        let moment = snapshot.moment();
        let record = snapshot.record;
        Self {
            store,
            lease: Lease::new(
                lease,
                sent + record.locked_until.since(snapshot.now).as_duration(),
            ),
            effect_age: moment.latest().since(record.effect_since),
            read_at: sent,
            provider_memory,
            progress: AtomicU8::new(if record.uncertain { BEGUN } else { UNTOUCHED }),
            sequence: AtomicU32::new(0),
            record,
        }
    }

    /// The record as it was when this attempt began.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn expect(&self) -> Expect {
        Expect::Owner(self.record.token)
    }

    /// From now on nothing frees the key: a side effect may exist. False if it is too late for one, since the
    /// attempt has ended as one that had not begun.
    pub(super) fn begin(&self) -> bool {
        let begun = |progress| (progress != ENDED).then_some(BEGUN);
        let (set, read) = (Ordering::SeqCst, Ordering::SeqCst);
        self.progress.fetch_update(set, read, begun).is_ok()
    }

    /// Ends the attempt as one that has not begun, after which it cannot. False if it has.
    pub(super) fn end_untouched(&self) -> bool {
        let (set, read) = (Ordering::SeqCst, Ordering::SeqCst);
        self.progress
            .compare_exchange(UNTOUCHED, ENDED, set, read)
            .is_ok()
    }

    /// Whether the provider may have forgotten a key that was first sent when a side effect first may have
    /// existed.
    pub(super) fn is_provider_memory_over(&self) -> bool {
        let age = self.effect_age.as_duration() + self.read_at.elapsed();
        age >= self.provider_memory.as_duration()
    }

    pub(super) fn next_sequence(&self) -> u32 {
        self.sequence
            .fetch_add(1, Ordering::SeqCst)
            .saturating_add(1)
    }

    /// Sends a write until it has an answer, or a store that is out of order has refused it `patience` times.
    ///
    /// A store that is merely contended is asked again for as long as the lease lives.
    pub(super) async fn write(
        &self,
        change: &Transition,
        patience: u32,
    ) -> Result<Written, StoreError> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut failures = 0;
        loop {
            match self.send(change).await {
                Ok(Sent::Answered(written)) => return Ok(written),
                Ok(Sent::Contended { .. }) if self.lease.is_lost() => {
                    let context = "the record stayed locked by somebody else's transaction";
                    return Err(StoreError::unavailable(context).about(&self.record.id));
                }
                Ok(Sent::Contended { retry_after }) => sleep(retry_after).await,
                Err(error) => {
                    failures += 1;
                    if failures >= patience || !error.is_retryable() {
                        return Err(error);
                    }
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    /// Sends a write once.
    pub(super) async fn send(&self, change: &Transition) -> Result<Sent, StoreError> {
        let sent = Instant::now();
        let written = match self
            .store
            .transition(&self.record.id, self.expect(), change)
            .await?
        {
            TransitionOutcome::Applied { .. } => {
                if let Transition::Renew { .. } | Transition::Checkpoint { .. } = change {
                    self.lease.renewed(sent);
                }
                Written::Applied
            }
            TransitionOutcome::Contended { retry_after } => {
                return Ok(Sent::Contended { retry_after });
            }
            TransitionOutcome::Lost(held) if self.was_read_too_early(change, held.as_ref()) => {
                return Ok(Sent::Contended {
                    retry_after: READ_TOO_EARLY,
                });
            }
            TransitionOutcome::Lost(held) => {
                match settle(
                    self.expect(),
                    change,
                    held.as_ref().map(|held| &*held.record),
                ) {
                    Settled::AlreadyApplied => Written::Applied,
                    Settled::Superseded => Written::Superseded,
                    Settled::Conflict => Written::Conflict,
                    Settled::Lost => {
                        self.lease.taken();
                        Written::Lost(held)
                    }
                }
            }
        };
        Ok(Sent::Answered(written))
    }

    /// A store must not say that a write was refused by a record that would let it through. If one does, the
    /// record was read before the write it lost to, and an owner must not give up its lease over it.
    fn was_read_too_early(&self, change: &Transition, held: Option<&Snapshot>) -> bool {
        let (Ok(patch), Some(held)) = (change.patch(self.expect()), held) else {
            return false;
        };
        patch.guard.admits(
            &held.record,
            Moment {
                now: held.now,
                skew: held.skew,
            },
        )
    }
}

/// What became of one sending.
#[derive(Debug)]
pub(super) enum Sent {
    Answered(Written),
    Contended { retry_after: Duration },
}
