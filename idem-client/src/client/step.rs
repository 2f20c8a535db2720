use std::time::Duration;

/// How far a client is with an operation, for logs, for measurements, and for tests that stop it there.
///
/// ```no_run
/// use idem_client::{ClientBuilder, Step};
///
/// fn observed(client: ClientBuilder) -> ClientBuilder {
///     client.observe(|key_hash, step| {
///         if let Step::Pausing { attempt, pause } = step {
///             eprintln!("operation {key_hash}: attempt {attempt} failed, the next is in {pause:?}");
///         }
///     })
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Nothing is written down yet, and nothing was sent.
    Beginning,
    /// The operation is in the journal, and its next attempt as well.
    Journaled {
        /// The number of the attempt in this run, from 1.
        attempt: u32,
    },
    /// The attempt is over: there is an answer, or none. Nothing of that is in the journal.
    Attempted {
        /// The number of the attempt in this run, from 1.
        attempt: u32,
    },
    /// The same is sent again after a pause.
    Pausing {
        /// The number of the attempt in this run, from 1.
        attempt: u32,
        /// How long the pause is.
        pause: Duration,
    },
    /// The answer is in the journal.
    Recorded,
    /// The program has acknowledged the answer, and the journal does not know of it yet.
    Acknowledging,
    /// The journal has forgotten the answer.
    Acknowledged,
}
