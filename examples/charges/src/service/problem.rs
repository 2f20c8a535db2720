use std::borrow::Cow;

use axum::body::Bytes;
use axum::http::StatusCode;
use idem_core::Response;
use serde_json::json;

use super::idempotent::http_response;

/// An answer of a handler that is no success, as `application/problem+json` (RFC 9457). What the layer has to say itself
/// looks the same.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    retry_after: Option<u64>,
}

/// What the types of problems begin with. Clients compare them; nobody fetches them.
pub(super) const TYPES: &str = "https://charges.example/problems/";

impl Problem {
    /// The title says what kind of problem it is, and the detail what to do about this one.
    fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            kind,
            title,
            detail: detail.into(),
            retry_after: None,
        }
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "Unknown or missing bearer token",
            "Send `Authorization: Bearer` and the token of your account, such as sk_test_acme.",
        )
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            "There is nothing here",
            "The endpoints are /v1/charges and /v1/refunds.",
        )
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Only POST is answered here",
            "A charge or a refund is asked for with POST; there is nothing to read.",
        )
    }

    pub(super) fn unsupported_media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "Unsupported media type",
            "The content type must be application/json or application/x-www-form-urlencoded.",
        )
    }

    pub(super) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid-request",
            "The request is invalid",
            detail,
        )
    }

    pub(super) fn outcome_unknown() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "outcome-unknown",
            "Nobody knows whether this was done",
            "It is not done again by itself. Do not send it under a new key; ask the support.",
        )
    }

    pub(super) fn provider_silent() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "provider-silent",
            "The card provider did not answer in time",
            "It may have done it or not. Send the same request with the same key again to find out.",
        )
        .retry_after(1)
    }

    pub(super) fn provider_unreachable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "provider-unreachable",
            "The card provider cannot be reached",
            "Nothing was done. Send the same request with the same key again.",
        )
        .retry_after(1)
    }

    pub(super) fn provider_busy() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "provider-busy",
            "The card provider turned us away",
            "Nothing was done. Send the same request with the same key again.",
        )
        .retry_after(1)
    }

    pub(super) fn provider_refused(status: StatusCode, code: &str) -> Self {
        let (kind, title, detail) = match code {
            "card_declined" => (
                "card-declined",
                "The card was declined",
                "The bank said no, and is not asked again under this key.",
            ),
            "already_refunded" => (
                "already-refunded",
                "The charge was refunded already",
                "A charge is given back once, whatever the key.",
            ),
            "no_such_charge" => (
                "no-such-charge",
                "There is no such charge",
                "Your account has made no charge of this id.",
            ),
            _ => (
                "provider-refused",
                "The card provider refused this",
                "Nothing was done. To ask for something else, use a new key.",
            ),
        };
        Self::new(status, kind, title, detail)
    }

    /// The answer outside of a handler.
    pub(super) fn to_http(&self) -> axum::http::Response<Bytes> {
        http_response(self.to_response())
    }

    /// The answer as it is given, and stored if the outcome is one that is.
    pub(super) fn to_response(&self) -> Response {
        let body = json!({
            "type": format!("{TYPES}{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let response = Response::new(self.status.as_u16())
            .header("content-type", "application/problem+json")
            .body(body.to_string());
        let response = match self.retry_after {
            Some(seconds) => response.header("retry-after", seconds.to_string()),
            None => response,
        };
        match self.status {
            StatusCode::UNAUTHORIZED => response.header("www-authenticate", "Bearer"),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_says_more_than_its_title() {
        let codes = ["card_declined", "already_refunded", "no_such_charge", ""];
        let problems = [
            Problem::unauthorized(),
            Problem::not_found(),
            Problem::method_not_allowed(),
            Problem::unsupported_media_type(),
            Problem::outcome_unknown(),
            Problem::provider_silent(),
            Problem::provider_unreachable(),
            Problem::provider_busy(),
        ]
        .into_iter()
        .chain(codes.map(|code| Problem::provider_refused(StatusCode::FORBIDDEN, code)));
        for problem in problems {
            assert!(!problem.detail.is_empty(), "{problem:?}");
            assert_ne!(problem.detail, problem.title, "{problem:?}");
        }
    }
}
