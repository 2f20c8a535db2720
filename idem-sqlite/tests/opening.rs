//! What a file is marked with, and what opening one waits for.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use idem_core::StoreErrorKind;
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use support::{directory, raw};

/// The number in the header by which `file` and its like know whose a database is.
fn application(path: &Path) -> i64 {
    raw(path)
        .query_row("PRAGMA application_id", [], |row| row.get(0))
        .unwrap()
}

#[tokio::test]
async fn a_file_of_its_own_is_marked_and_one_that_is_shared_is_not() {
    let directory = directory();
    let own = directory.path().join("own.sqlite");
    SqliteKeyStore::open(&own).await.unwrap();
    assert_eq!(application(&own), 0x6964_656d);

    let shared = directory.path().join("shared.sqlite");
    let options = SqliteOptions::new().beside_other_tables();
    options.open(&shared).await.unwrap();
    assert_eq!(application(&shared), 0);
}

#[tokio::test]
async fn a_file_that_becomes_somebody_elses_meanwhile_is_refused() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let other = raw(&path);
    other
        .execute_batch("BEGIN IMMEDIATE; CREATE TABLE account (id INTEGER PRIMARY KEY)")
        .unwrap();
    let mut opening = Box::pin(SqliteKeyStore::open(&path));
    // It finds the file empty, and waits for the lock.
    let waits = tokio::time::timeout(Duration::from_millis(30), opening.as_mut()).await;
    assert!(waits.is_err(), "{waits:?}");
    other.execute_batch("COMMIT").unwrap();
    let refused = opening.await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Misconfigured);
    let tables: u32 = raw(&path)
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

#[tokio::test]
async fn what_waiting_does_not_mend_is_not_waited_for() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    let options = SqliteOptions::new().busy_timeout(Duration::from_secs(3600));
    let refused = tokio::time::timeout(Duration::from_secs(60), options.open(&path)).await;
    let refused = refused.unwrap().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Corrupt);
}
