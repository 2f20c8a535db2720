use std::fmt;

use thiserror::Error;

/// How far a record has come.
///
/// Failure has two forms, and they are two statuses so that no reader has to look at other columns to tell
/// them apart: one that is an answer and replays, and one after which the same request may try again.
///
/// ```
/// use idem_core::Status;
///
/// assert_eq!(Status::parse("completed"), Ok(Status::Completed));
/// assert!(Status::parse("archived").is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Somebody has claimed it, and no outcome is stored.
    InProgress,
    /// The work was done; its response replays.
    Completed,
    /// The work failed after it may have had an effect; its response replays.
    FailedFinal,
    /// The work failed and left no answer; the same request may try again.
    FailedRetryable,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 4] = [
        Self::InProgress,
        Self::Completed,
        Self::FailedFinal,
        Self::FailedRetryable,
    ];

    /// The word that stores write.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedFinal => "failed_final",
            Self::FailedRetryable => "failed_retryable",
        }
    }

    /// Reads the word that a store holds.
    ///
    /// # Errors
    ///
    /// [`UnknownStatus`] for any other word. A newer version may have written it; a store reports it as
    /// [`StoreError::corrupt`](crate::StoreError), because taking it for absent would run the work again.
    pub fn parse(word: &str) -> Result<Self, UnknownStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == word)
            .ok_or(UnknownStatus)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no [`Status`] of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the stored status is none that this version knows; a newer version may have written it")]
pub struct UnknownStatus;
