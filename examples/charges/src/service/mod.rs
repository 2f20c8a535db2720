//! The service that customers call: `POST /v1/charges` and `POST /v1/refunds`, both with an
//! `Idempotency-Key`.

mod accounts;
mod charge;
mod database;
mod fields;
mod gateway;
mod idempotent;
mod members;
mod pause;
mod payload;
mod problem;
mod refund;
mod step;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use idem_core::executor::Idempotency;
use idem_core::{InvalidPolicy, InvalidScope, KeyStore, Policy, StoreError};
use idem_postgres::InvalidName;
use idem_redis_cache::{InvalidNamespace, Namespace, NegativeCache, SetupError};
use idem_tower::{Attempt, Drained, IdempotencyLayer};
use thiserror::Error;
use tokio::time::sleep;

use self::accounts::Accounts;
use self::gateway::Gateway;
use self::idempotent::answered;
use self::payload::Payload;
use self::problem::Problem;
use crate::listen::{Lifetime, serve};

pub use self::database::{Database, InvalidPostgresUrl, PostgresUrl};
pub use self::pause::{PAUSED, Place, UnknownPlace};

/// The largest request body, in bytes.
pub const BODY_LIMIT: usize = 64 * 1024;

/// How a service is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the provider is, such as `http://127.0.0.1:9000`.
    pub provider: String,
    /// How long the provider may take.
    pub provider_timeout: Duration,
    /// The database of the records.
    pub store: Database,
    /// The Redis in front of it, if there is one.
    pub redis: Option<String>,
    /// How long a process that is not heard of keeps a key.
    pub lease: Duration,
    /// How long an answer is kept.
    pub retention: Duration,
    /// What becomes of the keys.
    pub keys: Keys,
    /// Where to stop and wait, for whoever wants to kill the process exactly there.
    pub pause_at: Option<Place>,
}

impl Settings {
    /// A service for this provider and this database, as it would run in production.
    #[must_use]
    pub fn new(provider: impl Into<String>, store: Database) -> Self {
        Self {
            provider: provider.into(),
            provider_timeout: Duration::from_secs(10),
            store,
            redis: None,
            lease: Duration::from_secs(90),
            retention: Duration::from_secs(24 * 3600),
            keys: Keys::Honoured,
            pause_at: None,
        }
    }
}

/// What becomes of the keys that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// One key, one operation.
    Honoured,
    /// They are checked for their form and then replaced by a new one for each request, so that every request
    /// is an operation of its own. This shows what the keys are for.
    Ignored,
}

/// The service: its parts, and the router that answers with them.
#[derive(Debug)]
pub struct Service {
    layer: IdempotencyLayer<Arc<dyn KeyStore>>,
    gateway: Gateway,
    keys: Keys,
    pause_at: Option<Place>,
}

/// How long work that is under way may take to end when the service stops.
const LAST_WORK: Duration = Duration::from_secs(20);

/// How often expired records are removed, and how many at once at most.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_LIMIT: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

impl Service {
    /// A service on a store that is open already; [`Settings::store`] is not looked at.
    ///
    /// # Errors
    ///
    /// [`ServiceError`] when the lease and the retention make no policy.
    pub fn new(store: Arc<dyn KeyStore>, settings: &Settings) -> Result<Arc<Self>, ServiceError> {
        let policy = Policy::builder()
            .lease(settings.lease)
            .retention(settings.retention)
            .build()?;
        let idempotency = Idempotency::new(store).with_policy(policy);
        Ok(Arc::new(Self {
            layer: idempotent::layer(idempotency, Accounts::of_the_demo()?),
            gateway: Gateway::new(settings.provider.clone(), settings.provider_timeout),
            keys: settings.keys,
            pause_at: settings.pause_at,
        }))
    }

    /// What answers requests.
    pub fn router(self: &Arc<Self>) -> Router {
        let keyed = Router::new()
            .route(charge::PATH, post(charge))
            .route(refund::PATH, post(refund))
            .route_layer(self.layer.clone());
        let keyed = match self.keys {
            Keys::Honoured => keyed,
            Keys::Ignored => {
                let ignored = |request| std::future::ready(idempotent::under_a_new_key(request));
                keyed.route_layer(map_request(ignored))
            }
        };
        keyed
            .fallback(async || Problem::not_found().into_response())
            .method_not_allowed_fallback(async || Problem::method_not_allowed().into_response())
            .with_state(Arc::clone(self))
    }

    /// Waits until no work is under way, not even such whose client has gone, and says what is after so long.
    pub async fn drain(&self, longest: Duration) -> Drained {
        self.layer.drain(longest).await
    }

    async fn sweep(&self) {
        loop {
            sleep(SWEEP_EVERY).await;
            if let Err(error) = self.layer.idempotency().store().sweep(SWEEP_LIMIT).await {
                eprintln!("expired records could not be removed: {error}");
            }
        }
    }
}

/// Opens the store and runs a service until it is asked to stop, and then until the work is done that is under
/// way.
///
/// # Errors
///
/// [`ServiceError`] when it cannot begin.
pub async fn run(
    address: std::net::SocketAddr,
    settings: Settings,
    lifetime: Lifetime,
) -> Result<(), ServiceError> {
    let open = settings.store.open().await?;
    let service = Service::new(in_front_of(open.store(), &settings)?, &settings)?;
    let sweeper = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.sweep().await }
    });
    serve(address, service.router(), lifetime).await?;
    sweeper.abort();
    for left in service.drain(LAST_WORK).await.left {
        eprintln!(
            "{} of the record {} is not done after {:?}; it is taken over when its lease is over",
            left.operation.as_str(),
            left.record,
            left.running_for
        );
    }
    open.close().await;
    Ok(())
}

/// The store itself, or a cache in front of it that answers duplicates of what is in progress.
fn in_front_of(
    store: Arc<dyn KeyStore>,
    settings: &Settings,
) -> Result<Arc<dyn KeyStore>, ServiceError> {
    let Some(url) = &settings.redis else {
        return Ok(store);
    };
    let namespace = Namespace::new("charges")?;
    Ok(Arc::new(NegativeCache::open(store, url, namespace)?))
}

async fn charge(
    State(service): State<Arc<Service>>,
    attempt: Attempt,
    payload: Payload,
) -> Response {
    answered(charge::charge(&service, &attempt, payload).await)
}

async fn refund(
    State(service): State<Arc<Service>>,
    attempt: Attempt,
    payload: Payload,
) -> Response {
    answered(refund::refund(&service, &attempt, payload).await)
}

/// Why a service cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The lease and the retention make no policy.
    #[error("the lease or the retention is unusable")]
    Policy(#[from] InvalidPolicy),
    /// An account's name is no scope.
    #[error("an account has no usable name")]
    Account(#[from] InvalidScope),
    /// The database cannot be opened.
    #[error("the database of the records cannot be opened")]
    Store(#[from] StoreError),
    /// The schema in the database has no usable name.
    #[error("the schema of the records has no usable name")]
    Schema(#[from] InvalidName),
    /// The cache has no usable name.
    #[error("the cache has no usable name")]
    Namespace(#[from] InvalidNamespace),
    /// The cache cannot be set up. A Redis that is away is no reason.
    #[error("the cache in front of the database cannot be set up")]
    Cache(#[from] SetupError),
    /// It cannot listen.
    #[error("the service cannot listen")]
    Io(#[from] io::Error),
}
