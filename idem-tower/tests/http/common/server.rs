use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::routing::any;
use idem_core::executor::Idempotency;
use idem_core::{Nulls, Profile, Rules, Scope};
use idem_tower::{Builder, HasScope, IdempotencyLayer, Options, Refusal};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::{Reply, Request, Script, TestStore};

pub(crate) type Layer = IdempotencyLayer<Arc<TestStore>>;

/// A server in this process. It ends with the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) script: Script,
    pub(crate) store: Arc<TestStore>,
    pub(crate) layer: Layer,
    /// One permit for every request that the server dropped before its answer.
    dropped: Arc<Semaphore>,
}

/// A layer over this store whose scope is the header `x-account`, or `acme`; `nobody` is refused.
pub(crate) fn builder(store: &Arc<TestStore>) -> Builder<Arc<TestStore>, HasScope> {
    let idempotency = Idempotency::new(Arc::clone(store));
    IdempotencyLayer::builder(idempotency, Rules::new(Profile::new(1), Nulls::Distinct))
        .scope(account)
}

fn account(request: &Parts) -> Result<Scope, Refusal> {
    let account = request.headers.get("x-account");
    let account = account.map_or("acme", |account| account.to_str().unwrap_or("nobody"));
    match account {
        "nobody" => {
            let refused = http::Response::builder().status(401);
            let refused = refused.header("www-authenticate", "Bearer");
            Err(refused.body("who are you?").unwrap().into())
        }
        account => Ok(Scope::new(account).unwrap()),
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(|options| options).await
    }

    pub(crate) async fn with(options: impl FnOnce(Options) -> Options) -> Self {
        Self::of(|builder| builder.options(options)).await
    }

    pub(crate) async fn of(
        change: impl FnOnce(Builder<Arc<TestStore>, HasScope>) -> Builder<Arc<TestStore>, HasScope>,
    ) -> Self {
        let store = TestStore::new();
        let layer = change(builder(&store)).build();
        Self::around(store, layer.clone(), |script| {
            let handler = any(move || script.clone().run());
            Router::new()
                .route("/charges", handler.clone())
                .route("/refunds", handler)
                .layer(layer)
        })
        .await
    }

    /// A server for this router. Whatever the router is, it is told when a request is dropped.
    pub(crate) async fn around(
        store: Arc<TestStore>,
        layer: Layer,
        router: impl FnOnce(Script) -> Router,
    ) -> Self {
        let script = Script::default();
        let dropped = Arc::new(Semaphore::new(0));
        let noticing = Arc::clone(&dropped);
        let watch = from_fn(move |request: HttpRequest, next: Next| {
            let notice = Notice(Some(Arc::clone(&noticing)));
            async move {
                let response = next.run(request).await;
                notice.answered();
                response
            }
        });
        let router = router(script.clone()).layer(watch);
        Self {
            address: serve(router).await,
            script,
            store,
            layer,
            dropped,
        }
    }

    pub(crate) async fn send(&self, request: Request) -> Reply {
        request.send(self.address).await
    }

    /// The usual request under this key.
    pub(crate) async fn charge(&self, key: &str) -> Reply {
        self.send(Request::charge(key)).await
    }

    /// Waits until the server has dropped one more request.
    pub(crate) async fn has_dropped_one(&self) {
        let longest = std::time::Duration::from_secs(10);
        let dropped = tokio::time::timeout(longest, self.dropped.acquire()).await;
        dropped
            .expect("the server did not notice that the client hung up")
            .unwrap()
            .forget();
    }

    /// Waits until nothing is under way.
    pub(crate) async fn idle(&self) {
        let longest = std::time::Duration::from_secs(10);
        let drained = self.layer.drain(longest).await;
        assert!(drained.is_complete(), "{drained:?}");
    }
}

/// Tells when it is dropped too early.
struct Notice(Option<Arc<Semaphore>>);

impl Notice {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(dropped) = &self.0 {
            dropped.add_permits(1);
        }
    }
}

/// Serves a router over HTTP/1.1 and HTTP/2.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
