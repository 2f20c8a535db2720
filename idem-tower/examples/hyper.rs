//! The layer around a plain service, served by hyper.
//!
//! ```sh
//! cargo run -p idem-tower --example hyper
//! curl -i http://127.0.0.1:3000/charges -H 'idempotency-key: k-1' -d amount=5
//! ```

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use idem_core::executor::Idempotency;
use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, Scope, SystemClock};
use idem_tower::{Attempt, IdempotencyLayer, RequestBody};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};

async fn charge(
    request: Request<RequestBody<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let attempt = request.extensions().get::<Attempt>().cloned();
    let bytes = match request.into_body().collect().await {
        Ok(body) => body.to_bytes().len(),
        Err(_) => 0,
    };
    let number = attempt.map(|attempt| attempt.number().to_string());
    let text = format!("charged by attempt {number:?}, from {bytes} bytes\n");
    Ok(Response::new(Full::from(text)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let layer = IdempotencyLayer::builder(idempotency, rules)
        .single_scope(Scope::new("our only tenant")?)
        .build();
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(charge));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (connection, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            if let Err(error) = server
                .serve_connection(TokioIo::new(connection), service)
                .await
            {
                eprintln!("a connection broke: {error}");
            }
        });
    }
}
