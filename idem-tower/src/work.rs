use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use idem_core::executor::{Idempotency, Outcome};
use idem_core::{KeyStore, Response as Kept};
use tokio::time::timeout;

use super::capture::{Captured, capture, is_event_stream};
use super::reply::{FreshBody, OneOwner, Reply, keep};
use super::{Attempt, Disposition, Options, Problem, ProblemKind};

/// Reads what the handler's response means for the work.
pub(crate) struct Work<'a, S> {
    attempt: Attempt,
    options: &'a Arc<Options>,
    idempotency: &'a Idempotency<S>,
}

impl<'a, S: KeyStore + 'static> Work<'a, S> {
    pub(crate) fn new(
        attempt: Attempt,
        options: &'a Arc<Options>,
        idempotency: &'a Idempotency<S>,
    ) -> Self {
        Self {
            attempt,
            options,
            idempotency,
        }
    }

    /// The outcome of a response, whose body is read as far as it is to be kept.
    pub(crate) async fn outcome<R, E>(&self, response: Response<R>) -> Outcome<Reply<R, E>>
    where
        R: Body<Data = Bytes>,
    {
        let disposition = response
            .extensions()
            .get()
            .copied()
            .or_else(|| self.attempt.disposition())
            .unwrap_or_else(|| self.options.disposition(response.status()));
        match disposition {
            Disposition::Completed => Outcome::Completed(self.captured(response).await),
            Disposition::Failed => Outcome::Failed(self.captured(response).await),
            Disposition::Retryable => Outcome::Retryable(self.untouched(response)),
            Disposition::Rejected => Outcome::Rejected(self.untouched(response)),
            Disposition::Unknown => Outcome::Unknown(self.untouched(response)),
            Disposition::Joined => Outcome::Unknown(Reply::Kept(self.joined().await)),
        }
    }

    /// The outcome of an error of the inner service.
    pub(crate) fn outcome_of_error<R: Body, E>(&self, error: E) -> Outcome<Reply<R, E>> {
        let error = OneOwner::new(error);
        let kept = self.failure();
        let reply = Reply::Failed { error, kept };
        match self
            .attempt
            .disposition()
            .unwrap_or(self.options.service_error)
        {
            Disposition::Completed => Outcome::Completed(reply),
            Disposition::Failed => Outcome::Failed(reply),
            Disposition::Retryable => Outcome::Retryable(reply),
            Disposition::Rejected => Outcome::Rejected(reply),
            Disposition::Unknown | Disposition::Joined => Outcome::Unknown(reply),
        }
    }

    /// The outcome of a panic: nobody knows how far it got, and it is not run again.
    pub(crate) fn outcome_of_panic<R: Body, E>(&self) -> Outcome<Reply<R, E>> {
        tracing::error!("the handler panicked");
        Outcome::Failed(Reply::Kept(self.failure()))
    }

    fn failure(&self) -> Kept {
        let problem = Problem::new(ProblemKind::HandlerFailed);
        keep(self.options.render(problem), self.options)
    }

    async fn captured<R, E>(&self, response: Response<R>) -> Reply<R, E>
    where
        R: Body<Data = Bytes>,
    {
        let is_stream = is_event_stream(&response);
        let (parts, body) = response.into_parts();
        let limit = self.idempotency.policy().response_limit();
        let body = match capture(body, is_stream, limit, self.options.stream_after).await {
            Captured::Whole { data, trailers } => FreshBody::Whole { data, trailers },
            Captured::Begun(begun) => FreshBody::Begun(OneOwner::new(begun)),
        };
        self.fresh(parts, body)
    }

    fn untouched<R: Body, E>(&self, response: Response<R>) -> Reply<R, E> {
        let (parts, body) = response.into_parts();
        self.fresh(parts, FreshBody::Untouched(OneOwner::new(body)))
    }

    fn fresh<R: Body, E>(&self, parts: http::response::Parts, body: FreshBody<R>) -> Reply<R, E> {
        Reply::Fresh {
            parts,
            body,
            options: Arc::clone(self.options),
        }
    }

    /// What the handler's own transaction stored for this attempt.
    async fn joined(&self) -> Kept {
        let not_stored = || {
            let problem =
                Problem::new(ProblemKind::NotYetStored).retry_after(self.options.retry_hint);
            keep(self.options.render(problem), self.options)
        };
        let longest = self.idempotency.policy().store_timeout().as_duration();
        let loading = self.idempotency.store().load(self.attempt.id());
        let held = match timeout(longest, loading).await {
            Ok(Ok(held)) => held,
            Err(_) => {
                tracing::error!(
                    "an outcome that was stored with the handler's own transaction was not read in time"
                );
                return not_stored();
            }
            Ok(Err(error)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "an outcome that was stored with the handler's own transaction cannot be read"
                );
                return not_stored();
            }
        };
        let ours = held.filter(|held| held.record.fence() == self.attempt.fence());
        let kept = ours.and_then(|held| held.record.state.response().cloned());
        kept.unwrap_or_else(not_stored)
    }
}
