use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use idem_core::IdempotencyKey;
use idem_core::executor;

use super::Disposition;

/// The attempt that a handler is running for its request.
///
/// It is an [`idem_core::executor::Attempt`], so it has the attempt's [number](executor::Attempt::number), the
/// [recovery point](executor::Attempt::recovery_point) of an earlier one, [checkpoints](executor::Attempt::checkpoint),
/// [provider keys](executor::Attempt::provider_key) and [`lease_lost`](executor::Attempt::lease_lost).
///
/// In axum it is an extractor. In a route whose key is optional, take an `Option<Attempt>`. Elsewhere it is in
/// the extensions of the request: `request.extensions().get::<Attempt>()`.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::http::StatusCode;
/// use idem_tower::Attempt;
///
/// async fn charge(attempt: Attempt) -> Result<String, StatusCode> {
///     let key = attempt.provider_key("charge").map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
///     Ok(format!("sent to the provider with {key}"))
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(charge));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Attempt {
    attempt: executor::Attempt,
    disposition: Arc<Mutex<Option<Disposition>>>,
}

impl Attempt {
    pub(crate) fn new(attempt: executor::Attempt) -> Self {
        Self {
            attempt,
            disposition: Arc::default(),
        }
    }

    /// The key under which the client sent the request.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        self.attempt.id().key()
    }

    /// Says what the response will mean, whatever its status is. The last one counts, and a [`Disposition`] in
    /// the extensions of the response before that.
    ///
    /// With [`Disposition::Joined`] the outcome is what the handler's own transaction committed.
    pub fn dispose(&self, disposition: Disposition) {
        *self
            .disposition
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(disposition);
    }

    pub(crate) fn disposition(&self) -> Option<Disposition> {
        *self
            .disposition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Attempt {
    type Target = executor::Attempt;

    fn deref(&self) -> &executor::Attempt {
        &self.attempt
    }
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::Attempt;

    /// There is no attempt: the route is not behind the layer, or the request has no key and needs none.
    ///
    /// The answer is a 500, since the service is put together wrongly: a handler that needs an attempt is behind
    /// a layer that requires a key, or takes an `Option<Attempt>`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
    #[error(
        "there is no attempt: put the route behind a layer that requires a key, or extract an `Option`"
    )]
    pub struct NoAttempt;

    impl IntoResponse for NoAttempt {
        fn into_response(self) -> Response {
            tracing::error!("{self}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    impl<S: Sync> FromRequestParts<S> for Attempt {
        type Rejection = NoAttempt;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoAttempt> {
            parts.extensions.get().cloned().ok_or(NoAttempt)
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for Attempt {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get().cloned())
        }
    }
}

#[cfg(feature = "axum")]
pub use extract::NoAttempt;
