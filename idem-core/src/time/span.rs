use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// A length of time that is safe to add to any [`Timestamp`](super::Timestamp): at most [`Span::MAX`], in
/// whole microseconds.
///
/// Zero means *at once*, never *for ever*: a lease of zero is over when it is written, and a retention of
/// zero makes the key a new request as soon as the work is done.
///
/// ```
/// use std::time::Duration;
/// use idem_core::Span;
///
/// let lease = Span::new(Duration::from_secs(90))?;
/// assert_eq!(lease.as_duration(), Duration::from_secs(90));
/// assert!(Span::new(Duration::MAX).is_err());
/// # Ok::<(), idem_core::SpanTooLong>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// A hundred years of 365 days.
    pub const MAX: Self = Self(100 * 365 * 24 * 60 * 60 * 1_000_000);

    /// Takes a duration, rounded up to whole microseconds.
    ///
    /// # Errors
    ///
    /// [`SpanTooLong`] when it is longer than [`Span::MAX`].
    pub fn new(duration: Duration) -> Result<Self, SpanTooLong> {
        let micros = duration.as_nanos().div_ceil(1_000);
        match u64::try_from(micros) {
            Ok(micros) if micros <= Self::MAX.0 => Ok(Self(micros)),
            _ => Err(SpanTooLong { duration }),
        }
    }

    /// So many seconds. For constants: more than [`Span::MAX`] becomes it.
    #[must_use]
    pub const fn from_secs(seconds: u32) -> Self {
        Self::from_micros_clamped(seconds as u64 * 1_000_000)
    }

    /// So many milliseconds. For constants: more than [`Span::MAX`] becomes it.
    #[must_use]
    pub const fn from_millis(millis: u32) -> Self {
        Self::from_micros_clamped(millis as u64 * 1_000)
    }

    /// So many microseconds.
    ///
    /// # Errors
    ///
    /// [`SpanTooLong`] when that is longer than [`Span::MAX`].
    pub fn from_micros(micros: u64) -> Result<Self, SpanTooLong> {
        Self::new(Duration::from_micros(micros))
    }

    pub(crate) const fn from_micros_clamped(micros: u64) -> Self {
        if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// The length in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The length as a [`Duration`].
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Whether this is no time at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Both together, or [`Span::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self::from_micros_clamped(self.0.saturating_add(other.0))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:?})", self.as_duration())
    }
}

impl TryFrom<Duration> for Span {
    type Error = SpanTooLong;

    fn try_from(duration: Duration) -> Result<Self, SpanTooLong> {
        Self::new(duration)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.as_duration()
    }
}

/// A duration that is longer than [`Span::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{duration:?} is longer than a hundred years; choose a shorter duration")]
pub struct SpanTooLong {
    /// The duration that was given.
    pub duration: Duration,
}
