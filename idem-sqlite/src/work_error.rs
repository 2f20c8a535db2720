use std::error::Error;
use std::fmt;

use crate::error::{Reach, reach};

/// An error of work in a transaction.
///
/// The work may fail because another connection holds a lock, and then it is done again. For that, the error of SQLite has to
/// be found in the work's own: it is looked for along [`source`](std::error::Error::source).
///
/// ```
/// use std::error::Error;
///
/// use idem_sqlite::{WorkError, rusqlite};
///
/// #[derive(Debug)]
/// enum OrderError {
///     Database(rusqlite::Error),
///     SoldOut,
/// }
/// # impl std::fmt::Display for OrderError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
/// #         write!(f, "{self:?}")
/// #     }
/// # }
///
/// impl Error for OrderError {
///     fn source(&self) -> Option<&(dyn Error + 'static)> {
///         match self {
///             Self::Database(error) => Some(error),
///             Self::SoldOut => None,
///         }
///     }
/// }
///
/// impl WorkError for OrderError {
///     fn as_error(&self) -> &(dyn Error + 'static) {
///         self
///     }
/// }
/// ```
pub trait WorkError: fmt::Debug {
    /// This error, as one that has a source.
    fn as_error(&self) -> &(dyn Error + 'static);
}

impl WorkError for rusqlite::Error {
    fn as_error(&self) -> &(dyn Error + 'static) {
        self
    }
}

impl WorkError for std::convert::Infallible {
    fn as_error(&self) -> &(dyn Error + 'static) {
        self
    }
}

impl WorkError for Box<dyn Error + Send + Sync> {
    fn as_error(&self) -> &(dyn Error + 'static) {
        &**self
    }
}

/// Whether the work failed because a lock was held.
pub(crate) fn is_locked_out(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return reach(error) == Reach::Restart;
        }
        next = error.source();
    }
    false
}
