use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The name that a client gave to one logical operation, and repeats with every retry of it.
///
/// A key is 1 to [`IdempotencyKey::MAX_BYTES`] printable ASCII characters (space to `~`), compared byte for
/// byte: no trimming and no case folding. The length is Stripe's limit, and the alphabet is that of a
/// structured-field string, as in the IETF draft *The Idempotency-Key HTTP Header Field*.
///
/// `Debug` shows only the length: a key lets whoever holds it see a stored response.
///
/// ```
/// use idem_core::IdempotencyKey;
///
/// let key = IdempotencyKey::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?;
/// assert_eq!(key.as_str().len(), 36);
/// assert!(IdempotencyKey::new("smörgås").is_err());
/// # Ok::<(), idem_core::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The longest key, in bytes, which are also its characters.
    pub const MAX_BYTES: usize = 255;

    /// Takes a key as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when it is empty, longer than [`IdempotencyKey::MAX_BYTES`], or holds anything but
    /// printable ASCII.
    pub fn new(key: impl AsRef<str>) -> Result<Self, InvalidKey> {
        let key = key.as_ref();
        if key.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if key.len() > Self::MAX_BYTES {
            return Err(InvalidKey::TooLong { bytes: key.len() });
        }
        if let Some(position) = key.bytes().position(|byte| !matches!(byte, b' '..=b'~')) {
            return Err(InvalidKey::NotPrintableAscii { position });
        }
        Ok(Self(key.into()))
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

/// Why a text is not an [`IdempotencyKey`].
///
/// The text itself is not repeated here: errors reach logs, and keys must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// It is empty.
    #[error("an idempotency key must not be empty")]
    Empty,
    /// It is longer than [`IdempotencyKey::MAX_BYTES`].
    #[error(
        "an idempotency key has at most {} characters, this one has {bytes} bytes",
        IdempotencyKey::MAX_BYTES
    )]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It holds something else than printable ASCII.
    #[error("an idempotency key is printable ASCII, and byte {position} of this one is not")]
    NotPrintableAscii {
        /// The index of the first such byte.
        position: usize,
    },
}
