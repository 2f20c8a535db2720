//! Rows and records that commit together or not at all.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use idem_core::executor::{Answer, Attempt, Begin, Idempotency, Outcome, TxAttempt};
use idem_core::{
    ClaimOutcome, Contract, Expect, KeyStore as _, Mismatch, Nulls, OnBusy, Operation, Policy,
    Profile, RecoveryPoint, Request, Response, Rules, Status, StoreErrorKind, Transition,
    TransitionOutcome,
};
use idem_sqlite::{InTransactionError, JoinError, SqliteKeyStore, SqliteOptions};
use rusqlite::{Connection, ErrorCode, TransactionBehavior, ffi};
use support::{claim_of, directory, id, raw};
use tempfile::TempDir;

type Work<T = Response> = Result<Outcome<T>, rusqlite::Error>;
type Join = fn(&Shop, &Connection, &Attempt) -> Result<(), JoinError>;
type Told<E = rusqlite::Error> = Result<Answer<Response>, InTransactionError<E>>;

/// A store, and a table of the program's own in the same file.
struct Shop {
    store: Arc<SqliteKeyStore>,
    path: PathBuf,
    _directory: TempDir,
}

const ORDERS: &str = "CREATE TABLE orders (item TEXT PRIMARY KEY, \
     shelf INTEGER REFERENCES shelves (number) DEFERRABLE INITIALLY DEFERRED); \
     CREATE TABLE shelves (number INTEGER PRIMARY KEY)";

impl Shop {
    async fn open() -> Self {
        Self::with(SqliteOptions::new()).await
    }

    async fn with(options: SqliteOptions) -> Self {
        let directory = directory();
        let path = directory.path().join("shop.sqlite");
        let store = Arc::new(options.open(&path).await.unwrap());
        raw(&path).execute_batch(ORDERS).unwrap();
        Self {
            store,
            path,
            _directory: directory,
        }
    }

    /// The items that were ordered, as everybody sees them.
    fn orders(&self) -> Vec<String> {
        orders(&self.path)
    }

    async fn status(&self, key: &str) -> Option<Status> {
        let held = self.store.load(&id(key)).await.unwrap();
        held.map(|held| held.record.status())
    }

    async fn order(&self, key: &str, outcome: fn() -> Outcome<Response>) -> Told {
        let item = key.to_owned();
        self.store
            .execute_in_tx(&request(key), &Policy::default(), move |tx, _| {
                insert(tx, &item)?;
                Ok(outcome())
            })
            .await
    }
}

fn orders(path: &Path) -> Vec<String> {
    let connection = raw(path);
    let mut rows = connection
        .prepare("SELECT item FROM orders ORDER BY item")
        .unwrap();
    let items = rows.query_map([], |row| row.get(0)).unwrap();
    items.map(Result::unwrap).collect()
}

fn insert(connection: &Connection, item: &str) -> rusqlite::Result<()> {
    let sql = "INSERT INTO orders (item) VALUES (?1)";
    connection.execute(sql, [item]).map(drop)
}

/// The same as that of `support::claim`.
fn request(key: &str) -> Request {
    claim_of(id(key), 1, &Policy::default()).request().clone()
}

fn completed() -> Outcome<Response> {
    Outcome::Completed(Response::new(201).body("ordered"))
}

fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
}

fn misuse<E: std::fmt::Debug>(told: Told<E>) {
    match told {
        Err(InTransactionError::Store(error)) if error.kind() == StoreErrorKind::Misuse => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rows_and_answer_are_there_together_and_the_answer_replays() {
    let shop = Shop::open().await;
    let fresh = shop.order("k", completed).await.unwrap();
    assert_eq!(fresh, Answer::Fresh(Response::new(201).body("ordered")));
    assert_eq!(shop.orders(), ["k"]);
    assert_eq!(shop.status("k").await, Some(Status::Completed));

    let again = shop.order("k", || panic!("done again")).await.unwrap();
    assert_eq!(again, Answer::Replayed(Response::new(201).body("ordered")));
    // And to those who do not come in a transaction.
    let executor = Idempotency::new(shop.store.clone());
    let elsewhere = executor
        .execute(&request("k"), |_| async { completed() })
        .await;
    assert_eq!(elsewhere.unwrap(), again);
}

#[tokio::test]
async fn what_an_outcome_leaves_behind() {
    let shop = Shop::open().await;
    let answer = || Response::new(402);
    let told = shop
        .order("f", || Outcome::Failed(Response::new(402)))
        .await;
    assert_eq!(told.unwrap(), Answer::Fresh(answer()));
    assert_eq!(shop.status("f").await, Some(Status::FailedFinal));
    let told = shop.order("f", completed).await;
    assert_eq!(told.unwrap(), Answer::Replayed(answer()));

    let told = shop
        .order("r", || Outcome::Retryable(Response::new(402)))
        .await;
    assert_eq!(told.unwrap(), Answer::Fresh(answer()));
    let told = shop
        .order("j", || Outcome::Rejected(Response::new(402)))
        .await;
    assert_eq!(told.unwrap(), Answer::Fresh(answer()));
    let told = shop
        .order("u", || Outcome::Unknown(Response::new(402)))
        .await;
    assert!(matches!(told, Err(InTransactionError::OutcomeUnknown)));
    let told = shop.order("p", || panic!("on purpose")).await;
    assert!(matches!(told, Err(InTransactionError::Panicked)));
    for key in ["r", "j", "u", "p"] {
        assert_eq!(shop.status(key).await, None, "{key}");
    }
    assert_eq!(shop.orders(), Vec::<String>::new());

    // The writer has survived all of it, and the keys are as good as new.
    for key in ["r", "j", "u", "p"] {
        let told = shop.order(key, completed).await.unwrap();
        assert!(matches!(told, Answer::Fresh(_)), "{key}: {told:?}");
    }
    assert_eq!(shop.orders(), ["j", "p", "r", "u"]);
}

#[tokio::test]
async fn an_answer_that_panics_when_it_is_written_leaves_nothing() {
    #[derive(Debug)]
    struct Explosive;
    impl idem_core::executor::Storable for Explosive {
        fn to_response(&self) -> Response {
            panic!("on purpose")
        }
        fn from_response(response: Response) -> Result<Self, idem_core::executor::Unreadable> {
            Err(idem_core::executor::Unreadable { response })
        }
    }
    let shop = Shop::open().await;
    let told = shop
        .store
        .execute_in_tx(&request("k"), &Policy::default(), |tx, _| {
            insert(tx, "k")?;
            Ok::<_, rusqlite::Error>(Outcome::Completed(Explosive))
        })
        .await;
    assert!(
        matches!(told, Err(InTransactionError::Panicked)),
        "{told:?}"
    );
    assert_eq!((shop.orders().len(), shop.status("k").await), (0, None));
}

#[tokio::test]
async fn a_violation_in_a_table_of_the_programs_is_the_programs() {
    let shop = Shop::open().await;
    insert(&raw(&shop.path), "taken").unwrap();
    let told = shop.order("taken", completed).await;
    let Err(InTransactionError::Work(error)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation)
    );
    assert_eq!(shop.status("taken").await, None);

    // One that is only found at the commit.
    let told: Told = shop
        .store
        .execute_in_tx(&request("deferred"), &Policy::default(), |tx, _| {
            tx.execute("INSERT INTO orders VALUES ('deferred', 7)", [])?;
            Ok(completed())
        })
        .await;
    assert!(
        matches!(told, Err(InTransactionError::Commit(_))),
        "{told:?}"
    );
    assert_eq!(shop.status("deferred").await, None);
    assert_eq!(shop.orders(), ["taken"]);
    assert!(shop.order("after", completed).await.is_ok());
}

#[tokio::test]
async fn an_error_that_the_work_does_not_return_is_not_taken_for_success() {
    let shop = Shop::open().await;
    insert(&raw(&shop.path), "taken").unwrap();
    let work = |sql: &'static str| {
        let policy = Policy::default();
        let store = shop.store.clone();
        async move {
            store
                .execute_in_tx(&request("k"), &policy, move |tx, _| -> Work {
                    insert(tx, "k")?;
                    let _ = tx.execute_batch(sql);
                    Ok(completed())
                })
                .await
        }
    };
    // SQLite rolls back, the work does, or it begins another one.
    misuse(work("INSERT OR ROLLBACK INTO orders (item) VALUES ('taken')").await);
    misuse(work("ROLLBACK").await);
    misuse(work("ROLLBACK; BEGIN").await);
    assert_eq!(shop.orders(), ["taken"]);
    assert_eq!(shop.status("k").await, None);
    // What is committed is not to be undone, and nobody says that it is done.
    misuse(work("COMMIT").await);
    assert_eq!(shop.status("k").await, Some(Status::InProgress));
    let told: Told = shop
        .store
        .execute_in_tx(&request("r"), &Policy::default(), |tx, _| {
            tx.execute_batch("COMMIT")?;
            Ok(Outcome::Rejected(Response::new(400)))
        })
        .await;
    misuse(told);
    assert!(shop.order("after", completed).await.is_ok());
}

#[tokio::test]
async fn savepoints_of_the_programs_are_not_mistaken_for_ours() {
    let shop = Shop::open().await;
    for (key, outcome) in [
        ("f", Outcome::Failed(Response::new(402))),
        ("c", completed()),
    ] {
        let told: Told = shop
            .store
            .execute_in_tx(&request(key), &Policy::default(), move |tx, _| {
                insert(tx, &format!("{key}1"))?;
                // Whatever their names, and whether they are left open or not.
                tx.execute_batch("SAVEPOINT idem_work; SAVEPOINT mine; SAVEPOINT idem_claim")?;
                insert(tx, &format!("{key}2"))?;
                tx.execute_batch("SAVEPOINT undone")?;
                insert(tx, &format!("{key}3"))?;
                tx.execute_batch("ROLLBACK TO undone; RELEASE mine")?;
                Ok(outcome.clone())
            })
            .await;
        assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    }
    assert_eq!(shop.status("f").await, Some(Status::FailedFinal));
    assert_eq!(shop.orders(), ["c1", "c2"]);
}

#[tokio::test]
async fn work_that_meets_a_lock_is_done_again_and_what_it_wrote_is_not() {
    let shop = Shop::open().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let told: Told = shop
        .store
        .execute_in_tx(&request("k"), &Policy::default(), move |tx, attempt| {
            let call = counted.fetch_add(1, Ordering::SeqCst);
            assert_eq!(attempt.number().as_u32(), 1);
            insert(tx, &format!("call {call}"))?;
            if call < 3 {
                Err(busy())
            } else {
                Ok(completed())
            }
        })
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert_eq!(shop.orders(), ["call 3"]);

    // Found behind another error, and not for ever.
    let shop = Shop::with(SqliteOptions::new().busy_timeout(Duration::from_millis(20))).await;
    let told: Told<Box<dyn std::error::Error + Send + Sync>> = shop
        .store
        .execute_in_tx(&request("k"), &Policy::default(), |tx, _| {
            insert(tx, "k")?;
            Err(Wrapped(busy()).into())
        })
        .await;
    assert!(matches!(told, Err(InTransactionError::Work(_))), "{told:?}");
    assert_eq!((shop.orders().len(), shop.status("k").await), (0, None));
}

#[derive(Debug)]
struct Wrapped(rusqlite::Error);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("wrapped")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn it_waits_for_the_lock_of_another_connection_and_for_no_longer_than_it_may() {
    let shop = Shop::with(SqliteOptions::new().busy_timeout(Duration::from_millis(20))).await;
    let outside = raw(&shop.path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told = shop.order("k", || panic!("worked without the lock")).await;
    let Err(InTransactionError::Store(error)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    drop(outside);

    let shop = Shop::open().await;
    let outside = raw(&shop.path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut told = pin!(shop.order("k", completed));
    assert!(poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_pending())).await);
    outside.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(told.await, Ok(Answer::Fresh(_))));
    assert_eq!(shop.orders(), ["k"]);
}

#[tokio::test]
async fn losers_are_told_what_the_executor_tells_them() {
    let shop = Shop::open().await;
    let never = |_: &rusqlite::Transaction<'_>, _: &TxAttempt| -> Work { panic!("it ran") };
    let policy = Policy::default();
    // A contract-one claim that is under way.
    let owned = claim_of(id("k"), 1, &policy);
    shop.store.claim(&owned).await.unwrap();
    let told = shop
        .store
        .execute_in_tx(&request("k"), &policy, never)
        .await;
    assert!(
        matches!(told, Ok(Answer::Busy { remaining }) if !remaining.is_zero()),
        "{told:?}"
    );

    let mut other = request("k");
    other.operation = Operation::new("POST /v1/refunds").unwrap();
    let told = shop.store.execute_in_tx(&other, &policy, never).await;
    assert_eq!(told.unwrap(), Answer::Mismatch(Mismatch::Operation));

    let operation = Operation::new("POST /v1/charges").unwrap();
    let rules = [1, 2].map(|profile| Rules::new(Profile::new(profile), Nulls::Distinct));
    let mut other = request("k");
    other.fingerprints = rules[0].of(&operation).bytes(b"another").finish().into();
    let told = shop.store.execute_in_tx(&other, &policy, never).await;
    assert_eq!(told.unwrap(), Answer::Mismatch(Mismatch::Payload));
    other.fingerprints = rules[1].of(&operation).finish().into();
    let told = shop.store.execute_in_tx(&other, &policy, never).await;
    assert!(matches!(told, Ok(Answer::Incomparable { .. })), "{told:?}");

    let hold = Policy::builder()
        .contract(Contract::Hold)
        .lease(Duration::ZERO);
    let held = claim_of(id("h"), 2, &hold.heartbeat(Duration::ZERO).build().unwrap());
    shop.store.claim(&held).await.unwrap();
    let told = shop
        .store
        .execute_in_tx(&request("h"), &policy, never)
        .await;
    assert_eq!(told.unwrap(), Answer::OutcomeUnknown);
}

#[tokio::test]
async fn a_waiter_gets_the_answer_that_it_waited_for() {
    let shop = Shop::open().await;
    let policy = Policy::default();
    let owned = claim_of(id("k"), 1, &policy);
    shop.store.claim(&owned).await.unwrap();
    let waiting = Policy::builder()
        .on_busy(OnBusy::Wait(idem_core::Span::from_secs(60)))
        .build()
        .unwrap();
    let request = request("k");
    let mut told = pin!(
        shop.store
            .execute_in_tx(&request, &waiting, |_, _| -> Work { panic!("it ran") })
    );
    assert!(poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_pending())).await);
    // Work is done in the order in which it comes, so when this is done that has looked.
    assert!(shop.order("after", completed).await.is_ok());
    let done = Transition::Complete(Response::new(200));
    let owner = Expect::Owner(owned.token());
    shop.store
        .transition(owned.id(), owner, &done)
        .await
        .unwrap();
    assert_eq!(told.await.unwrap(), Answer::Replayed(Response::new(200)));
}

#[tokio::test]
async fn a_takeover_that_is_rolled_back_leaves_what_was_there() {
    let shop = Shop::open().await;
    let policy = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO);
    let policy = policy.build().unwrap();
    let dead = claim_of(id("k"), 1, &policy);
    shop.store.claim(&dead).await.unwrap();
    let checkpoint = Transition::Checkpoint {
        point: RecoveryPoint::new("reserved").unwrap(),
        sequence: 1,
        lease: idem_core::Span::ZERO,
    };
    let owner = Expect::Owner(dead.token());
    shop.store
        .transition(dead.id(), owner, &checkpoint)
        .await
        .unwrap();
    let before = shop.store.load(dead.id()).await.unwrap().unwrap().record;

    let told = shop
        .order("k", || Outcome::Retryable(Response::new(429)))
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))));
    let after = shop.store.load(dead.id()).await.unwrap().unwrap().record;
    assert_eq!(before, after);

    let told: Told = shop
        .store
        .execute_in_tx(&request("k"), &Policy::default(), |tx, attempt| {
            assert_eq!(attempt.number().as_u32(), 2);
            assert_eq!(
                attempt.recovery_point().map(RecoveryPoint::name),
                Some("reserved")
            );
            insert(tx, "k")?;
            Ok(completed())
        })
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    let late = shop
        .store
        .transition(dead.id(), owner, &Transition::Release)
        .await;
    assert!(matches!(late, Ok(TransitionOutcome::Lost(_))));
    assert_eq!(shop.orders(), ["k"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_threads_does_the_work() {
    let shop = Shop::open().await;
    let other = Arc::new(SqliteKeyStore::open(&shop.path).await.unwrap());
    let fresh = Arc::new(AtomicU32::new(0));
    let ran = Arc::new(AtomicU32::new(0));
    for round in 0..100 {
        let barrier = Arc::new(tokio::sync::Barrier::new(4));
        let racers = (0..4).map(|racer| {
            let store = if racer % 2 == 0 {
                shop.store.clone()
            } else {
                other.clone()
            };
            let (fresh, ran, barrier) = (fresh.clone(), ran.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                let request = request(&format!("k{round}"));
                let told: Told = store
                    .execute_in_tx(&request, &Policy::default(), move |tx, _| {
                        ran.fetch_add(1, Ordering::SeqCst);
                        insert(tx, &format!("item {round}"))?;
                        Ok(completed())
                    })
                    .await;
                match told.unwrap() {
                    Answer::Fresh(_) => drop(fresh.fetch_add(1, Ordering::SeqCst)),
                    Answer::Replayed(_) => {}
                    other => panic!("{other:?}"),
                }
            })
        });
        for racer in racers.collect::<Vec<_>>() {
            racer.await.unwrap();
        }
    }
    let counts = [&fresh, &ran].map(|count| count.load(Ordering::SeqCst));
    assert_eq!((counts, shop.orders().len()), ([100, 100], 100));
}

#[tokio::test]
async fn no_other_callers_write_is_in_the_works_transaction() {
    let shop = Shop::open().await;
    let (begun, has_begun) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let failing = {
        let store = shop.store.clone();
        tokio::spawn(async move {
            let told: Told = store
                .execute_in_tx(&request("fails"), &Policy::default(), move |tx, _| {
                    insert(tx, "fails")?;
                    begun.send(()).unwrap();
                    gone.recv().unwrap();
                    Err(rusqlite::Error::QueryReturnedNoRows)
                })
                .await;
            assert!(matches!(told, Err(InTransactionError::Work(_))));
        })
    };
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap())
        .await
        .unwrap();
    // In line while the work is at it, and not undone with it.
    let beside = claim_of(id("beside"), 5, &Policy::default());
    let claimed = shop.store.claim(&beside);
    let mut claimed = pin!(claimed);
    assert!(poll_fn(|context| Poll::Ready(claimed.as_mut().poll(context).is_pending())).await);
    // Readers see what was before.
    assert_eq!(shop.status("fails").await, None);
    go.send(()).unwrap();
    failing.await.unwrap();
    assert!(matches!(claimed.await, Ok(ClaimOutcome::Won(_))));
    assert_eq!(shop.status("beside").await, Some(Status::InProgress));
    assert_eq!(shop.orders(), Vec::<String>::new());
}

#[tokio::test]
async fn whoever_has_gone_before_it_begins_has_asked_for_nothing() {
    let shop = Shop::open().await;
    let outside = raw(&shop.path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    {
        let mut told = pin!(shop.order("k", completed));
        assert!(poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_pending())).await);
    }
    outside.execute_batch("ROLLBACK").unwrap();
    // Whatever was in line is done before this is.
    assert!(shop.order("after", completed).await.is_ok());
    assert_eq!(shop.orders(), ["after"]);
    assert_eq!(shop.status("k").await, None);
}

#[tokio::test]
async fn work_inside_of_work_commits_with_it() {
    let shop = Shop::open().await;
    let outer = |inner: &'static str, fails: bool| {
        let store = shop.store.clone();
        async move {
            let nested = store.clone();
            store
                .execute_in_tx(
                    &request("outer"),
                    &Policy::default(),
                    move |tx, _| -> Work {
                        insert(tx, "outer")?;
                        let told: Told = nested.execute_within(
                            tx,
                            &request(inner),
                            &Policy::default(),
                            |tx, _| {
                                insert(tx, inner)?;
                                Ok(completed())
                            },
                        );
                        assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
                        // What waits for the writer here would wait for itself.
                        let beside = claim_of(id("beside"), 5, &Policy::default());
                        let mut claiming = pin!(nested.claim(&beside));
                        let mut context = Context::from_waker(Waker::noop());
                        let claimed = loop {
                            match claiming.as_mut().poll(&mut context) {
                                Poll::Ready(claimed) => break claimed,
                                // A reader looks.
                                Poll::Pending => std::thread::yield_now(),
                            }
                        };
                        let error = claimed.unwrap_err();
                        assert_eq!(error.kind(), StoreErrorKind::Misuse);
                        if fails {
                            Err(rusqlite::Error::QueryReturnedNoRows)
                        } else {
                            Ok(completed())
                        }
                    },
                )
                .await
        }
    };
    assert!(matches!(
        outer("a", true).await,
        Err(InTransactionError::Work(_))
    ));
    assert_eq!((shop.orders().len(), shop.status("a").await), (0, None));
    assert!(matches!(outer("b", false).await, Ok(Answer::Fresh(_))));
    assert_eq!(shop.orders(), ["b", "outer"]);
    assert_eq!(shop.status("b").await, Some(Status::Completed));
    assert_eq!(shop.status("beside").await, None);
}

#[tokio::test]
async fn a_store_in_memory_does_it_too() {
    let store = SqliteKeyStore::open_in_memory().await.unwrap();
    let work = |tx: &rusqlite::Transaction<'_>, _: &TxAttempt| -> Work {
        tx.execute_batch("CREATE TABLE orders (item TEXT PRIMARY KEY)")?;
        insert(tx, "k")?;
        Ok(completed())
    };
    let told = store
        .execute_in_tx(&request("k"), &Policy::default(), work)
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    let told = store
        .execute_in_tx(&request("k"), &Policy::default(), work)
        .await;
    assert!(matches!(told, Ok(Answer::Replayed(_))), "{told:?}");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_kept_without_its_body() {
    let shop = Shop::with(SqliteOptions::new().response_limit(4)).await;
    let told = shop.order("k", completed).await.unwrap();
    assert_eq!(told, Answer::Fresh(Response::new(201).body("ordered")));
    let again = shop.order("k", completed).await.unwrap();
    assert_eq!(again, Answer::Replayed(Response::new(201).without_body()));

    let Outcome::Completed(whole) = completed() else {
        panic!("another outcome")
    };
    let shop = Shop::with(SqliteOptions::new().response_limit(whole.size())).await;
    drop(shop.order("k", completed).await.unwrap());
    let again = shop.order("k", completed).await.unwrap();
    assert_eq!(again, Answer::Replayed(whole));
}

/// While the writer is at something long, a claim of a record that is there does not stand in line behind it.
#[tokio::test]
async fn a_finished_record_is_found_while_work_has_the_writer() {
    let shop = Shop::open().await;
    drop(shop.order("done", completed).await.unwrap());
    let (begun, has_begun) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let store = shop.store.clone();
    let working = tokio::spawn(async move {
        let told: Told = store
            .execute_in_tx(&request("long"), &Policy::default(), move |_, _| {
                begun.send(()).unwrap();
                gone.recv().unwrap();
                Ok(completed())
            })
            .await;
        drop(told.unwrap());
    });
    tokio::task::spawn_blocking(move || {
        has_begun.recv().unwrap();
        // Longer than what is still called short.
        std::thread::sleep(Duration::from_millis(2));
    })
    .await
    .unwrap();
    let again = claim_of(id("done"), 5, &Policy::default());
    let held = tokio::time::timeout(Duration::from_secs(30), shop.store.claim(&again)).await;
    go.send(()).unwrap();
    assert!(matches!(held, Ok(Ok(ClaimOutcome::Held(_)))), "{held:?}");
    working.await.unwrap();
}

/// Only a lock is worth another try. What is broken is said to be.
#[tokio::test]
async fn an_error_that_is_no_lock_is_not_taken_for_one() {
    let shop = Shop::open().await;
    let mut mine = raw(&shop.path);
    let tx = mine
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    tx.execute_batch("DROP TABLE idem_record").unwrap();
    let told: Told = shop
        .store
        .execute_within(&tx, &request("k"), &Policy::default(), |_, _| {
            Ok(completed())
        });
    assert!(
        matches!(told, Err(InTransactionError::Store(_))),
        "{told:?}"
    );
}

/// Whether the next commit is to say that it failed.
static FAILS: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn a_commit_that_says_it_failed_and_did_not_is_found_out() {
    // SQLite calls it when the commit is in the log, and returns what it returns.
    let options = SqliteOptions::new().on_connect(|connection| {
        connection.wal_hook(Some(|_, _| match FAILS.swap(false, Ordering::SeqCst) {
            true => Err(rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_IOERR_FSYNC),
                None,
            )),
            false => Ok(()),
        }));
        Ok(())
    });
    let shop = Shop::with(options).await;
    let calls = Arc::new(AtomicU32::new(0));
    for outcome in [completed(), Outcome::Failed(Response::new(402))] {
        let key = format!("k{}", calls.load(Ordering::SeqCst));
        let (item, counted) = (key.clone(), calls.clone());
        let said = outcome.clone();
        let told: Told = shop
            .store
            .execute_in_tx(&request(&key), &Policy::default(), move |tx, _| {
                counted.fetch_add(1, Ordering::SeqCst);
                FAILS.store(true, Ordering::SeqCst);
                insert(tx, &item)?;
                Ok(outcome.clone())
            })
            .await;
        assert_eq!(told.unwrap(), Answer::Fresh(said.into_answer()));
        assert!(!FAILS.load(Ordering::SeqCst));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(shop.orders(), ["k0"]);
    assert_eq!(shop.status("k1").await, Some(Status::FailedFinal));
}

#[test]
#[cfg(target_os = "linux")]
fn a_commit_that_failed_is_done_again() {
    const NAME: &str = "a_commit_that_failed_is_done_again";
    if std::env::var_os(support::ROLE).is_some() {
        return support::runtime().block_on(limited());
    }
    // No file may grow beyond a third of a megabyte, which SQLite learns in the middle of its commit.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ && ulimit -f 600 && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap());
    support::as_child(&mut command, NAME, "limited", &[]);
    let output = command
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[cfg(target_os = "linux")]
async fn limited() {
    let shop = Shop::open().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let told: Told = shop
        .store
        .execute_in_tx(&request("k"), &Policy::default(), move |tx, _| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                insert(tx, &"x".repeat(1_000_000))?;
            }
            insert(tx, "k")?;
            Ok(completed())
        })
        .await;
    assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(shop.orders(), ["k"]);

    // And when it can never be done, nobody says that it was not.
    let told: Told = shop
        .store
        .execute_in_tx(&request("large"), &Policy::default(), |tx, _| {
            insert(tx, &"x".repeat(1_000_000))?;
            Ok(completed())
        })
        .await;
    let Err(InTransactionError::Store(error)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous);
    assert_eq!(shop.orders(), ["k"]);
}

#[tokio::test]
async fn work_in_a_transaction_of_the_callers_ends_with_it() {
    let shop = Shop::open().await;
    let within = |connection: &Connection, key: &str, outcome: Outcome<Response>| -> Told {
        let item = key.to_owned();
        shop.store
            .execute_within(connection, &request(key), &Policy::default(), |tx, _| {
                insert(tx, &item)?;
                Ok(outcome)
            })
    };
    let mut mine = raw(&shop.path);
    misuse(within(&mine, "k", completed()));
    for commits in [false, true] {
        let tx = mine
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        insert(&tx, "mine").unwrap();
        assert!(matches!(
            within(&tx, "k", completed()),
            Ok(Answer::Fresh(_))
        ));
        assert!(matches!(
            within(&tx, "k", completed()),
            Ok(Answer::Replayed(_))
        ));
        let failed = within(&tx, "f", Outcome::Failed(Response::new(402)));
        assert!(matches!(failed, Ok(Answer::Fresh(_))));
        let rejected = within(&tx, "r", Outcome::Rejected(Response::new(400)));
        assert!(matches!(rejected, Ok(Answer::Fresh(_))));
        // The transaction goes on after an error of the work's.
        let told = within(&tx, "mine", completed());
        assert!(matches!(told, Err(InTransactionError::Work(_))));
        let told = within(&tx, "u", Outcome::Unknown(Response::new(503)));
        assert!(matches!(told, Err(InTransactionError::OutcomeUnknown)));
        if commits {
            tx.commit().unwrap()
        } else {
            tx.rollback().unwrap()
        }
        assert_eq!(shop.status("k").await, commits.then_some(Status::Completed));
        assert_eq!(
            shop.status("f").await,
            commits.then_some(Status::FailedFinal)
        );
    }
    for key in ["r", "mine", "u"] {
        assert_eq!(shop.status(key).await, None, "{key}");
    }
    assert_eq!(shop.orders(), ["k", "mine"]);

    // A transaction that cannot get the lock, and one whose snapshot is old.
    mine.busy_timeout(Duration::ZERO).unwrap();
    let other = raw(&shop.path);
    let tx = mine.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM orders", [], |_| Ok(()))
        .unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told = within(&tx, "x", completed());
    assert!(
        matches!(told, Err(InTransactionError::Contended)),
        "{told:?}"
    );
    insert(&other, "other").unwrap();
    other.execute_batch("COMMIT").unwrap();
    let told = within(&tx, "x", completed());
    assert!(
        matches!(told, Err(InTransactionError::RestartTransaction)),
        "{told:?}"
    );
}

#[tokio::test]
async fn an_outcome_that_joins_a_transaction_ends_with_it() {
    let shop = Shop::open().await;
    let executor = Idempotency::new(shop.store.clone());
    let (store, path) = (shop.store.clone(), shop.path.clone());
    let answer = || Response::new(201).body("joined");
    let told = executor
        .execute(&request("k"), |attempt| async move {
            let done = tokio::task::spawn_blocking(move || {
                let mut mine = raw(&path);
                let begin = TransactionBehavior::Immediate;
                let point = || RecoveryPoint::new("reserved").unwrap();
                // Rolled back, so nothing of it is there.
                let tx = mine.transaction_with_behavior(begin).unwrap();
                insert(&tx, "undone").unwrap();
                store.checkpoint_in(&tx, &attempt, point()).unwrap();
                store.complete_in(&tx, &attempt, &answer()).unwrap();
                drop(tx);
                let tx = mine.transaction_with_behavior(begin).unwrap();
                insert(&tx, "reserved").unwrap();
                store.checkpoint_in(&tx, &attempt, point()).unwrap();
                tx.commit().unwrap();
                let tx = mine.transaction_with_behavior(begin).unwrap();
                insert(&tx, "done").unwrap();
                store.complete_in(&tx, &attempt, &answer()).unwrap();
                // Twice is once.
                store.complete_in(&tx, &attempt, &answer()).unwrap();
                tx.commit().unwrap();
                let misused = store.complete_in(&mine, &attempt, &answer()).unwrap_err();
                assert!(matches!(misused, JoinError::Store(error) if error.kind() == StoreErrorKind::Misuse));
            });
            done.await.unwrap();
            Outcome::Completed(answer())
        })
        .await;
    assert_eq!(told.unwrap(), Answer::Fresh(answer()));
    assert_eq!(shop.orders(), ["done", "reserved"]);
    let held = shop.store.load(&id("k")).await.unwrap().unwrap().record;
    assert_eq!(held.recovery.as_ref().unwrap().point.name(), "reserved");
    assert_eq!(held.state.response(), Some(&answer()));
}

#[tokio::test]
async fn a_late_owner_cannot_join_and_its_rows_are_rolled_back() {
    let shop = Shop::open().await;
    let zero = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    let late = Idempotency::new(shop.store.clone()).with_policy(zero);
    let Begin::Execute(late) = late.begin(&request("k")).await.unwrap() else {
        panic!("the key is new");
    };
    // Somebody else takes over, and completes.
    let told = shop.order("k", completed).await.unwrap();
    assert!(matches!(told, Answer::Fresh(_)));

    let mut mine = raw(&shop.path);
    let attempt = late.attempt();
    let joins: [Join; 2] = [
        |shop, tx, attempt| shop.store.complete_in(tx, attempt, &Response::new(200)),
        |shop, tx, attempt| {
            shop.store
                .checkpoint_in(tx, attempt, RecoveryPoint::new("late").unwrap())
        },
    ];
    for join in joins {
        let joined = (|| {
            let tx = mine.transaction_with_behavior(TransactionBehavior::Immediate)?;
            insert(&tx, "late")?;
            join(&shop, &tx, &attempt)?;
            tx.commit()?;
            Ok::<_, Box<dyn std::error::Error>>(())
        })();
        let refused = joined.unwrap_err().downcast::<JoinError>().unwrap();
        assert!(matches!(*refused, JoinError::LeaseLost), "{refused:?}");
    }
    assert_eq!(shop.orders(), ["k"]);

    // It says what the record says, which is not its own.
    let told: Answer<Response> = late.finish_joined().await.unwrap();
    assert_eq!(told, Answer::OutcomeUnknown);
}

#[tokio::test]
async fn a_join_that_cannot_get_the_lock_says_so() {
    let shop = Shop::open().await;
    let executor = Idempotency::new(shop.store.clone());
    let Begin::Execute(execution) = executor.begin(&request("k")).await.unwrap() else {
        panic!("the key is new");
    };
    let mut mine = raw(&shop.path);
    mine.busy_timeout(Duration::ZERO).unwrap();
    let other = raw(&shop.path);
    let tx = mine.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM orders", [], |_| Ok(()))
        .unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let join = || {
        shop.store
            .complete_in(&tx, &execution.attempt(), &Response::new(200))
    };
    assert!(matches!(join(), Err(JoinError::Contended)));
    insert(&other, "other").unwrap();
    other.execute_batch("COMMIT").unwrap();
    assert!(matches!(join(), Err(JoinError::RestartTransaction)));
    tx.rollback().unwrap();

    let tx = mine
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    shop.store
        .complete_in(&tx, &execution.attempt(), &Response::new(200))
        .unwrap();
    tx.commit().unwrap();
    let told: Answer<Response> = execution.finish_joined().await.unwrap();
    assert_eq!(told, Answer::Fresh(Response::new(200)));
}
