//! What is measured: our code and the others, doing the same work.

use std::path::PathBuf;
use std::time::Duration;

use crate::load::Round;

/// Whatever stops a measurement. It is shown and not looked into.
pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// One measurement: our code beside others that do the same, at some levels of concurrency.
pub(crate) struct Contest {
    /// `group/case`, as `--only` takes it.
    pub(crate) name: &'static str,
    /// What one operation is.
    pub(crate) operation: &'static str,
    /// At how many concurrent callers it is measured.
    pub(crate) callers: Vec<u32>,
    /// How long one round is.
    pub(crate) length: Length,
    /// Our code.
    pub(crate) ours: Box<dyn Contestant>,
    /// What it is measured beside.
    pub(crate) others: Vec<Other>,
}

/// One implementation of a contest's operation.
pub(crate) trait Contestant {
    /// What it is, in a few words.
    fn name(&self) -> String;

    /// Does the operation as often as the plan says. What has to be there first, and what has to be cleared away
    /// afterwards, is outside of the time that the round reports.
    fn round(&mut self, plan: Plan) -> Result<Round, Fault>;
}

/// What our code is measured beside.
pub(crate) struct Other {
    pub(crate) role: Role,
    pub(crate) contestant: Box<dyn Contestant>,
    pub(crate) goals: Vec<Goal>,
}

/// Where a contest may put files.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
}

/// Why something is measured beside our code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Somebody else's way to the same end.
    Rival,
    /// The least that any way has to do. Nobody gets below it; the distance is what ours costs.
    Floor,
    /// Our own code with another setting.
    Variant,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rival => "rival",
            Self::Floor => "floor",
            Self::Variant => "variant",
        }
    }
}

/// At so many callers, our throughput should be at least so many times the other's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    pub(crate) callers: u32,
    pub(crate) ratio: f64,
}

/// How long a round is, and how long in a quick run, which only shows that everything works.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    /// By time, where a round leaves nothing behind.
    Time { full: Duration, quick: Duration },
    /// By number, where every operation leaves something behind: by time, the faster contestant would have to
    /// work on more.
    Operations { full: u64, quick: u64 },
}

/// How much a contest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Full,
    Quick,
}

/// What one round is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) callers: u32,
    pub(crate) budget: Budget,
}

/// When a round ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    Time(Duration),
    /// By all callers together.
    Operations(u64),
}

impl Length {
    /// The common length of rounds that leave nothing behind.
    pub(crate) fn default_time() -> Self {
        Self::Time {
            full: Duration::from_millis(400),
            quick: Duration::from_millis(5),
        }
    }

    pub(crate) fn budget(self, pace: Pace) -> Budget {
        match (self, pace) {
            (Self::Time { full, .. }, Pace::Full) => Budget::Time(full),
            (Self::Time { quick, .. }, Pace::Quick) => Budget::Time(quick),
            (Self::Operations { full, .. }, Pace::Full) => Budget::Operations(full),
            (Self::Operations { quick, .. }, Pace::Quick) => Budget::Operations(quick),
        }
    }
}

impl Plan {
    /// How many operations one caller makes, if the round goes by number.
    pub(crate) fn operations_per_caller(self) -> Option<u64> {
        match self.budget {
            Budget::Time(_) => None,
            Budget::Operations(all) => Some(all.div_ceil(u64::from(self.callers.max(1)))),
        }
    }
}
