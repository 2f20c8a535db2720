use std::fmt;
use std::pin::Pin;

use crate::bench::Bench;
use crate::clause::Clause;
use crate::failure::CaseResult;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    pub(crate) name: &'static str,
    pub(crate) clauses: &'static [Clause],
    pub(crate) about: &'static str,
    pub(crate) run: for<'a> fn(&'a mut Bench) -> Running<'a>,
}

pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

impl Case {
    /// Every case, in the order in which they are run.
    #[must_use]
    pub fn all() -> &'static [Self] {
        crate::registry::CASES
    }

    /// The case of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|case| case.name == name)
    }

    /// Its name, which is also the name of its test.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The clauses that it is about.
    #[must_use]
    pub fn clauses(&self) -> &'static [Clause] {
        self.clauses
    }

    /// What must hold.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("clauses", &self.clauses)
            .finish_non_exhaustive()
    }
}
