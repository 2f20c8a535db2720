//! PgBouncer in transaction mode, with more clients than servers: the mode that is for it, and what becomes of the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::time::Duration;

use idem_core::executor::{Answer, Idempotency, Outcome};
use idem_core::{ClaimOutcome, KeyStore as _, Policy, Response, TransitionOutcome};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions, Pooling};
use idem_test_servers::{PgBouncer, PoolMode};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tools::{Database, answer, claim, complete, own_server, owner, request, soon, win};

/// How many programs there are, and how many connections of the server for all of them.
const PROGRAMS: usize = 4;
const SERVERS: usize = 2;

/// How many calls each of them makes at a time, and how often.
const CALLS: usize = 50;

struct Behind {
    database: Database,
    /// Dropped with this.
    _pooler: PgBouncer,
    url: String,
}

impl Behind {
    fn new(name: &str, servers: usize) -> Option<Self> {
        let database = Database::new(name)?;
        let pooler = PgBouncer::start(own_server()?, PoolMode::Transaction, servers);
        let pooler = idem_test_servers::unless_missing(pooler)?;
        Some(Self {
            url: pooler.url_for(name),
            database,
            _pooler: pooler,
        })
    }

    /// A program with a table of its own, and so with statements of its own.
    async fn program(&self, number: usize, pooling: Pooling, prepared: usize) -> PgKeyStore {
        let options = || {
            PgOptions::new()
                .table(format!("program_{number}"))
                .unwrap()
                .coalescing(Coalescing::Off)
        };
        options()
            .build(self.database.pool(1))
            .migrate()
            .await
            .unwrap();
        let connect: PgConnectOptions = self.url.parse().unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy_with(connect.statement_cache_capacity(prepared));
        options().pooling(pooling).build(pool)
    }
}

/// Every client gets its own answer, whichever server connection it is given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_its_mode_every_client_gets_its_own_answer() {
    let Some(behind) = Behind::new("pooled", SERVERS) else {
        return;
    };
    let mut tasks = Vec::new();
    for program in 0..PROGRAMS {
        let store = behind.program(program, Pooling::Transaction, 100).await;
        for call in 0..CALLS {
            let store = store.clone();
            let claim = claim(&format!("program-{program}-{call}"));
            tasks.push(tokio::spawn(async move { store.claim(&claim).await }));
        }
    }
    for task in tasks {
        let claimed = soon(task).await.unwrap();
        assert!(matches!(claimed, Ok(ClaimOutcome::Won(_))), "{claimed:?}");
    }
    assert_eq!(astray(&behind, PROGRAMS).await, 0);
    for program in 0..PROGRAMS {
        let own = format!("SELECT count(*) FROM program_{program}");
        assert_eq!(behind.database.number(&own).await, CALLS as i64);
    }
}

/// The ordinary mode is not merely slower there: a claim is carried out as another program's statement, and nobody is told.
///
/// This shows what the documentation says, so that it is noticed if it is no longer so. Two programs have each prepared a
/// statement, on two server connections, under the same name, since each client counts its own. Then one of them is given the
/// other's server connection.
#[tokio::test]
async fn in_the_ordinary_mode_another_statement_is_carried_out() {
    let Some(behind) = Behind::new("not_pooled", 2) else {
        return;
    };
    let first = behind.program(0, Pooling::Session, 100).await;
    let second = behind.program(1, Pooling::Session, 100).await;
    // Somebody's transaction has the one server connection, so the first program has to take the other one.
    let mut somebody = PgConnection::connect(&behind.url).await.unwrap();
    somebody.execute("BEGIN").await.unwrap();
    win(&first, &claim("program-0-a")).await;
    given_back(&first).await;
    somebody.execute("COMMIT").await.unwrap();
    let (mut won, mut failed) = (0, 0);
    for call in 0..50 {
        // The server connection that was given back last is given out first.
        for (program, store) in [(1, &second), (0, &first)] {
            let claim = claim(&format!("program-{program}-{call}"));
            match store.claim(&claim).await {
                Ok(ClaimOutcome::Won(_)) => won += 1,
                _ => failed += 1,
            }
            given_back(store).await;
        }
        if astray(&behind, 2).await > 0 {
            break;
        }
    }
    println!(
        "until a claim was carried out as another program's, {won} were won and {failed} failed"
    );
    assert!(astray(&behind, 2).await > 0, "{won} {failed}");
}

/// Waits until the program's pool has its connections back. It asks each of them whether it is alive, after the call, and that
/// too takes a server connection and gives it back.
async fn given_back(store: &PgKeyStore) {
    soon(async {
        while store.pool().num_idle() < store.pool().size() as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Records in a table of another program than the one that claimed them.
async fn astray(behind: &Behind, programs: usize) -> i64 {
    let mut astray = 0;
    for program in 0..programs {
        let sql = format!(
            "SELECT count(*) FROM program_{program} WHERE \"key\" NOT LIKE 'program-{program}-%'"
        );
        astray += behind.database.number(&sql).await;
    }
    astray
}

/// Claims, answers, renewals, replays and transactions of many programs, each with its own statements, on two connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flow_works_with_more_clients_than_servers() {
    let Some(behind) = Behind::new("every_flow", SERVERS) else {
        return;
    };
    behind
        .database
        .run("CREATE TABLE orders (item text PRIMARY KEY)")
        .await;
    let mut programs = Vec::new();
    for number in 0..PROGRAMS {
        programs.push(behind.program(number, Pooling::Transaction, 0).await);
    }
    let mut tasks = Vec::new();
    for (program, store) in programs.iter().enumerate() {
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        for call in 0..12 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                let key = format!("program-{program}-{call}");
                let work = async |attempt: idem_core::executor::Attempt| {
                    attempt.renew().await.unwrap();
                    Ok::<_, std::convert::Infallible>(Outcome::Completed(answer(&key)))
                };
                let idempotency = Idempotency::new(store.clone());
                let first = idempotency.execute(&request(&key), work).await.unwrap();
                assert_eq!(first, Answer::Fresh(answer(&key)));
                let again = idempotency.execute(&request(&key), work).await.unwrap();
                assert_eq!(again, Answer::Replayed(answer(&key)));

                let raw = claim(&format!("{key}-raw"));
                assert!(matches!(store.claim(&raw).await, Ok(ClaimOutcome::Won(_))));
                let done = store
                    .transition(raw.id(), owner(&raw), &complete(&key))
                    .await;
                assert!(
                    matches!(done, Ok(TransitionOutcome::Applied { .. })),
                    "{done:?}"
                );

                let policy = Policy::default();
                let item = &key;
                let order = |mut tx: idem_postgres::Tx<'static>| async move {
                    let sql = format!("INSERT INTO orders VALUES ('{item}')");
                    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
                        .execute(&mut *tx)
                        .await?;
                    Ok::<Outcome<Response>, sqlx::Error>(Outcome::Completed(answer(item)))
                };
                let request = request(&format!("{key}-order"));
                let ordered = store.execute_in_tx(&request, &policy, order).await.unwrap();
                assert_eq!(ordered, Answer::Fresh(answer(&key)));
            }));
        }
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    let orders = behind.database.number("SELECT count(*) FROM orders").await;
    assert_eq!(orders, (PROGRAMS * 12) as i64);
    for program in 0..PROGRAMS {
        let own = format!(
            "SELECT count(*) FROM program_{program} WHERE \"key\" LIKE 'program-{program}-%' AND status = 'completed'"
        );
        assert_eq!(behind.database.number(&own).await, 36);
    }
}
