use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::timeout;

use crate::fingerprint::Scheme;
use crate::machine::{Claim, Decision, Mismatch, Policy, Transition, decide};
use crate::record::{Note, Origin, Response, Snapshot};
use crate::store::StoreError;
use crate::time::Span;

use super::acquire::Acquiring;
use super::answer::Answer;
use super::attempt::Attempt;
use super::finish::{Stored, Storing};
use super::keeper::Keeper;
use super::outcome::Outcome;
use super::ownership::Ownership;
use super::poll_once::poll_once;
use super::same_transaction::kept;
use super::shared::Underway;
use super::storable::Storable;
use super::unabandoned::Unabandoned;

/// What [`Idempotency::begin`](super::Idempotency::begin) leads to.
#[derive(Debug)]
#[must_use]
pub enum Begin {
    /// The work is to be done now.
    Execute(Execution),
    /// It was done, or failed for good: this is the answer.
    Replay(Response),
    /// Somebody is running it. Try again.
    Busy {
        /// How long the owner's lease still is, as far as it is known.
        remaining: Span,
    },
    /// The key was used with something else.
    Mismatch(Mismatch),
    /// The record was written under a scheme that this program does not declare. Another node may know it.
    Incomparable {
        /// The scheme that it was written under.
        stored: Scheme,
    },
    /// Nobody knows whether the work was done, and it is not run again by itself.
    OutcomeUnknown,
}

/// The work of one attempt, from when the record is owned until its outcome is stored.
///
/// A heartbeat renews the lease for as long as this value lives.
///
/// # Cancellation
///
/// Dropping it stops the heartbeat and leaves the record in progress: nobody can tell how far the work had
/// got. When its lease is over, the terms of the record say what happens. Finish it with
/// [`Outcome::Rejected`] to give the key back at once.
#[must_use = "dropping an execution leaves the key in progress until its lease is over"]
pub struct Execution {
    work: Underway,
    policy: Policy,
    claim: Claim,
    ownership: Arc<Ownership>,
    keeper: Keeper,
}

impl Execution {
    pub(super) fn start(acquiring: Acquiring, ownership: Arc<Ownership>) -> Self {
        let Acquiring {
            work,
            policy,
            claim,
            ..
        } = acquiring;
        let keeper = Keeper::new(&ownership, &policy);
        Self {
            work,
            policy,
            claim,
            ownership,
            keeper,
        }
    }

    /// Does `work` while the lease is renewed.
    pub(super) async fn during<F: Future>(&mut self, work: F) -> F::Output {
        self.keeper.during(work).await
    }

    /// This execution, whose lease is renewed from now on.
    pub(super) fn kept_alive(mut self) -> Self {
        self.keeper.start();
        self
    }

    /// What the work needs to know.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        Attempt(Arc::clone(&self.ownership))
    }

    /// Stores the outcome, and says what to answer.
    ///
    /// Storing is tried until it is applied or refused, if need be in the background and for as long as the
    /// process lives. When the policy's store timeout is over first, the answer is
    /// [`Answer::NotYetStored`].
    ///
    /// If the record was taken over meanwhile, an outcome that would have been stored is not, and the answer is
    /// what the record says now; a `Retryable` or `Rejected` one is answered as it is.
    ///
    /// An answer that panics when it is written has failed for good, like work that panics.
    ///
    /// # Cancellation
    ///
    /// Dropping it after it was polled does not stop the storing, which goes on in the background. Dropping it
    /// before that is dropping the execution.
    pub async fn finish<T: Storable>(self, outcome: Outcome<T>) -> Answer<T> {
        let change = match &outcome {
            Outcome::Completed(answer) | Outcome::Failed(answer) => {
                let Some(response) = written(answer) else {
                    let failed = Outcome::Failed(Response::new(500));
                    // Boxed, since this one calls itself; a response is written without a panic.
                    return Box::pin(self.finish(failed)).await.read();
                };
                let response = kept(response, &self.policy);
                match outcome {
                    Outcome::Completed(_) => Transition::Complete(response),
                    _ => Transition::FailFinal(response),
                }
            }
            Outcome::Retryable(_) => Transition::FailRetryable {
                reason: Note::new("the handler asked for a retry"),
                uncertain: !self.ownership.end_untouched(),
            },
            Outcome::Rejected(_) if self.ownership.end_untouched() => Transition::Release,
            Outcome::Rejected(_) => Transition::FailRetryable {
                reason: Note::new("the handler rejected the request after it had begun"),
                uncertain: true,
            },
            // Nothing is stored: the lease runs out, and the terms of the record say what happens then.
            Outcome::Unknown(_) => return Answer::Fresh(outcome.into_answer()),
        };
        let is_stored = matches!(outcome, Outcome::Completed(_) | Outcome::Failed(_));
        match self.store(change).await {
            Told::Instead(instead) if is_stored => instead,
            Told::Stored | Told::Instead(_) => Answer::Fresh(outcome.into_answer()),
        }
    }

    /// Ends the execution whose outcome the work itself has stored, in a transaction of its own
    /// ([`Attempt::owner`]), and says what to answer: what the record says.
    ///
    /// If that transaction did not commit, nobody knows how far the work had got, and the answer is
    /// [`Answer::OutcomeUnknown`]; the record is left in progress until its lease is over.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the record could not be read. It may be finished.
    ///
    /// # Cancellation
    ///
    /// Dropping it changes nothing.
    pub async fn finish_joined<T: Storable>(self) -> Result<Answer<T>, StoreError> {
        let record = self.ownership.record();
        let held = self.work.store.load(&record.id).await?;
        let finished = held.and_then(|held| {
            let is_ours = held.record.origin == record.origin && held.record.token == record.token;
            is_ours
                .then(|| held.record.state.response().cloned())
                .flatten()
        });
        Ok(match finished {
            Some(response) => Answer::fresh(response),
            None => Answer::OutcomeUnknown,
        })
    }

    async fn store<T: Storable>(self, change: Transition) -> Told<T> {
        let Self {
            work,
            policy,
            claim,
            ownership,
            keeper,
        } = self;
        let storing = Storing {
            work,
            ownership,
            change,
            keeper,
        };
        let origin = storing.ownership.record().origin;
        let mut storing = Unabandoned::new(|_| storing.run(), |_| async {});
        let stored = match poll_once(Pin::new(&mut storing)).await {
            Poll::Ready(stored) => Ok(stored),
            Poll::Pending => timeout(policy.store_timeout().as_duration(), storing).await,
        };
        match stored {
            Ok(Stored::Applied) => Told::Stored,
            Ok(Stored::Lost(held)) => Told::Instead(instead(&claim, origin, held)),
            Err(_) => Told::Instead(Answer::NotYetStored),
        }
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("attempt", &self.ownership.record().fence())
            .finish_non_exhaustive()
    }
}

/// The answer as it is stored, or `None` if writing it panicked.
fn written(answer: &impl Storable) -> Option<Response> {
    catch_unwind(AssertUnwindSafe(|| answer.to_response())).ok()
}

enum Told<T> {
    Stored,
    Instead(Answer<T>),
}

/// What to answer for work whose record is no longer its own: what the record says now.
///
/// Work that was done is not done again by answering, so wherever the record would let the request run, the
/// answer is that its outcome is unknown, or, if only another attempt of the same operation would run, that it
/// is busy: that one calls the provider with the same key. A record that is gone says nothing, and a request
/// that came again would be a new one; a record of another origin is such a new one, whose payload and answer
/// are none of this request's.
fn instead<T: Storable>(claim: &Claim, origin: Origin, held: Option<Snapshot>) -> Answer<T> {
    let Some(held) = held.filter(|held| held.record.origin == origin) else {
        return Answer::OutcomeUnknown;
    };
    let claim = claim.clone().having_seen(held.record.fence());
    match decide(&claim, Some(&held)) {
        Decision::Replay(response) => Answer::replayed(response),
        Decision::Busy { remaining } => Answer::Busy { remaining },
        Decision::TakeOver(_) => Answer::Busy {
            remaining: Span::ZERO,
        },
        Decision::Mismatch(mismatch) => Answer::Mismatch(mismatch),
        Decision::Incomparable { stored } => Answer::Incomparable { stored },
        Decision::OutcomeUnknown | Decision::Claim | Decision::Resume | Decision::Restart(_) => {
            Answer::OutcomeUnknown
        }
    }
}
