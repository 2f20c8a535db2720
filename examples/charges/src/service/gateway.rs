use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use idem_core::ProviderKey;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::http::{HttpClient, HttpError};

/// The way to the card provider.
#[derive(Debug)]
pub(super) struct Gateway {
    client: HttpClient,
    base: String,
    timeout: Duration,
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum Reached {
    /// The provider said this.
    Answered { status: StatusCode, body: Value },
    /// There was no connection: nothing can have happened.
    Unreachable,
    /// It was asked and did not answer: anything can have happened.
    Silent,
}

impl Gateway {
    pub(super) fn new(base: String, timeout: Duration) -> Self {
        Self {
            client: HttpClient::pooled(),
            base,
            timeout,
        }
    }

    /// Asks for something once under this key, however often it is called.
    pub(super) async fn post(
        &self,
        path: &str,
        key: ProviderKey,
        order: &impl Serialize,
    ) -> Reached {
        let request = serde_json::to_vec(order).ok().and_then(|body| {
            Request::builder()
                .method(Method::POST)
                .uri(format!("{}{path}", self.base))
                .header(header::CONTENT_TYPE, "application/json")
                .header("idempotency-key", key.to_string())
                .body(Body::from(body))
                .ok()
        });
        let Some(request) = request else {
            return Reached::Unreachable;
        };
        match timeout(self.timeout, self.client.send(request)).await {
            Ok(Ok(reply)) => Reached::Answered {
                status: reply.status,
                body: reply.json(),
            },
            Ok(Err(HttpError::Connect(_))) => Reached::Unreachable,
            Ok(Err(_)) | Err(_) => Reached::Silent,
        }
    }
}
