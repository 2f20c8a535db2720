//! `with-servers` runs a command beside servers, of which nothing is left however it ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use idem_test_servers::{shared_postgres, shared_redis};

/// A directory for the temporary directories of one run.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "with-servers-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        // The servers' own account has to come through.
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn entries(&self) -> Vec<String> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn with_servers(scratch: &Scratch, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command.args(["sh", "-c", script]);
    // These tests may themselves run beside servers.
    command
        .env_remove("IDEM_TEST_POSTGRES_URL")
        .env_remove("IDEM_TEST_REDIS_URL");
    command.env("TMPDIR", &scratch.0);
    command
}

fn can_run() -> bool {
    shared_postgres().is_some() && shared_redis().is_some()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Id and name of every process that works in that directory.
fn processes_in(scratch: &Scratch) -> Vec<(u32, String)> {
    let holds = |path: &Path| {
        fs::read_link(path.join("cwd")).is_ok_and(|directory| directory.starts_with(&scratch.0))
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid = path.file_name()?.to_str()?.parse().ok()?;
            holds(&path).then(|| {
                (
                    pid,
                    fs::read_to_string(path.join("comm")).unwrap_or_default(),
                )
            })
        })
        .collect()
}

/// Waits until nothing is left of the processes and in the directory.
fn wait_until_gone(scratch: &Scratch, processes: &[(u32, String)]) {
    wait_until("no directory", || scratch.entries().is_empty());
    wait_until("no process", || processes_in(scratch).is_empty());
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    for segment in segments.lines() {
        // Key, id, permissions, size, and who made it.
        let creator = segment.split_whitespace().nth(4).unwrap();
        assert!(
            !processes.iter().any(|(pid, _)| pid.to_string() == creator),
            "{processes:?} left {segment}"
        );
    }
}

fn send(signal: &str, process: &Child) {
    let status = Command::new("sh")
        .args([
            "-c",
            "kill -s \"$@\"",
            "sh",
            signal,
            &process.id().to_string(),
        ])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn the_command_has_both_servers_and_nothing_is_left_of_them() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    let script = r#"
        psql -XAt "$IDEM_TEST_POSTGRES_URL" -c "select 'postgres answers'" &&
        redis-cli -u "$IDEM_TEST_REDIS_URL" ECHO 'redis answers' && exit 7"#;
    let output = with_servers(&scratch, script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "postgres answers\nredis answers\n",
        "{said}"
    );
    assert_eq!(output.status.code(), Some(7));
    // That of a copied data directory is cleared up behind its back.
    wait_until_gone(&scratch, &[]);
}

#[test]
fn servers_that_are_given_are_used() {
    let scratch = Scratch::new();
    let output = with_servers(
        &scratch,
        "echo $IDEM_TEST_POSTGRES_URL $IDEM_TEST_REDIS_URL; ls $TMPDIR",
    )
    .envs([
        ("IDEM_TEST_POSTGRES_URL", "postgres://mine"),
        ("IDEM_TEST_REDIS_URL", "redis://mine"),
    ])
    .output()
    .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "postgres://mine redis://mine\n"
    );
}

#[test]
fn a_variable_that_names_no_program_is_an_error() {
    let scratch = Scratch::new();
    for variable in ["IDEM_TEST_POSTGRES_15_BIN", "IDEM_TEST_REDIS_SERVER"] {
        let mut command = with_servers(&scratch, "echo ran");
        if variable == "IDEM_TEST_REDIS_SERVER" {
            command.env("IDEM_TEST_POSTGRES_URL", "postgres://mine");
        }
        let output = command.env(variable, "/no/such/place").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(
            said.contains(&format!("{variable} names /no/such/place")),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_server_that_is_not_installed_is_left_to_the_command() {
    let scratch = Scratch::new();
    let output = Command::new(env!("CARGO_BIN_EXE_with-servers"))
        .args([
            "/bin/sh",
            "-c",
            "echo $IDEM_TEST_POSTGRES_URL ${IDEM_TEST_REDIS_URL-none}",
        ])
        .env("PATH", &scratch.0)
        .env("IDEM_TEST_POSTGRES_URL", "postgres://mine")
        .env_remove("IDEM_TEST_REDIS_URL")
        .env_remove("IDEM_TEST_REDIS_SERVER")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "postgres://mine none\n"
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the program redis-server was not found: install"),
        "{said}"
    );
}

#[test]
fn a_command_that_cannot_be_run_or_is_killed_has_an_exit_code() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_with-servers"))
            .args(arguments)
            .envs([
                ("IDEM_TEST_POSTGRES_URL", "none"),
                ("IDEM_TEST_REDIS_URL", "none"),
            ])
            .env("TMPDIR", &scratch.0)
            .output()
            .unwrap()
    };
    assert_eq!(
        run(&["sh", "-c", "kill -TERM $$"]).status.code(),
        Some(128 + 15)
    );
    assert_eq!(run(&["true"]).status.code(), Some(0));
    for arguments in [&["/no/such/command"][..], &[]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("with-servers: "));
    }
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    if !can_run() {
        return;
    }
    for signal in ["KILL", "TERM", "INT"] {
        let scratch = Scratch::new();
        // The command outlives it, as a test's own children may, until its input ends.
        let mut process = with_servers(&scratch, "echo they run; exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "they run\n");
        let running = processes_in(&scratch);
        assert!(
            running.iter().any(|(_, name)| name.starts_with("redis")),
            "{running:?}"
        );
        assert!(
            running
                .iter()
                .filter(|(_, name)| name.starts_with("postgres"))
                .count()
                > 3,
            "{running:?}"
        );
        assert_eq!(
            scratch.entries().len(),
            3,
            "Postgres, its template and Redis"
        );

        send(signal, &process);
        process.wait().unwrap();
        wait_until_gone(&scratch, &running);
        drop(input);
    }
}

#[test]
fn nothing_is_left_when_it_is_killed_while_a_server_is_made() {
    if !can_run() {
        return;
    }
    // In the order in which they come.
    for at in ["idem-postgres-template", "PG_VERSION", "postmaster.pid"] {
        let scratch = Scratch::new();
        let mut process = with_servers(&scratch, "exec cat")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until(at, || {
            scratch.entries().iter().any(|entry| {
                let data = scratch.0.join(entry).join("data").join(at);
                entry.starts_with(at) || data.exists()
            })
        });
        let running = processes_in(&scratch);
        process.kill().unwrap();
        process.wait().unwrap();
        wait_until_gone(&scratch, &running);
    }
}
