use crate::record::Response;

use super::attempt::{AttemptError, NoProviderKey};

/// What a handler says about the work that it did.
///
/// The choice is about side effects. As long as nothing can have happened, a request may be rejected or
/// retried; from the moment that something may have, it is completed, failed or unknown. An attempt that asked
/// for a [provider key](super::Attempt::provider_key) or made a checkpoint has begun, and then a `Rejected` or
/// `Retryable` does not free the key, whatever the handler says.
///
/// ```
/// use idem_core::executor::Outcome;
/// use idem_core::Response;
///
/// let outcome = Outcome::Completed(Response::new(201).body("{}"));
/// assert!(matches!(outcome, Outcome::Completed(_)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Success. Stored, and replayed.
    Completed(T),
    /// Failure after a side effect may have begun. Stored, and replayed.
    Failed(T),
    /// Failure before any side effect. Answered and not stored; the same request may try again.
    Retryable(T),
    /// The request was refused by validation. Answered and not stored; the key stays unused.
    Rejected(T),
    /// Nobody knows: the provider did not answer in time, say. Answered and not stored; the record is left in
    /// progress, and its lease runs out.
    Unknown(T),
}

impl<T> Outcome<T> {
    /// What is answered, whatever is stored.
    pub fn answer(&self) -> &T {
        match self {
            Self::Completed(answer)
            | Self::Failed(answer)
            | Self::Retryable(answer)
            | Self::Rejected(answer)
            | Self::Unknown(answer) => answer,
        }
    }

    /// What is answered, whatever is stored.
    pub fn into_answer(self) -> T {
        match self {
            Self::Completed(answer)
            | Self::Failed(answer)
            | Self::Retryable(answer)
            | Self::Rejected(answer)
            | Self::Unknown(answer) => answer,
        }
    }
}

/// What a handler may return: an [`Outcome`], or a `Result` of one.
pub trait IntoOutcome {
    /// What is answered.
    type Answer;

    /// The outcome; or, of an error, the outcome that it stands for.
    fn into_outcome(self) -> Result<Outcome<Self::Answer>, Outcome<Response>>;
}

impl<T> IntoOutcome for Outcome<T> {
    type Answer = T;

    fn into_outcome(self) -> Result<Outcome<T>, Outcome<Response>> {
        Ok(self)
    }
}

impl<T, E: PublicError> IntoOutcome for Result<Outcome<T>, E> {
    type Answer = T;

    fn into_outcome(self) -> Result<Outcome<T>, Outcome<Response>> {
        self.map_err(|error| error.public_outcome())
    }
}

/// An error that ends a handler: what it means for the work, and what the world may know of it.
///
/// An error that leaves open whether the work had an effect is [`Outcome::Failed`]: its response is stored and
/// replayed for the whole retention, and the work is not run again. What failed before any effect is better
/// [`Outcome::Retryable`], and where nobody knows it is [`Outcome::Unknown`].
///
/// The response must not hold what only the log should. The error itself goes no further than here: log it in the
/// handler.
///
/// `Box<dyn Error + Send + Sync>`, which `?` makes of any error, is failed with code 500 and no body, with two
/// exceptions: [`NoProviderKey`](super::NoProviderKey) and [`AttemptError`](super::AttemptError), by which this
/// crate itself says that nobody knows, are unknown with code 503.
pub trait PublicError {
    /// What is stored, and what every sender of the request gets.
    fn public_outcome(&self) -> Outcome<Response>;
}

impl PublicError for std::convert::Infallible {
    fn public_outcome(&self) -> Outcome<Response> {
        match *self {}
    }
}

impl PublicError for NoProviderKey {
    fn public_outcome(&self) -> Outcome<Response> {
        Outcome::Unknown(Response::new(503))
    }
}

impl PublicError for AttemptError {
    fn public_outcome(&self) -> Outcome<Response> {
        Outcome::Unknown(Response::new(503))
    }
}

impl PublicError for Box<dyn std::error::Error + Send + Sync> {
    fn public_outcome(&self) -> Outcome<Response> {
        if let Some(error) = self.downcast_ref::<NoProviderKey>() {
            error.public_outcome()
        } else if let Some(error) = self.downcast_ref::<AttemptError>() {
            error.public_outcome()
        } else {
            Outcome::Failed(Response::new(500))
        }
    }
}
