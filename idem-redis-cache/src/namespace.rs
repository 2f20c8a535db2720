use std::fmt;

use thiserror::Error;

/// Which store a cache stands in front of: everything that one store's processes remember together, and nobody else.
///
/// Two stores that share a Redis need two namespaces. In one they would refuse each other's keys; never for longer
/// than an entry lives, but again and again.
///
/// It is 1 to [`Namespace::MAX_BYTES`] ASCII letters, digits, `-`, `_` and `.`, and can be read in the keys of Redis, for
/// operators and for access rules. It must not be a tenant's name; there is one for a whole store.
///
/// ```
/// use idem_redis_cache::Namespace;
///
/// let namespace = Namespace::new("charges-eu.production")?;
/// assert_eq!(namespace.as_str(), "charges-eu.production");
/// assert!(Namespace::new("").is_err());
/// # Ok::<(), idem_redis_cache::InvalidNamespace>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(String);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Takes a namespace as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidNamespace`] when it is empty, longer than [`Namespace::MAX_BYTES`], or holds anything but ASCII letters,
    /// digits, `-`, `_` and `.`.
    pub fn new(namespace: impl Into<String>) -> Result<Self, InvalidNamespace> {
        let namespace = namespace.into();
        if namespace.is_empty() {
            return Err(InvalidNamespace::Empty);
        }
        if namespace.len() > Self::MAX_BYTES {
            return Err(InvalidNamespace::TooLong {
                bytes: namespace.len(),
            });
        }
        // No colon, so that the key's parts can be told apart, and no braces, which mean something to a cluster.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !namespace.bytes().all(plain) {
            return Err(InvalidNamespace::Character);
        }
        Ok(Self(namespace))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is not a [`Namespace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidNamespace {
    /// It is empty.
    #[error("a namespace must not be empty; name the store that the cache stands in front of")]
    Empty,
    /// It is longer than [`Namespace::MAX_BYTES`].
    #[error(
        "a namespace has at most {} bytes, this one has {bytes}",
        Namespace::MAX_BYTES
    )]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It holds something else than ASCII letters, digits, `-`, `_` and `.`.
    #[error("a namespace is made of ASCII letters, digits, `-`, `_` and `.` only")]
    Character,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_plain_and_short() {
        for bad in ["a:b", "a b", "a{b}", "ä", "a\0", "a\n", "a/b", "a*"] {
            assert_eq!(
                Namespace::new(bad),
                Err(InvalidNamespace::Character),
                "{bad:?}"
            );
        }
        assert_eq!(Namespace::new(""), Err(InvalidNamespace::Empty));
        assert!(Namespace::new("a".repeat(64)).is_ok());
        assert_eq!(
            Namespace::new("a".repeat(65)),
            Err(InvalidNamespace::TooLong { bytes: 65 })
        );
    }
}
