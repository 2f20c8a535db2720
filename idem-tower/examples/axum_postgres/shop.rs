//! Orders, each of which commits in one transaction with the answer to its key.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_core::executor::Idempotency;
use idem_core::{Nulls, Profile, Rules, Scope};
use idem_postgres::PgKeyStore;
use idem_postgres::sqlx::{self, PgPool};
use idem_tower::{Attempt, Disposition, IdempotencyLayer};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The business, and the keys in the same database.
#[derive(Clone)]
pub(crate) struct Shop {
    pool: PgPool,
    keys: PgKeyStore,
}

/// Why there is no order.
enum Unplaced {
    /// Something failed before the commit, so everything is undone.
    Undone(Failure),
    /// The commit failed, or nobody heard how it ended.
    Uncommitted(Failure),
}

impl<E: Into<Failure>> From<E> for Unplaced {
    fn from(error: E) -> Self {
        Self::Undone(error.into())
    }
}

impl Shop {
    /// A shop whose tables are there.
    pub(crate) async fn open(pool: PgPool, keys: PgKeyStore) -> Result<Self, Failure> {
        keys.migrate().await?;
        let orders = "CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                      account text NOT NULL, item text NOT NULL, quantity bigint NOT NULL)";
        sqlx::raw_sql(orders).execute(&pool).await?;
        Ok(Self { pool, keys })
    }

    /// The order and the answer to its key, in one transaction.
    async fn place(&self, attempt: &Attempt, item: &str, quantity: i64) -> Result<(), Unplaced> {
        let mut tx = self.pool.begin().await?;
        let insert =
            "INSERT INTO orders (account, item, quantity) VALUES ($1, $2, $3) RETURNING id";
        let id: i64 = sqlx::query_scalar(insert)
            .bind(attempt.id().scope().as_str())
            .bind(item)
            .bind(quantity)
            .fetch_one(&mut *tx)
            .await?;
        let answer = idem_core::Response::new(201)
            .header("content-type", "application/json")
            .body(json!({ "id": id, "item": item, "quantity": quantity }).to_string());
        // An error if somebody else has taken the key over: then this order is not to be there either.
        self.keys.complete_in(&mut tx, attempt, &answer).await?;
        let committed = tx.commit().await;
        committed.map_err(|error| Unplaced::Uncommitted(error.into()))
    }
}

async fn order(State(shop): State<Shop>, attempt: Attempt, Json(order): Json<Value>) -> Response {
    let (Some(item), Some(quantity @ 1..)) = (order["item"].as_str(), order["quantity"].as_i64())
    else {
        // The key stays unused, which the status says by itself.
        return (StatusCode::UNPROCESSABLE_ENTITY, "what, and how many?").into_response();
    };
    match shop.place(&attempt, item, quantity).await {
        // The layer reads the record and sends what was committed; this response is not looked at.
        Ok(()) => (Disposition::Joined, ()).into_response(),
        // The record says how the commit ended. If it has no answer, the client is asked to come back.
        Err(Unplaced::Uncommitted(error)) => {
            eprintln!("a commit failed: {error}");
            (Disposition::Joined, ()).into_response()
        }
        // Nothing was done, so the same request may try again at once.
        Err(Unplaced::Undone(error)) => {
            eprintln!("an order was undone: {error}");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            (status, Disposition::Retryable, "try again").into_response()
        }
    }
}

/// Who asks, as the authentication found out.
#[derive(Clone)]
struct Account(String);

/// The authentication is outside of the layer: a replay does not reach the handler.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION);
    let token = token.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let Some(account) = token.map(|token| Account(token.to_owned())) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(account);
    next.run(request).await
}

fn account(request: &Parts) -> Result<Scope, StatusCode> {
    let account = request.extensions.get::<Account>();
    let account = account.ok_or(StatusCode::UNAUTHORIZED)?;
    Scope::new(&account.0).map_err(|_| StatusCode::UNAUTHORIZED)
}

pub(crate) fn layer(keys: PgKeyStore) -> IdempotencyLayer<PgKeyStore> {
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    IdempotencyLayer::builder(Idempotency::new(keys), rules)
        .scope(account)
        .build()
}

pub(crate) fn router(shop: Shop, layer: IdempotencyLayer<PgKeyStore>) -> Router {
    Router::new()
        .route("/orders", post(order))
        .route_layer(layer)
        .layer(from_fn(authenticate))
        .with_state(shop)
}
