use bytes::Bytes;
use http::{Response, StatusCode};

/// What a request gets for which the scope function has no scope: the caller's own answer. Nothing is claimed.
///
/// ```
/// use http::{Response, StatusCode};
/// use idem_tower::Refusal;
///
/// let short = Refusal::from(StatusCode::UNAUTHORIZED);
/// let long = Refusal::from(Response::new("who are you?"));
/// # let _ = (short, long);
/// ```
#[derive(Debug)]
pub struct Refusal(Box<Response<Bytes>>);

impl Refusal {
    pub(crate) fn into_response(self) -> Response<Bytes> {
        *self.0
    }
}

impl From<StatusCode> for Refusal {
    fn from(status: StatusCode) -> Self {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        Self(Box::new(response))
    }
}

impl<B: Into<Bytes>> From<Response<B>> for Refusal {
    fn from(response: Response<B>) -> Self {
        Self(Box::new(response.map(Into::into)))
    }
}
