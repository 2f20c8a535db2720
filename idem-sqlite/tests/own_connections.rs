//! Work and outcomes on connections that the program opens itself: which are fit, and what is left when it goes wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use idem_core::executor::{Answer, Begin, Execution, Idempotency, Outcome};
use idem_core::{KeyStore as _, Policy, RecoveryPoint, Request, Response, StoreErrorKind};
use idem_sqlite::{InTransactionError, JoinError, SqliteKeyStore, SqliteOptions};
use rusqlite::{Connection, ErrorCode};
use support::{claim_of, directory, id, raw};
use tokio::time::timeout;

type Told = Result<Answer<Response>, InTransactionError<rusqlite::Error>>;

const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (item TEXT)";

fn request(key: &str) -> Request {
    claim_of(id(key), 1, &Policy::default()).request().clone()
}

fn ordered() -> Response {
    Response::new(201).body("ordered")
}

fn insert(connection: &Connection, item: &str) -> rusqlite::Result<()> {
    let sql = "INSERT INTO orders (item) VALUES (?1)";
    connection.execute(sql, [item]).map(drop)
}

fn count(connection: &Connection, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    connection.query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// A store in a new file, with a table of the program's.
async fn open(path: &Path) -> Arc<SqliteKeyStore> {
    let store = SqliteKeyStore::open(path).await.unwrap();
    raw(path).execute_batch(ORDERS).unwrap();
    Arc::new(store)
}

async fn begin(store: &Arc<SqliteKeyStore>, key: &str) -> Execution {
    match Idempotency::new(store.clone()).begin(&request(key)).await {
        Ok(Begin::Execute(execution)) => execution,
        _ => panic!("the key is new"),
    }
}

fn order_within(store: &SqliteKeyStore, connection: &Connection, key: &str) -> Told {
    store.execute_within(connection, &request(key), &Policy::default(), |tx, _| {
        insert(tx, key)?;
        Ok(Outcome::Completed(ordered()))
    })
}

fn is_misuse<T: Debug>(told: Result<T, InTransactionError<rusqlite::Error>>) {
    match told {
        Err(InTransactionError::Store(error)) if error.kind() == StoreErrorKind::Misuse => {}
        other => panic!("{other:?}"),
    }
}

/// Each of the three forms refuses the connection, and writes nothing on it.
fn is_unfit(store: &SqliteKeyStore, connection: &Connection, execution: &Execution) {
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = connection.total_changes();
    is_misuse(order_within(store, connection, "within"));
    let attempt = execution.attempt();
    let point = RecoveryPoint::new("reserved").unwrap();
    for joined in [
        store.complete_in(connection, &attempt, &ordered()),
        store.checkpoint_in(connection, &attempt, point),
    ] {
        match joined {
            Err(JoinError::Store(error)) if error.kind() == StoreErrorKind::Misuse => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connection.total_changes(), before);
    connection.execute_batch("ROLLBACK").unwrap();
}

/// Each of the forms does its work, and it commits.
fn is_fit(store: &SqliteKeyStore, connection: &Connection, execution: &Execution, key: &str) {
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told = order_within(store, connection, key);
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    let joined = store.complete_in(connection, &execution.attempt(), &ordered());
    joined.unwrap();
    connection.execute_batch("COMMIT").unwrap();
}

#[tokio::test]
async fn a_connection_to_another_database_is_refused() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = open(&path).await;
    let execution = begin(&store, "joined").await;

    // It has the same tables, so every statement would do.
    let other = directory.path().join("other.sqlite");
    open(&other).await.close().await;
    is_unfit(&store, &raw(&other), &execution);
    assert_eq!(count(&raw(&other), "idem_record"), 0);

    let beside = raw(&directory.path().join("beside.sqlite"));
    beside.execute_batch(ORDERS).unwrap();
    for connection in [Connection::open_in_memory().unwrap(), beside] {
        connection.execute_batch(ORDERS).unwrap();
        // An unqualified name would find the table there, in a file that does not commit with the main one.
        connection
            .execute("ATTACH ?1 AS keys", [path.to_str().unwrap()])
            .unwrap();
        is_unfit(&store, &connection, &execution);
    }
    is_fit(&store, &raw(&path), &execution, "fit");
}

#[cfg(unix)]
#[tokio::test]
async fn the_same_file_by_another_name_is_the_same() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let directory = directory();
    for name in [&b"keys.sqlite"[..], b"keys-\xff.sqlite"] {
        let path = directory.path().join(OsStr::from_bytes(name));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let store = open(&path).await;
        for (number, name) in [&path, &link].into_iter().enumerate() {
            let key = number.to_string();
            let execution = begin(&store, &format!("joined {key}")).await;
            is_fit(&store, &raw(name), &execution, &key);
        }
        assert_eq!(count(&raw(&path), "orders"), 2);
        store.close().await;
        std::fs::remove_file(link).unwrap();
    }
}

#[tokio::test]
async fn a_store_of_a_uri_knows_its_file_too() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let uri = format!("file:{}", path.display());
    let store = Arc::new(SqliteOptions::new().open_uri(uri).await.unwrap());
    raw(&path).execute_batch(ORDERS).unwrap();
    let execution = begin(&store, "joined").await;
    let other = directory.path().join("other.sqlite");
    open(&other).await.close().await;
    is_unfit(&store, &raw(&other), &execution);
    is_fit(&store, &raw(&path), &execution, "fit");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_replaced_is_joined_by_nobody() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = open(&path).await;
    let execution = begin(&store, "joined").await;
    let old: PathBuf = directory.path().join("old.sqlite");
    std::fs::rename(&path, &old).unwrap();
    open(&path).await.close().await;
    let mine = raw(&path);
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let joined = store.complete_in(&mine, &execution.attempt(), &ordered());
    let Err(JoinError::Store(error)) = joined else {
        panic!("{joined:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
}

#[tokio::test]
async fn a_store_in_memory_has_no_connection_but_the_works() {
    let store = Arc::new(SqliteKeyStore::open_in_memory().await.unwrap());
    let execution = begin(&store, "joined").await;
    let mine = Connection::open_in_memory().unwrap();
    is_unfit(&store, &mine, &execution);

    let (nested, attempt) = (store.clone(), execution.attempt());
    let another = Arc::new(SqliteKeyStore::open_in_memory().await.unwrap());
    let work = move |tx: &rusqlite::Transaction<'_>, _: &_| {
        tx.execute_batch(ORDERS)?;
        // Another store's record would be in this one's database.
        is_misuse(order_within(&another, tx, "another"));
        let told = order_within(&nested, tx, "inner");
        assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
        nested.complete_in(tx, &attempt, &ordered()).unwrap();
        Ok::<_, rusqlite::Error>(Outcome::Completed(ordered()))
    };
    let told: Told = store
        .execute_in_tx(&request("outer"), &Policy::default(), work)
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    let told: Answer<Response> = execution.finish_joined().await.unwrap();
    assert_eq!(told, Answer::Fresh(ordered()));
}

#[tokio::test]
async fn a_temporary_table_of_the_same_name_is_not_taken_for_the_stores() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = open(&path).await;
    let execution = begin(&store, "joined").await;
    let mine = raw(&path);
    let shadow = "CREATE TEMP TABLE idem_record AS SELECT * FROM main.idem_record";
    mine.execute_batch(shadow).unwrap();
    is_fit(&store, &mine, &execution, "within");
    assert_eq!(count(&raw(&path), "idem_record"), 2);

    // Nor where the work leaves one behind on the store's own connection.
    let told: Told = store
        .execute_in_tx(&request("owned"), &Policy::default(), move |tx, _| {
            tx.execute_batch(shadow)?;
            Ok(Outcome::Completed(ordered()))
        })
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    drop(begin(&store, "after").await);
    let held = store.load(&id("owned")).await.unwrap().unwrap();
    assert_eq!(held.record.state.response(), Some(&ordered()));
}

#[tokio::test]
async fn a_panic_that_the_caller_catches_leaves_nothing_to_commit() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = open(&path).await;
    let mine = raw(&path);
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    insert(&mine, "before").unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _: Told = store.execute_within(&mine, &request("k"), &Policy::default(), |tx, _| {
            insert(tx, "undone")?;
            panic!("in the middle");
        });
    }));
    assert!(caught.is_err());
    mine.execute_batch("COMMIT").unwrap();
    assert_eq!(count(&mine, "orders"), 1);
    assert!(store.load(&id("k")).await.unwrap().is_none());
}

#[tokio::test]
async fn a_disk_that_is_full_ends_the_callers_transaction_and_says_so() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = open(&path).await;
    let mine = raw(&path);
    let is_full = |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DiskFull);
    let full = || {
        let pages: i64 = mine
            .query_row("PRAGMA page_count", [], |row| row.get(0))
            .unwrap();
        mine.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
            .unwrap();
    };
    full();
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let large = "x".repeat(100_000);
    let told: Told = store.execute_within(&mine, &request("k"), &Policy::default(), |tx, _| {
        insert(tx, &large)?;
        Ok(Outcome::Completed(ordered()))
    });
    match &told {
        // Where SQLite has ended the transaction, and where it has not: the error is the work's own in both.
        Err(InTransactionError::TransactionOver(error)) if mine.is_autocommit() => {
            assert!(is_full(error));
        }
        Err(InTransactionError::Work(error)) if !mine.is_autocommit() => assert!(is_full(error)),
        other => panic!("{other:?}"),
    }
    if !mine.is_autocommit() {
        mine.execute_batch("ROLLBACK").unwrap();
    }
    // A work that ends the transaction itself, and fails.
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told: Told = store.execute_within(&mine, &request("k"), &Policy::default(), |tx, _| {
        tx.execute_batch("ROLLBACK")?;
        Err(rusqlite::Error::QueryReturnedNoRows)
    });
    assert!(
        matches!(told, Err(InTransactionError::TransactionOver(_))),
        "{told:?}"
    );
    // The answer itself does not fit.
    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told: Told = store.execute_within(&mine, &request("k"), &Policy::default(), |_, _| {
        Ok(Outcome::Completed(Response::new(200).body(large.clone())))
    });
    let Err(InTransactionError::Store(error)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    if !mine.is_autocommit() {
        mine.execute_batch("ROLLBACK").unwrap();
    }
    assert_eq!(count(&mine, "orders"), 0);
    assert!(store.load(&id("k")).await.unwrap().is_none());
}

/// Polls it to its end on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

#[tokio::test]
async fn a_store_that_is_closed_by_its_own_work_closes_when_that_is_over() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let in_a_file = open(&path).await;
    let in_memory = Arc::new(SqliteKeyStore::open_in_memory().await.unwrap());
    for store in [in_a_file, in_memory] {
        let closing = store.clone();
        let (request, policy) = (request("k"), Policy::default());
        let working = store.execute_in_tx(&request, &policy, move |tx, _| {
            tx.execute_batch(ORDERS)?;
            insert(tx, "k")?;
            block_on(closing.close());
            Ok(Outcome::Completed(ordered()))
        });
        let told: Told = timeout(Duration::from_secs(20), working)
            .await
            .expect("the work waits for itself");
        assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
        store.close().await;
        let error = store
            .claim(&claim_of(id("late"), 2, &Policy::default()))
            .await;
        assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    assert!(!path.with_file_name("keys.sqlite-wal").exists());
    assert_eq!(count(&raw(&path), "orders"), 1);
}
