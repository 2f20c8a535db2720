//! Running a contest: everybody in turn, several times.

use serde::Serialize;

use crate::contest::{Contest, Contestant, Fault, Goal, Pace, Plan, Role};
use crate::load::Round;

/// What came out of one contest.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) contest: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) levels: Vec<Level>,
}

/// What came out at one level of concurrency.
#[derive(Debug, Serialize)]
pub(crate) struct Level {
    pub(crate) callers: u32,
    pub(crate) ours: Figures,
    pub(crate) others: Vec<Compared>,
}

/// One contestant's figures: medians over the rounds, and the rounds themselves.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) per_second: f64,
    pub(crate) p50_nanos: f64,
    pub(crate) p99_nanos: f64,
    /// Of all threads of the process together, for one operation.
    pub(crate) cpu_nanos: f64,
    pub(crate) rounds: Vec<RoundFigures>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct RoundFigures {
    pub(crate) operations: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_nanos: f64,
    pub(crate) p99_nanos: f64,
    /// Of all threads of the process together, for one operation.
    pub(crate) cpu_nanos: f64,
}

/// Another contestant's figures, and ours as a multiple of its.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) role: &'static str,
    pub(crate) figures: Figures,
    pub(crate) ratio: Ratio,
    pub(crate) goal: Option<f64>,
}

/// Our throughput divided by another's, round by round: both sides of each division ran one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Compared {
    /// Whether the goal was reached, if there is one.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        self.goal.map(|goal| self.ratio.median >= goal)
    }
}

/// Runs a contest at each of its levels. `watch` is told what is about to run.
pub(crate) fn measure(
    contest: &mut Contest,
    rounds: u32,
    pace: Pace,
    mut watch: impl FnMut(&str),
) -> Result<Outcome, Fault> {
    let mut levels = Vec::new();
    for callers in contest.callers.clone() {
        watch(&format!("{} with {callers} callers", contest.name));
        let plan = Plan {
            callers,
            budget: contest.length.budget(pace),
        };
        levels.push(level(contest, rounds, plan)?);
    }
    Ok(Outcome {
        contest: contest.name,
        operation: contest.operation,
        levels,
    })
}

fn level(contest: &mut Contest, rounds: u32, plan: Plan) -> Result<Level, Fault> {
    let goals: Vec<Option<f64>> = contest
        .others
        .iter()
        .map(|other| goal_at(&other.goals, plan.callers))
        .collect();
    let roles: Vec<Role> = contest.others.iter().map(|other| other.role).collect();
    let mut field: Vec<&mut Box<dyn Contestant>> = std::iter::once(&mut contest.ours)
        .chain(contest.others.iter_mut().map(|other| &mut other.contestant))
        .collect();
    let mut taken: Vec<Vec<RoundFigures>> = field.iter().map(|_| Vec::new()).collect();

    // The first round of each warms up caches, files and branch predictors, and does not count.
    for round in 0..=rounds {
        for place in 0..field.len() {
            // Whoever is first in one round is last in the next, so a machine that gets slower favours nobody.
            let turn = if round % 2 == 0 {
                place
            } else {
                field.len() - 1 - place
            };
            let figures = RoundFigures::of(&field[turn].round(plan)?);
            if round > 0 {
                taken[turn].push(figures);
            }
        }
    }

    let mut figures = field
        .iter()
        .zip(taken)
        .map(|(contestant, rounds)| Figures::new(contestant.name(), rounds));
    let ours = figures.next().ok_or("a contest without contestants")?;
    let others = figures
        .zip(goals)
        .zip(roles)
        .map(|((figures, goal), role)| Compared {
            role: role.as_str(),
            ratio: Ratio::of(&ours.rounds, &figures.rounds),
            figures,
            goal,
        })
        .collect();
    Ok(Level {
        callers: plan.callers,
        ours,
        others,
    })
}

fn goal_at(goals: &[Goal], callers: u32) -> Option<f64> {
    goals
        .iter()
        .find(|goal| goal.callers == callers)
        .map(|goal| goal.ratio)
}

impl Figures {
    fn new(name: String, rounds: Vec<RoundFigures>) -> Self {
        let of = |pick: fn(&RoundFigures) -> f64| median(rounds.iter().map(pick).collect());
        Self {
            name,
            per_second: of(|round| round.per_second),
            p50_nanos: of(|round| round.p50_nanos),
            p99_nanos: of(|round| round.p99_nanos),
            cpu_nanos: of(|round| round.cpu_nanos),
            rounds,
        }
    }
}

impl RoundFigures {
    fn of(round: &Round) -> Self {
        Self {
            operations: round.operations,
            per_second: round.per_second(),
            p50_nanos: round.quantile(0.5).as_nanos() as f64,
            p99_nanos: round.quantile(0.99).as_nanos() as f64,
            cpu_nanos: round.cpu.as_nanos() as f64 / round.operations.max(1) as f64,
        }
    }
}

impl Ratio {
    fn of(ours: &[RoundFigures], others: &[RoundFigures]) -> Self {
        let ratios: Vec<f64> = ours
            .iter()
            .zip(others)
            .map(|(ours, other)| ours.per_second / other.per_second)
            .collect();
        Self {
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
            median: median(ratios),
        }
    }
}

/// The middle one, or the mean of the two in the middle. Zero of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(speeds: &[f64]) -> Vec<RoundFigures> {
        let round = |per_second: &f64| RoundFigures {
            operations: 1,
            per_second: *per_second,
            p50_nanos: 0.0,
            p99_nanos: 0.0,
            cpu_nanos: 0.0,
        };
        speeds.iter().map(round).collect()
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        // The machine slows down by a factor of ten in between; who is twice as fast stays so.
        let ratio = Ratio::of(&rounds(&[200.0, 20.0, 30.0]), &rounds(&[100.0, 10.0, 10.0]));
        let expected = Ratio {
            median: 2.0,
            least: 2.0,
            most: 3.0,
        };
        assert_eq!(ratio, expected);
    }

    #[test]
    fn a_goal_belongs_to_its_level() {
        let goals = [Goal {
            callers: 64,
            ratio: 10.0,
        }];
        assert_eq!(goal_at(&goals, 64), Some(10.0));
        assert_eq!(goal_at(&goals, 1), None);
    }
}
