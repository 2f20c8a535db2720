use std::error::Error;
use std::fmt;

use crate::identity::RecordId;
use crate::machine::Misuse;
use crate::record::CorruptRow;

type Source = Box<dyn Error + Send + Sync>;

/// A store did not do what it was asked to.
///
/// What a caller has to know is in [`StoreError::kind`], as data; the text is for people. It names a record by
/// its hash only.
///
/// ```
/// use idem_core::{StoreError, StoreErrorKind};
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// let error = StoreError::unavailable("connecting to the database").because(refused);
/// assert_eq!(error.kind(), StoreErrorKind::Unavailable);
/// assert!(error.is_retryable());
/// ```
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    context: String,
    id: Option<String>,
    source: Option<Source>,
}

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store could not be reached or could not work, and nothing was applied.
    Unavailable,
    /// The answer was lost: it may have been applied, or not.
    Ambiguous,
    /// Something is larger than the store holds, and nothing was applied.
    TooLarge,
    /// What is stored is not what this version would have written. It is never taken for absent.
    Corrupt,
    /// The store is not set up for this program: a table is missing, older or newer; a setting is unsafe.
    Misconfigured,
    /// The calling program asked for something that has no meaning.
    Misuse,
}

impl StoreError {
    /// The store could not be reached or could not work while `doing` something, and nothing was applied.
    #[must_use]
    pub fn unavailable(doing: impl Into<String>) -> Self {
        Self::of_kind(StoreErrorKind::Unavailable, doing)
    }

    /// The answer was lost while `doing` something: it may have been applied, or not.
    #[must_use]
    pub fn ambiguous(doing: impl Into<String>) -> Self {
        Self::of_kind(StoreErrorKind::Ambiguous, doing)
    }

    /// `what` is larger than the store holds, and nothing was applied.
    #[must_use]
    pub fn too_large(what: impl Into<String>) -> Self {
        Self::of_kind(StoreErrorKind::TooLarge, what)
    }

    /// `what` is stored is not what this version would have written.
    #[must_use]
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::of_kind(StoreErrorKind::Corrupt, what)
    }

    /// The store is not set up for this program; `what` says what is wrong and what to do.
    #[must_use]
    pub fn misconfigured(what: impl Into<String>) -> Self {
        Self::of_kind(StoreErrorKind::Misconfigured, what)
    }

    /// An error of any kind. Wrappers use it to pass on what they were given.
    #[must_use]
    pub fn of_kind(kind: StoreErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            id: None,
            source: None,
        }
    }

    /// This error, with the record that it is about.
    #[must_use]
    pub fn about(mut self, id: &RecordId) -> Self {
        self.id = Some(id.to_string());
        self
    }

    /// This error, with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may well succeed later. After an ambiguous one, only a call that is safe to send
    /// twice should be sent again; every call of [`KeyStore`](crate::KeyStore) is.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "the store is unavailable",
            StoreErrorKind::Ambiguous => "the store's answer was lost",
            StoreErrorKind::TooLarge => "too large to store",
            StoreErrorKind::Corrupt => "the stored record is corrupt",
            StoreErrorKind::Misconfigured => "the store is misconfigured",
            StoreErrorKind::Misuse => "the store was asked for something that has no meaning",
        })?;
        write!(f, ": {}", self.context)?;
        match &self.id {
            Some(id) => write!(f, " (record {id})"),
            None => Ok(()),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

impl From<Misuse> for StoreError {
    fn from(misuse: Misuse) -> Self {
        Self::of_kind(StoreErrorKind::Misuse, misuse.transition).because(misuse)
    }
}

impl From<CorruptRow> for StoreError {
    fn from(row: CorruptRow) -> Self {
        Self::corrupt(row.column).because(row)
    }
}
