//! What is written: a table for people, and the same with every round as JSON.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::arguments::Arguments;
use crate::contest::Pace;
use crate::machine::Machine;
use crate::measure::{Compared, Figures, Outcome};
use crate::survey::Findings;

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Of this format.
    version: u32,
    machine: Machine,
    /// Seconds since 1970.
    started_at: u64,
    finished_at: u64,
    rounds: u32,
    /// Whether the rounds were too short to mean anything.
    quick: bool,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) findings: Vec<Findings>,
}

impl Report {
    pub(crate) fn new(machine: Machine, arguments: &Arguments) -> Self {
        Self {
            version: 1,
            machine,
            started_at: now(),
            finished_at: 0,
            rounds: arguments.rounds,
            quick: arguments.pace == Pace::Quick,
            outcomes: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(crate) fn finish(&mut self) {
        self.finished_at = now();
    }

    /// What the figures depend on.
    pub(crate) fn head(&self) -> String {
        let machine = &self.machine;
        let quick = if self.quick {
            "\nquick: these figures mean nothing"
        } else {
            ""
        };
        format!(
            "{} cores of {}, Linux {}, load {}\n{}, fdatasync {}\ncommit {}, {} rounds{quick}\n",
            machine.cores,
            machine.cpu,
            machine.kernel,
            machine.load,
            machine.file_system,
            time(machine.fdatasync_nanos as f64),
            machine.commit,
            self.rounds,
        )
    }

    /// How many goals there were, and which were missed.
    pub(crate) fn verdict(&self) -> String {
        let judged: Vec<(String, bool)> = self
            .outcomes
            .iter()
            .flat_map(|outcome| outcome.levels.iter().map(move |level| (outcome, level)))
            .flat_map(|(outcome, level)| {
                level.others.iter().filter_map(move |other| {
                    let beside = &other.figures.name;
                    let name = format!("{} at {} beside {beside}", outcome.contest, level.callers);
                    Some((name, other.is_reached()?))
                })
            })
            .chain(self.findings.iter().flat_map(|findings| {
                findings.figures.iter().filter_map(move |figure| {
                    let name = format!("{}: {}", findings.survey, figure.name);
                    Some((name, figure.is_reached()?))
                })
            }))
            .collect();
        let missed: Vec<&str> = judged
            .iter()
            .filter(|(_, reached)| !reached)
            .map(|(name, _)| name.as_str())
            .collect();
        if missed.is_empty() {
            format!("all of {} goals reached", judged.len())
        } else {
            format!(
                "{} of {} goals missed: {}",
                missed.len(),
                judged.len(),
                missed.join(", ")
            )
        }
    }
}

/// One contest as lines of text.
pub(crate) fn table(outcome: &Outcome) -> String {
    let mut text = format!(
        "{}: {}\n{:>7}  {:38} {:>11} {:>9} {:>9} {:>9}  ours / it (least..most)  goal\n",
        outcome.contest, outcome.operation, "callers", "", "per second", "p50", "p99", "CPU each",
    );
    for level in &outcome.levels {
        line(&mut text, &level.callers.to_string(), "ours", &level.ours);
        text.push('\n');
        for other in &level.others {
            line(&mut text, "", other.role, &other.figures);
            compared(&mut text, other);
            text.push('\n');
        }
    }
    text
}

/// One survey as lines of text.
pub(crate) fn findings(findings: &Findings) -> String {
    let mut text = format!("{}: {}\n", findings.survey, findings.what);
    for figure in &findings.figures {
        let values = || figure.values.iter().copied();
        let (least, most) = (
            values().fold(f64::INFINITY, f64::min),
            values().fold(0.0, f64::max),
        );
        let _ = write!(
            text,
            "  {:56} {:>12} {:5} ({} .. {})",
            figure.name,
            plain(figure.median),
            figure.unit,
            plain(least),
            plain(most)
        );
        if let (Some(limit), Some(reached)) = (figure.at_most, figure.is_reached()) {
            let mark = if reached { "reached" } else { "MISSED" };
            let _ = write!(text, " <= {limit} {mark}");
        }
        text.push('\n');
    }
    text
}

/// A figure of any size.
fn plain(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.2}")
    } else {
        number(value)
    }
}

/// Writing to a string cannot fail, here and below.
fn line(text: &mut String, callers: &str, role: &str, figures: &Figures) {
    let name = format!("{role}: {}", figures.name);
    let _ = write!(
        text,
        "{callers:>7}  {name:38} {:>11} {:>9} {:>9} {:>9}",
        number(figures.per_second),
        time(figures.p50_nanos),
        time(figures.p99_nanos),
        time(figures.cpu_nanos),
    );
}

fn compared(text: &mut String, other: &Compared) {
    let ratio = other.ratio;
    let ratio = format!(
        "{:.2} ({:.2}..{:.2})",
        ratio.median, ratio.least, ratio.most
    );
    let _ = write!(text, "  {ratio:22}");
    if let (Some(goal), Some(reached)) = (other.goal, other.is_reached()) {
        let mark = if reached { "reached" } else { "MISSED" };
        let _ = write!(text, " >= {goal} {mark}");
    }
}

/// With a space between thousands.
fn number(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut spaced = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            spaced.push(' ');
        }
        spaced.push(digit);
    }
    spaced
}

pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        small if small < 1e3 => format!("{small:.0} ns"),
        micros if micros < 1e6 => format!("{:.1} us", micros / 1e3),
        millis if millis < 1e9 => format!("{:.1} ms", millis / 1e6),
        seconds => format!("{:.1} s", seconds / 1e9),
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(number(7.4), "7");
        assert_eq!(number(123.0), "123");
        assert_eq!(number(1_234_567.0), "1 234 567");
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        assert_eq!(time(17.0), "17 ns");
        assert_eq!(time(1_500.0), "1.5 us");
        assert_eq!(time(2_500_000.0), "2.5 ms");
        assert_eq!(time(3e9), "3.0 s");
    }
}
