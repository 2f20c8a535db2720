//! Handlers whose business rows and the answer to their key commit in one transaction, over real sockets and on databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod postgres;
#[path = "../../examples/axum_postgres/shop.rs"]
mod shop;
mod sqlite;
#[allow(dead_code, reason = "these tests need a part of it")]
#[path = "../http/common/wire.rs"]
mod wire;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use wire::Request;

/// The usual order under this key.
fn order(key: &str) -> Request {
    order_of(key, r#"{"item":"book","quantity":2}"#)
}

fn order_of(key: &str, what: &str) -> Request {
    Request::post("/orders", key)
        .header("authorization", "Bearer acme")
        .json(what)
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
