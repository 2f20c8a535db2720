use std::sync::Arc;

use metrics::{SharedString, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::stats::Event;
use crate::{BreakerState, Namespace};

/// The counter of claims, with the labels `namespace` and `answer`.
pub const CLAIMS_TOTAL: &str = "idem_cache_claims_total";

/// The counter of entries in Redis that no idem would have written, with the label `namespace`.
pub const ODD_TOTAL: &str = "idem_cache_odd_total";

/// The counter of commands that came to nothing, with the labels `namespace` and `kind`.
pub const ERRORS_TOTAL: &str = "idem_cache_errors_total";

/// The counter of entries, with the labels `namespace` and `event`.
pub const ENTRIES_TOTAL: &str = "idem_cache_entries_total";

/// The counter of openings of the breaker, with the label `namespace`.
pub const BREAKER_OPENINGS_TOTAL: &str = "idem_cache_breaker_openings_total";

/// The gauge of where the breaker is, with the label `namespace`: 0 closed, 1 half open, 2 open.
pub const BREAKER_STATE: &str = "idem_cache_breaker_state";

/// Tells the recorder of the `metrics` facade what [`CacheStats`](crate::CacheStats) counts.
///
/// Nothing is registered in advance: a recorder that is installed after the cache was made is told as well.
#[derive(Debug)]
pub(crate) struct Meter {
    namespace: SharedString,
}

impl Meter {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        describe_counter!(CLAIMS_TOTAL, Unit::Count, "Claims, by who answered them");
        describe_counter!(
            ODD_TOTAL,
            Unit::Count,
            "Entries in Redis that could not be read"
        );
        describe_counter!(
            ERRORS_TOTAL,
            Unit::Count,
            "Commands to Redis that came to nothing"
        );
        describe_counter!(
            ENTRIES_TOTAL,
            Unit::Count,
            "Entries written to Redis, removed, or given up"
        );
        describe_counter!(
            BREAKER_OPENINGS_TOTAL,
            Unit::Count,
            "How often Redis was given up for a while"
        );
        describe_gauge!(
            BREAKER_STATE,
            Unit::Count,
            "Whether Redis is asked: 0 closed, 1 half open, 2 open"
        );
        let meter = Self {
            namespace: SharedString::from_shared(Arc::from(namespace.as_str())),
        };
        meter.breaker(BreakerState::Open);
        meter
    }

    pub(crate) fn count(&self, event: Event) {
        let (name, label) = match event {
            Event::Hit => (CLAIMS_TOTAL, Some(("answer", "hit"))),
            Event::SharedHit => (CLAIMS_TOTAL, Some(("answer", "shared_hit"))),
            Event::Miss => (CLAIMS_TOTAL, Some(("answer", "miss"))),
            Event::Unanswered => (CLAIMS_TOTAL, Some(("answer", "unanswered"))),
            Event::Bypassed => (CLAIMS_TOTAL, Some(("answer", "bypassed"))),
            Event::Odd => (ODD_TOTAL, None),
            Event::Timeout => (ERRORS_TOTAL, Some(("kind", "timeout"))),
            Event::Error => (ERRORS_TOTAL, Some(("kind", "failure"))),
            Event::Written => (ENTRIES_TOTAL, Some(("event", "written"))),
            Event::Removed => (ENTRIES_TOTAL, Some(("event", "removed"))),
            Event::Dropped => (ENTRIES_TOTAL, Some(("event", "dropped"))),
            Event::Opened => (BREAKER_OPENINGS_TOTAL, None),
        };
        let namespace = self.namespace.clone();
        match label {
            Some((key, value)) => {
                counter!(name, "namespace" => namespace, key => value).increment(1);
            }
            None => counter!(name, "namespace" => namespace).increment(1),
        }
    }

    pub(crate) fn breaker(&self, state: BreakerState) {
        let number = match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        gauge!(BREAKER_STATE, "namespace" => self.namespace.clone()).set(number);
    }
}
