use std::borrow::Cow;

use http::HeaderValue;
use idem_core::IdempotencyKey;
use sha2::{Digest as _, Sha256};

/// What a derived key begins to be hashed with, so that no other use of SHA-256 gives the same.
const DERIVATION: &[u8] = b"idem-client key 1";

/// The key of what the caller has a name for: the same on every host, in every release, after every crash.
///
/// The purpose says what is done, `"charge"` say, and the id to what, `"order-4711"`. The same id under another purpose is
/// another key. Both are hashed with their lengths before them, so no two pairs run together.
///
/// It is the UUID of version 8 whose bytes are the first sixteen of the SHA-256 of the following, but for the six bits that
/// say what UUID it is: `idem-client key 1`, the purpose, and the id, each after its length in bytes as eight bytes, the
/// highest first.
///
/// ```
/// use idem_client::derived_key;
///
/// let key = derived_key("charge", "order-4711");
/// assert_eq!(key.as_str(), "8191fc1c-146a-81e7-b0d1-a4d88c300581");
/// assert_ne!(key, derived_key("refund", "order-4711"));
/// ```
#[must_use]
pub fn derived_key(purpose: &str, id: &str) -> IdempotencyKey {
    let mut hash = Sha256::new();
    for part in [DERIVATION, purpose.as_bytes(), id.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid(bytes, 8)
}

/// A key of these random bytes: a UUID of version 4.
///
/// ```
/// use idem_client::key_of_random;
///
/// assert_eq!(key_of_random([0xff; 16]).as_str(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
/// ```
#[must_use]
pub fn key_of_random(bytes: [u8; 16]) -> IdempotencyKey {
    uuid(bytes, 4)
}

/// A key as the value of its header field: bare, as most services want it. One with a quote, a backslash, a comma, a semicolon
/// or a space is written as a structured-field string, since a bare one could be taken for something else.
///
/// ```
/// use idem_client::{key_header, IdempotencyKey};
///
/// assert_eq!(key_header(&IdempotencyKey::new("order-4711")?), "order-4711");
/// assert_eq!(key_header(&IdempotencyKey::new("order \"17\"")?), r#""order \"17\"""#);
/// # Ok::<(), idem_client::InvalidKey>(())
/// ```
#[must_use]
pub fn key_header(key: &IdempotencyKey) -> HeaderValue {
    let text = key.as_str();
    let text = if text.contains(['"', '\\', ',', ';', ' ']) {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        Cow::Owned(format!("\"{escaped}\""))
    } else {
        Cow::Borrowed(text)
    };
    #[expect(
        clippy::expect_used,
        reason = "a key is printable ASCII, all of which a header field may hold"
    )]
    HeaderValue::from_str(&text).expect("printable ASCII is a header value")
}

/// Stands for a key in errors and logs: the first eight bytes of its SHA-256, in hexadecimal.
///
/// ```
/// use idem_client::{key_hash, IdempotencyKey};
///
/// assert_eq!(key_hash(&IdempotencyKey::new("k")?), "8254c329a92850f6");
/// # Ok::<(), idem_client::InvalidKey>(())
/// ```
#[must_use]
pub fn key_hash(key: &IdempotencyKey) -> String {
    let hash: [u8; 32] = Sha256::digest(key.as_str()).into();
    hex(&hash[..8])
}

fn uuid(mut bytes: [u8; 16], version: u8) -> IdempotencyKey {
    bytes[6] = (bytes[6] & 0x0f) | (version << 4);
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = hex(&bytes);
    let parts = [
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..],
    ];
    #[expect(
        clippy::expect_used,
        reason = "36 characters of 0-9, a-f and hyphens are a key"
    )]
    IdempotencyKey::new(parts.join("-")).expect("a UUID is a key")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let pairs = [
            ("a", "bc"),
            ("ab", "c"),
            ("", "abc"),
            ("abc", ""),
            ("A", "bc"),
        ];
        let keys: Vec<_> = pairs.map(|(purpose, id)| derived_key(purpose, id)).into();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{:?}", pairs[index]);
            let text = key.as_str();
            assert_eq!((text.len(), &text[14..15]), (36, "8"));
            assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"));
        }
    }

    proptest! {
        #[test]
        fn every_key_has_a_header_that_is_it(text in "[ -~]{1,255}") {
            let value = key_header(&IdempotencyKey::new(&text).unwrap());
            let value = value.to_str().unwrap();
            let Some(quoted) = value.strip_prefix('"') else {
                prop_assert_eq!(value, text);
                return Ok(());
            };
            let mut read = String::new();
            let mut characters = quoted.strip_suffix('"').unwrap().chars();
            while let Some(character) = characters.next() {
                prop_assert_ne!(character, '"');
                read.push(if character == '\\' { characters.next().unwrap() } else { character });
            }
            prop_assert_eq!(read, text);
        }
    }
}
