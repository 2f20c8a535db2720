//! Rows and records that commit together or not at all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::executor::{Answer, Begin, Idempotency, Outcome};
use idem_core::{
    Claim, ClaimOutcome, Expect, Fingerprints, IdempotencyKey, KeyStore as _, Nulls, OnBusy,
    Operation, Policy, Profile, RecordId, RecoveryPoint, Request, Response, Rules, Scope, Status,
    StoreErrorKind, Transition,
};
use idem_postgres::{InTransactionError, JoinError, PgKeyStore, Tx};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool, Row as _};
use support::{Schema, Server};
use tokio::sync::Barrier;

type Work<T> = Result<Outcome<T>, sqlx::Error>;

/// A store, its pool, and a table of the program's own in the same schema.
struct Shop {
    schema: Schema,
    store: PgKeyStore,
    pool: PgPool,
}

impl Shop {
    async fn open(connections: u32) -> Option<Self> {
        let schema = match Schema::new(Server::Shared, None) {
            Ok(schema) => schema,
            Err(missing) => {
                assert!(std::env::var_os("CI").is_none(), "{missing}");
                eprintln!("SKIPPED: {missing}");
                return None;
            }
        };
        let pool = schema.pool(connections);
        let store = schema.options(Server::Shared.pooling()).build(pool.clone());
        store.migrate().await.unwrap();
        schema
            .run(format!(
                "CREATE TABLE {}.orders (item text PRIMARY KEY, note text UNIQUE DEFERRABLE INITIALLY DEFERRED)",
                schema.name
            ))
            .await;
        Some(Self {
            schema,
            store,
            pool,
        })
    }

    /// The items that were ordered, as everybody sees them.
    async fn orders(&self) -> Vec<String> {
        let sql = format!("SELECT item FROM {}.orders ORDER BY item", self.schema.name);
        let mut connection = self.schema.connection().await;
        let rows = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn insert(&self, connection: &mut PgConnection, item: &str) -> Result<(), sqlx::Error> {
        insert(connection, &self.schema.name, item).await
    }

    async fn order(
        &self,
        request: &Request,
        policy: &Policy,
        item: &str,
    ) -> Result<Answer<Response>, InTransactionError<sqlx::Error>> {
        let work = |mut tx: Tx<'static>| {
            typed(async move {
                self.insert(&mut tx, item).await?;
                Ok(Outcome::Completed(answer(item)))
            })
        };
        self.store.execute_in_tx(request, policy, work).await
    }

    /// Whether nobody has left a transaction open, and every connection of the pool can be had.
    async fn is_whole(&self) {
        let mut all = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            let taken = tokio::time::timeout(Duration::from_secs(20), self.pool.acquire()).await;
            let mut connection = taken
                .map_err(|_| "the pool has lost a connection")
                .unwrap()
                .unwrap();
            // A transaction that was left open would make this begin a savepoint, and fail outside of one.
            let open = connection
                .fetch_one("SELECT now() = statement_timestamp()")
                .await
                .unwrap();
            assert!(
                open.get::<bool, _>(0),
                "a connection has a transaction open"
            );
            all.push(connection);
        }
    }

    async fn close(self) {
        self.is_whole().await;
        self.pool.close().await;
        self.schema.drop_it().await;
    }
}

async fn insert(
    connection: &mut PgConnection,
    schema: &str,
    item: &str,
) -> Result<(), sqlx::Error> {
    let sql = format!("INSERT INTO {schema}.orders (item) VALUES ($1)");
    sqlx::query(AssertSqlSafe(sql))
        .bind(item)
        .execute(connection)
        .await
        .map(drop)
}

/// Work, of which the compiler knows what its errors are.
fn typed<F: Future<Output = Work<Response>>>(work: F) -> F {
    work
}

fn request(key: &str, payload: u32) -> Request {
    let id = RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new(key).unwrap(),
    );
    let operation = Operation::new("POST /orders").unwrap();
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let body = format!("{{\"n\": {payload}}}");
    let fingerprint = rules.of(&operation).json(body.as_bytes()).unwrap().finish();
    Request::new(id, operation, Fingerprints::new(fingerprint))
}

fn answer(text: &str) -> Response {
    Response::new(201).body(text.to_owned())
}

fn patient() -> Policy {
    Policy::builder()
        .on_busy(OnBusy::Wait(idem_core::Span::from_secs(30)))
        .build()
        .unwrap()
}

#[tokio::test]
async fn what_completes_is_there_with_its_record_and_is_replayed() {
    let Some(shop) = Shop::open(3).await else {
        return;
    };
    let policy = Policy::default();
    let first = shop.order(&request("k", 1), &policy, "book").await.unwrap();
    assert_eq!(first, Answer::Fresh(answer("book")));
    let again = shop.order(&request("k", 1), &policy, "pen").await.unwrap();
    assert_eq!(again, Answer::Replayed(answer("book")));
    let other = shop.order(&request("k", 2), &policy, "pen").await.unwrap();
    assert!(matches!(other, Answer::Mismatch(_)), "{other:?}");
    assert_eq!(shop.orders().await, ["book"]);
    shop.close().await;
}

#[tokio::test]
async fn what_failed_is_kept_without_its_rows() {
    let Some(shop) = Shop::open(3).await else {
        return;
    };
    let policy = Policy::default();
    let request = request("k", 1);
    let s = &shop;
    let work = |mut tx: Tx<'static>| {
        typed(async move {
            s.insert(&mut tx, "book").await?;
            Ok(Outcome::Failed(answer("sold out")))
        })
    };
    let first = shop
        .store
        .execute_in_tx(&request, &policy, work)
        .await
        .unwrap();
    assert_eq!(first, Answer::Fresh(answer("sold out")));
    assert_eq!(shop.orders().await, [""; 0]);
    let again = shop.order(&request, &policy, "book").await.unwrap();
    assert_eq!(again, Answer::Replayed(answer("sold out")));
    shop.close().await;
}

#[tokio::test]
async fn what_may_be_tried_again_leaves_nothing() {
    let Some(shop) = Shop::open(3).await else {
        return;
    };
    let policy = Policy::default();
    let ends: [fn(Response) -> Outcome<Response>; 3] =
        [Outcome::Retryable, Outcome::Rejected, Outcome::Unknown];
    for (number, end) in (0..).zip(ends) {
        let request = request(&format!("k{number}"), 1);
        let s = &shop;
        let work = |mut tx: Tx<'static>| {
            typed(async move {
                s.insert(&mut tx, "book").await?;
                Ok(end(answer("not now")))
            })
        };
        let ended = shop.store.execute_in_tx(&request, &policy, work).await;
        match (number, ended) {
            (0 | 1, Ok(ended)) => assert_eq!(ended, Answer::Fresh(answer("not now"))),
            (2, Err(InTransactionError::OutcomeUnknown)) => {}
            (_, other) => panic!("{other:?}"),
        }
        assert!(shop.store.load(&request.id).await.unwrap().is_none());
    }
    assert_eq!(shop.orders().await, [""; 0]);
    shop.close().await;
}

#[tokio::test]
async fn an_error_of_the_works_own_reaches_the_caller() {
    let Some(shop) = Shop::open(3).await else {
        return;
    };
    let policy = Policy::default();
    let _ = shop
        .order(&request("k1", 1), &policy, "book")
        .await
        .unwrap();
    // At once, from a primary key.
    let error = shop
        .order(&request("k2", 1), &policy, "book")
        .await
        .unwrap_err();
    let InTransactionError::Work(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "23505");
    // At the commit, from a deferred constraint.
    let set_note = async |connection: &mut PgConnection, item: &str| {
        let sql = format!("INSERT INTO {}.orders VALUES ($1, 'n')", shop.schema.name);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(item.to_owned());
        query.execute(connection).await.map(drop)
    };
    for (key, item) in [("k3", "pen"), ("k4", "ink")] {
        let set_note = &set_note;
        let work = |mut tx: Tx<'static>| {
            typed(async move {
                set_note(&mut tx, item).await?;
                Ok(Outcome::Completed(answer(item)))
            })
        };
        let ended = shop
            .store
            .execute_in_tx(&request(key, 1), &policy, work)
            .await;
        match (key, ended) {
            ("k3", Ok(Answer::Fresh(_))) => {}
            ("k4", Err(InTransactionError::Commit(error))) => {
                assert_eq!(error.as_database_error().unwrap().code().unwrap(), "23505");
            }
            (_, other) => panic!("{other:?}"),
        }
    }
    for key in ["k2", "k4"] {
        assert!(
            shop.store
                .load(&request(key, 1).id)
                .await
                .unwrap()
                .is_none()
        );
    }
    assert_eq!(shop.orders().await, ["book", "pen"]);
    shop.close().await;
}

#[tokio::test]
async fn work_that_swallows_an_error_of_the_server_does_not_complete() {
    let Some(shop) = Shop::open(3).await else {
        return;
    };
    let request = request("k", 1);
    let work = |mut tx: Tx<'static>| {
        typed(async move {
            assert!(tx.execute("SELECT 1 / 0").await.is_err());
            Ok(Outcome::Completed(answer("done")))
        })
    };
    let ended = shop
        .store
        .execute_in_tx(&request, &Policy::default(), work)
        .await;
    assert!(
        matches!(ended, Err(InTransactionError::Store(_))),
        "{ended:?}"
    );
    assert!(shop.store.load(&request.id).await.unwrap().is_none());
    shop.close().await;
}

#[tokio::test]
async fn a_panic_undoes_everything() {
    let Some(shop) = Shop::open(1).await else {
        return;
    };
    let request = request("k", 1);
    let store = shop.store.clone();
    let (schema, of_task) = (shop.schema.name.clone(), request.clone());
    let task = tokio::spawn(async move {
        let schema = &schema;
        let work = |mut tx: Tx<'static>| {
            typed(async move {
                insert(&mut tx, schema, "book").await?;
                panic!("the work panics");
            })
        };
        store
            .execute_in_tx(&of_task, &Policy::default(), work)
            .await
            .map(drop)
            .unwrap();
    });
    assert!(task.await.unwrap_err().is_panic());
    let again = shop.order(&request, &patient(), "book").await.unwrap();
    assert_eq!(again, Answer::Fresh(answer("book")));
    shop.close().await;
}

/// It is sent wherever async work is, and so must be able to go to another thread.
#[tokio::test]
async fn it_can_be_spawned() {
    let Some(shop) = Shop::open(2).await else {
        return;
    };
    let shop = Arc::new(shop);
    let there = shop.clone();
    let task = tokio::spawn(async move {
        there
            .order(&request("k", 1), &Policy::default(), "book")
            .await
            .unwrap()
    });
    assert_eq!(task.await.unwrap(), Answer::Fresh(answer("book")));
    Arc::into_inner(shop).unwrap().close().await;
}

/// As many duplicates as the pool has connections, of which the first one works for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losers_give_their_connections_back() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let shop = Arc::new(shop);
    let request = request("k", 1);
    let (ran, losers_are_there) = (Arc::new(AtomicU32::new(0)), Arc::new(Barrier::new(2)));
    let mut senders = Vec::new();
    for _ in 0..4 {
        let (shop, request) = (shop.clone(), request.clone());
        let (ran, there) = (ran.clone(), losers_are_there.clone());
        senders.push(tokio::spawn(async move {
            let (s, ran, there) = (&*shop, &ran, &there);
            let work = |mut tx: Tx<'static>| {
                typed(async move {
                    ran.fetch_add(1, Ordering::SeqCst);
                    s.insert(&mut tx, "book").await?;
                    there.wait().await;
                    // The owner needs a second connection, as work does that asks somebody else.
                    let mut second = s.pool.acquire().await?;
                    second.execute("SELECT 1").await?;
                    Ok(Outcome::Completed(answer("book")))
                })
            };
            shop.store
                .execute_in_tx(&request, &patient(), work)
                .await
                .unwrap()
        }));
    }
    losers_are_there.wait().await;
    let mut fresh = 0;
    for sender in senders {
        match sender.await.unwrap() {
            Answer::Fresh(given) => {
                fresh += 1;
                assert_eq!(given, answer("book"));
            }
            Answer::Replayed(given) => assert_eq!(given, answer("book")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((fresh, ran.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(shop.orders().await, ["book"]);
    Arc::into_inner(shop).unwrap().close().await;
}

#[tokio::test]
async fn a_loser_that_does_not_wait_is_told_that_it_is_busy() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let request = request("k", 1);
    let (s, request) = (&shop, &request);
    let work = |mut tx: Tx<'static>| {
        typed(async move {
            s.insert(&mut tx, "book").await?;
            let other = s.order(request, &Policy::default(), "book").await;
            assert!(matches!(other, Ok(Answer::Busy { .. })), "{other:?}");
            Ok(Outcome::Completed(answer("book")))
        })
    };
    let ended = shop
        .store
        .execute_in_tx(request, &Policy::default(), work)
        .await;
    assert_eq!(ended.unwrap(), Answer::Fresh(answer("book")));
    shop.close().await;
}

/// If the winner rolls back, a waiter becomes the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_follows_a_winner_that_rolls_back() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let shop = Arc::new(shop);
    let request = request("k", 1);
    let waiter = {
        let barrier = Arc::new(Barrier::new(2));
        let (there, shop, request) = (barrier.clone(), shop.clone(), request.clone());
        let waiter = tokio::spawn(async move {
            there.wait().await;
            shop.order(&request, &patient(), "pen").await.unwrap()
        });
        (barrier, waiter)
    };
    let (barrier, waiter) = waiter;
    let (s, barrier) = (&*shop, &barrier);
    let work = |mut tx: Tx<'static>| {
        typed(async move {
            s.insert(&mut tx, "book").await?;
            barrier.wait().await;
            Ok(Outcome::Rejected(answer("no")))
        })
    };
    let ended = shop
        .store
        .execute_in_tx(&request, &Policy::default(), work)
        .await;
    assert_eq!(ended.unwrap(), Answer::Fresh(answer("no")));
    assert_eq!(waiter.await.unwrap(), Answer::Fresh(answer("pen")));
    assert_eq!(shop.orders().await, ["pen"]);
    Arc::into_inner(shop).unwrap().close().await;
}

/// Two that lock the same two rows in opposite order: one of them is undone, and done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_done_again() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let policy = Policy::default();
    for item in ["a", "b"] {
        let _ = shop.order(&request(item, 1), &policy, item).await.unwrap();
    }
    let shop = Arc::new(shop);
    let met = Arc::new(Barrier::new(2));
    let runs = Arc::new(AtomicU32::new(0));
    let lock = |first: &'static str, second: &'static str| {
        let (shop, met, runs) = (shop.clone(), met.clone(), runs.clone());
        tokio::spawn(async move {
            let is_first_run = AtomicU32::new(0);
            let (s, met, runs, is_first_run) = (&*shop, &met, &runs, &is_first_run);
            let work = |mut tx: Tx<'static>| {
                typed(async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    let update = |item: &str| {
                        let schema = &s.schema.name;
                        format!("UPDATE {schema}.orders SET item = item WHERE item = '{item}'")
                    };
                    tx.execute(AssertSqlSafe(update(first))).await?;
                    if is_first_run.fetch_add(1, Ordering::SeqCst) == 0 {
                        met.wait().await;
                    }
                    tx.execute(AssertSqlSafe(update(second))).await?;
                    Ok(Outcome::Completed(answer(first)))
                })
            };
            let request = request(&format!("{first}{second}"), 1);
            shop.store
                .execute_in_tx(&request, &Policy::default(), work)
                .await
                .unwrap()
        })
    };
    let (one, two) = (lock("a", "b"), lock("b", "a"));
    assert_eq!(one.await.unwrap(), Answer::Fresh(answer("a")));
    assert_eq!(two.await.unwrap(), Answer::Fresh(answer("b")));
    assert!(runs.load(Ordering::SeqCst) >= 3);
    Arc::into_inner(shop).unwrap().close().await;
}

async fn show(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    Ok(connection.fetch_one("SHOW lock_timeout").await?.get(0))
}

async fn order_within(
    shop: &Shop,
    connection: &mut PgConnection,
    request: &Request,
    item: &str,
) -> Result<Answer<Response>, InTransactionError<sqlx::Error>> {
    let policy = Policy::default();
    shop.store
        .execute_within(connection, request, &policy, |mut tx| {
            typed(async move {
                shop.insert(&mut tx, item).await?;
                Ok(Outcome::Completed(answer(item)))
            })
        })
        .await
}

/// A bound on waiting for locks that is the caller's own stays what it was.
#[tokio::test]
async fn no_setting_leaks_into_the_work() {
    let Some(shop) = Shop::open(2).await else {
        return;
    };
    let mut connection = shop.pool.acquire().await.unwrap();
    connection.execute("SET lock_timeout = '7s'").await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let seen = shop
        .store
        .execute_within(
            &mut transaction,
            &request("k", 1),
            &Policy::default(),
            |mut tx| typed(async move { Ok(Outcome::Completed(answer(&show(&mut tx).await?))) }),
        )
        .await
        .unwrap();
    assert_eq!(seen, Answer::Fresh(answer("7s")));
    assert_eq!(show(&mut transaction).await.unwrap(), "7s");
    transaction.commit().await.unwrap();
    assert_eq!(show(&mut connection).await.unwrap(), "7s");
    connection.execute("RESET lock_timeout").await.unwrap();
    drop(connection);
    shop.close().await;
}

#[tokio::test]
async fn inside_a_transaction_of_the_callers_everything_is_his() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let policy = Policy::default();
    let order = async |connection: &mut PgConnection, request: &Request, item: &str| {
        order_within(&shop, connection, request, item).await
    };
    // Rolled back, nothing is there.
    let mut transaction = shop.pool.begin().await.unwrap();
    let first = order(&mut transaction, &request("k", 1), "book")
        .await
        .unwrap();
    assert_eq!(first, Answer::Fresh(answer("book")));
    transaction.rollback().await.unwrap();
    assert_eq!(shop.orders().await, [""; 0]);
    assert!(
        shop.store
            .load(&request("k", 1).id)
            .await
            .unwrap()
            .is_none()
    );

    // Two keys in one transaction, one of them twice, one with an error after which the transaction goes on.
    let mut transaction = shop.pool.begin().await.unwrap();
    let _ = order(&mut transaction, &request("k", 1), "book")
        .await
        .unwrap();
    let again = order(&mut transaction, &request("k", 1), "pen")
        .await
        .unwrap();
    assert_eq!(again, Answer::Replayed(answer("book")));
    let refused = order(&mut transaction, &request("l", 1), "book")
        .await
        .unwrap_err();
    assert!(
        matches!(refused, InTransactionError::Work(_)),
        "{refused:?}"
    );
    // Somebody else finds what is not committed contended.
    let mut other = shop.pool.begin().await.unwrap();
    let contended = order(&mut other, &request("k", 1), "pen")
        .await
        .unwrap_err();
    assert!(
        matches!(contended, InTransactionError::Contended),
        "{contended:?}"
    );
    let beside = order(&mut other, &request("m", 1), "ink").await.unwrap();
    assert_eq!(beside, Answer::Fresh(answer("ink")));
    other.commit().await.unwrap();
    let _ = order(&mut transaction, &request("l", 1), "pen")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(shop.orders().await, ["book", "ink", "pen"]);
    let replayed = shop.order(&request("k", 1), &policy, "x").await.unwrap();
    assert_eq!(replayed, Answer::Replayed(answer("book")));
    shop.close().await;
}

#[tokio::test]
async fn outside_of_a_transaction_nothing_is_joined() {
    let Some(shop) = Shop::open(2).await else {
        return;
    };
    let mut connection = shop.pool.acquire().await.unwrap();
    let ended = shop
        .store
        .execute_within(
            &mut connection,
            &request("k", 1),
            &Policy::default(),
            |_| typed(async { Ok(Outcome::Completed(answer("x"))) }),
        )
        .await;
    let Err(InTransactionError::Store(error)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Misuse);

    let idempotency = Idempotency::new(shop.store.clone());
    let Begin::Execute(execution) = idempotency.begin(&request("l", 1)).await.unwrap() else {
        panic!("the key is unused")
    };
    let ended = shop
        .store
        .complete_in(&mut connection, &execution.attempt(), &answer("x"))
        .await;
    let Err(JoinError::Store(error)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Misuse);
    drop(connection);
    shop.close().await;
}

/// In a serializable transaction that another one gets in the way of, the caller is told to begin again.
#[tokio::test]
async fn a_serialization_failure_restarts_the_callers_transaction() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let policy = Policy::default();
    let request = request("k", 1);
    let mut transaction = shop
        .pool
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .unwrap();
    // The snapshot is taken, and then the key is used.
    transaction.execute("SELECT 1").await.unwrap();
    let _ = shop.order(&request, &policy, "book").await.unwrap();
    let ended = shop
        .store
        .execute_within(&mut transaction, &request, &policy, |_| {
            typed(async { Ok(Outcome::Completed(answer("x"))) })
        })
        .await;
    assert!(
        matches!(ended, Err(InTransactionError::RestartTransaction)),
        "{ended:?}"
    );
    transaction.rollback().await.unwrap();
    shop.close().await;
}

#[tokio::test]
async fn an_answer_that_is_joined_commits_with_the_rows_or_not_at_all() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let idempotency = Idempotency::new(shop.store.clone());
    for (key, commits) in [("k", true), ("l", false)] {
        let request = request(key, 1);
        let Begin::Execute(execution) = idempotency.begin(&request).await.unwrap() else {
            panic!("the key is unused")
        };
        let attempt = execution.attempt();
        let mut transaction = shop.pool.begin().await.unwrap();
        shop.insert(&mut transaction, key).await.unwrap();
        shop.store
            .complete_in(&mut transaction, &attempt, &answer(key))
            .await
            .unwrap();
        // A heartbeat meets the lock, which is no lost lease.
        let renewed = attempt.renew();
        let renewed = tokio::time::timeout(Duration::from_millis(300), renewed).await;
        assert!(renewed.is_err(), "{renewed:?}");
        assert!(!attempt.is_lease_lost());
        let told: Answer<Response> = if commits {
            transaction.commit().await.unwrap();
            execution.finish_joined().await.unwrap()
        } else {
            transaction.rollback().await.unwrap();
            execution.finish_joined().await.unwrap()
        };
        let held = shop.store.load(&request.id).await.unwrap().unwrap();
        if commits {
            assert_eq!(told, Answer::Fresh(answer(key)));
            assert_eq!(held.record.status(), Status::Completed);
        } else {
            assert_eq!(told, Answer::OutcomeUnknown);
            assert_eq!(held.record.status(), Status::InProgress);
        }
    }
    assert_eq!(shop.orders().await, ["k"]);
    shop.close().await;
}

/// A handler that joins its answer and then says the same is done with it.
#[tokio::test]
async fn a_handler_may_join_its_answer_and_return_it() -> Result<(), Box<dyn Error>> {
    let Some(shop) = Shop::open(4).await else {
        return Ok(());
    };
    let idempotency = Idempotency::new(shop.store.clone());
    let answered = idempotency
        .execute(&request("k", 1), async |attempt| {
            let mut transaction = shop.pool.begin().await?;
            shop.insert(&mut transaction, "book").await?;
            shop.store
                .complete_in(&mut transaction, &attempt, &answer("book"))
                .await?;
            transaction.commit().await?;
            Ok::<_, Box<dyn Error + Send + Sync>>(Outcome::Completed(answer("book")))
        })
        .await?;
    assert_eq!(answered, Answer::Fresh(answer("book")));
    shop.close().await;
    Ok(())
}

#[tokio::test]
async fn an_owner_that_was_replaced_cannot_join() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let policy = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    let idempotency = Idempotency::new(shop.store.clone()).with_policy(policy);
    let request = request("k", 1);
    let Begin::Execute(late) = idempotency.begin(&request).await.unwrap() else {
        panic!()
    };
    let Begin::Execute(now) = idempotency.begin(&request).await.unwrap() else {
        panic!()
    };
    let mut transaction = shop.pool.begin().await.unwrap();
    shop.insert(&mut transaction, "late").await.unwrap();
    let joined = shop
        .store
        .complete_in(&mut transaction, &late.attempt(), &answer("late"))
        .await;
    assert!(matches!(joined, Err(JoinError::LeaseLost)), "{joined:?}");
    let point = RecoveryPoint::new("late").unwrap();
    let joined = shop
        .store
        .checkpoint_in(&mut transaction, &late.attempt(), point)
        .await;
    assert!(matches!(joined, Err(JoinError::LeaseLost)), "{joined:?}");
    transaction.rollback().await.unwrap();

    let mut transaction = shop.pool.begin().await.unwrap();
    shop.insert(&mut transaction, "now").await.unwrap();
    let point = RecoveryPoint::new("inserted").unwrap();
    shop.store
        .checkpoint_in(&mut transaction, &now.attempt(), point.clone())
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let held = shop.store.load(&request.id).await.unwrap().unwrap();
    assert_eq!(held.record.recovery.as_ref().unwrap().point, point);
    assert_eq!(shop.orders().await, ["now"]);
    shop.close().await;
}

/// Work in one transaction takes over what a crashed attempt has left, and sees how far that had come.
#[tokio::test]
async fn a_crashed_attempt_is_taken_over() {
    let Some(shop) = Shop::open(4).await else {
        return;
    };
    let policy = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    let request = request("k", 1);
    let claim = Claim::fresh(request.clone(), &policy).unwrap();
    assert!(matches!(
        shop.store.claim(&claim).await.unwrap(),
        ClaimOutcome::Won(_)
    ));
    let point = RecoveryPoint::new("charged").unwrap();
    let change = Transition::Checkpoint {
        point,
        sequence: 1,
        lease: idem_core::Span::ZERO,
    };
    shop.store
        .transition(&request.id, Expect::Owner(claim.token()), &change)
        .await
        .unwrap();
    let work = |tx: Tx<'static>| {
        typed(async move {
            assert_eq!(tx.attempt().number().as_u32(), 2);
            assert_eq!(tx.attempt().recovery_point().unwrap().name(), "charged");
            Ok(Outcome::Completed(answer("x")))
        })
    };
    let ended = shop
        .store
        .execute_in_tx(&request, &policy, work)
        .await
        .unwrap();
    assert_eq!(ended, Answer::Fresh(answer("x")));
    shop.close().await;
}

/// Every call that begins a transaction, dropped wherever it waits: nothing stays open, and no connection is lost.
#[tokio::test]
async fn a_transaction_that_is_dropped_leaves_nothing_open() {
    let Some(shop) = Shop::open(2).await else {
        return;
    };
    for round in 0..100_usize {
        let request = request(&format!("k{round}"), 1);
        let item = format!("item {round}");
        let policy = Policy::default();
        let order = shop.order(&request, &policy, &item);
        let dropped = drop_after(round % 25, order).await;
        drop(dropped);
    }
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%idem%'";
    // A connection that was closed in the middle is gone as soon as the server looks at it.
    let mut connection = shop.schema.connection().await;
    let mut looks = 0;
    loop {
        let open: i64 = connection.fetch_one(sql).await.unwrap().get(0);
        if open == 0 {
            break;
        }
        looks += 1;
        assert!(looks < 2000, "{open} transactions are open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // What is ordered has a record, and what has a record is ordered.
    let orders = shop.orders().await;
    for round in 0..100 {
        let held = shop
            .store
            .load(&request(&format!("k{round}"), 1).id)
            .await
            .unwrap();
        assert_eq!(
            held.is_some(),
            orders.contains(&format!("item {round}")),
            "{round}"
        );
    }
    shop.close().await;
}

/// Polls a future so many times that it has something to do, and drops it if it is not done by then.
async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}
