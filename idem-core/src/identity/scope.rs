use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Who a key belongs to: a tenant, an account, an API credential.
///
/// Two callers with different scopes can use the same [`IdempotencyKey`](crate::IdempotencyKey) and never
/// meet. There is no default scope, because the lazy default (one scope for everybody) is how one tenant is
/// shown another's response. A single-tenant program says so by choosing a name.
///
/// A scope is 1 to [`Scope::MAX_BYTES`] bytes of UTF-8 without NUL, compared byte for byte: no case folding,
/// no trimming, no Unicode normalisation.
///
/// `Debug` prints the scope. Logs and errors use [`RecordId`](crate::RecordId)'s hash instead.
///
/// ```
/// use idem_core::Scope;
///
/// let scope = Scope::new("acct_1032D82eZvKYlo2C")?;
/// assert_eq!(scope.as_str(), "acct_1032D82eZvKYlo2C");
/// assert!(Scope::new("").is_err());
/// # Ok::<(), idem_core::InvalidScope>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

impl Scope {
    /// The longest scope, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Takes a scope as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidScope`] when it is empty, longer than [`Scope::MAX_BYTES`], or holds a NUL (which Postgres
    /// cannot store in text, so no backend accepts it).
    pub fn new(scope: impl AsRef<str>) -> Result<Self, InvalidScope> {
        let scope = scope.as_ref();
        if scope.is_empty() {
            return Err(InvalidScope::Empty);
        }
        if scope.len() > Self::MAX_BYTES {
            return Err(InvalidScope::TooLong { bytes: scope.len() });
        }
        if scope.as_bytes().contains(&0) {
            return Err(InvalidScope::Nul);
        }
        Ok(Self(scope.into()))
    }

    /// The scope's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:?})", &*self.0)
    }
}

/// Why a text is not a [`Scope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidScope {
    /// It is empty.
    #[error("a scope must not be empty: a single-tenant program names its one scope")]
    Empty,
    /// It is longer than [`Scope::MAX_BYTES`].
    #[error("a scope has at most {} bytes, this one has {bytes}", Scope::MAX_BYTES)]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It holds a NUL.
    #[error("a scope must not contain NUL")]
    Nul,
}
