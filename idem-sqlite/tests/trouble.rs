//! Files that cannot be used, disks that are full: a typed error each, and nothing lost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use idem_core::{
    ClaimOutcome, Expect, Inspect as _, KeyStore as _, Response, StoreError, StoreErrorKind,
    Transition, TransitionOutcome,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use support::{claim, directory, id, raw, runtime};

async fn refused(
    opening: impl Future<Output = Result<SqliteKeyStore, StoreError>>,
) -> StoreErrorKind {
    let error = opening.await.unwrap_err();
    eprintln!("{error}");
    error.kind()
}

async fn claimed(path: &Path, key: &str) {
    let store = SqliteKeyStore::open(path).await.unwrap();
    let outcome = store.claim(&claim(key, 1)).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)));
    store.close().await;
}

#[tokio::test]
async fn paths_that_name_no_file_are_refused() {
    for path in ["", ":memory:", "/dev/null/keys.sqlite", "/proc/keys.sqlite"] {
        let kind = refused(SqliteKeyStore::open(path)).await;
        assert_eq!(kind, StoreErrorKind::Misconfigured, "{path:?}");
    }
    let directory = directory();
    for path in [
        directory.path().to_path_buf(),
        directory.path().join("absent/keys.sqlite"),
    ] {
        let kind = refused(SqliteKeyStore::open(&path)).await;
        assert_eq!(kind, StoreErrorKind::Misconfigured, "{path:?}");
    }
    for uri in [
        "file:x?mode=memory",
        "file::memory:?cache=shared",
        ":memory:",
    ] {
        let kind = refused(SqliteOptions::new().open_uri(uri)).await;
        assert_eq!(kind, StoreErrorKind::Misconfigured, "{uri:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_is_taken_as_it_is_and_a_uri_as_a_uri() {
    let directory = directory();
    let odd = directory.path().join("file:a?mode=ro%20b.sqlite");
    claimed(&odd, "k").await;
    assert!(odd.exists());
    let plain = directory.path().join("plain.sqlite");
    let uri = format!("file:{}?mode=rwc", plain.display());
    let store = SqliteOptions::new().open_uri(uri).await.unwrap();
    store.close().await;
    assert!(plain.exists());
}

#[tokio::test]
async fn a_file_that_has_to_exist_is_not_created() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let kind = refused(SqliteOptions::new().must_exist().open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Misconfigured);
    assert!(!path.exists());
    claimed(&path, "k").await;
    SqliteOptions::new().must_exist().open(&path).await.unwrap();
}

#[tokio::test]
async fn checking_only_changes_no_table() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let kind = refused(SqliteOptions::new().check_only().open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Misconfigured);
    let tables: u32 = raw(&path)
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 0);
    claimed(&path, "k").await;
    SqliteOptions::new().check_only().open(&path).await.unwrap();
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_and_kept() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    claimed(&path, "k").await;
    raw(&path)
        .execute(
            "INSERT INTO idem_migration (version, name, applied_at) VALUES (999, 'later', 0)",
            [],
        )
        .unwrap();
    let kind = refused(SqliteKeyStore::open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Misconfigured);
    raw(&path)
        .execute("DELETE FROM idem_migration WHERE version = 999", [])
        .unwrap();
    let store = SqliteKeyStore::open(&path).await.unwrap();
    assert!(store.load(&id("k")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_table_that_was_altered_by_hand_is_refused_when_it_is_opened() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    claimed(&path, "k").await;
    raw(&path)
        .execute_batch("ALTER TABLE idem_record RENAME COLUMN note TO remark")
        .unwrap();
    let kind = refused(SqliteKeyStore::open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Misconfigured);
}

#[tokio::test]
async fn another_applications_file_is_refused_untouched_unless_it_is_to_be_shared() {
    let directory = directory();
    for (number, sql) in [
        "CREATE TABLE account (id INTEGER PRIMARY KEY)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 7",
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{number}.sqlite"));
        raw(&path).execute_batch(sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        let kind = refused(SqliteKeyStore::open(&path)).await;
        assert_eq!(kind, StoreErrorKind::Misconfigured, "{sql}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{sql}");

        let shared = SqliteOptions::new().beside_other_tables();
        let store = shared.clone().open(&path).await.unwrap();
        store.close().await;
        let marks = |path: &Path| -> (u32, u32) {
            raw(path)
                .query_row(
                    "SELECT (SELECT application_id FROM pragma_application_id), \
                            (SELECT user_version FROM pragma_user_version)",
                    [],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .unwrap()
        };
        let kept = [(0, 0), (7, 0), (0, 7)][number];
        assert_eq!(marks(&path), kept);
        // Once its tables are there, it is known.
        SqliteKeyStore::open(&path).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt_and_kept() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let text = b"not a database, but somebody's only copy of something".repeat(100);
    std::fs::write(&path, &text).unwrap();
    let kind = refused(SqliteKeyStore::open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Corrupt);
    assert_eq!(std::fs::read(&path).unwrap(), text);
}

#[tokio::test]
async fn a_damaged_page_is_corrupt_and_never_absent() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    for number in 0..50 {
        store
            .claim(&claim(format!("k{number}"), number))
            .await
            .unwrap();
    }
    store.close().await;
    let whole = std::fs::read(&path).unwrap();
    let pages = whole.len() / 4096;
    assert!(pages > 5);
    let mut damaged_answers = 0;
    // The first page is the schema, whose damage is found when the file is opened.
    for page in 1..pages {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0xff);
        std::fs::write(&path, &damaged).unwrap();
        match SqliteKeyStore::open(&path).await {
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error:?}"),
            Ok(store) => {
                for number in 0..50 {
                    match store.load(&id(format!("k{number}"))).await {
                        Ok(held) => assert!(held.is_some(), "page {page}, key {number}"),
                        Err(error) => {
                            assert_eq!(error.kind(), StoreErrorKind::Corrupt);
                            damaged_answers += 1;
                            // And a claim does not take it for unused.
                            let claim = claim(format!("k{number}"), 999);
                            match store.claim(&claim).await {
                                Ok(ClaimOutcome::Held(_)) => {}
                                Ok(other) => panic!("page {page}, key {number}: {other:?}"),
                                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Corrupt),
                            }
                        }
                    }
                }
                store.close().await;
            }
        }
    }
    assert!(damaged_answers > 0);
}

/// What becomes of the database file under a store that has it open.
#[cfg(unix)]
fn lose_file(path: &Path, way: &str) {
    let beside = |name: &str| path.with_file_name(name);
    match way {
        "deleted" => std::fs::remove_file(path).unwrap(),
        "renamed over" => {
            // A whole database, in which the same key is held.
            let sql = format!("VACUUM INTO '{}'", beside("copy").display());
            raw(path).execute_batch(&sql).unwrap();
            std::fs::rename(beside("copy"), path).unwrap();
        }
        "directory moved" => {
            let directory = path.parent().unwrap();
            std::fs::rename(directory, directory.with_file_name("moved")).unwrap();
            std::fs::create_dir(directory).unwrap();
        }
        other => panic!("{other}"),
    }
    for name in ["keys.sqlite-wal", "keys.sqlite-shm"] {
        // The directory that was moved took them along.
        let _ = std::fs::remove_file(beside(name));
    }
}

#[tokio::test]
#[cfg(unix)]
async fn a_file_that_is_deleted_or_replaced_under_a_store_is_not_used_any_more() {
    for way in ["deleted", "renamed over", "directory moved"] {
        let directory = directory();
        let path = directory.path().join("place/keys.sqlite");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let old = SqliteKeyStore::open(&path).await.unwrap();
        let held = claim("held", 1);
        assert!(matches!(
            old.claim(&held).await.unwrap(),
            ClaimOutcome::Won(_)
        ));
        lose_file(&path, way);

        let misconfigured = |error: StoreError| {
            assert_eq!(
                error.kind(),
                StoreErrorKind::Misconfigured,
                "{way}: {error}"
            );
            assert!(error.to_string().contains("deleted, moved or replaced"));
        };
        let refuses = async |old: &SqliteKeyStore| {
            let limit = std::num::NonZeroU32::MIN;
            let owner = Expect::Owner(held.token());
            let complete = Transition::Complete(Response::new(200));
            misconfigured(old.load(held.id()).await.unwrap_err());
            misconfigured(old.claim(&claim("new", 2)).await.unwrap_err());
            misconfigured(old.claim(&held).await.unwrap_err());
            misconfigured(old.count().await.unwrap_err());
            misconfigured(old.sweep(limit).await.unwrap_err());
            let completed = old.transition(held.id(), owner, &complete).await;
            misconfigured(completed.unwrap_err());
        };
        refuses(&old).await;

        // Whoever opens the path is alone in it, and wins what the old store refuses.
        let new = SqliteKeyStore::open(&path).await.unwrap();
        let outcome = new.claim(&claim("new", 3)).await.unwrap();
        assert!(matches!(outcome, ClaimOutcome::Won(_)), "{way}");
        refuses(&old).await;
        // Closing the old one does not take the new one's log away.
        old.close().await;
        let third = SqliteKeyStore::open(&path).await.unwrap();
        assert!(third.load(&id("new")).await.unwrap().is_some(), "{way}");
        third.close().await;
        new.close().await;
        assert_eq!(support::integrity(&path), "ok");
    }
}

/// What was put back may have missed what was written to another file meanwhile.
#[tokio::test]
#[cfg(unix)]
async fn a_file_that_was_missed_stays_lost_until_the_store_is_opened_again() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let away = directory.path().join("away");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    let claim = claim("k", 1);
    std::fs::rename(&path, &away).unwrap();
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    std::fs::rename(&away, &path).unwrap();
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    store.close().await;
    let store = SqliteKeyStore::open(&path).await.unwrap();
    let outcome = store.claim(&claim).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)));
}

/// Whether this process may do anything, whatever a file's permissions say.
#[cfg(unix)]
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

/// Runs the role as somebody whom permissions bind.
#[cfg(unix)]
fn unprivileged(place: &Path, name: &str, role: &str, arguments: &[&str]) -> Command {
    use std::os::unix::process::CommandExt as _;
    if !is_root() {
        return support::child(name, role, arguments);
    }
    // Where the build is, others may not be let in.
    let copy = place.join("test-binary");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(copy);
    support::as_child(&mut command, name, role, arguments);
    command.uid(65534).gid(65534).current_dir("/");
    command
}

#[test]
#[cfg(unix)]
fn what_is_read_only_is_refused() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    const NAME: &str = "what_is_read_only_is_refused";
    if std::env::var_os(support::ROLE).is_some() {
        let paths: Vec<PathBuf> = support::arguments()
            .into_iter()
            .map(PathBuf::from)
            .collect();
        return runtime().block_on(async {
            for path in paths {
                let kind = refused(SqliteKeyStore::open(&path)).await;
                assert_eq!(kind, StoreErrorKind::Misconfigured, "{path:?}");
            }
        });
    }
    // Not below the build directory, which others may not be let into.
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(directory.path(), 0o755);
    let file = directory.path().join("file.sqlite");
    let shut = directory.path().join("shut");
    std::fs::create_dir(&shut).unwrap();
    let in_shut = shut.join("keys.sqlite");
    runtime().block_on(async {
        claimed(&file, "k").await;
        claimed(&in_shut, "k").await;
    });
    mode(&file, 0o444);
    mode(&in_shut, 0o666);
    mode(&shut, 0o555);
    let absent = shut.join("absent.sqlite");
    let paths = [&file, &in_shut, &absent].map(|path| path.to_str().unwrap());
    let output = unprivileged(directory.path(), NAME, "reader", &paths)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    mode(&shut, 0o755);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // And nothing was lost.
    runtime().block_on(async {
        mode(&file, 0o644);
        for path in [&file, &in_shut] {
            let store = SqliteKeyStore::open(path).await.unwrap();
            assert!(store.load(&id("k")).await.unwrap().is_some());
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_loses_nothing() {
    const NAME: &str = "a_full_disk_loses_nothing";
    if std::env::var_os(support::ROLE).is_some() {
        return runtime().block_on(fill());
    }
    let directory = directory();
    let place = directory.path().to_str().unwrap();
    let exe = std::env::current_exe().unwrap();
    // A filesystem of one megabyte that is gone with the process; where that is not allowed, a bound on the size of a file,
    // which is another error to SQLite and the same to a caller.
    let shells = [
        (
            "mount",
            vec![
                "unshare",
                "-rm",
                "sh",
                "-c",
                "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"",
            ],
        ),
        (
            "limit",
            vec!["sh", "-c", "trap '' XFSZ && ulimit -f 600 && exec \"$@\""],
        ),
    ];
    for (role, shell) in shells {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(place).arg(&exe);
        support::as_child(&mut command, NAME, role, &[place, role]);
        command.stderr(std::process::Stdio::piped());
        let output = command.output();
        if let Ok(output) = output {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if role == "mount" && !output.status.success() && !said.contains("filling") {
                eprintln!("no filesystem can be mounted here: {said}");
                continue;
            }
            assert!(output.status.success(), "{role}: {said}");
        } else {
            assert_ne!(role, "limit", "there is no shell");
        }
    }
}

#[cfg(target_os = "linux")]
async fn fill() {
    let arguments = support::arguments();
    let (place, role) = (Path::new(&arguments[0]), &*arguments[1]);
    eprintln!("filling by {role}");
    let path = place.join("keys.sqlite");
    let filler = place.join("filler");
    if role == "mount" {
        std::fs::write(&filler, vec![1; 256 * 1024]).unwrap();
    }
    let store = SqliteKeyStore::open(&path).await.unwrap();
    let mut acknowledged = Vec::new();
    let mut errors = Vec::new();
    let complete = Transition::Complete(Response::new(200).body(vec![7; 20_000]));
    for number in 0..200 {
        let claim = claim(format!("k{number}"), number);
        let won = store.claim(&claim).await;
        let owner = Expect::Owner(claim.token());
        let written = match won {
            Ok(_) => {
                acknowledged.push((number, false));
                store
                    .transition(claim.id(), owner, &complete)
                    .await
                    .map(drop)
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => acknowledged.push((number, true)),
            Err(error) => errors.push(error),
        }
        if errors.len() == 5 {
            break;
        }
    }
    assert_eq!(errors.len(), 5, "the disk was never full");
    for error in &errors {
        // With nothing in between, it is known that nothing was applied.
        let kind = error.kind();
        assert!(
            kind == StoreErrorKind::Unavailable
                || (role == "limit" && kind == StoreErrorKind::Ambiguous),
            "{error:?}"
        );
        assert!(error.is_retryable());
    }
    assert!(acknowledged.len() > 4);
    check(&store, &acknowledged).await;
    if role == "mount" {
        // With room again, the same connection works on.
        std::fs::remove_file(&filler).unwrap();
        let claim = claim("after", 1);
        let outcome = store.claim(&claim).await.unwrap();
        assert!(matches!(outcome, ClaimOutcome::Won(_)));
        let owner = Expect::Owner(claim.token());
        let done = store
            .transition(claim.id(), owner, &complete)
            .await
            .unwrap();
        assert!(matches!(done, TransitionOutcome::Applied { .. }));
        store.close().await;
        let store = SqliteKeyStore::open(&path).await.unwrap();
        check(&store, &acknowledged).await;
        store.close().await;
        assert_eq!(support::integrity(&path), "ok");
    }
}

#[cfg(target_os = "linux")]
async fn check(store: &SqliteKeyStore, acknowledged: &[(u64, bool)]) {
    for (number, completed) in acknowledged {
        let held = store
            .load(&id(format!("k{number}")))
            .await
            .unwrap()
            .unwrap();
        if *completed {
            let body = held.record.state.response().unwrap().body_ref().bytes();
            assert_eq!(body.unwrap().len(), 20_000);
        }
    }
}
