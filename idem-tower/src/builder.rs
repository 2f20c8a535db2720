use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use idem_core::executor::Idempotency;
use idem_core::{Policy, RuleSet, Scope};

use super::layer::{Inner, ScopeOf};
use super::running::Running;
use super::{IdempotencyLayer, Options, Refusal};

/// Builds an [`IdempotencyLayer`]. It cannot be finished without a scope:
///
/// ```compile_fail,E0599
/// use idem_core::executor::Idempotency;
/// use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, SystemClock};
/// use idem_tower::IdempotencyLayer;
///
/// let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
/// let layer = IdempotencyLayer::builder(idempotency, Rules::new(Profile::new(1), Nulls::Distinct)).build();
/// ```
#[must_use]
pub struct Builder<S, C> {
    idempotency: Idempotency<S>,
    rules: RuleSet,
    options: Options,
    scope: C,
}

/// A [`Builder`] that has no scope yet.
#[derive(Debug, Clone, Copy)]
pub struct NoScope(());

/// A [`Builder`] that has one.
pub struct HasScope(Arc<ScopeOf>);

impl<S> Builder<S, NoScope> {
    pub(crate) fn new(idempotency: Idempotency<S>, rules: RuleSet) -> Self {
        Self {
            idempotency,
            rules,
            options: Options::default(),
            scope: NoScope(()),
        }
    }

    /// Whose key a request's is: the account, tenant or credential that the authentication found, and nothing
    /// that the request says about itself.
    ///
    /// A replay does not reach the handler, so authentication *and authorization* have to be outside of this
    /// layer, and leave their result in the extensions of the request. A request without one is refused here: the
    /// error is its answer, and nothing is claimed.
    ///
    /// If the function panics, so does the call of the service, before anything is claimed; hyper ends the connection.
    pub fn scope<F, E>(self, scope: F) -> Builder<S, HasScope>
    where
        F: Fn(&Parts) -> Result<Scope, E> + Send + Sync + 'static,
        E: Into<Refusal>,
    {
        let scope = move |request: &Parts| scope(request).map_err(Into::into);
        self.has_scope(Arc::new(scope))
    }

    /// One scope for everybody, for a service with a single tenant: whoever may call it may see every stored
    /// answer whose key and request he has.
    pub fn single_scope(self, scope: Scope) -> Builder<S, HasScope> {
        self.has_scope(Arc::new(move |_| Ok(scope.clone())))
    }

    fn has_scope(self, scope: Arc<ScopeOf>) -> Builder<S, HasScope> {
        Builder {
            idempotency: self.idempotency,
            rules: self.rules,
            options: self.options,
            scope: HasScope(scope),
        }
    }
}

impl<S, C> Builder<S, C> {
    /// The policy: lease, retention, contract, what a second sender gets.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.idempotency = self.idempotency.with_policy(policy);
        self
    }

    /// Changes the options.
    pub fn options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.options = change(self.options);
        self
    }
}

impl<S> Builder<S, HasScope> {
    /// The layer.
    #[must_use]
    pub fn build(self) -> IdempotencyLayer<S> {
        IdempotencyLayer {
            inner: Arc::new(Inner {
                idempotency: self.idempotency,
                rules: self.rules,
                scope: self.scope.0,
                options: Arc::new(self.options),
                running: Arc::new(Running::default()),
            }),
        }
    }
}

impl<S, C> fmt::Debug for Builder<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("policy", self.idempotency.policy())
            .field("rules", &self.rules)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HasScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HasScope")
    }
}
