use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::case::Case;
use crate::clause::Clause;

/// What the suite found out about one store.
///
/// `Display` prints it as a table; it serialises for machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The cases, in the order in which they were run.
    pub cases: Vec<CaseReport>,
}

/// What one case found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: &'static str,
    /// The clauses that it is about.
    pub clauses: &'static [Clause],
    /// What must hold.
    pub about: &'static str,
    /// Whether it does.
    #[serde(flatten)]
    pub verdict: CaseVerdict,
    /// How long it took, in milliseconds.
    #[serde(rename = "millis", serialize_with = "millis")]
    pub took: Duration,
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CaseVerdict {
    /// What must hold does.
    Passed,
    /// It does not.
    Failed {
        /// What happened instead.
        explanation: String,
    },
    /// The backend does not have what the case needs.
    Skipped {
        /// What that is.
        reason: String,
    },
    /// There is no database to say anything about.
    Unavailable {
        /// Why.
        reason: String,
    },
}

impl Report {
    /// Whether no case failed and there was a database. Skipped cases do not count.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        self.cases.iter().all(|case| {
            matches!(
                case.verdict,
                CaseVerdict::Passed | CaseVerdict::Skipped { .. }
            )
        })
    }

    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases
            .iter()
            .filter(|case| matches!(case.verdict, CaseVerdict::Failed { .. }))
    }

    /// The cases that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases
            .iter()
            .filter(|case| matches!(case.verdict, CaseVerdict::Skipped { .. }))
    }

    /// The report as JSON.
    ///
    /// # Errors
    ///
    /// None that is known: everything in a report can be written as JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }
}

impl CaseReport {
    pub(crate) fn new(case: &'static Case, verdict: CaseVerdict, took: Duration) -> Self {
        Self {
            name: case.name(),
            clauses: case.clauses(),
            about: case.about(),
            verdict,
            took,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.cases.iter().map(|case| case.name.len()).max();
        let width = width.unwrap_or_default().max(4);
        writeln!(
            f,
            "{:<width$}  {:<12}  {:<11}  {:>8}",
            "case", "clauses", "verdict", "took"
        )?;
        for case in &self.cases {
            let clauses: Vec<_> = case.clauses.iter().map(|clause| clause.name()).collect();
            let (verdict, detail) = match &case.verdict {
                CaseVerdict::Passed => ("passed", None),
                CaseVerdict::Failed { explanation } => ("FAILED", Some(explanation)),
                CaseVerdict::Skipped { reason } => ("SKIPPED", Some(reason)),
                CaseVerdict::Unavailable { reason } => ("UNAVAILABLE", Some(reason)),
            };
            let took = format!("{} ms", case.took.as_millis());
            writeln!(
                f,
                "{:<width$}  {:<12}  {:<11}  {:>8}",
                case.name,
                clauses.join(" "),
                verdict,
                took
            )?;
            if let Some(detail) = detail {
                writeln!(f, "    {}", detail.replace('\n', "\n    "))?;
            }
        }
        let of = |wanted: fn(&CaseVerdict) -> bool| {
            self.cases
                .iter()
                .filter(|case| wanted(&case.verdict))
                .count()
        };
        write!(
            f,
            "{} cases: {} passed, {} failed, {} skipped, {} without a database",
            self.cases.len(),
            of(|verdict| matches!(verdict, CaseVerdict::Passed)),
            of(|verdict| matches!(verdict, CaseVerdict::Failed { .. })),
            of(|verdict| matches!(verdict, CaseVerdict::Skipped { .. })),
            of(|verdict| matches!(verdict, CaseVerdict::Unavailable { .. })),
        )
    }
}

fn millis<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
}
