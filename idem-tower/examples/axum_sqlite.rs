//! An axum service whose charges are made once for each key, with the records in a SQLite file.
//!
//! ```sh
//! cargo run -p idem-tower --example axum_sqlite
//! curl -i http://127.0.0.1:3000/charges -H 'idempotency-key: k-1' -H 'authorization: Bearer acme' --json '{"amount":5}'
//! ```
//!
//! Send it twice: the second answer is marked as replayed.

use std::time::Duration;

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
use idem_sqlite::SqliteKeyStore;
use idem_tower::{Attempt, Disposition, IdempotencyLayer};
use tokio::net::TcpListener;

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

#[derive(Clone)]
struct Provider;

impl Provider {
    /// Stands for a call over the network.
    async fn charge(&self, _key: &str, _order: &serde_json::Value) -> Result<String, Timeout> {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok("ch_1".to_owned())
    }
}

struct Timeout;

async fn charge(
    State(provider): State<Provider>,
    attempt: Attempt,
    Json(order): Json<serde_json::Value>,
) -> Response {
    // The same key on every attempt: the provider makes the charge once.
    let Ok(key) = attempt.provider_key("charge") else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    match provider.charge(&key.to_string(), &order).await {
        Ok(id) => (StatusCode::CREATED, id).into_response(),
        // It may have been made or not, which the status says by itself; this is the long way.
        Err(Timeout) => (
            StatusCode::GATEWAY_TIMEOUT,
            Disposition::Unknown,
            "ask again",
        )
            .into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteKeyStore::open("idem.db").await?;
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let keyed = IdempotencyLayer::builder(Idempotency::new(store), rules)
        .scope(account)
        .build();
    let app = Router::new()
        .route("/charges", post(charge))
        .route_layer(keyed.clone())
        .layer(from_fn(authenticate))
        .with_state(Provider);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;

    // Those whose client has gone are still running.
    for left in keyed.drain(Duration::from_secs(30)).await.left {
        eprintln!("{} of {} is not done", left.operation.as_str(), left.record);
    }
    keyed.idempotency().store().close().await;
    Ok(())
}
