use std::fmt;

use crate::hex::Hex;

/// Who may write a record: 128 random bits, minted for every attempt.
///
/// Whoever holds the token that is in the row is the owner. Time is never a token: a lease that is over makes
/// an owner replaceable, and only being replaced ends the ownership.
///
/// The bits come from outside, because the core has no source of randomness. They must be unpredictable and
/// never used twice.
///
/// ```
/// use idem_core::OwnerToken;
///
/// let bits = [7; 16]; // in a program: from a cryptographic generator
/// assert_eq!(OwnerToken::from_bytes(bits).as_bytes(), &bits);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
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

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken({})", Hex(&self.0[..4]))
    }
}
