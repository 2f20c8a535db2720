//! The HTTP client that the service uses towards its provider, and the demo towards the service.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use thiserror::Error;

/// A client for plain HTTP/1.1. Clones share their connections.
#[derive(Debug, Clone)]
pub struct HttpClient {
    inner: Client<HttpConnector, Body>,
}

/// The largest answer that is read, in bytes.
const LARGEST_REPLY: usize = 1024 * 1024;

impl HttpClient {
    /// A client that keeps connections open for the next request.
    #[must_use]
    pub fn pooled() -> Self {
        Self {
            inner: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// A client with a connection for each request, so that dropping a request is hanging up, and nothing is
    /// ever sent twice by itself.
    #[must_use]
    pub fn unpooled() -> Self {
        Self {
            inner: Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(0)
                .retry_canceled_requests(false)
                .build_http(),
        }
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; after anything but [`HttpError::Connect`] the request may have been carried out.
    ///
    /// # Cancellation
    ///
    /// Dropping it closes the connection. The request may have been carried out.
    pub async fn send(&self, request: Request<Body>) -> Result<Reply, HttpError> {
        let response = self.inner.request(request).await.map_err(|error| {
            if error.is_connect() {
                HttpError::Connect(error)
            } else {
                HttpError::Exchange(error)
            }
        })?;
        let (head, body) = response.into_parts();
        let body = to_bytes(Body::new(body), LARGEST_REPLY)
            .await
            .map_err(HttpError::Body)?;
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body,
        })
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// The value of a header field, if there is one and it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON; `null` if it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Why there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HttpError {
    /// There was no connection, so nothing was sent.
    #[error("no connection could be made, and nothing was sent")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection broke after something may have been sent.
    #[error("the connection broke before the answer")]
    Exchange(#[source] hyper_util::client::legacy::Error),
    /// The answer broke off or was too large.
    #[error("the answer broke off or was larger than {LARGEST_REPLY} bytes")]
    Body(#[source] axum::Error),
}
