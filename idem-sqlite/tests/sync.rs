//! That an acknowledged write is on the disk, as the kernel sees it: `strace` is asked what was written and synced
//! before each acknowledgement.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use idem_core::{ClaimOutcome, Expect, KeyStore as _, Response, Transition, TransitionOutcome};
use idem_sqlite::SqliteKeyStore;
use support::claim;

const NAME: &str = "every_acknowledgement_follows_its_sync";

#[test]
fn every_acknowledgement_follows_its_sync() {
    if std::env::var_os(support::ROLE).is_some() {
        return support::runtime().block_on(writer());
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
    let directory = support::directory();
    let path = directory.path().join("keys.sqlite");
    let log = directory.path().join("strace.log");
    let mut command = Command::new("strace");
    command
        .args([
            "-f",
            "-y",
            "-s",
            "40",
            "-e",
            "trace=fdatasync,fsync,write,pwrite64",
        ])
        .arg("-o")
        .arg(&log)
        .arg(std::env::current_exe().unwrap());
    support::as_child(&mut command, NAME, "writer", &[path.to_str().unwrap()]);
    assert!(command.output().unwrap().status.success());

    let calls = Call::parse_all(&std::fs::read_to_string(log).unwrap());
    let mut unsynced = 0_u32;
    let mut written = 0_u32;
    let mut rounds = 0_u32;
    let mut quiet_since = None;
    for (index, call) in calls.iter().enumerate() {
        match call {
            Call::WriteLog => {
                unsynced += 1;
                written += 1;
            }
            Call::SyncLog => unsynced = 0,
            Call::SyncOther => {}
            Call::Say(line) if line.starts_with("ack") => {
                assert_eq!(unsynced, 0, "{line}: acknowledged before it was synced");
            }
            Call::Say(line) if line.starts_with("round") => {
                assert!(
                    written > 0,
                    "{line}: nothing was written, so the log was not seen"
                );
                written = 0;
                rounds += 1;
            }
            Call::Say(line) if line.starts_with("quiet") => quiet_since = Some(index + 1),
            Call::Say(line) => {
                assert_eq!(line.trim_end(), "loud");
                // Replays, refusals and writes that found nothing to write.
                let since = quiet_since.expect("quiet comes before loud");
                assert_eq!(calls[since..index], []);
            }
        }
    }
    assert_eq!(rounds, 2 * ROUNDS);
    assert!(quiet_since.is_some());
}

const ROUNDS: u32 = 20;

/// Writes in rounds of one, and in rounds of eight that are committed together. Between two rounds nothing is under
/// way, so whatever is in the log at an acknowledgement belongs to it or to one before.
async fn writer() {
    let store = SqliteKeyStore::open(support::first_argument())
        .await
        .unwrap();
    let write = async |key: String, number| {
        let claim = claim(key, number);
        let won = store.claim(&claim).await.unwrap();
        assert!(matches!(won, ClaimOutcome::Won(_)));
    };
    for round in 0..ROUNDS {
        write(format!("one-{round}"), 1).await;
        say(format_args!("ack {round}"));
        say(format_args!("round {round}"));
        let key = |number| format!("eight-{round}-{number}");
        tokio::join!(
            write(key(0), 0),
            write(key(1), 1),
            write(key(2), 2),
            write(key(3), 3),
            write(key(4), 4),
            write(key(5), 5),
            write(key(6), 6),
            write(key(7), 7),
        );
        for number in 0..8 {
            say(format_args!("ack {round}-{number}"));
        }
        say(format_args!("round {round}"));
    }
    say("quiet");
    for round in 0..ROUNDS {
        let again = claim(format!("one-{round}"), 2);
        let held = store.claim(&again).await.unwrap();
        assert!(matches!(held, ClaimOutcome::Held(_)));
        let complete = Transition::Complete(Response::new(200));
        let owner = Expect::Owner(again.token());
        let lost = store
            .transition(again.id(), owner, &complete)
            .await
            .unwrap();
        assert!(matches!(lost, TransitionOutcome::Lost(Some(_))));
        let swept = store.sweep(std::num::NonZeroU32::MAX).await.unwrap();
        assert_eq!(swept.removed, 0);
    }
    say("loud");
}

const MARK: &str = "say: ";

/// In one write, which is one line of the log.
fn say(line: impl std::fmt::Display) {
    let line = format!("{MARK}{line}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// What the log of `strace` says, in order.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    WriteLog,
    SyncLog,
    SyncOther,
    Say(String),
}

impl Call {
    /// A write counts from when it begins, and a sync from when it has ended.
    fn parse_all(log: &str) -> Vec<Self> {
        let mut calls = Vec::new();
        let mut syncing = HashMap::<&str, bool>::new();
        for line in log.lines() {
            let Some((thread, call)) = line.split_once(' ') else {
                continue;
            };
            let call = call.trim_start();
            if call.starts_with("pwrite64(") && call.contains(".sqlite") {
                calls.push(Self::WriteLog);
            } else if call.starts_with("fdatasync(") || call.starts_with("fsync(") {
                let is_log = call.contains(".sqlite-wal>");
                if call.ends_with("= 0") {
                    calls.push(if is_log {
                        Self::SyncLog
                    } else {
                        Self::SyncOther
                    });
                } else {
                    syncing.insert(thread, is_log);
                }
            } else if call.starts_with("<... f") && call.ends_with("= 0") {
                let is_log = syncing.remove(thread).unwrap_or(false);
                calls.push(if is_log {
                    Self::SyncLog
                } else {
                    Self::SyncOther
                });
            } else if call.starts_with("write(1")
                && let Some((_, said)) = call.split_once(MARK)
                && let Some((said, _)) = said.split_once("\\n")
            {
                calls.push(Self::Say(said.to_owned()));
            }
        }
        calls
    }
}
