//! A loss of power: what was acknowledged is there again, of all that was written only what was synced.
//!
//! `strace` writes down what a process writes and syncs. The process itself runs the conformance suite's case about
//! crashes, and for each crash reads there what a disk would hold that keeps nothing but what it was told to.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;
mod support;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use harness::{File, LOG, Left, NAME, by_hand};
use idem_sqlite::SqliteOptions;
use idem_testkit::{CaseVerdict, Suite};

const TEST: &str = "what_was_acknowledged_survives_a_loss_of_power";
const CASE: &str = "durable_after_a_crash";

#[test]
fn what_was_acknowledged_survives_a_loss_of_power() {
    match std::env::var(support::ROLE).as_deref() {
        Ok("durable") => return say(run(SqliteOptions::new)),
        Ok("forgetful") => return say(run(|| SqliteOptions::new().without_durability())),
        _ => {}
    }
    let has_strace = Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_strace {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "strace is not installed, and without it nobody knows what a loss of power leaves"
        );
        eprintln!(
            "SKIPPED: strace is not installed, so it is not known what a loss of power leaves"
        );
        return;
    }
    let durable = traced("durable");
    assert!(durable.starts_with("Passed"), "{durable}");
    // And a store that does not sync is found out, or this test would say nothing.
    let forgetful = traced("forgetful");
    assert!(forgetful.contains("after a crash after a"), "{forgetful}");
}

/// What a child in this role says, that is watched by `strace`.
fn traced(role: &str) -> String {
    let directory = support::directory();
    let log = directory.path().join("strace.log");
    let mut command = Command::new("strace");
    command
        // Every byte of every write.
        .args(["-f", "-y", "-xx", "-s", "100000000"])
        .args([
            "-e",
            "trace=write,pwrite64,ftruncate,fsync,fdatasync,unlink",
        ])
        .arg("-o")
        .arg(&log)
        .arg(std::env::current_exe().unwrap());
    support::as_child(&mut command, TEST, role, &[log.to_str().unwrap()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let said = said.split_once(MARK).unwrap().1;
    said.split_once(END).unwrap().0.to_owned()
}

const MARK: &str = "\nsay: ";
const END: &str = "\nend";

fn say(verdict: CaseVerdict) {
    println!("{MARK}{verdict:?}{END}");
}

fn run(options: fn() -> SqliteOptions) -> CaseVerdict {
    let harness = File {
        clock: by_hand,
        options,
        left: left_by_a_loss_of_power,
    };
    let report = Suite::new().only(CASE).run(harness);
    report.cases.into_iter().next().unwrap().verdict
}

/// What was synced of the files in this directory by now.
fn left_by_a_loss_of_power(directory: &Path) -> Left {
    let log = now_in_the_log(directory);
    let mut files: HashMap<PathBuf, Synced> = HashMap::new();
    let mut begun: HashMap<&str, Call> = HashMap::new();
    for line in log.lines() {
        let Some((thread, line)) = line.split_once(' ') else {
            continue;
        };
        let (call, result) = match line.trim_start() {
            resumed if resumed.starts_with("<...") => (begun.remove(thread), resumed),
            whole => (Call::parse(whole), whole),
        };
        let Some(call) = call else {
            continue;
        };
        if line.contains("<unfinished ...>") {
            if let Call::Sync(path) = &call {
                files.entry(path.clone()).or_default().begin();
            }
            begun.insert(thread, call);
            continue;
        }
        if result.contains("= -1") {
            continue;
        }
        match call {
            Call::Write { path, at, bytes } => {
                let file = files.entry(path).or_default();
                file.write(at.unwrap_or(file.seen.len()), &bytes);
            }
            Call::Truncate { path, to } => files.entry(path).or_default().seen.truncate(to),
            Call::Sync(path) => files.entry(path).or_default().end(),
            Call::Unlink(path) => drop(files.remove(&path)),
        }
    }
    [NAME, LOG]
        .into_iter()
        .filter_map(|name| Some((name, files.remove(&directory.join(name))?.on_disk)))
        .collect()
}

/// One file: what everybody sees, and what the disk has of it.
#[derive(Debug, Default)]
struct Synced {
    seen: Vec<u8>,
    syncing: Option<Vec<u8>>,
    on_disk: Vec<u8>,
}

impl Synced {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[at..end].copy_from_slice(bytes);
    }

    /// A sync is about what was written before it began.
    fn begin(&mut self) {
        self.syncing = Some(self.seen.clone());
    }

    fn end(&mut self) {
        self.on_disk = self.syncing.take().unwrap_or_else(|| self.seen.clone());
    }
}

#[derive(Debug)]
enum Call {
    Write {
        path: PathBuf,
        /// At the end, if it does not say where.
        at: Option<usize>,
        bytes: Vec<u8>,
    },
    Truncate {
        path: PathBuf,
        to: usize,
    },
    Sync(PathBuf),
    Unlink(PathBuf),
}

impl Call {
    /// `pwrite64(7</a/records.db-wal>, "\x37\x7f", 2, 0) = 2`, and its like.
    fn parse(line: &str) -> Option<Self> {
        let (name, arguments) = line.split_once('(')?;
        // Bytes and paths are escaped, so neither of these is part of an argument.
        let arguments = match arguments.split_once(" <unfinished") {
            Some((arguments, _)) => arguments,
            None => arguments.split_once(')')?.0,
        };
        let mut arguments = arguments.split(", ");
        let first = arguments.next()?;
        if name == "unlink" {
            return Some(Self::Unlink(unescaped_path(first.trim_matches('"'))));
        }
        let path = unescaped_path(first.split_once('<')?.1.strip_suffix('>')?);
        match name {
            "write" | "pwrite64" => {
                let bytes = unescaped(arguments.next()?.trim_matches('"'));
                let length: usize = arguments.next()?.parse().ok()?;
                assert_eq!(bytes.len(), length, "strace left some of the bytes out");
                let at = arguments.next().map(str::parse).transpose().ok()?;
                Some(Self::Write { path, at, bytes })
            }
            "ftruncate" => {
                let to = arguments.next()?.parse().ok()?;
                Some(Self::Truncate { path, to })
            }
            "fsync" | "fdatasync" => Some(Self::Sync(path)),
            _ => None,
        }
    }
}

fn unescaped_path(text: &str) -> PathBuf {
    String::from_utf8(unescaped(text)).unwrap().into()
}

/// Bytes as `\x37\x7f`, or as they are.
fn unescaped(text: &str) -> Vec<u8> {
    if !text.starts_with("\\x") {
        return text.as_bytes().to_vec();
    }
    text.split("\\x")
        .skip(1)
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// What `strace` has written up to now: up to a write that is made for no other purpose.
fn now_in_the_log(directory: &Path) -> String {
    use std::os::unix::fs::FileExt as _;

    static MARKS: AtomicU32 = AtomicU32::new(0);
    let mark = format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(directory.join(&mark))
        .unwrap();
    file.write_all_at(b"now", 0).unwrap();
    let escaped: String = mark.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
    loop {
        let log = std::fs::read_to_string(support::first_argument()).unwrap();
        for mark in [&mark, &escaped] {
            if let Some(at) = log.find(&format!("{mark}>")) {
                return log[..at].rsplit_once('\n').unwrap().0.to_owned();
            }
        }
        std::thread::yield_now();
    }
}
