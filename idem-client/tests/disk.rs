//! Disks that are full and directories that must not be written: a typed error, and nothing is sent.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod support;

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use idem_client::{Journal, JournalErrorKind, Operation, SendError};
use support::{Server, answer, client, directory, policy};

const ROLE: &str = "IDEM_CLIENT_TEST_ROLE";
const PLACE: &str = "IDEM_CLIENT_TEST_PLACE";

/// Adds to a command that ends in this test binary what makes it the child that the test is when it is given a role.
fn as_child(command: &mut Command, name: &str, role: &str, place: &Path) {
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

#[tokio::test]
async fn on_a_full_disk_nothing_is_sent_and_an_answer_is_handed_over() {
    const NAME: &str = "on_a_full_disk_nothing_is_sent_and_an_answer_is_handed_over";
    if let Ok(role) = std::env::var(ROLE) {
        let place = std::env::var_os(PLACE).unwrap();
        return fill(Path::new(&place), &role).await;
    }
    let directory = directory();
    // A filesystem of one megabyte that is gone with the process; where that is not allowed, a bound on the size of a file,
    // which is another error to SQLite and the same to a caller.
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"";
    let limit = "trap '' XFSZ && ulimit -f 600 && exec \"$@\"";
    for (role, shell) in [
        ("mount", vec!["unshare", "-rm", "sh", "-c", mount]),
        ("limit", vec!["sh", "-c", limit]),
    ] {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]);
        command.arg(directory.path());
        command.arg(std::env::current_exe().unwrap());
        as_child(&mut command, NAME, role, directory.path());
        let Ok(output) = command.output() else {
            assert_ne!(role, "limit", "there is no shell");
            continue;
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if role == "mount" && !output.status.success() && !said.contains("filling") {
            eprintln!("SKIPPED: no filesystem can be mounted here: {said}");
            continue;
        }
        assert!(output.status.success(), "{role}: {said}");
    }
}

async fn fill(place: &Path, role: &str) {
    eprintln!("filling by {role}");
    let path = place.join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    let is_full = |kind| {
        kind == JournalErrorKind::Full || (role == "limit" && kind == JournalErrorKind::Unavailable)
    };

    // There is room for the operation, and none for its answer.
    let long = "x".repeat(1_500_000);
    let server = Server::start(vec![answer(201, &[], &long), answer(201, &[], "ch_1")]).await;
    let error = client(&journal)
        .send(&server.operation())
        .await
        .unwrap_err();
    let SendError::NotRecorded { answer, source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(is_full(source.kind()), "{source:?}");
    assert_eq!(answer.body().len(), long.len());

    // And none for another operation.
    let big = Operation::post(server.url("/")).body(long).build().unwrap();
    let error = client(&journal).send(&big).await.unwrap_err();
    let SendError::Journal { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(is_full(source.kind()), "{source:?}");
    assert_eq!(server.requests().len(), 1);
    assert_eq!(journal.entry(big.key()).await.unwrap(), None);

    // What was written is there, and can be sent again.
    let pending = journal.pending().await.unwrap();
    assert_eq!((pending.len(), pending[0].attempts), (1, 1));
    let finished = client(&journal).resume(&pending[0].key).await.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_eq!(server.requests()[0], server.requests()[1]);
    finished.acknowledge().await.unwrap();
}

#[tokio::test]
async fn what_is_read_only_is_refused_and_nothing_is_sent() {
    const NAME: &str = "what_is_read_only_is_refused_and_nothing_is_sent";
    if std::env::var_os(ROLE).is_some() {
        let place = std::env::var_os(PLACE).unwrap();
        return read_only(Path::new(&place)).await;
    }
    // Not below the build directory, which others may not be let into.
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(directory.path(), 0o755);
    let shut = directory.path().join("shut");
    std::fs::create_dir(&shut).unwrap();
    for path in [directory.path().join("file.db"), shut.join("sent.db")] {
        let journal = Journal::open(&path).await.unwrap();
        journal.close().await;
    }
    mode(&directory.path().join("file.db"), 0o444);
    mode(&shut.join("sent.db"), 0o666);
    mode(&shut, 0o555);
    // As somebody whom permissions bind.
    let copy = directory.path().join("test-binary");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(copy);
    as_child(&mut command, NAME, "reader", directory.path());
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let output = command.current_dir("/").output().unwrap();
    mode(&shut, 0o755);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");

    // What refuses to be written later sends nothing either.
    let journal = Journal::open(shut.join("sent.db")).await.unwrap();
    support::raw(&shut.join("sent.db"))
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON idem_client_operation BEGIN SELECT raise(ABORT, 'no'); END",
        )
        .unwrap();
    let server = Server::start(vec![]).await;
    let client = support::built(support::builder(&journal, policy()));
    let error = client.send(&server.operation()).await.unwrap_err();
    assert!(matches!(error, SendError::Journal { .. }), "{error:?}");
    assert!(server.requests().is_empty());
}

async fn read_only(place: &Path) {
    for name in ["file.db", "shut/sent.db", "shut/absent.db"] {
        let error = Journal::open(place.join(name)).await.unwrap_err();
        assert_eq!(
            error.kind(),
            JournalErrorKind::ReadOnly,
            "{name}: {error:?}"
        );
    }
}
