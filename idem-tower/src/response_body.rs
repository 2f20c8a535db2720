use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: the handler's own, one that was kept, or a problem.
    ///
    /// `Debug` shows no bytes.
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B>
    where
        B: Body,
    {
        Untouched { #[pin] body: B },
        Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
        Begun { begun: Begun<B> },
    }
}

/// A body of which a part was read, and which goes on.
pub(crate) struct Begun<B: Body> {
    /// What was read, in order.
    pub(crate) read: VecDeque<Bytes>,
    /// The error at which reading stopped, if that was why.
    pub(crate) error: Option<B::Error>,
    /// What is still to come.
    pub(crate) rest: Option<Pin<Box<B>>>,
}

impl<B: Body> ResponseBody<B> {
    pub(crate) fn untouched(body: B) -> Self {
        Self {
            kind: Kind::Untouched { body },
        }
    }

    pub(crate) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let data = Some(data).filter(|data| !data.is_empty());
        Self {
            kind: Kind::Whole { data, trailers },
        }
    }

    pub(crate) fn begun(begun: Begun<B>) -> Self {
        Self {
            kind: Kind::Begun { begun },
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Untouched { body } => body.poll_frame(context),
            KindProjection::Whole { data, trailers } => {
                let data = data.take().map(Frame::data);
                let frame = data.or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            KindProjection::Begun { begun } => begun.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Untouched { body } => body.is_end_stream(),
            Kind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Kind::Begun { begun } => {
                begun.read.is_empty()
                    && begun.error.is_none()
                    && begun.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Untouched { body } => body.size_hint(),
            Kind::Whole { data, trailers } => {
                let length = data.as_ref().map_or(0, |data| data.len() as u64);
                if trailers.is_none() {
                    return SizeHint::with_exact(length);
                }
                // A message of a known length is sent without its trailers.
                let mut hint = SizeHint::new();
                hint.set_lower(length);
                hint
            }
            Kind::Begun { begun } => begun.size_hint(),
        }
    }
}

impl<B: Body<Data = Bytes>> Begun<B> {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(data) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(error) = self.error.take() {
            self.rest = None;
            return Poll::Ready(Some(Err(error)));
        }
        match &mut self.rest {
            Some(rest) => rest.as_mut().poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let read: usize = self.read.iter().map(Bytes::len).sum();
        let rest = self
            .rest
            .as_ref()
            .map(|rest| rest.size_hint())
            .unwrap_or_default();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read as u64));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read as u64));
        }
        hint
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Untouched { .. } => "ResponseBody(untouched)",
            Kind::Whole { .. } => "ResponseBody(whole)",
            Kind::Begun { .. } => "ResponseBody(begun)",
        })
    }
}
