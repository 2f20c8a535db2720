//! The same on a SQLite file: orders through a connection of the service's own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use idem_core::executor::Idempotency;
use idem_core::{Nulls, Profile, Rules, Scope};
use idem_sqlite::SqliteKeyStore;
use idem_sqlite::rusqlite::{Connection, TransactionBehavior};
use idem_tower::{Attempt, Disposition, IdempotencyLayer};
use tempfile::TempDir;

use super::wire::Reply;
use super::{order, serve};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What happens between the order and its answer.
type Between = dyn Fn(&Connection) + Send + Sync;

struct Shop {
    connection: Mutex<Connection>,
    keys: Arc<SqliteKeyStore>,
    between: Box<Between>,
}

/// Whether it came to the commit.
enum Unplaced {
    Undone,
    Uncommitted,
}

impl Shop {
    fn place(&self, attempt: &Attempt) -> Result<(), Unplaced> {
        let mut connection = self.connection.lock().unwrap();
        let undone = |_: Failure| Unplaced::Undone;
        let tx = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| undone(error.into()))?;
        tx.execute("INSERT INTO orders (item) VALUES ('book')", [])
            .map_err(|error| undone(error.into()))?;
        (self.between)(&tx);
        let answer = idem_core::Response::new(201)
            .header("x-a", "1")
            .body("stored with the order");
        self.keys
            .complete_in(&tx, attempt, &answer)
            .map_err(|error| undone(error.into()))?;
        tx.commit().map_err(|_| Unplaced::Uncommitted)
    }
}

async fn place(State(shop): State<Arc<Shop>>, attempt: Attempt) -> Response {
    let placing = tokio::task::spawn_blocking(move || shop.place(&attempt));
    match placing.await.unwrap() {
        Ok(()) | Err(Unplaced::Uncommitted) => (Disposition::Joined, ()).into_response(),
        Err(Unplaced::Undone) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            (status, Disposition::Retryable, "try again").into_response()
        }
    }
}

struct Service {
    address: SocketAddr,
    beside: Connection,
    _directory: TempDir,
}

impl Service {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(between: impl Fn(&Connection) + Send + Sync + 'static) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("shop.db");
        let keys = Arc::new(SqliteKeyStore::open(&file).await.unwrap());
        let beside = Connection::open(&file).unwrap();
        beside
            .execute_batch(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL CHECK (item <> ''), \
                 parent INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)",
            )
            .unwrap();
        let connection = Connection::open(&file).unwrap();
        connection
            .execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
            .unwrap();
        let shop = Shop {
            connection: Mutex::new(connection),
            keys: Arc::clone(&keys),
            between: Box::new(between),
        };
        let rules = Rules::new(Profile::new(1), Nulls::Distinct);
        let layer = IdempotencyLayer::builder(Idempotency::new(keys), rules)
            .single_scope(Scope::new("acme").unwrap())
            .build();
        let router = Router::new()
            .route("/orders", post(place))
            .route_layer(layer)
            .with_state(Arc::new(shop));
        Self {
            address: serve(router).await,
            beside,
            _directory: directory,
        }
    }

    async fn order(&self) -> Reply {
        order("k").send(self.address).await
    }

    fn text(&self, sql: &str) -> String {
        self.beside.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn orders(&self) -> String {
        self.text("SELECT CAST(count(*) AS TEXT) FROM orders")
    }

    fn status(&self) -> String {
        self.text("SELECT status FROM idem_record")
    }

    fn run(&self, sql: &str) {
        self.beside.execute_batch(sql).unwrap();
    }
}

#[tokio::test]
async fn an_order_is_placed_once_and_its_answer_replayed() {
    let service = Service::start().await;
    let first = service.order().await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert_eq!(first.body_text(), "stored with the order");
    assert_eq!(first.text("x-a"), Some("1"));
    let again = service.order().await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(again.text("x-a"), Some("1"));
    assert_eq!(service.orders(), "1");
    // Nobody has written the record since the transaction did.
    assert_eq!(
        service.text("SELECT CAST(revision AS TEXT) FROM idem_record"),
        "2"
    );
}

#[tokio::test]
async fn what_is_undone_is_not_stored_and_may_be_tried_again_at_once() {
    let service = Service::start().await;
    service.run("ALTER TABLE orders RENAME TO elsewhere");
    let undone = service.order().await;
    assert_eq!((undone.status, undone.body_text()), (503, "try again"));
    assert_eq!(service.status(), "failed_retryable");
    service.run("ALTER TABLE elsewhere RENAME TO orders");
    let placed = service.order().await;
    assert_eq!((placed.status, placed.is_replayed()), (201, false));
    assert!(service.order().await.is_replayed());
    assert_eq!(service.orders(), "1");
}

#[tokio::test]
async fn a_commit_that_is_refused_stores_neither_and_leaves_the_key_for_its_lease() {
    let refusals = Mutex::new(1);
    let service = Service::with(move |tx| {
        let mut left = refusals.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            // Its parent is not there when the transaction is to commit.
            tx.execute("UPDATE orders SET parent = 99", []).unwrap();
        }
    })
    .await;
    let refused = service.order().await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (503, "not-yet-stored")
    );
    assert_eq!(
        (service.orders(), service.status()),
        ("0".to_owned(), "in_progress".to_owned())
    );
    assert_eq!(service.order().await.problem(), "request-in-progress");
    service.run("UPDATE idem_record SET locked_until = locked_at");
    let placed = service.order().await;
    assert_eq!((placed.status, placed.is_replayed()), (201, false));
    assert_eq!(service.orders(), "1");
    assert!(service.order().await.is_replayed());
}

#[tokio::test]
async fn an_owner_that_comes_too_late_places_nothing() {
    let service = Service::with(|tx| {
        // As a takeover before this transaction would have left it.
        let takeover = "UPDATE idem_record SET token = zeroblob(16), attempt = 2, revision = 9";
        tx.execute(takeover, []).unwrap();
    })
    .await;
    let late = service.order().await;
    assert_eq!((late.status, late.body_text()), (503, "try again"));
    assert_eq!(service.orders(), "0");
}
