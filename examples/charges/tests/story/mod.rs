//! The program as it is run, and the account at the end of its story.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    unreachable_pub,
    reason = "these are helpers of tests, and each file of tests uses its own part of them"
)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_charges");

/// The program with its temporary files in `directory`.
pub fn program(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub fn run(arguments: &[&str]) -> (Output, TempDir) {
    let directory = TempDir::new().unwrap();
    let output = program(directory.path(), arguments).output().unwrap();
    (output, directory)
}

/// Starts the program and waits until it prints such a line.
pub fn until(directory: &Path, arguments: &[&str], printed: &str) -> (Child, Vec<String>) {
    let mut child = program(directory, arguments).spawn().unwrap();
    let mut lines = Vec::new();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in output.by_ref().map_while(Result::ok) {
        let found = line.contains(printed);
        lines.push(line);
        if found {
            // It goes on printing, and somebody must read it.
            std::thread::spawn(move || output.for_each(drop));
            return (child, lines);
        }
    }
    child.wait().unwrap();
    panic!("it never printed {printed:?}: {lines:?}");
}

pub fn signal(child: &Child, signal: &str) {
    let killed = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
}

/// The number behind this name in the account.
pub fn account(output: &Output, name: &str) -> Option<u32> {
    let text = String::from_utf8_lossy(&output.stdout);
    let rest = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The whole account is as it has to be, whatever the records were in.
pub fn assert_it_ended_well(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    for (name, number) in [
        ("operations that the clients wanted", 11),
        ("charges in the provider's ledger", 10),
        ("charged too often", 0),
        ("lost", 0),
        ("answers that differed", 0),
        ("not as the story has it", 0),
    ] {
        assert_eq!(account(output, name), Some(number), "{name}: {text}");
    }
    assert!(account(output, "requests that they sent").unwrap() > 70);
}

/// The status that a printed command gets. The shell reads the line, as it would for whoever pastes it.
pub fn curl(command: &str) -> String {
    let script = format!("{command} -s");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// The commands that `serve` has printed.
pub fn commands(lines: &[String]) -> Vec<String> {
    let text = lines.join("\n").replace("\\\n", " ");
    let commands = text.lines().filter(|line| line.starts_with("curl "));
    commands.map(str::to_owned).collect()
}

pub fn assert_nothing_is_left(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_no_process(directory);
}

/// The servers have files of the directory on their command lines.
pub fn assert_no_process(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(line) = process_with(directory) {
        assert!(Instant::now() < deadline, "still running: {line}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn process_with(directory: &Path) -> Option<String> {
    let directory = directory.to_str().unwrap();
    std::fs::read_dir("/proc").unwrap().find_map(|process| {
        let line = std::fs::read(process.ok()?.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(directory).then_some(line)
    })
}
