use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::ResponseBody;

pin_project! {
    /// The future of [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation
    ///
    /// Dropped before the handler was called, nothing happens, and a key that was claimed is given back in the
    /// background. Dropped after that, the handler goes on in the background, and its outcome is stored.
    pub struct ResponseFuture<F, R, E>
    where
        R: Body,
    {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, R, E>
    where
        R: Body,
    {
        Untouched { #[pin] future: F },
        Keyed { answer: Pin<Box<dyn Future<Output = Answered<R, E>> + Send>> },
    }
}

type Answered<R, E> = Result<Response<ResponseBody<R>>, E>;

impl<F, R: Body, E> ResponseFuture<F, R, E> {
    pub(crate) fn untouched(future: F) -> Self {
        Self {
            kind: Kind::Untouched { future },
        }
    }

    pub(crate) fn keyed(answer: impl Future<Output = Answered<R, E>> + Send + 'static) -> Self {
        let answer = Box::pin(answer);
        Self {
            kind: Kind::Keyed { answer },
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Answered<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Untouched { future } => {
                let response = ready!(future.poll(context))?;
                Poll::Ready(Ok(response.map(ResponseBody::untouched)))
            }
            KindProjection::Keyed { answer } => answer.as_mut().poll(context),
        }
    }
}

impl<F, R: Body, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Untouched { .. } => "ResponseFuture(untouched)",
            Kind::Keyed { .. } => "ResponseFuture(keyed)",
        })
    }
}
