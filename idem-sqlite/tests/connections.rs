//! When a connection is opened again, and what an error says about the one before.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::{ClaimOutcome, Expect, KeyStore, Response, StoreErrorKind, Transition};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use support::{claim, directory, raw};

/// The writer's and two readers'.
const AT_FIRST: u32 = 3;

async fn won(store: &SqliteKeyStore, key: &str) {
    let outcome = store.claim(&claim(key, 1)).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_connection_is_opened_again_after_an_error_that_leaves_it_in_doubt() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let opened = Arc::new(AtomicU32::new(0));
    let counter = opened.clone();
    let store = SqliteOptions::new()
        .busy_timeout(Duration::from_millis(20))
        .on_connect(move |connection| {
            counter.fetch_add(1, Ordering::SeqCst);
            connection.execute_batch("PRAGMA max_page_count = 40")
        })
        .open(&path)
        .await
        .unwrap();
    won(&store, "k").await;
    raw(&path)
        .execute_batch(
            "CREATE TRIGGER undo BEFORE INSERT ON idem_record WHEN new.\"key\" = 'rolled-back' \
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END;",
        )
        .unwrap();
    let opened = || opened.load(Ordering::SeqCst);
    assert_eq!(opened(), AT_FIRST);

    // Neither a lock of somebody else's nor a disk that is full says anything about the connection.
    let lock = raw(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = store.claim(&claim("other", 2)).await.unwrap_err();
    assert_eq!(busy.kind(), StoreErrorKind::Unavailable);
    lock.execute_batch("ROLLBACK").unwrap();
    let owner = Expect::Owner(support::token(1));
    let large = Transition::Complete(Response::new(200).body(vec![7; 1 << 20]));
    let id = support::id("k");
    let full = store.transition(&id, owner, &large).await.unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Unavailable);
    won(&store, "after").await;
    assert_eq!(opened(), AT_FIRST);

    // What ends a transaction by itself does.
    store.claim(&claim("rolled-back", 3)).await.unwrap_err();
    won(&store, "at last").await;
    assert_eq!(opened(), AT_FIRST + 1);
}

#[tokio::test]
async fn an_error_has_what_sqlite_said_as_its_source() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteOptions::new()
        .busy_timeout(Duration::from_millis(20))
        .open(&path)
        .await
        .unwrap();
    let lock = raw(&path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.claim(&claim("k", 1)).await.unwrap_err();
    let source = error.source().unwrap();
    assert_eq!(source.to_string(), "database is locked");
    // SQLite's own code is behind that.
    assert!(source.source().is_some(), "{source:?}");
}
