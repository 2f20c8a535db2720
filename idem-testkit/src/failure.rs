use std::fmt;

use idem_core::StoreError;
use thiserror::Error;

use crate::harness::{Missing, Unavailable};

/// What a store got wrong, in words for its author.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{explanation}")]
pub struct Failure {
    explanation: String,
}

impl Failure {
    /// It got this wrong.
    #[must_use]
    pub fn new(explanation: impl Into<String>) -> Self {
        Self {
            explanation: explanation.into(),
        }
    }

    /// The same failure, with where it happened before it.
    #[must_use]
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        Self::new(format!("{place}: {}", self.explanation))
    }
}

/// Why a case ended before its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Stop {
    /// The store is broken.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The backend does not have what the case needs.
    #[error(transparent)]
    Skipped(#[from] Missing),
    /// There is no database.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// How a case ends.
pub type CaseResult = Result<(), Stop>;

impl Stop {
    /// The same, with where it happened before a failure.
    #[must_use]
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(failure.within(place)),
            other => other,
        }
    }
}

/// A [`Failure`] from a format string.
macro_rules! failure {
    ($($message:tt)*) => { $crate::failure::Failure::new(format!($($message)*)) };
}

/// Ends the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err($crate::failure::failure!($($message)*).into());
        }
    };
}

pub(crate) use {ensure, failure};

/// An error where none is allowed, in full: kind, text and causes.
pub(crate) fn unexpected(call: &str, error: &StoreError) -> Failure {
    let mut text = format!("{call} failed as {:?}: {error}", error.kind());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    Failure::new(text)
}
