use std::time::{SystemTime, UNIX_EPOCH};

use super::{Clock, Span, Timestamp};

/// The host's wall clock.
///
/// ```
/// use idem_core::{Clock, SystemClock, Timestamp};
///
/// assert!(SystemClock.now() > Timestamp::from_micros(1_600_000_000_000_000));
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_micros());
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// Tokio's clock: real in a program, virtual in a test with `start_paused = true`, where leases run out without
/// anybody sleeping.
#[derive(Debug, Clone)]
pub struct TokioClock {
    origin: tokio::time::Instant,
    started: Timestamp,
}

impl TokioClock {
    /// A clock that shows `started` now, and from here on follows the runtime.
    ///
    /// Make it inside the runtime whose time it is to follow.
    #[must_use]
    pub fn starting_at(started: Timestamp) -> Self {
        Self {
            origin: tokio::time::Instant::now(),
            started,
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let micros = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.started + Span::from_micros_clamped(micros)
    }
}
