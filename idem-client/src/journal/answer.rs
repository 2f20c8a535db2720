use std::fmt;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode};

/// What a service has answered, for good.
///
/// Without `Set-Cookie`: that is a secret, and an answer is kept in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    is_cut: bool,
}

impl Answer {
    /// A whole answer.
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use idem_client::Answer;
    ///
    /// let answer = Answer::new(StatusCode::CREATED, HeaderMap::new(), "ch_1");
    /// assert_eq!(answer.body(), "ch_1");
    /// assert!(!answer.is_replayed() && !answer.is_cut());
    /// ```
    #[must_use]
    pub fn new(status: StatusCode, mut headers: HeaderMap, body: impl Into<Bytes>) -> Self {
        headers.remove(SET_COOKIE);
        Self {
            status,
            headers,
            body: body.into(),
            is_cut: false,
        }
    }

    /// The same without its body, which was too long to be kept.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.body = Bytes::new();
        self.is_cut = true;
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The header lines, without `Set-Cookie`.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether the body was longer than the client keeps, and is not there.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the service says that it has answered the same before: an earlier attempt had done it.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        crate::verdict::is_replayed(&self.headers)
    }
}

/// Shows nothing of what was answered but the status.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("is_cut", &self.is_cut)
            .finish_non_exhaustive()
    }
}
