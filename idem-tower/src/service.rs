use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use idem_core::KeyStore;
use tower_service::Service;

use super::exchange::Exchange;
use super::layer::Inner;
use super::options::KeyRule;
use super::{Attempt, IDEMPOTENCY_KEY, RequestBody, ResponseBody, ResponseFuture};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
pub struct IdempotencyService<T, S> {
    inner: T,
    layer: Arc<Inner<S>>,
}

impl<T, S> IdempotencyService<T, S> {
    pub(crate) fn new(inner: T, layer: Arc<Inner<S>>) -> Self {
        Self { inner, layer }
    }
}

impl<T, S, Q, R> Service<Request<Q>> for IdempotencyService<T, S>
where
    T: Service<Request<RequestBody<Q>>, Response = Response<R>> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Send + 'static,
    S: KeyStore + 'static,
    Q: Body<Data = Bytes> + Send + 'static,
    Q::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<ResponseBody<R>>;
    type Error = T::Error;
    type Future = ResponseFuture<T::Future, R, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !is_keyed(&self.layer, &request) {
            let request = request.map(RequestBody::untouched);
            return ResponseFuture::untouched(self.inner.call(request));
        }
        // The one that was polled to be ready is called; the clone that takes its place need not be.
        let next = self.inner.clone();
        let ready = mem::replace(&mut self.inner, next);
        let exchange = Exchange::new(ready, Arc::clone(&self.layer));
        ResponseFuture::keyed(exchange.answer(request))
    }
}

/// Whether a request is any business of the layer.
fn is_keyed<S, Q>(layer: &Inner<S>, request: &Request<Q>) -> bool {
    layer.options.covers(request.method())
        && (layer.options.key_rule() == KeyRule::Required
            || request.headers().contains_key(IDEMPOTENCY_KEY))
        // A layer further out has claimed the key. A second claim would find it busy, with this very request.
        && request.extensions().get::<Attempt>().is_none()
}

impl<T: Clone, S> Clone for IdempotencyService<T, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: Arc::clone(&self.layer),
        }
    }
}

impl<T: fmt::Debug, S> fmt::Debug for IdempotencyService<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("options", &self.layer.options)
            .finish_non_exhaustive()
    }
}
