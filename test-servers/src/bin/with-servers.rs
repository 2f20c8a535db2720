//! `with-servers COMMAND [ARGUMENT...]` runs a command beside throwaway servers.
//!
//! It starts a Postgres and a Redis, tells the command where they are by `IDEM_TEST_POSTGRES_URL` and
//! `IDEM_TEST_REDIS_URL`, and ends them after it. Where a variable is set already, that server is used and none is
//! started. It returns the command's exit status.

use std::env;
use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use idem_test_servers::{Postgres, Redis, Unavailable, Version};

const POSTGRES_URL: &str = "IDEM_TEST_POSTGRES_URL";
const REDIS_URL: &str = "IDEM_TEST_REDIS_URL";

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("with-servers: {error}");
        ExitCode::from(125)
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let program = arguments.next().ok_or("give it a command to run")?;
    let mut command = Command::new(program);
    command.args(arguments);

    // Kept until the command has ended.
    let mut postgres = None;
    let mut redis = None;
    if env::var_os(POSTGRES_URL).is_none() {
        postgres = unless_missing(Postgres::start(Version::V15))?;
    }
    if env::var_os(REDIS_URL).is_none() {
        redis = unless_missing(Redis::start())?;
    }
    if let Some(postgres) = &postgres {
        command.env(POSTGRES_URL, postgres.url());
    }
    if let Some(redis) = &redis {
        command.env(REDIS_URL, redis.url());
    }

    let status = command.status()?;
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A missing server is left to the tests, which skip or fail as they must.
fn unless_missing<T>(started: Result<T, Unavailable>) -> Result<Option<T>, Unavailable> {
    match started {
        Ok(server) => Ok(Some(server)),
        Err(missing @ Unavailable::Missing { .. }) => {
            eprintln!("with-servers: {missing}");
            Ok(None)
        }
        Err(failed) => Err(failed),
    }
}
