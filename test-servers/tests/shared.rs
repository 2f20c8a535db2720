//! All tests of a process share one server of each kind.

use std::env;
use std::process::Command;
use std::thread;

use idem_test_servers::{shared_postgres, shared_redis};

#[test]
fn everybody_has_the_same_servers() {
    let Some(postgres) = shared_postgres() else {
        return;
    };
    let Some(redis) = shared_redis() else { return };
    for (variable, url) in [
        ("IDEM_TEST_POSTGRES_URL", &postgres),
        ("IDEM_TEST_REDIS_URL", &redis),
    ] {
        assert!(
            env::var(variable).is_ok_and(|given| given == *url) || env::var_os(variable).is_none()
        );
    }
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                assert_eq!(shared_postgres().as_ref(), Some(&postgres));
                assert_eq!(shared_redis().as_ref(), Some(&redis));
            });
        }
    });
}

/// Set in the test process that is started below.
const GIVEN: &str = "IDEM_TEST_SHARED_IS_GIVEN";

#[test]
fn those_that_are_given_are_shared() {
    if env::var_os(GIVEN).is_some() {
        assert_eq!(shared_postgres().unwrap(), "postgres://mine");
        assert_eq!(shared_redis().unwrap(), "redis://mine");
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "those_that_are_given_are_shared"])
        .env(GIVEN, "")
        .env("IDEM_TEST_POSTGRES_URL", "postgres://mine")
        .env("IDEM_TEST_REDIS_URL", "redis://mine")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
