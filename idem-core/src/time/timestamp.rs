use std::fmt;
use std::ops::{Add, Sub};

use super::Span;

/// An instant on a store's clock: microseconds since 1970-01-01 00:00 UTC.
///
/// Microseconds, because that is what Postgres keeps and SQLite's integers hold. Arithmetic saturates: with
/// [`Span`]s bounded as they are, that happens only to a stored value that was nonsense already.
///
/// ```
/// use std::time::Duration;
/// use idem_core::{Span, Timestamp};
///
/// let claimed = Timestamp::from_micros(1_700_000_000_000_000);
/// let lease = Span::new(Duration::from_secs(90))?;
/// assert_eq!((claimed + lease).since(claimed), lease);
/// # Ok::<(), idem_core::SpanTooLong>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that is so many microseconds after the start of 1970, in UTC.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the start of 1970, in UTC.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        let micros = self.0.saturating_sub(earlier.0);
        Span::from_micros_clamped(u64::try_from(micros).unwrap_or(0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add_unsigned(span.as_micros()))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub_unsigned(span.as_micros()))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}us)", self.0)
    }
}
