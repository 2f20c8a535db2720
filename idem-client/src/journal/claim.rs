use std::time::Duration;

use idem_core::IdempotencyKey;

use super::ledger::{Ledger, Standing};
use super::{Answer, Journal, JournalError, Operation};
use crate::{Horizon, Parked, key_hash};

/// What follows from writing down that an operation begins, or goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Begun {
    /// An attempt is written down, and this is who makes it.
    Claimed(Claim),
    /// Another task or process sends it at this moment.
    Busy,
    /// It is parked, or was now, and is not sent.
    Parked(Parked),
    /// It has an answer.
    Answered(Box<Answer>),
    /// It was acknowledged or closed before.
    Closed,
    /// Under its key there is another request: with another method, URL, header line or body.
    Different,
    /// There is nothing under this key.
    Absent,
}

impl Begun {
    pub(crate) fn of(standing: Standing, journal: Journal) -> Self {
        match standing {
            Standing::Send {
                operation,
                horizon,
                age,
            } => Self::Claimed(Claim {
                journal,
                operation,
                horizon,
                age,
                is_over: false,
            }),
            Standing::Busy => Self::Busy,
            Standing::Parked(why) => Self::Parked(why),
            Standing::Answered(answer) => Self::Answered(answer),
            Standing::Closed => Self::Closed,
            Standing::Different => Self::Different,
            Standing::Absent => Self::Absent,
        }
    }
}

/// Whether another attempt may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Going {
    /// It is written down.
    On,
    /// The operation was parked, since it is past its horizon.
    Parked(Parked),
    /// Somebody else has closed it, or taken it over.
    Gone,
}

/// The right to send an operation, alone. Dropping it gives that up, and leaves the operation pending.
///
/// The journal notes the beginning of every attempt before it is made: the first when the claim is given, and the next by
/// [`attempt`](Claim::attempt). This is for programs that send with something else than this crate's `Client`, which does
/// all of it.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, StatusCode};
/// use idem_client::{Answer, Begun, Horizon, Journal, Operation};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let journal = Journal::open_in_memory().await?;
/// let day = Duration::from_secs(24 * 3600);
/// let charge = Operation::post("https://api.example/v1/charges").build()?;
/// match journal.begin(&charge, Horizon::within(day, day)?).await? {
///     Begun::Claimed(claim) => {
///         // Here `claim.operation()` is sent, and this is its answer:
///         let answer = Answer::new(StatusCode::CREATED, HeaderMap::new(), "ch_1");
///         claim.answered(&answer).await?;
///     }
///     other => panic!("{other:?}"),
/// }
/// let again = journal.begin(&charge, Horizon::within(day, day)?).await?;
/// assert!(matches!(again, Begun::Answered(answer) if answer.body() == "ch_1"));
/// assert!(journal.acknowledge(charge.key()).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it gives the operation up"]
pub struct Claim {
    journal: Journal,
    operation: Box<Operation>,
    horizon: Horizon,
    age: Duration,
    is_over: bool,
}

impl Claim {
    /// What is to be sent, byte for byte.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// How long it may be sent, from its first attempt on.
    #[must_use]
    pub fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// How long ago its first attempt began, when this one did.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Writes down that one more attempt begins.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. Then the attempt must not be made.
    pub async fn attempt(&mut self) -> Result<Going, JournalError> {
        let key = self.key();
        let standing = self
            .journal
            .call(move |ledger| ledger.attempt(&key))
            .await?;
        Ok(match standing {
            Standing::Send { age, .. } => {
                self.age = age;
                Going::On
            }
            Standing::Parked(why) => Going::Parked(why),
            _ => Going::Gone,
        })
    }

    /// Writes the answer down. It stays until it is [acknowledged](Journal::acknowledge).
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. Then the operation is still pending, and the service gives the same answer again.
    pub async fn answered(mut self, answer: &Answer) -> Result<(), JournalError> {
        let (key, answer) = (self.key(), answer.clone());
        let done = self
            .journal
            .call(move |ledger| ledger.answered(&key, &answer));
        done.await?;
        self.is_over = true;
        Ok(())
    }

    /// Parks it. The outcome says in words, for people, what the last attempt came to.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. Then the operation is still pending.
    pub async fn park(
        mut self,
        why: Parked,
        outcome: impl Into<String>,
    ) -> Result<(), JournalError> {
        let (key, outcome) = (self.key(), outcome.into());
        let done = self
            .journal
            .call(move |ledger| ledger.park(&key, why, &outcome));
        done.await?;
        self.is_over = true;
        Ok(())
    }

    /// Gives it up, for somebody to take up later. The outcome says in words, for people, what the last attempt came to.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. It is given up all the same, within this process.
    pub async fn release(mut self, outcome: impl Into<String>) -> Result<(), JournalError> {
        let (key, outcome) = (self.key(), outcome.into());
        self.is_over = true;
        let done = self
            .journal
            .call(move |ledger| ledger.release(&key, Some(&outcome)));
        done.await
    }

    /// What stands for its key in errors and logs.
    #[must_use]
    pub fn key_hash(&self) -> String {
        key_hash(self.operation.key())
    }

    /// Gives it up where the journal is written.
    pub(super) fn forgo(mut self, ledger: &mut Ledger) {
        self.is_over = true;
        // Where it cannot be written, others wait until this process ends.
        let _ = ledger.release(self.operation.key(), None);
    }

    fn key(&self) -> IdempotencyKey {
        self.operation.key().clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_over {
            let key = self.key();
            // Nobody waits for it. If the journal was closed, everything is released.
            let _ = self.journal.post(move |ledger| {
                let _ = ledger.release(&key, None);
            });
        }
    }
}
