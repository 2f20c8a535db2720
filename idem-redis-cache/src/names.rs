use std::fmt::Write as _;

use idem_core::{Fingerprint, Operation, RecordId};
use sha2::{Digest as _, Sha256};

use crate::Namespace;
use crate::entry::Entry;

/// Makes the keys under which Redis holds what is remembered.
#[derive(Debug)]
pub(crate) struct Names {
    /// Everything before the hash.
    stem: String,
    namespace: Namespace,
}

/// What one record is called in Redis.
///
/// The key is `prefix namespace : hash`. The hash is of the namespace and of both parts of the id with their lengths, so
/// no two ids share one and nobody reads a tenant's name in it. It has no braces: in a cluster each key has a slot of
/// its own choosing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) digest: Digest,
    pub(crate) key: String,
}

pub(crate) type Digest = [u8; 32];

impl Names {
    pub(crate) fn new(prefix: &str, namespace: Namespace) -> Self {
        Self {
            stem: format!("{prefix}{namespace}:"),
            namespace,
        }
    }

    pub(crate) fn of(&self, id: &RecordId) -> Name {
        let mut hash = Sha256::new_with_prefix(b"idem/redis-cache/key/1");
        let namespace = self.namespace.as_str();
        hash.update((namespace.len() as u64).to_be_bytes());
        hash.update(namespace);
        hash.update(id.digest());
        let digest: Digest = hash.finalize().into();
        let mut key = String::with_capacity(self.stem.len() + 2 * digest.len());
        key.push_str(&self.stem);
        for byte in digest {
            // Writing to a string does not fail.
            let _ = write!(key, "{byte:02x}");
        }
        Name { digest, key }
    }

    /// The key of the entry that a probe writes and removes. No hash looks like it.
    pub(crate) fn probe(&self) -> String {
        format!("{}probe", self.stem)
    }
}

impl Name {
    /// What an entry of this record ends with: a hash of its other bytes, of the record, and of the request that is in
    /// progress. Only the same request can make it.
    ///
    /// So an entry that was copied to another key, or has a wrong byte anywhere, or reached the wrong caller, says
    /// nothing, and neither does one of another request.
    pub(crate) fn seal(
        &self,
        head: &[u8; Entry::HEAD_BYTES],
        operation: &Operation,
        fingerprint: &Fingerprint,
    ) -> Digest {
        let mut hash = Sha256::new_with_prefix(b"idem/redis-cache/seal/1");
        hash.update(self.digest);
        hash.update(head);
        hash.update(fingerprint.scheme().encoding().to_be_bytes());
        hash.update(fingerprint.scheme().profile().number().to_be_bytes());
        hash.update(fingerprint.digest());
        // The last part, and the only one without a fixed length.
        hash.update(operation.as_str());
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use idem_core::{IdempotencyKey, Profile, Scheme, Scope};

    use super::*;

    fn id(scope: &str, key: &str) -> RecordId {
        RecordId::new(
            Scope::new(scope).unwrap(),
            IdempotencyKey::new(key).unwrap(),
        )
    }

    fn names(prefix: &str, namespace: &str) -> Names {
        Names::new(prefix, Namespace::new(namespace).unwrap())
    }

    #[test]
    fn no_two_ids_share_a_key_and_none_can_be_read_in_it() {
        let names = names("idem:", "charges");
        let ids = [
            id("a:b", "c"),
            id("a", "b:c"),
            id("A", "b:c"),
            id("a", "B:c"),
            id("ab", ":c"),
        ];
        let keys: std::collections::BTreeSet<_> = ids.iter().map(|id| names.of(id).key).collect();
        assert_eq!(keys.len(), ids.len());
        let key = names.of(&id("acme-corp", "order-9912")).key;
        assert!(key.starts_with("idem:charges:"), "{key}");
        assert!(!key.contains("acme") && !key.contains("9912"), "{key}");
        assert!(!key.contains(['{', '}']), "{key}");
        assert_eq!(key.len(), "idem:charges:".len() + 64);
    }

    #[test]
    fn namespaces_and_prefixes_have_nothing_in_common() {
        let id = id("acct_1", "k-1");
        let keys = [
            names("idem:", "a").of(&id).key,
            names("idem:", "b").of(&id).key,
            names("", "a").of(&id).key,
            // Prefix and namespace read as one text here, and still differ in the hash.
            names("x", "y").of(&id).key,
            names("", "xy").of(&id).key,
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn a_seal_is_of_one_entry_record_operation_scheme_and_payload() {
        let names = names("idem:", "a");
        let fingerprint = |encoding, profile, byte| {
            Fingerprint::from_parts(Scheme::new(encoding, Profile::new(profile)), [byte; 32])
        };
        let operation = |text: &str| Operation::new(text).unwrap();
        let head = [7; Entry::HEAD_BYTES];
        let one = names.of(&id("acct_1", "k-1"));
        let seals = [
            one.seal(&head, &operation("POST /x"), &fingerprint(1, 1, 1)),
            one.seal(&head, &operation("POST /y"), &fingerprint(1, 1, 1)),
            one.seal(&head, &operation("POST /x"), &fingerprint(2, 1, 1)),
            one.seal(&head, &operation("POST /x"), &fingerprint(1, 2, 1)),
            one.seal(&head, &operation("POST /x"), &fingerprint(1, 1, 2)),
            one.seal(
                &[8; Entry::HEAD_BYTES],
                &operation("POST /x"),
                &fingerprint(1, 1, 1),
            ),
            names.of(&id("acct_1", "k-2")).seal(
                &head,
                &operation("POST /x"),
                &fingerprint(1, 1, 1),
            ),
        ];
        let different: std::collections::BTreeSet<_> = seals.iter().collect();
        assert_eq!(different.len(), seals.len());
    }
}
