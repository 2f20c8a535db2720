//! That an operation is on the disk before it is sent, and an answer before anybody is told of it, as the kernel sees it: `strace`
//! is asked what was written and synced before each step.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod support;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use idem_client::{Journal, Step};
use support::{Server, answer, builder, built, cut, directory, policy};

const PLACE: &str = "IDEM_CLIENT_TEST_SYNC";
const MARK: &str = "say: ";

#[tokio::test]
async fn every_step_follows_the_sync_of_what_was_written() {
    const NAME: &str = "every_step_follows_the_sync_of_what_was_written";
    if let Some(place) = std::env::var_os(PLACE) {
        return send(place).await;
    }
    let has_strace = Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_strace {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "strace is not installed, and without it nobody knows whether writes are synced"
        );
        eprintln!("SKIPPED: strace is not installed, so it is not known whether writes are synced");
        return;
    }
    let directory = directory();
    let log = directory.path().join("strace.log");
    // Whose own directory is written to by nobody else.
    let place = directory.path().join("journal");
    std::fs::create_dir(&place).unwrap();
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-s", "60", "-o"])
        .arg(&log)
        .args(["-e", "trace=fdatasync,fsync,write,pwrite64,unlink"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(PLACE, &place);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let log = std::fs::read_to_string(log).unwrap();
    let (mut unsynced, mut written, mut steps) = (Vec::new(), 0, Vec::new());
    for event in events(&log) {
        match event {
            Event::Changed(what) => {
                written += 1;
                unsynced.push(what);
            }
            Event::Synced(what) => unsynced.retain(|changed| *changed != what),
            Event::Step(step) => {
                assert!(unsynced.is_empty(), "{step}: not synced: {unsynced:?}");
                assert!(written > 0, "{step}: nothing was written, or not seen");
                written = 0;
                steps.push(step);
            }
        }
    }
    assert_eq!(
        steps,
        ["journaled 1", "journaled 2", "recorded", "acknowledged"]
    );
}

/// One operation of two attempts, which says what it has come to.
async fn send(place: std::ffi::OsString) {
    let journal = Journal::open(std::path::Path::new(&place).join("sent.db"))
        .await
        .unwrap();
    let server = Server::start(vec![cut(0), answer(201, &[], "ch_1")]).await;
    let client = built(builder(&journal, policy()).observe(|_, step| match step {
        Step::Journaled { attempt } => say(&format!("journaled {attempt}")),
        Step::Recorded => say("recorded"),
        Step::Acknowledged => say("acknowledged"),
        _ => {}
    }));
    let finished = client.send(&server.operation()).await.unwrap();
    finished.acknowledge().await.unwrap();
}

/// In one write, which is one line of the log.
fn say(step: &str) {
    let line = format!("{MARK}{step}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Database,
    /// Which files there are: the removal of the rollback journal is the commit.
    Directory,
}

#[derive(Debug)]
enum Event {
    Changed(What),
    Synced(What),
    Step(String),
}

/// A change counts from when it begins, and a sync from when it has ended.
fn events(log: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut syncing = HashMap::new();
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        if call.starts_with("pwrite64(") && call.contains("/sent.db>") {
            events.push(Event::Changed(What::Database));
        } else if call.starts_with("unlink(") && call.contains("/sent.db-journal\"") {
            events.push(Event::Changed(What::Directory));
        } else if call.starts_with("fdatasync(") || call.starts_with("fsync(") {
            let synced = if call.contains("/sent.db>") {
                What::Database
            } else if call.contains("/journal>") {
                What::Directory
            } else {
                continue;
            };
            if call.ends_with("= 0") {
                events.push(Event::Synced(synced));
            } else {
                syncing.insert(thread, synced);
            }
        } else if call.starts_with("<... f") && call.ends_with("= 0") {
            events.extend(syncing.remove(thread).map(Event::Synced));
        } else if call.starts_with("write(1")
            && let Some((_, said)) = call.split_once(MARK)
            && let Some((said, _)) = said.split_once("\\n")
        {
            events.push(Event::Step(said.to_owned()));
        }
    }
    events
}
