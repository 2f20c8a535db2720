//! One request that has a key, from its head to its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use idem_core::executor::Answer;
use idem_core::{KeyStore, RecordId, Request as Claimed, StoreError};
use tower_service::Service;
use tracing::{Instrument as _, Span, field};

use super::caught::caught;
use super::detached::{Begun, Detached};
use super::key_header::key_of;
use super::layer::Inner;
use super::operation::describe;
use super::options::Echo;
use super::read::{Received, read};
use super::reply::Reply;
use super::told::{Told, told};
use super::work::Work;
use super::{Attempt, IDEMPOTENCY_KEY, Problem, ProblemKind, RequestBody, ResponseBody};

/// A request on its way through the layer, and the service that it may reach.
pub(crate) struct Exchange<T, S> {
    service: T,
    layer: Arc<Inner<S>>,
}

impl<T, S> Exchange<T, S> {
    pub(crate) fn new(service: T, layer: Arc<Inner<S>>) -> Self {
        Self { service, layer }
    }

    /// Everything that can be refused is refused before a key is claimed: first who asks, then under which key,
    /// then what.
    pub(crate) async fn answer<Q, R>(
        self,
        request: Request<Q>,
    ) -> Result<Response<ResponseBody<R>>, T::Error>
    where
        T: Service<Request<RequestBody<Q>>, Response = Response<R>> + Send + 'static,
        T::Future: Send,
        T::Error: Send + 'static,
        S: KeyStore + 'static,
        Q: Body<Data = Bytes> + Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let layer = Arc::clone(&self.layer);
        let echo = echo(&layer, &request);
        let told = match self.admit(request).await {
            Ok(admitted) => admitted.run().await?,
            Err(refused) => refused,
        };
        let mut response = told.counted().into_response();
        if let Some(key) = echo {
            response.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
        Ok(response)
    }

    async fn admit<Q, R>(self, request: Request<Q>) -> Result<Admitted<T, S, Q>, Told<R>>
    where
        Q: Body<Data = Bytes>,
        R: Body<Data = Bytes>,
    {
        let layer = self.layer;
        let options = &layer.options;
        let refused = |problem: Problem| Told::problem(problem, options);
        let (parts, body) = request.into_parts();
        let scope = match (layer.scope)(&parts) {
            Ok(scope) => scope,
            Err(refusal) => return Err(Told::refused(refusal.into_response())),
        };
        let key = match key_of(&parts.headers) {
            Ok(Some(key)) => key,
            Ok(None) => return Err(refused(Problem::new(ProblemKind::KeyMissing))),
            Err(error) => return Err(refused(Problem::invalid_key(error))),
        };
        let received = read(body, options.body_limit, options.body_timeout)
            .await
            .map_err(refused)?;
        let (operation, fingerprints) = describe(&parts, &received.data, &layer.rules, options);
        let claimed = Claimed::new(RecordId::new(scope, key), operation, fingerprints);
        let Received { data, trailers } = received;
        let request = Request::from_parts(parts, RequestBody::read(data, trailers));
        Ok(Admitted {
            service: self.service,
            layer,
            claimed,
            request,
        })
    }
}

/// A request that may be claimed.
struct Admitted<T, S, Q> {
    service: T,
    layer: Arc<Inner<S>>,
    claimed: Claimed,
    request: Request<RequestBody<Q>>,
}

impl<T, S, Q> Admitted<T, S, Q> {
    async fn run<R>(self) -> Result<Told<R>, T::Error>
    where
        T: Service<Request<RequestBody<Q>>, Response = Response<R>> + Send + 'static,
        T::Future: Send,
        T::Error: Send + 'static,
        S: KeyStore + 'static,
        Q: Body<Data = Bytes> + Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let options = Arc::clone(&self.layer.options);
        let span = tracing::info_span!(
            "idempotency",
            record = field::Empty,
            operation = field::Empty,
            attempt = field::Empty,
            answer = field::Empty,
        );
        if !span.is_disabled() {
            // The hash takes time, and is for the span only. The key itself never reaches a log.
            span.record("record", field::display(&self.claimed.id));
            span.record("operation", self.claimed.operation.as_str());
        }
        let executing = Detached::new(|begun| self.execute(begun).instrument(span.clone()));
        let told = told(executing.await, &options)?;
        span.record("answer", told.name());
        Ok(told)
    }

    async fn execute<R>(self, begun: Begun) -> Result<Answer<Reply<R, T::Error>>, StoreError>
    where
        T: Service<Request<RequestBody<Q>>, Response = Response<R>> + Send + 'static,
        T::Future: Send,
        T::Error: Send + 'static,
        S: KeyStore + 'static,
        Q: Body<Data = Bytes> + Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let Self {
            mut service,
            layer,
            claimed,
            mut request,
        } = self;
        // Listed until the outcome is stored, so it outlives the handler.
        let mut listed = None;
        let handler = |attempt| {
            begun.set();
            let (id, operation) = (claimed.id.clone(), claimed.operation.clone());
            listed = Some(layer.running.enter(id, operation));
            let attempt = Attempt::new(attempt);
            Span::current().record("attempt", field::display(attempt.number()));
            request.extensions_mut().insert(attempt.clone());
            let work = Work::new(attempt, &layer.options, &layer.idempotency);
            async move {
                let done = caught(async {
                    match service.call(request).await {
                        Ok(response) => work.outcome(response).await,
                        Err(error) => work.outcome_of_error(error),
                    }
                });
                match done.await {
                    Ok(outcome) => outcome,
                    Err(_) => work.outcome_of_panic(),
                }
            }
        };
        let answer = layer.idempotency.execute(&claimed, handler).await;
        drop(listed);
        if let Err(error) = &answer {
            tracing::error!(
                error = error as &dyn std::error::Error,
                "the store could not be asked; nothing was done"
            );
        }
        answer
    }
}

/// The key as it was sent, if it is to be sent back.
fn echo<S, Q>(layer: &Inner<S>, request: &Request<Q>) -> Option<HeaderValue> {
    match layer.options.echo {
        Echo::Key => request.headers().get(IDEMPOTENCY_KEY).cloned(),
        Echo::Nothing => None,
    }
}
