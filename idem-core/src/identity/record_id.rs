use std::fmt;

use sha2::{Digest as _, Sha256};

use super::{IdempotencyKey, Scope};
use crate::hex::Hex;

/// The primary key of everything: a scope and a key in it.
///
/// The two stay apart wherever they are stored. Scope `a:b` with key `c` and scope `a` with key `b:c` are two
/// ids, and [`RecordId::digest`] keeps them two by hashing their lengths as well.
///
/// `Debug` and `Display` print a hash, never the scope or the key.
///
/// ```
/// use idem_core::{IdempotencyKey, RecordId, Scope};
///
/// let one = RecordId::new(Scope::new("a:b")?, IdempotencyKey::new("c")?);
/// let two = RecordId::new(Scope::new("a")?, IdempotencyKey::new("b:c")?);
/// assert_ne!(one.digest(), two.digest());
/// assert_eq!(one.to_string().len(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    scope: Scope,
    key: IdempotencyKey,
}

impl RecordId {
    /// The id of `key` in `scope`.
    #[must_use]
    pub fn new(scope: Scope, key: IdempotencyKey) -> Self {
        Self { scope, key }
    }

    /// Who the key belongs to.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// A SHA-256 that no two ids share, for places where the texts must not or cannot go: logs, cache keys,
    /// keys of a plain key-value database.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new_with_prefix(b"idem/id/1");
        for part in [self.scope.as_str(), self.key.as_str()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

impl fmt::Display for RecordId {
    /// The first eight bytes of the digest, in hex: enough to find a line again, too little to find the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.digest()[..8]).fmt(f)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}
