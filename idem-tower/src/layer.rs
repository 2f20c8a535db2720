use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use idem_core::executor::Idempotency;
use idem_core::{KeyStore, Policy, RuleSet, Scope};
use tokio::time::timeout;
use tower_layer::Layer;

use super::builder::{Builder, NoScope};
use super::running::Running;
use super::{Drained, IdempotencyService, Options, Refusal};

/// Runs the work of a request once for each key, and gives every retry its answer.
///
/// Clones share their store, and so do the layers that [`with_policy`](Self::with_policy),
/// [`with_rules`](Self::with_rules) and [`with_options`](Self::with_options) make for other routes.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use std::time::Duration;
///
/// use axum::Router;
/// use axum::http::{StatusCode, request::Parts};
/// use axum::routing::post;
/// use idem_core::executor::Idempotency;
/// use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, Scope, SystemClock};
/// use idem_tower::{Attempt, IdempotencyLayer};
///
/// /// What the authentication, which is outside of the layer, has found out.
/// #[derive(Clone)]
/// struct Account(String);
///
/// fn account(request: &Parts) -> Result<Scope, StatusCode> {
///     let account = request.extensions.get::<Account>().ok_or(StatusCode::UNAUTHORIZED)?;
///     Scope::new(&account.0).map_err(|_| StatusCode::UNAUTHORIZED)
/// }
///
/// let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
/// let keyed = IdempotencyLayer::builder(idempotency, Rules::new(Profile::new(1), Nulls::Distinct))
///     .scope(account)
///     .build();
/// let uploads = keyed.with_options(|options| {
///     options.key_optional().body_limit(64 * 1024 * 1024).body_timeout(Duration::from_secs(300))
/// });
///
/// let app: Router = Router::new()
///     .route("/v1/charges", post(|attempt: Attempt| async move { attempt.number().to_string() }))
///     .route_layer(keyed)
///     .merge(Router::new().route("/v1/files", post(|| async { "stored" })).route_layer(uploads));
/// # }
/// ```
pub struct IdempotencyLayer<S> {
    pub(crate) inner: Arc<Inner<S>>,
}

/// What all services of one layer share.
pub(crate) struct Inner<S> {
    pub(crate) idempotency: Idempotency<S>,
    pub(crate) rules: RuleSet,
    pub(crate) scope: Arc<ScopeOf>,
    pub(crate) options: Arc<Options>,
    pub(crate) running: Arc<Running>,
}

pub(crate) type ScopeOf = dyn Fn(&Parts) -> Result<Scope, Refusal> + Send + Sync;

impl<S> IdempotencyLayer<S> {
    /// Begins a layer over this store, in which requests mean what these rules say. It is finished when it has a
    /// [scope](Builder::scope).
    pub fn builder(idempotency: Idempotency<S>, rules: impl Into<RuleSet>) -> Builder<S, NoScope> {
        Builder::new(idempotency, rules.into())
    }

    /// This layer under another policy: another lease, retention or contract.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        let idempotency = self.inner.idempotency.with_policy(policy);
        self.changed(|inner| Inner {
            idempotency,
            ..inner
        })
    }

    /// This layer under other rules: other nulls, other exclusions.
    #[must_use]
    pub fn with_rules(&self, rules: impl Into<RuleSet>) -> Self {
        let rules = rules.into();
        self.changed(|inner| Inner { rules, ..inner })
    }

    /// This layer with other options, made from its own.
    #[must_use]
    pub fn with_options(&self, change: impl FnOnce(Options) -> Options) -> Self {
        let options = Arc::new(change((*self.inner.options).clone()));
        self.changed(|inner| Inner { options, ..inner })
    }

    /// What runs the work.
    #[must_use]
    pub fn idempotency(&self) -> &Idempotency<S> {
        &self.inner.idempotency
    }

    /// Waits until no work is under way, and says what is when the time is over.
    ///
    /// For a graceful shutdown: first let the server stop taking requests and answer those that it has, then
    /// drain. What is waited for then is the work whose client has gone. It covers this layer and all that share
    /// its store by cloning or by `with_…`; the list of handlers covers the layers, the number everything.
    ///
    /// # Cancellation
    ///
    /// Dropping it does nothing.
    pub async fn drain(&self, longest: Duration) -> Drained
    where
        S: KeyStore + 'static,
    {
        let idempotency = &self.inner.idempotency;
        let is_idle = timeout(longest, idempotency.idle()).await.is_ok();
        if is_idle {
            return Drained {
                left: Vec::new(),
                in_flight: 0,
            };
        }
        Drained {
            left: self.inner.running.left(),
            in_flight: idempotency.in_flight(),
        }
    }

    fn changed(&self, change: impl FnOnce(Inner<S>) -> Inner<S>) -> Self {
        Self {
            inner: Arc::new(change((*self.inner).clone())),
        }
    }
}

impl<S, T> Layer<T> for IdempotencyLayer<S> {
    type Service = IdempotencyService<T, S>;

    fn layer(&self, inner: T) -> IdempotencyService<T, S> {
        IdempotencyService::new(inner, Arc::clone(&self.inner))
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S> Clone for Inner<S> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            rules: self.rules.clone(),
            scope: Arc::clone(&self.scope),
            options: Arc::clone(&self.options),
            running: Arc::clone(&self.running),
        }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("policy", self.inner.idempotency.policy())
            .field("rules", &self.inner.rules)
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
