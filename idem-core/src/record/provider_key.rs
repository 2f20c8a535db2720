use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::hex::Hex;

use super::Origin;

/// The key to send to a provider with one step of the work.
///
/// It is made from the record's [`Origin`] and the name of the step, so it is the same on every attempt at one
/// operation, and another one after the key was released, corrected or restarted. Whoever calls with it, and
/// however late, the provider does the step once, for as long as it remembers the key.
///
/// It is 64 characters of lower-case hex, which every provider takes.
///
/// ```
/// use idem_core::{Origin, ProviderKey};
///
/// let origin = Origin::from_bytes([7; 16]);
/// let charge = ProviderKey::derive(origin, "charge");
/// assert_eq!(charge, ProviderKey::derive(origin, "charge"));
/// assert_ne!(charge, ProviderKey::derive(origin, "receipt"));
/// assert_eq!(charge.to_string().len(), 64);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProviderKey([u8; 32]);

impl ProviderKey {
    /// The key of this step of this operation.
    #[must_use]
    pub fn derive(origin: Origin, step: &str) -> Self {
        let mut hash = Sha256::new_with_prefix(b"idem/provider/1");
        hash.update(origin.as_bytes());
        hash.update(step);
        Self(hash.finalize().into())
    }
}

impl fmt::Display for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderKey({})", Hex(&self.0[..4]))
    }
}
