//! Without axum: hyper's server around tower services.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use idem_core::Span;
use idem_tower::{Attempt, Disposition, IdempotencyService, RequestBody};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use super::common::{Request, TestStore, builder};

type HyperRequest = http::Request<RequestBody<Incoming>>;

async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<http::Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server
                    .serve_connection(TokioIo::new(connection), service)
                    .await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_plain_service_is_run_once_and_sees_the_whole_body() {
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        service_fn(move |request: HyperRequest| {
            let calls = Arc::clone(&calls);
            async move {
                let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
                let number = request
                    .extensions()
                    .get::<Attempt>()
                    .map(|attempt| attempt.number());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let text = format!("call {call}, attempt {number:?}, {} bytes", body.len());
                Ok::<_, Infallible>(Response::new(Full::from(text)))
            }
        })
    };
    let layer = builder(&TestStore::new()).build();
    let address = serve(ServiceBuilder::new().layer(layer).service(handler)).await;
    let request = Request::post("/charges", "k").body("x".repeat(100_000));
    let first = request.send(address).await;
    let again = request.send(address).await;
    assert!(
        first.body_text().starts_with("call 1"),
        "{}",
        first.body_text()
    );
    assert!(
        first.body_text().ends_with("100000 bytes"),
        "{}",
        first.body_text()
    );
    assert_eq!((&again.body, again.is_replayed()), (&first.body, true));
    let get = Request::new("GET", "/charges").send(address).await;
    assert_eq!(get.body_text(), "call 2, attempt None, 0 bytes");
}

/// A service that must be polled ready before each call, and whose clones are not ready.
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl<B: Send + 'static> Service<http::Request<B>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<B>) -> Self::Future {
        assert!(self.is_ready, "called without being ready");
        self.is_ready = false;
        std::future::ready(Ok(Response::new(Full::from("ready"))))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let layer = builder(&TestStore::new()).build();
    let address = serve(
        ServiceBuilder::new()
            .layer(layer.clone())
            .service(Strict { is_ready: false }),
    )
    .await;
    for key in ["a", "b"] {
        assert_eq!(
            Request::charge(key).send(address).await.body_text(),
            "ready"
        );
    }
    // One service for several requests, as a buffer would use it.
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .service(Strict { is_ready: false });
    let service: &mut IdempotencyService<Strict, Arc<TestStore>> = &mut service;
    for (method, key) in [("POST", "c"), ("GET", "c"), ("POST", "d"), ("POST", "c")] {
        let request = http::Request::builder()
            .method(method)
            .uri("/charges")
            .header("idempotency-key", key);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let ready = ServiceExt::<http::Request<Full<Bytes>>>::ready(service)
            .await
            .unwrap();
        let response = ready.call(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }
}

#[tokio::test]
async fn a_replay_needs_no_place_in_a_service_that_is_limited() {
    let layer = builder(&TestStore::new()).build();
    let inner = service_fn(async |_: http::Request<RequestBody<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
    });
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .concurrency_limit(1)
        .service(inner);
    for _ in 0..3 {
        let request = http::Request::post("/charges").header("idempotency-key", "k");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        // The place that was kept for this request is given back although it was not called.
        let ready = tokio::time::timeout(Duration::from_secs(5), service.ready()).await;
        let response = ready.unwrap().unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("out of order")]
struct OutOfOrder;

#[tokio::test]
async fn an_error_of_the_service_is_its_callers_own_and_a_retry_gets_a_500() {
    for (disposition, status, calls) in [
        (Disposition::Failed, Some(500), 1),
        (Disposition::Unknown, Some(409), 1),
        (Disposition::Retryable, None, 2),
    ] {
        let called = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&called);
        let inner = service_fn(move |_: http::Request<RequestBody<Full<Bytes>>>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Err::<Response<Full<Bytes>>, _>(OutOfOrder) }
        });
        let store = TestStore::new();
        let layer = builder(&store)
            .options(|options| options.service_error(disposition))
            .build();
        let service = ServiceBuilder::new().layer(layer).service(inner);
        let send = || {
            let request = http::Request::post("/charges").header("idempotency-key", "k");
            service
                .clone()
                .oneshot(request.body(Full::<Bytes>::default()).unwrap())
        };
        let OutOfOrder = send().await.map(|_| ()).unwrap_err();
        let again = send().await;
        assert_eq!(
            again.ok().map(|response| response.status().as_u16()),
            status
        );
        assert_eq!(called.load(Ordering::SeqCst), calls);
        store.clock.advance(Span::from_secs(1));
    }
}

#[tokio::test]
async fn a_timeout_inside_the_layer_leaves_the_outcome_unknown_if_it_says_so() {
    let store = TestStore::new();
    let layer = builder(&store)
        .options(|options| options.service_error(Disposition::Unknown))
        .build();
    let inner = service_fn(async |_: http::Request<RequestBody<Full<Bytes>>>| {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = ServiceBuilder::new()
        .layer(layer)
        .timeout(Duration::from_millis(10))
        .service(inner);
    let send = || {
        let request = http::Request::post("/charges").header("idempotency-key", "k");
        service
            .clone()
            .oneshot(request.body(Full::<Bytes>::default()).unwrap())
    };
    assert!(
        send()
            .await
            .unwrap_err()
            .is::<tower::timeout::error::Elapsed>()
    );
    assert_eq!(send().await.unwrap().status(), 409);
}
