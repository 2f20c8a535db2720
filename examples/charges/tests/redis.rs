//! The story with a Redis in front of the store: the same end, whatever becomes of the Redis.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod story;

use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use idem_test_servers::{Redis, unless_missing};
use tempfile::TempDir;

fn told_of(redis: &str) -> (Command, TempDir) {
    let directory = TempDir::new().unwrap();
    let story = story::program(directory.path(), &["--redis", redis]);
    (story, directory)
}

fn assert_it_ended_well(output: &Output) {
    story::assert_it_ended_well(output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("with Redis in front of it"), "{text}");
}

#[test]
fn the_story_ends_well_with_a_redis() {
    let Some(redis) = unless_missing(Redis::start()) else {
        return;
    };
    let (mut story, _directory) = told_of(&redis.url());
    assert_it_ended_well(&story.output().unwrap());
    // It was asked, and not only connected to.
    let commands = redis.cli(&["INFO", "commandstats"]).unwrap();
    assert!(commands.contains("cmdstat_evalsha:"), "{commands}");
}

#[test]
fn the_story_ends_well_while_the_redis_is_killed() {
    let Some(mut redis) = unless_missing(Redis::start()) else {
        return;
    };
    let (mut story, _directory) = told_of(&redis.url());
    let mut running = story.spawn().unwrap();
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
    let (mut story, _directory) = told_of("redis://127.0.0.1:1");
    assert_it_ended_well(&story.output().unwrap());
}
