use std::time::Duration;

use thiserror::Error;

/// How long after the first attempt an operation may still be sent: no longer than the server keeps its keys.
///
/// Past that the server may take the key for a new one, and would do the work a second time. There is no default,
/// since only the server's documentation says how long that is.
///
/// ```
/// use std::time::Duration;
/// use idem_client::Horizon;
///
/// let horizon = Horizon::within(Duration::from_secs(20 * 3600), Duration::from_secs(24 * 3600))?;
/// assert!(!horizon.is_past(Duration::from_secs(19 * 3600)));
/// assert!(horizon.is_past(Duration::from_secs(20 * 3600)));
/// # Ok::<(), idem_client::InvalidHorizon>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon(Duration);

impl Horizon {
    /// A horizon beside the retention of the server that it is for.
    ///
    /// # Errors
    ///
    /// [`InvalidHorizon`] when the server would have forgotten the key before.
    pub fn within(horizon: Duration, retention: Duration) -> Result<Self, InvalidHorizon> {
        if horizon > retention {
            return Err(InvalidHorizon { horizon, retention });
        }
        Ok(Self(horizon))
    }

    /// One that a journal has kept, and that was within the retention when it was written.
    #[cfg(feature = "journal")]
    pub(crate) fn of_row(horizon: Duration) -> Self {
        Self(horizon)
    }

    /// Whether an operation whose first attempt began so long ago must not be sent any more.
    ///
    /// Ages are of a clock that may have been set back or forward; where it was set back, take the longest
    /// time that can have passed.
    #[must_use]
    pub fn is_past(self, age: Duration) -> bool {
        age >= self.0
    }

    /// How long it is.
    #[must_use]
    pub fn as_duration(self) -> Duration {
        self.0
    }
}

/// A horizon that the server's memory does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the server forgets a key after {retention:?}, so a request must not be sent again after {horizon:?}: choose a shorter horizon"
)]
pub struct InvalidHorizon {
    /// What was asked for.
    pub horizon: Duration,
    /// How long the server keeps its keys.
    pub retention: Duration,
}
