use std::sync::Arc;

use tokio::time::Instant;

use crate::machine::{Claim, Decision, OnBusy, Policy, Request, decide};
use crate::record::Response;
use crate::store::{KeyStore, StoreError};
use crate::time::Span;

use super::acquire::{Acquired, Acquiring, acquire, release};
use super::answer::Answer;
use super::attempt::Attempt;
use super::catch_panic::CatchPanic;
use super::execution::{Begin, Execution};
use super::outcome::{IntoOutcome, Outcome};
use super::shared::Shared;
use super::storable::Storable;
use super::unabandoned::Unabandoned;
use super::waiters::{Over, Waited, Waiters};

/// Runs work at most once for each key, and gives everybody the same answer.
///
/// Clones share their store and their waiters; [`Idempotency::with_policy`] makes one for another operation.
/// It needs a tokio runtime with its timer enabled.
///
/// ```
/// use idem_core::executor::{Answer, Idempotency, Outcome};
/// use idem_core::{
///     Fingerprints, IdempotencyKey, MemoryKeyStore, Nulls, Operation, Profile, RecordId, Request, Response,
///     Rules, Scope, SystemClock,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
///
/// let operation = Operation::new("POST /v1/charges")?;
/// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
/// let fingerprint = rules.of(&operation).json(br#"{"amount": 1000}"#)?.finish();
/// let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("k-1")?);
/// let request = Request::new(id, operation, Fingerprints::new(fingerprint));
///
/// let charge = |_attempt| async { Outcome::Completed(Response::new(201).body("ch_1")) };
/// let first = idempotency.execute(&request, charge).await?;
/// let again = idempotency.execute(&request, charge).await?;
/// assert_eq!(first, Answer::Fresh(Response::new(201).body("ch_1")));
/// assert_eq!(again, Answer::Replayed(Response::new(201).body("ch_1")));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Idempotency<S> {
    store: Arc<S>,
    shared: Arc<Shared>,
    policy: Policy,
}

/// How many may wait for others in one process before the next one is told that it is busy.
const MOST_WAITERS: usize = 10_000;

impl<S: KeyStore + 'static> Idempotency<S> {
    /// Work on this store, under the default [`Policy`].
    pub fn new(store: S) -> Self {
        Self::with_waiters(store, MOST_WAITERS)
    }

    /// Work on this store, where at most so many may wait for others at once.
    pub fn with_waiters(store: S, most: usize) -> Self {
        let store = Arc::new(store);
        let waiters = Arc::new(Waiters::new(store.clone(), most));
        let shared = Arc::new(Shared::new(store.clone(), waiters));
        Self {
            store,
            shared,
            policy: Policy::default(),
        }
    }
}

impl<S> Idempotency<S> {
    /// The same store under another policy.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self {
            policy,
            ..self.clone()
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// How many claims, attempts and outcomes to be stored are under way, those in the background included, and
    /// so are requests that wait for another's attempt.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight()
    }

    /// Resolves when nothing is under way. For a graceful shutdown: stop taking requests, then wait for this
    /// within a time limit; what is still under way then is left to its lease.
    ///
    /// # Cancellation
    ///
    /// Dropping it does nothing.
    pub async fn idle(&self) {
        self.shared.idle().await;
    }

    /// Does the work of `request` if nobody has, and answers what it or an earlier one said.
    ///
    /// The claim is stored before `handler` is called, and the outcome before this returns. While the handler
    /// waits, a heartbeat renews its lease; one that blocks its thread instead should do so in
    /// `spawn_blocking`. A handler that returns an error or panics has failed for good, since
    /// nobody can tell whether it had an effect; the panic goes no further.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store could not be asked. The handler was not called.
    ///
    /// # Cancellation
    ///
    /// Dropped before the handler is called, the key is given back in the background. Dropped while it runs,
    /// the handler is dropped as well, and the record stays in progress until its lease is over. Dropped after
    /// that, the outcome is stored in the background. A server whose clients hang up should therefore run this
    /// in a task of its own, so that work that has begun is also finished.
    pub async fn execute<H, F>(
        &self,
        request: &Request,
        handler: H,
    ) -> Result<Answer<<F::Output as IntoOutcome>::Answer>, StoreError>
    where
        H: FnOnce(Attempt) -> F,
        F: Future,
        F::Output: IntoOutcome,
        <F::Output as IntoOutcome>::Answer: Storable,
    {
        let mut execution = match self.claim(request).await? {
            Begin::Execute(execution) => execution,
            Begin::Replay(response) => return Ok(Answer::replayed(response)),
            Begin::Busy { remaining } => return Ok(Answer::Busy { remaining }),
            Begin::Mismatch(mismatch) => return Ok(Answer::Mismatch(mismatch)),
            Begin::Incomparable { stored } => return Ok(Answer::Incomparable { stored }),
            Begin::OutcomeUnknown => return Ok(Answer::OutcomeUnknown),
        };
        let attempt = execution.attempt();
        let work = CatchPanic::new(async move { handler(attempt).await.into_outcome() });
        let ended = execution.during(work).await;
        Ok(match ended {
            Ok(Ok(outcome)) => execution.finish(outcome).await,
            Ok(Err(outcome)) => execution.finish(outcome).await.read(),
            Err(_) => {
                let failed = Outcome::Failed(Response::new(500));
                execution.finish(failed).await.read()
            }
        })
    }

    /// Claims `request`, step by step: the caller does the work and finishes the [`Execution`].
    ///
    /// With [`OnBusy::Wait`] in the policy, it first waits for an attempt that is running.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store could not be asked. If a claim may have been made all the same, it is
    /// given back in the background.
    ///
    /// # Cancellation
    ///
    /// A claim that was sent when this is dropped is given back in the background.
    pub async fn begin(&self, request: &Request) -> Result<Begin, StoreError> {
        Ok(match self.claim(request).await? {
            Begin::Execute(execution) => Begin::Execute(execution.kept_alive()),
            other => other,
        })
    }

    async fn claim(&self, request: &Request) -> Result<Begin, StoreError> {
        let deadline = match self.policy.on_busy() {
            OnBusy::Reject => None,
            OnBusy::Wait(longest) => Some(Instant::now() + longest.as_duration()),
        };
        let mut acquiring = Acquiring {
            work: self.shared.enter(),
            policy: self.policy,
            claim: Claim::fresh(request.clone(), &self.policy)?,
            until: deadline,
        };
        loop {
            let claiming = Unabandoned::new(|caller| acquire(acquiring, caller), give_back);
            let (acquired, back) = claiming.await;
            acquiring = back;
            let (remaining, seen) = match acquired? {
                Acquired::Owned(ownership) => {
                    return Ok(Begin::Execute(Execution::start(acquiring, ownership)));
                }
                Acquired::Refused(decision) => return Ok(refusal(decision)),
                Acquired::Busy { remaining, seen } => (remaining, seen),
            };
            let Some(deadline) = deadline else {
                return Ok(Begin::Busy { remaining });
            };
            // The old claim may still be given back in the background. Under its token that would free the key
            // while the next one works.
            let seen = seen.or(acquiring.claim.witness());
            acquiring.claim = Claim::fresh(request.clone(), &self.policy)?;
            if let Some(seen) = seen {
                acquiring.claim = acquiring.claim.having_seen(seen);
            }
            let started = Instant::now();
            match self.shared.waiters.wait(&request.id, deadline).await {
                Waited::Over(Over { held, watched }) => {
                    if let Some(held) = held.as_ref().filter(|_| watched) {
                        acquiring.claim = acquiring.claim.having_seen(held.record.fence());
                    }
                    let decision = decide(&acquiring.claim, held.as_ref());
                    if !decision.runs() {
                        return Ok(refusal(decision));
                    }
                }
                Waited::StillRunning => {
                    let waited = Span::new(started.elapsed()).unwrap_or(Span::MAX);
                    let left = remaining.as_micros().saturating_sub(waited.as_micros());
                    return Ok(Begin::Busy {
                        remaining: Span::from_micros_clamped(left),
                    });
                }
            }
            if Instant::now() >= deadline {
                return Ok(Begin::Busy {
                    remaining: Span::ZERO,
                });
            }
        }
    }
}

/// What becomes of a claim whose caller left before it was answered.
async fn give_back((acquired, acquiring): (Result<Acquired, StoreError>, Acquiring)) {
    if let Ok(Acquired::Owned(_)) = acquired {
        release(acquiring.work, acquiring.claim).await;
    }
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            shared: Arc::clone(&self.shared),
            policy: self.policy,
        }
    }
}

/// A decision that runs nothing, as an answer.
fn refusal(decision: Decision) -> Begin {
    match decision {
        Decision::Replay(response) => Begin::Replay(response),
        Decision::Busy { remaining } => Begin::Busy { remaining },
        Decision::Mismatch(mismatch) => Begin::Mismatch(mismatch),
        Decision::Incomparable { stored } => Begin::Incomparable { stored },
        Decision::OutcomeUnknown => Begin::OutcomeUnknown,
        // Decisions to run do not come here; if one did, asking again is the safe answer.
        Decision::Claim | Decision::Resume | Decision::Restart(_) | Decision::TakeOver(_) => {
            Begin::Busy {
                remaining: Span::ZERO,
            }
        }
    }
}
