//! What is measured but is not so many operations a second beside another's: sizes, single times, ratios of quantiles.

use serde::Serialize;

use crate::contest::{Fault, Pace};
use crate::measure::median;

/// Some figures that are taken together.
pub(crate) struct Survey {
    /// `group/case`, as `--only` takes it.
    pub(crate) name: &'static str,
    /// What is looked at.
    pub(crate) what: &'static str,
    pub(crate) duration: Duration,
    /// Takes the figures, so many times each.
    pub(crate) run: Box<dyn FnMut(u32, Pace) -> Result<Vec<Figure>, Fault>>,
}

/// Whether a survey is made when nobody asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duration {
    /// Seconds.
    Short,
    /// Minutes, and gigabytes: only with `--long`.
    Long,
}

/// One figure: every time it was taken, and their median.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) values: Vec<f64>,
    /// Above this it is a failure.
    pub(crate) at_most: Option<f64>,
}

/// What came out of one survey.
#[derive(Debug, Serialize)]
pub(crate) struct Findings {
    pub(crate) survey: &'static str,
    pub(crate) what: &'static str,
    pub(crate) figures: Vec<Figure>,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, values: Vec<f64>) -> Self {
        Self {
            name: name.into(),
            unit,
            median: median(values.clone()),
            values,
            at_most: None,
        }
    }

    pub(crate) fn at_most(mut self, limit: f64) -> Self {
        self.at_most = Some(limit);
        self
    }

    /// Whether the goal was reached, if there is one.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        self.at_most.map(|limit| self.median <= limit)
    }
}
