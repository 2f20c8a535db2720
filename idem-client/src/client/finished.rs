use idem_core::IdempotencyKey;

use super::{Client, SendError, Step};
use crate::{Answer, JournalError, key_hash};

/// An operation that has its answer. The journal keeps it until it is acknowledged.
#[derive(Debug)]
#[must_use = "the journal keeps the answer until it is acknowledged"]
pub struct Finished {
    pub(super) client: Client,
    pub(super) key: IdempotencyKey,
    pub(super) answer: Answer,
    pub(super) source: Source,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From the service, just now.
    Service,
    /// From the journal: it came earlier, and was not acknowledged.
    Journal,
}

impl Finished {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The answer, whatever its status.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The program has recorded the answer itself, durably: the journal may forget it. If the process dies before, the same answer
    /// comes from the journal again.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when the journal could not be written. Then the answer comes again.
    pub async fn acknowledge(self) -> Result<Answer, JournalError> {
        let hash = key_hash(&self.key);
        self.client.step(&hash, Step::Acknowledging);
        self.client.journal().acknowledge(&self.key).await?;
        self.client.step(&hash, Step::Acknowledged);
        Ok(self.answer)
    }
}

/// What became of one operation that was found in the journal.
#[derive(Debug)]
#[non_exhaustive]
pub struct Resumed {
    /// Its key.
    pub key: IdempotencyKey,
    /// What the caller calls it.
    pub label: Option<String>,
    /// Its answer, or why it has none.
    pub result: Result<Finished, SendError>,
}
