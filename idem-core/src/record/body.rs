use std::fmt;

use bytes::Bytes;

/// The body of a stored [`Response`](super::Response).
///
/// `Debug` shows the length only: bodies never reach a log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// The bytes, exactly as they were sent. Empty is a body like any other.
    Bytes(Bytes),
    /// There was a body, and it was too large to keep or was a stream. A retry learns that the work was done,
    /// and what it cannot have again.
    Omitted,
}

impl Body {
    /// The bytes, unless they were omitted.
    #[must_use]
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Omitted => None,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Omitted => f.write_str("Omitted"),
        }
    }
}
