use std::fmt;

use crate::hex::Hex;

/// The name of one logical operation: 128 random bits, minted when a record is first claimed or restarted.
///
/// It is kept through every takeover, so what is derived from it (a provider's key, above all) is the same for
/// every attempt. A key that is used again after it expired or was released gets a new origin, and so is
/// never mistaken for the operation before it.
///
/// The bits come from outside, because the core has no source of randomness. They must be unpredictable and
/// never used twice.
///
/// ```
/// use idem_core::Origin;
///
/// let bits = [7; 16]; // in a program: from a cryptographic generator
/// assert_eq!(Origin::from_bytes(bits).as_bytes(), &bits);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin([u8; 16]);

impl Origin {
    /// The one with these bits.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({})", Hex(&self.0[..4]))
    }
}
