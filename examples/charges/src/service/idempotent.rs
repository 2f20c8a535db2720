//! All the HTTP that there is around an idempotency key: a layer, and what a handler's outcome is in HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::Request as HttpRequest;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response as HttpResponse;
use idem_core::executor::{Idempotency, Outcome};
use idem_core::{Body, KeyStore, Nulls, Profile, Response, Rules};
use idem_tower::{Disposition, IDEMPOTENCY_KEY, IdempotencyLayer, key_of};

use super::BODY_LIMIT;
use super::accounts::Accounts;
use super::problem::{Problem, TYPES};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The layer that runs a handler once for each key, and gives everybody its answer.
#[expect(
    clippy::result_large_err,
    reason = "a request without an account is answered with a whole response"
)]
pub(super) fn layer(
    idempotency: Idempotency<Arc<dyn KeyStore>>,
    accounts: Accounts,
) -> IdempotencyLayer<Arc<dyn KeyStore>> {
    // A client library that writes `"description": null` for a charge without one means the same.
    let rules = Rules::new(Profile::new(1), Nulls::SameAsAbsent);
    IdempotencyLayer::builder(idempotency, rules)
        .scope(move |request: &Parts| {
            let account = accounts.of(&request.headers);
            account.ok_or_else(|| Problem::unauthorized().to_http())
        })
        .options(|options| {
            options
                .body_limit(BODY_LIMIT)
                .body_timeout(BODY_TIMEOUT)
                .problem_types(TYPES)
        })
        .build()
}

/// An outcome as a response: what it says is sent, and what it means is said beside it.
pub(super) fn answered(outcome: Outcome<Response>) -> HttpResponse {
    let disposition = match &outcome {
        Outcome::Completed(_) => Disposition::Completed,
        Outcome::Failed(_) => Disposition::Failed,
        Outcome::Retryable(_) => Disposition::Retryable,
        Outcome::Rejected(_) => Disposition::Rejected,
        Outcome::Unknown(_) => Disposition::Unknown,
    };
    let mut response = http_response(outcome.into_answer()).map(HttpBody::from);
    response.extensions_mut().insert(disposition);
    response
}

/// A response of the record as one of HTTP, byte for byte.
pub(super) fn http_response(response: Response) -> axum::http::Response<Bytes> {
    let (code, headers, body) = response.into_parts();
    let body = match body {
        Body::Bytes(body) => body,
        Body::Omitted => Bytes::new(),
    };
    let mut response = axum::http::Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers.iter() {
        let name = HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value.clone())) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// A request under a key that nobody has sent, for [`Keys::Ignored`](super::Keys::Ignored). One whose key is none
/// stays as it is, to be refused.
pub(super) fn under_a_new_key(mut request: HttpRequest) -> HttpRequest {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Ok(Some(_)) = key_of(request.headers()) {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let key = HeaderValue::try_from(format!("ignored-{}-{count}", now.as_nanos()));
        if let Ok(key) = key {
            request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
    }
    request
}

impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> HttpResponse {
        self.to_http().map(HttpBody::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lines_come_back_with_their_repeats_and_bytes() {
        let stored = Response::new(200)
            .header("x-a", "1, 2")
            .header("x-a", &b"\xff"[..]);
        let response = http_response(stored);
        let lines: Vec<_> = response
            .headers()
            .get_all("x-a")
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        assert_eq!(lines, [&b"1, 2"[..], b"\xff"]);
    }
}
