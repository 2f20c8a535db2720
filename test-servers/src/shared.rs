use std::env;
use std::sync::OnceLock;

use crate::{Postgres, Redis, Unavailable, Version, unless_missing};

/// The URL of the Postgres that all tests of this process share: `IDEM_TEST_POSTGRES_URL`, or that of a
/// server which is started at the first call and ends with the process.
///
/// Who uses it makes a database or a schema of its own there. `None` where no server can be had and need not be.
///
/// # Panics
///
/// As [`unless_missing`].
#[track_caller]
pub fn shared_postgres() -> Option<String> {
    static SERVER: OnceLock<Result<Postgres, Unavailable>> = OnceLock::new();
    url(
        "IDEM_TEST_POSTGRES_URL",
        &SERVER,
        any_postgres,
        Postgres::url,
    )
}

/// The URL of the Redis that all tests of this process share: `IDEM_TEST_REDIS_URL`, or that of a server which is
/// started at the first call and ends with the process.
///
/// Who uses it takes keys with a prefix of its own there. `None` where no server can be had and need not be.
///
/// # Panics
///
/// As [`unless_missing`].
#[track_caller]
pub fn shared_redis() -> Option<String> {
    static SERVER: OnceLock<Result<Redis, Unavailable>> = OnceLock::new();
    url("IDEM_TEST_REDIS_URL", &SERVER, Redis::start, Redis::url)
}

/// Fifteen where there is one.
fn any_postgres() -> Result<Postgres, Unavailable> {
    match Postgres::start(Version::V15) {
        Err(missing @ Unavailable::Missing { .. }) => {
            Postgres::start(Version::V18).map_err(|_| missing)
        }
        started => started,
    }
}

#[track_caller]
fn url<T>(
    variable: &str,
    server: &'static OnceLock<Result<T, Unavailable>>,
    start: impl FnOnce() -> Result<T, Unavailable>,
    url: impl Fn(&T) -> String,
) -> Option<String> {
    if let Ok(url) = env::var(variable) {
        return Some(url);
    }
    unless_missing(
        server
            .get_or_init(start)
            .as_ref()
            .map(url)
            .map_err(Unavailable::clone),
    )
}
