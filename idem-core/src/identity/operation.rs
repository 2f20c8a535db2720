use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// What a key was used for, such as `POST /v1/charges`.
///
/// The same key on another operation is a client's mistake, and is refused however equal the payloads are. An
/// operation is the route, not the request: parameters that vary belong in the
/// [`Fingerprint`](crate::Fingerprint).
///
/// It is 1 to [`Operation::MAX_BYTES`] bytes of UTF-8 without NUL, compared byte for byte.
///
/// ```
/// use idem_core::Operation;
///
/// let operation = Operation::new("POST /v1/charges")?;
/// assert_eq!(operation.as_str(), "POST /v1/charges");
/// # Ok::<(), idem_core::InvalidOperation>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation(Arc<str>);

impl Operation {
    /// The longest operation, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Takes an operation as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidOperation`] when it is empty, longer than [`Operation::MAX_BYTES`], or holds a NUL.
    pub fn new(operation: impl AsRef<str>) -> Result<Self, InvalidOperation> {
        let operation = operation.as_ref();
        if operation.is_empty() {
            return Err(InvalidOperation::Empty);
        }
        if operation.len() > Self::MAX_BYTES {
            return Err(InvalidOperation::TooLong {
                bytes: operation.len(),
            });
        }
        if operation.as_bytes().contains(&0) {
            return Err(InvalidOperation::Nul);
        }
        Ok(Self(operation.into()))
    }

    /// The operation's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({:?})", &*self.0)
    }
}

/// Why a text is not an [`Operation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// It is empty.
    #[error("an operation must not be empty")]
    Empty,
    /// It is longer than [`Operation::MAX_BYTES`].
    #[error(
        "an operation has at most {} bytes, this one has {bytes}",
        Operation::MAX_BYTES
    )]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It holds a NUL.
    #[error("an operation must not contain NUL")]
    Nul,
}
