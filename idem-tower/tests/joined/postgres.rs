//! The example `axum_postgres`, on a server.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use idem_postgres::PgKeyStore;
use idem_postgres::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use idem_postgres::sqlx::{ConnectOptions as _, Executor as _, PgConnection, PgPool};
use idem_test_servers::{
    Direction, Fault, FaultProxy, Postgres, Unavailable, Version, unless_missing,
};
use tokio::task::JoinHandle;

use super::shop::{self, Shop};
use super::wire::Reply;
use super::{order, order_of, serve};

const SOON: Duration = Duration::from_secs(30);

fn server() -> Option<&'static Postgres> {
    static SERVER: LazyLock<Result<Postgres, Unavailable>> =
        LazyLock::new(|| Postgres::start(Version::V15));
    unless_missing(match &*SERVER {
        Ok(server) => Ok(server),
        Err(missing) => Err(missing.clone()),
    })
}

/// The example, serving, with a link to its database that can be broken. The layer has another link, which holds.
struct Example {
    address: SocketAddr,
    link: FaultProxy,
    database: &'static str,
    server: &'static Postgres,
}

impl Example {
    async fn start(database: &'static str) -> Option<Self> {
        let server = server()?;
        let url = server.create_database(database).unwrap();
        let link = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
        let options: PgConnectOptions = url.parse().unwrap();
        let pool = |options: PgConnectOptions| -> PgPool {
            PgPoolOptions::new()
                .max_connections(4)
                .acquire_timeout(SOON)
                .connect_lazy_with(options)
        };
        let keys = PgKeyStore::new(pool(options.clone()));
        let business = pool(options.port(link.address().port()));
        let shop = Shop::open(business, keys.clone()).await.unwrap();
        let router = shop::router(shop, shop::layer(keys));
        Some(Self {
            address: serve(router).await,
            link,
            database,
            server,
        })
    }

    async fn order(&self, key: &str) -> Reply {
        order(key).send(self.address).await
    }

    fn sends(&self, key: &str) -> JoinHandle<Reply> {
        tokio::spawn(order(key).send_owned(self.address))
    }

    fn sql(&self, sql: &str) -> String {
        self.server.psql(self.database, sql).unwrap()
    }

    fn orders(&self) -> String {
        self.sql("SELECT count(*) FROM orders")
    }

    fn status(&self) -> String {
        self.sql("SELECT status FROM idem_record")
    }

    /// The lease of every record is over.
    fn leases_end(&self) {
        self.sql("UPDATE idem_record SET locked_until = locked_at");
    }

    /// Has whoever writes an order wait, at the insert or at the commit, until what this returns is closed.
    async fn gate(&self, timing: &str) -> PgConnection {
        self.sql(&format!(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'; \
             CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON orders {timing} FOR EACH ROW EXECUTE FUNCTION wait()"
        ));
        let options: PgConnectOptions = self.server.url_for(self.database).parse().unwrap();
        let mut gate = options.connect().await.unwrap();
        gate.execute("SELECT pg_advisory_lock(1)").await.unwrap();
        gate
    }

    async fn until(&self, sql: &str) {
        let until = Instant::now() + SOON;
        while self.sql(sql) != "t" {
            assert!(Instant::now() < until, "it never came to {sql}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_somebody_is_at_the_gate(&self) {
        let at_the_gate = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        self.until(at_the_gate).await;
    }

    async fn until_completed(&self) {
        let completed = "SELECT status = 'completed' FROM idem_record";
        self.until(completed).await;
    }
}

async fn opens(mut gate: PgConnection) {
    gate.execute("SELECT pg_advisory_unlock(1)").await.unwrap();
}

#[tokio::test]
async fn an_order_is_placed_once_and_its_answer_replayed() {
    let Some(example) = Example::start("placed_once").await else {
        return;
    };
    let first = example.order("k").await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert_eq!(first.body_text(), r#"{"id":1,"item":"book","quantity":2}"#);
    assert_eq!(first.text("content-type"), Some("application/json"));
    let again = example.order("k").await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(again.text("content-type"), Some("application/json"));
    assert_eq!(example.orders(), "1");
    // The answer is in the record that the transaction has written, and nobody has written another one since.
    let writes = "SELECT revision, attempt, convert_from(response_body, 'UTF8') FROM idem_record";
    assert_eq!(example.sql(writes), format!("2|1|{}", first.body_text()));
    let invalid = order_of("k-2", r#"{"item":"book"}"#);
    assert_eq!(invalid.send(example.address).await.status, 422);
    assert_eq!(example.order("k-2").await.status, 201);
}

/// Many senders at once, and nobody but one of them has an order.
#[tokio::test]
async fn of_many_senders_at_once_one_has_an_order() {
    let Some(example) = Example::start("many_senders").await else {
        return;
    };
    let gate = example.gate("DEFERRABLE INITIALLY DEFERRED").await;
    let first = example.sends("k");
    example.until_somebody_is_at_the_gate().await;
    // The row of the order and the answer are written, and not committed: nobody is told of them.
    let others: Vec<_> = (0..8).map(|_| example.sends("k")).collect();
    for other in others {
        assert_eq!(other.await.unwrap().problem(), "request-in-progress");
    }
    assert_eq!(example.orders(), "0");
    opens(gate).await;
    assert_eq!(first.await.unwrap().status, 201);
    assert!(example.order("k").await.is_replayed());
    assert_eq!(example.orders(), "1");
}

#[tokio::test]
async fn what_is_undone_is_not_stored_and_may_be_tried_again_at_once() {
    let Some(example) = Example::start("undone").await else {
        return;
    };
    example.sql("ALTER TABLE orders RENAME TO elsewhere");
    let undone = example.order("k").await;
    assert_eq!((undone.status, undone.body_text()), (503, "try again"));
    assert_eq!(example.status(), "failed_retryable");
    example.sql("ALTER TABLE elsewhere RENAME TO orders");
    let placed = example.order("k").await;
    assert_eq!((placed.status, placed.is_replayed()), (201, false));
    assert!(example.order("k").await.is_replayed());
    assert_eq!(example.orders(), "1");
}

#[tokio::test]
async fn a_commit_that_is_refused_stores_neither_and_leaves_the_key_for_its_lease() {
    let Some(example) = Example::start("commit_refused").await else {
        return;
    };
    example.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'; \
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let refused = example.order("k").await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (503, "not-yet-stored")
    );
    assert!(refused.text("retry-after").is_some());
    assert_eq!(
        (example.orders(), example.status()),
        ("0".to_owned(), "in_progress".to_owned())
    );
    assert_eq!(example.order("k").await.problem(), "request-in-progress");
    example.sql("DROP TRIGGER refuse ON orders");
    example.leases_end();
    let placed = example.order("k").await;
    assert_eq!((placed.status, placed.is_replayed()), (201, false));
    assert_eq!(example.orders(), "1");
    assert_eq!(example.sql("SELECT attempt FROM idem_record"), "2");
}

/// The commit is carried out, and its acknowledgement never arrives: the layer reads what the record says.
#[tokio::test]
async fn a_commit_that_nobody_heard_of_is_found_in_the_record() {
    let Some(example) = Example::start("commit_unheard").await else {
        return;
    };
    let gate = example.gate("DEFERRABLE INITIALLY DEFERRED").await;
    let sender = example.sends("k");
    example.until_somebody_is_at_the_gate().await;
    let answers = Direction::Answers;
    example.link.set_one_way(answers, Fault::BlackHole).unwrap();
    opens(gate).await;
    example.until_completed().await;
    example.link.set(Fault::Refuse).unwrap();
    let first = sender.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (201, false));
    let again = example.order("k").await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(example.orders(), "1");
}

/// The link breaks while the commit is under way: nobody can know, and the retry finds out.
#[tokio::test]
async fn a_commit_that_is_still_under_way_is_not_yet_stored() {
    let Some(example) = Example::start("commit_under_way").await else {
        return;
    };
    let gate = example.gate("DEFERRABLE INITIALLY DEFERRED").await;
    let sender = example.sends("k");
    example.until_somebody_is_at_the_gate().await;
    example.link.set(Fault::Refuse).unwrap();
    assert_eq!(sender.await.unwrap().problem(), "not-yet-stored");
    assert_eq!(example.order("k").await.problem(), "request-in-progress");
    opens(gate).await;
    example.until_completed().await;
    let again = example.order("k").await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    assert_eq!(example.orders(), "1");
}

/// Somebody else has the record when the answer is to be written: the order is undone, and the record is left alone.
#[tokio::test]
async fn an_owner_that_comes_too_late_places_nothing() {
    let Some(example) = Example::start("too_late").await else {
        return;
    };
    let gate = example.gate("NOT DEFERRABLE").await;
    let sender = example.sends("k");
    example.until_somebody_is_at_the_gate().await;
    let takeover =
        "UPDATE idem_record SET token = decode(repeat('ab', 16), 'hex'), attempt = 2, revision = 9";
    example.sql(takeover);
    opens(gate).await;
    let late = sender.await.unwrap();
    assert_eq!((late.status, late.body_text()), (503, "try again"));
    assert_eq!(example.orders(), "0");
    let record = "SELECT status, revision, attempt FROM idem_record";
    assert_eq!(example.sql(record), "in_progress|9|2");
}
