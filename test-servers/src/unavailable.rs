use std::fmt;

/// Why there is no server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// Its program is not on this machine.
    Missing {
        /// What was looked for.
        what: String,
        /// How to get it.
        install: String,
    },
    /// Its program is here and would not start.
    Failed {
        /// What was to be started.
        what: String,
        /// What it said.
        why: String,
    },
}

impl Unavailable {
    pub(crate) fn failed(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Unavailable::Failed {
            what: what.into(),
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Missing { what, install } => write!(f, "{what} was not found: {install}"),
            Unavailable::Failed { what, why } => write!(f, "{what} could not be started: {why}"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// The server, or `None` where it is not installed and need not be.
///
/// A test goes on with what this returns and ends at `None`, which a loud line on stderr explains.
///
/// # Panics
///
/// When the server is missing and `CI` is `true`, for there a test that cannot run has failed; and anywhere when the
/// server is installed and did not start.
#[track_caller]
pub fn unless_missing<T>(started: Result<T, Unavailable>) -> Option<T> {
    let must = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    unless(must, started)
}

#[expect(clippy::panic, reason = "it is called by tests, to fail them")]
#[track_caller]
fn unless<T>(must: bool, started: Result<T, Unavailable>) -> Option<T> {
    match started {
        Ok(server) => Some(server),
        Err(missing @ Unavailable::Missing { .. }) if must => {
            panic!("{missing} (a failure, because CI=true)")
        }
        Err(missing @ Unavailable::Missing { .. }) => {
            eprintln!("SKIPPED: {missing}");
            None
        }
        Err(failed) => panic!("{failed}"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn missing() -> Result<u8, Unavailable> {
        let (what, install) = ("it".to_owned(), "get it".to_owned());
        Err(Unavailable::Missing { what, install })
    }

    #[test]
    fn what_is_missing_is_skipped_or_fails() {
        assert_eq!(unless(false, missing()), None);
        let panic = catch_unwind(|| unless(true, missing())).unwrap_err();
        assert_eq!(
            panic.downcast_ref::<String>().unwrap(),
            "it was not found: get it (a failure, because CI=true)"
        );
    }

    #[test]
    fn what_does_not_start_fails() {
        for must in [false, true] {
            assert_eq!(unless(must, Ok(1)), Some(1));
            let failed = || unless(must, Err::<u8, _>(Unavailable::failed("it", "no disk")));
            let panic = catch_unwind(failed).unwrap_err();
            let said = panic.downcast_ref::<String>().unwrap();
            assert_eq!(said, "it could not be started: no disk");
        }
    }
}
