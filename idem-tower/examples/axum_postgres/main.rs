//! An axum service whose orders are rows in Postgres, each in one transaction with the answer to its key.
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/shop cargo run -p idem-tower --example axum_postgres
//! curl -i http://127.0.0.1:3000/orders -H 'idempotency-key: k-1' -H 'authorization: Bearer acme' \
//!     --json '{"item":"book","quantity":2}'
//! ```
//!
//! Send it twice: the second answer is marked as replayed, and there is one order. Stop the service at any place in between:
//! there is an order with its answer, or neither.

mod shop;

use std::time::Duration;

use idem_postgres::PgKeyStore;
use idem_postgres::sqlx::PgPool;
use tokio::net::TcpListener;

use shop::Shop;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let keys = PgKeyStore::new(pool.clone());
    let shop = Shop::open(pool, keys.clone()).await?;
    keys.check().await?;
    let layer = shop::layer(keys);
    let app = shop::router(shop, layer.clone());

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;

    // Those whose client has gone are still running.
    for left in layer.drain(Duration::from_secs(30)).await.left {
        eprintln!("{} of {} is not done", left.operation.as_str(), left.record);
    }
    Ok(())
}
