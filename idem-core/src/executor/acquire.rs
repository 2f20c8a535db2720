//! How an attempt comes to own a record: claim it, or take over what is held, until something is decided.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::machine::{Applied, Claim, Decision, Expect, Policy, Swap, Transition, decide};
use crate::record::{Contract, Fence, Moment, Snapshot};
use crate::store::{ClaimOutcome, StoreError, StoreErrorKind, TransitionOutcome};
use crate::time::Span;

use super::backoff::Backoff;
use super::ownership::{Ownership, Sent, Written};
use super::shared::Underway;
use super::unabandoned::Caller;

/// What an attempt to own a record led to.
#[derive(Debug)]
pub(super) enum Acquired {
    /// It is owned.
    Owned(Arc<Ownership>),
    /// It is not, and this is why. Never a decision to run.
    Refused(Decision),
    /// It is not, because somebody is running it: this attempt, as far as it is known.
    Busy {
        remaining: Span,
        seen: Option<Fence>,
    },
}

/// How often races may be lost, or records be found locked, before the answer is that somebody is busy.
const RACES: u32 = 16;
const LOCKED: u32 = 3;

/// How often a claim is sent again whose answer was lost.
const RESENDS: u32 = 3;

/// A claim that is being made.
#[derive(Debug)]
pub(super) struct Acquiring {
    pub(super) work: Underway,
    pub(super) policy: Policy,
    pub(super) claim: Claim,
    /// How long its caller waits for a locked record, if that is bounded.
    pub(super) until: Option<Instant>,
}

/// Claims the record, or takes it over, and gives back what it was given.
///
/// `caller` tells when nobody waits for it any more; then nothing new is begun.
pub(super) async fn acquire(
    acquiring: Acquiring,
    caller: Caller,
) -> (Result<Acquired, StoreError>, Acquiring) {
    let mut acquisition = Acquisition {
        work: &acquiring.work,
        policy: acquiring.policy,
        claim: &acquiring.claim,
        until: acquiring.until,
        may_be_ours: false,
    };
    let acquired = acquisition.run(&caller).await;
    if acquisition.may_be_ours && !matches!(acquired, Ok(Acquired::Owned(_))) {
        // It is released when the store answers again.
        let (work, claim) = (acquiring.work.beside(), acquiring.claim.clone());
        tokio::spawn(release(work, claim));
    }
    (acquired, acquiring)
}

/// Releases what `claim` may own: its caller went before the work began.
///
/// It is tried for as long as the lease can last. After that anybody may take the record over, and it needs no
/// release; unless its contract is to hold it, which only its owner or an operator ends.
pub(super) async fn release(work: Underway, claim: Claim) {
    let expect = Expect::Owner(claim.token());
    let give_up = match claim.terms().contract {
        Contract::Reclaim => Some(Instant::now() + claim.lease().as_duration()),
        Contract::Hold => None,
    };
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    loop {
        match work
            .store
            .transition(claim.id(), expect, &Transition::Release)
            .await
        {
            Ok(TransitionOutcome::Applied { .. } | TransitionOutcome::Lost(_)) => break,
            Ok(TransitionOutcome::Contended { .. }) | Err(_) => {}
        }
        let pause = backoff.next();
        if give_up.is_some_and(|give_up| Instant::now() + pause >= give_up) {
            break;
        }
        sleep(pause).await;
    }
    work.waiters.poke(claim.id());
}

struct Acquisition<'a> {
    work: &'a Underway,
    policy: Policy,
    claim: &'a Claim,
    until: Option<Instant>,
    /// Whether the record may be ours although it was not acquired: the answer to some write was lost, or what
    /// had to follow a write did not come through.
    may_be_ours: bool,
}

/// One step of an acquisition.
enum Step {
    Done(Acquired),
    /// This is what is held now, if it is known. Decide again.
    Again(Option<Snapshot>),
    Locked(Duration),
}

impl Acquisition<'_> {
    async fn run(&mut self, caller: &Caller) -> Result<Acquired, StoreError> {
        let (mut lost, mut locked, mut resent) = (0, 0, 0);
        let mut held: Option<Snapshot> = None;
        while lost < RACES && !caller.is_gone() {
            let step = match held.take() {
                None => self.claim().await,
                Some(snapshot) => self.decide(snapshot).await,
            };
            match step {
                Ok(Step::Done(acquired)) => return Ok(acquired),
                Ok(Step::Again(snapshot)) => {
                    held = snapshot;
                    lost += 1;
                }
                Ok(Step::Locked(retry_after)) => {
                    locked += 1;
                    let too_late = |until| Instant::now() + retry_after >= until;
                    if locked >= LOCKED || self.until.is_some_and(too_late) {
                        break;
                    }
                    sleep(retry_after).await;
                }
                Err(error) if error.kind() == StoreErrorKind::Ambiguous && resent < RESENDS => {
                    self.may_be_ours = true;
                    resent += 1;
                }
                Err(error) => {
                    self.may_be_ours |= error.kind() == StoreErrorKind::Ambiguous;
                    return Err(error);
                }
            }
        }
        Ok(Acquired::Busy {
            remaining: Span::ZERO,
            seen: None,
        })
    }

    async fn claim(&mut self) -> Result<Step, StoreError> {
        let sent = Instant::now();
        match self.work.store.claim(self.claim).await? {
            ClaimOutcome::Won(snapshot) => self.own(snapshot, sent).await,
            ClaimOutcome::Held(snapshot) => self.decide_at(snapshot, sent).await,
            ClaimOutcome::Contended { retry_after } => Ok(Step::Locked(retry_after)),
            ClaimOutcome::Refused { remaining, .. } => Ok(Step::Done(Acquired::Busy {
                remaining,
                seen: None,
            })),
        }
    }

    async fn decide(&mut self, held: Snapshot) -> Result<Step, StoreError> {
        self.decide_at(held, Instant::now()).await
    }

    /// Decides on a snapshot that answers a call which was sent at `sent`.
    async fn decide_at(&mut self, held: Snapshot, sent: Instant) -> Result<Step, StoreError> {
        match decide(self.claim, Some(&held)) {
            Decision::Claim => Ok(Step::Again(None)),
            Decision::Resume => self.own(held, sent).await,
            Decision::Restart(swap) | Decision::TakeOver(swap) => self.swap(&held, &swap).await,
            Decision::Busy { remaining } => Ok(Step::Done(Acquired::Busy {
                remaining,
                seen: Some(held.record.fence()),
            })),
            refused => Ok(Step::Done(Acquired::Refused(refused))),
        }
    }

    async fn swap(&mut self, held: &Snapshot, swap: &Swap) -> Result<Step, StoreError> {
        let sent = Instant::now();
        let id = self.claim.id();
        match self
            .work
            .store
            .transition(id, swap.expect, &swap.change)
            .await?
        {
            TransitionOutcome::Applied { now, .. } => {
                let moment = Moment {
                    now,
                    skew: held.skew,
                };
                match held.record.apply(swap.expect, &swap.change, moment) {
                    Ok(Applied::Changed(record)) => {
                        self.own(
                            Snapshot {
                                record: Arc::from(record),
                                now,
                                skew: held.skew,
                            },
                            sent,
                        )
                        .await
                    }
                    // The store let through what its own time forbids. It is asked what it holds now.
                    _ => {
                        self.may_be_ours = true;
                        Ok(Step::Again(None))
                    }
                }
            }
            TransitionOutcome::Lost(now_held) => Ok(Step::Again(now_held)),
            TransitionOutcome::Contended { retry_after } => Ok(Step::Locked(retry_after)),
        }
    }

    /// The record is this attempt's. If the answer took longer than the lease, the lease is renewed before
    /// anything is done under it.
    async fn own(&mut self, snapshot: Snapshot, sent: Instant) -> Result<Step, StoreError> {
        let store = Arc::clone(&self.work.store);
        let (lease, memory) = (self.claim.lease(), self.policy.provider_memory());
        let ownership = Arc::new(Ownership::new(store, snapshot, lease, memory, sent));
        // A lease of zero is over whenever one looks, and a renewal would not change that.
        if lease.is_zero() || !ownership.lease.is_lost() {
            return Ok(Step::Done(Acquired::Owned(ownership)));
        }
        self.may_be_ours = true;
        match ownership.send(&Transition::Renew { lease }).await? {
            Sent::Answered(Written::Lost(held)) => Ok(Step::Again(held)),
            Sent::Answered(_) => Ok(Step::Done(Acquired::Owned(ownership))),
            Sent::Contended { retry_after } => Ok(Step::Locked(retry_after)),
        }
    }
}
