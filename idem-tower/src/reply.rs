use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::Body;
use idem_core::executor::{Storable, Unreadable};
use idem_core::{Body as KeptBody, Response as Kept};

use super::Options;
use super::response_body::{Begun, ResponseBody};

/// What the work led to: what is stored of it, and what its own sender gets.
pub(crate) enum Reply<B: Body, E> {
    /// The handler's response.
    Fresh {
        parts: Parts,
        body: FreshBody<B>,
        options: Arc<Options>,
    },
    /// A response that is kept, or that the layer made, which is sent as it is kept.
    Kept(Kept),
    /// The error of the inner service, and what is kept of it.
    Failed { error: OneOwner<E>, kept: Kept },
}

/// The body of a fresh response.
pub(crate) enum FreshBody<B: Body> {
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    Begun(OneOwner<Begun<B>>),
    Untouched(OneOwner<B>),
}

/// A value that is only ever taken out, so that what holds it can be shared without it being so: bodies and
/// errors need not be `Sync`.
pub(crate) struct OneOwner<T>(Mutex<T>);

impl<T> OneOwner<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body<Data = Bytes>> FreshBody<B> {
    pub(crate) fn into_body(self) -> ResponseBody<B> {
        match self {
            Self::Whole { data, trailers } => ResponseBody::whole(data, trailers),
            Self::Begun(begun) => ResponseBody::begun(begun.into_inner()),
            Self::Untouched(body) => ResponseBody::untouched(body.into_inner()),
        }
    }
}

impl<B: Body, E> Storable for Reply<B, E> {
    fn to_response(&self) -> Kept {
        match self {
            Self::Fresh {
                parts,
                body,
                options,
            } => {
                let body = match body {
                    FreshBody::Whole { data, .. } => KeptBody::Bytes(data.clone()),
                    FreshBody::Begun(_) | FreshBody::Untouched(_) => KeptBody::Omitted,
                };
                Kept::from_parts(parts.status.as_u16(), options.kept(&parts.headers), body)
            }
            Self::Kept(kept) | Self::Failed { kept, .. } => kept.clone(),
        }
    }

    fn from_response(response: Kept) -> Result<Self, Unreadable> {
        Ok(Self::Kept(response))
    }
}

/// A response of the layer's own, as it is kept.
pub(crate) fn keep(response: Response<Bytes>, options: &Options) -> Kept {
    let (parts, body) = response.into_parts();
    Kept::from_parts(
        parts.status.as_u16(),
        options.kept(&parts.headers),
        KeptBody::Bytes(body),
    )
}
