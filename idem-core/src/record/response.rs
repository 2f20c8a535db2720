use bytes::Bytes;

use super::{Body, Headers};

/// The answer that every sender of a request gets: a code, header lines and a body, all byte for byte.
///
/// It is shaped after HTTP and needs none: a program that stores typed values uses one code for all of them
/// and keeps the value in the body. That a value is `()`, `false` or nothing at all makes no difference.
///
/// ```
/// use idem_core::{Body, Response};
///
/// let response = Response::new(201).header("content-type", "application/json").body("{\"id\":1}");
/// assert_eq!(response.code(), 201);
/// assert_eq!(response.body_ref().bytes().map(|body| body.len()), Some(8));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Response {
    code: u16,
    headers: Headers,
    body: Body,
}

impl Response {
    /// A response without headers and with an empty body.
    #[must_use]
    pub fn new(code: u16) -> Self {
        Self {
            code,
            headers: Headers::new(),
            body: Body::Bytes(Bytes::new()),
        }
    }

    /// A response from its parts.
    #[must_use]
    pub fn from_parts(code: u16, headers: Headers, body: Body) -> Self {
        Self {
            code,
            headers,
            body,
        }
    }

    /// This response with one more header line.
    #[must_use]
    pub fn header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// This response with this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Body::Bytes(body.into());
        self
    }

    /// This response with its body marked as omitted.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        self.body = Body::Omitted;
        self
    }

    /// The code: an HTTP status, or what a program without HTTP chose.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.code
    }

    /// The header lines.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The body.
    #[must_use]
    pub fn body_ref(&self) -> &Body {
        &self.body
    }

    /// How many bytes of headers and body it holds, roughly what it takes to store.
    #[must_use]
    pub fn size(&self) -> usize {
        let head: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        head + self.body.bytes().map_or(0, Bytes::len)
    }

    /// The parts.
    #[must_use]
    pub fn into_parts(self) -> (u16, Headers, Body) {
        (self.code, self.headers, self.body)
    }
}
