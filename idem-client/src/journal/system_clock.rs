use std::time::{SystemTime, UNIX_EPOCH};

use idem_core::{Clock, Timestamp};

/// The host's wall clock: the only one that goes on while a process is gone.
///
/// ```
/// use idem_client::{Clock, SystemClock, Timestamp};
///
/// assert!(SystemClock.now() > Timestamp::from_micros(1_600_000_000_000_000));
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since.map_or(0, |age| age.as_micros());
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}
