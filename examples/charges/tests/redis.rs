//! The story with a Redis in front of the store: the same end, whatever becomes of the Redis.

use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use idem_test_servers::{Redis, unless_missing};

fn story(redis: &str) -> Command {
    let mut story = Command::new(env!("CARGO_BIN_EXE_charges"));
    story
        .args(["--redis", redis])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    story
}

fn assert_it_ended_well(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    assert!(text.contains("with Redis in front of it"), "{text}");
}

#[test]
fn the_story_ends_well_with_a_redis() {
    let Some(redis) = unless_missing(Redis::start()) else {
        return;
    };
    assert_it_ended_well(&story(&redis.url()).output().unwrap());
    // It was asked, and not only connected to.
    let commands = redis.cli(&["INFO", "commandstats"]).unwrap();
    assert!(commands.contains("cmdstat_evalsha:"), "{commands}");
}

#[test]
fn the_story_ends_well_while_the_redis_is_killed() {
    let Some(mut redis) = unless_missing(Redis::start()) else {
        return;
    };
    let mut running = story(&redis.url()).spawn().unwrap();
    while running.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(700));
        redis.kill().unwrap();
        sleep(Duration::from_millis(300));
        redis.restart().unwrap();
    }
    assert_it_ended_well(&running.wait_with_output().unwrap());
}

#[test]
fn the_story_ends_well_without_the_redis_that_it_was_told_of() {
    assert_it_ended_well(&story("redis://127.0.0.1:1").output().unwrap());
}
