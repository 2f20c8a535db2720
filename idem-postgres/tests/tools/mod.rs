//! What the tests in several of these files need.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and each file of tests uses its own part of this"
)]

mod tap;

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use idem_core::{
    Claim, ClaimOutcome, Expect, Fingerprints, IdempotencyKey, KeyStore as _, Nulls, Operation,
    Policy, Profile, RecordId, Request, Response, Rules, Scope, Snapshot, Span, Transition,
};
use idem_postgres::{PgKeyStore, PgOptions};
use idem_test_servers::{Postgres, Unavailable, Version, unless_missing};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool, Row as _};
use tokio::task::JoinHandle;

#[allow(
    unused_imports,
    reason = "each file of tests uses its own part of this"
)]
pub(crate) use tap::Tap;

/// How long something may take that happens at once on a quiet machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn id(key: &str) -> RecordId {
    let scope = Scope::new("acct_1").unwrap();
    RecordId::new(scope, IdempotencyKey::new(key).unwrap())
}

pub(crate) fn request(key: &str) -> Request {
    let operation = Operation::new("POST /orders").unwrap();
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let fingerprint = rules.of(&operation).json(b"{}").unwrap().finish();
    Request::new(id(key), operation, Fingerprints::new(fingerprint))
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim::fresh(request(key), &Policy::default()).unwrap()
}

/// A claim whose lease is over at once.
pub(crate) fn brief_claim(key: &str) -> Claim {
    let policy = Policy::builder()
        .lease(Duration::ZERO)
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    Claim::fresh(request(key), &policy).unwrap()
}

/// What the policy of a claim says of its leases and of its end.
pub(crate) fn lease() -> Span {
    Policy::default().lease()
}

pub(crate) fn answer(text: &str) -> Response {
    Response::new(201).body(text.to_owned())
}

pub(crate) fn complete(text: &str) -> Transition {
    Transition::Complete(answer(text))
}

pub(crate) fn renew() -> Transition {
    Transition::Renew { lease: lease() }
}

pub(crate) fn owner(claim: &Claim) -> Expect {
    Expect::Owner(claim.token())
}

pub(crate) async fn win(store: &PgKeyStore, claim: &Claim) -> Snapshot {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Won(won) => won,
        other => panic!("{other:?}"),
    }
}

/// A server of these tests' own, which ends with the process.
pub(crate) fn own_server() -> Option<&'static Postgres> {
    static SERVER: LazyLock<Result<Postgres, Unavailable>> = LazyLock::new(|| {
        Postgres::builder(Version::V15)
            // Nothing is written but what the tests write.
            .setting("wal_level", "minimal")
            .setting("max_wal_senders", "0")
            .setting("autovacuum", "off")
            .setting("deadlock_timeout", "100ms")
            .start()
    });
    unless_missing(match &*SERVER {
        Ok(server) => Ok(server),
        Err(missing) => Err(missing.clone()),
    })
}

/// A database of one test's own.
pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
}

impl Database {
    /// `None` where there is no server, and need not be.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let url = own_server()?.create_database(name).unwrap();
        let name = name.to_owned();
        Some(Self { url, name })
    }

    pub(crate) fn connect_options(&self) -> PgConnectOptions {
        let options: PgConnectOptions = self.url.parse().unwrap();
        options
            .application_name(&self.name)
            .ssl_mode(PgSslMode::Disable)
    }

    pub(crate) fn pool(&self, connections: u32) -> PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(self.connect_options())
    }

    /// A store whose tables are there.
    pub(crate) async fn store(&self, options: PgOptions, connections: u32) -> PgKeyStore {
        let store = options.build(self.pool(connections));
        store.migrate().await.unwrap();
        store
    }

    /// A connection that no pool has, and that no test looks for.
    pub(crate) async fn connection(&self) -> PgConnection {
        let options = self.connect_options().application_name("test");
        PgConnection::connect_with(&options).await.unwrap()
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.connection().await;
        number(&mut connection, sql).await
    }

    pub(crate) async fn run(&self, sql: &str) {
        let mut connection = self.connection().await;
        connection
            .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
            .await
            .unwrap();
    }

    /// Waits until so many of the store's statements wait for a lock.
    pub(crate) async fn until_waiting(&self, statements: i64) {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = '{}'",
            self.name
        );
        let mut connection = self.connection().await;
        let until = Instant::now() + SOON;
        while number(&mut connection, &sql).await < statements {
            assert!(Instant::now() < until, "nothing waits for the lock");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Whether no connection has a transaction open.
    pub(crate) async fn nothing_is_open(&self) {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND application_name = '{}'",
            self.name
        );
        // What was dropped in the middle is put in order by tasks of the pool.
        let until = Instant::now() + SOON;
        let mut connection = self.connection().await;
        loop {
            let open = number(&mut connection, &sql).await;
            if open == 0 {
                break;
            }
            assert!(Instant::now() < until, "{open} transactions are open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether no connection has a transaction open, and every one of the pool can be had.
    pub(crate) async fn is_whole(&self, pool: &PgPool) {
        self.nothing_is_open().await;
        let mut all = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            let taken = tokio::time::timeout(SOON, pool.acquire()).await;
            let mut connection = taken
                .map_err(|_| "the pool has lost a connection")
                .unwrap()
                .unwrap();
            // In a transaction that was left open, these two are apart.
            let row = connection
                .fetch_one("SELECT now() = statement_timestamp()")
                .await
                .unwrap();
            assert!(row.get::<bool, _>(0), "a connection has a transaction open");
            all.push(connection);
        }
    }
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    let row = connection.fetch_one(AssertSqlSafe(sql.to_owned())).await;
    row.unwrap().get(0)
}

/// A future that has been polled once, so it stands in line, in a task.
pub(crate) fn in_line<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => tokio::spawn(async move { output }),
        Poll::Pending => tokio::spawn(future),
    }
}

/// Polls a future so many times that it has something to do, and drops it if it is not done by then.
pub(crate) async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// The error of a call that must have one soon.
pub(crate) async fn soon<T>(call: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, call).await {
        Ok(output) => output,
        Err(_) => panic!("it did not end within {SOON:?}"),
    }
}
