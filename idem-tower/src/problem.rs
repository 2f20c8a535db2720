use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use idem_core::Mismatch;

use super::InvalidKeyHeader;

/// What the layer itself has to say to a client. Sent as `application/problem+json` (RFC 9457) unless
/// [`Options::render_problems`](crate::Options::render_problems) does otherwise.
///
/// ```
/// use idem_tower::ProblemKind;
///
/// assert_eq!(ProblemKind::Busy.name(), "request-in-progress");
/// assert_eq!(ProblemKind::Busy.status(), 409);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Which one it is.
    pub kind: ProblemKind,
    /// The status with which it is sent.
    pub status: StatusCode,
    /// What kind of problem it is, in a few words: the same for every one of its kind.
    pub title: &'static str,
    /// What to do about this one.
    pub detail: Cow<'static, str>,
    /// When to come back: whole seconds, at least one.
    pub retry_after: Option<Duration>,
}

/// Every problem that the layer can answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProblemKind {
    /// 400: the route requires a key, and there is none.
    KeyMissing,
    /// 400: the header field holds no key.
    KeyInvalid,
    /// 413: the body is over the limit. Nothing was claimed.
    BodyTooLarge,
    /// 408: the body did not arrive in time. Nothing was claimed.
    BodyTooSlow,
    /// 400: the body did not arrive whole. Nothing was claimed.
    BodyUnreadable,
    /// 409, with `Retry-After`: the first request is still running.
    Busy,
    /// 422: the key was used with another operation or another payload.
    KeyReused,
    /// 409, without `Retry-After`: nobody knows whether it was done, and nothing runs it again by itself.
    OutcomeUnknown,
    /// 503, with `Retry-After`: the record is of another version of the service, which may run on another node.
    OtherVersion,
    /// 503, with `Retry-After`: the work ran, and its outcome is not stored yet, or its transaction did not
    /// commit. The same request with the same key finds out.
    NotYetStored,
    /// 503, with `Retry-After`: the store could not be asked. The handler did not run.
    StoreUnavailable,
    /// The stored status: the work was done, and the body of its answer was too large to keep.
    BodyNotKept,
    /// 500: the handler panicked, or its service failed with an error. Stored, and replayed.
    HandlerFailed,
    /// 500: what is stored under the key is no answer of HTTP. Something else than this layer wrote it.
    NoHttpAnswer,
}

impl ProblemKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::BodyUnreadable,
        Self::Busy,
        Self::KeyReused,
        Self::OutcomeUnknown,
        Self::OtherVersion,
        Self::NotYetStored,
        Self::StoreUnavailable,
        Self::BodyNotKept,
        Self::HandlerFailed,
        Self::NoHttpAnswer,
    ];

    /// The last part of its type URI. It never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.texts().0
    }

    /// The status with which it is sent by default. [`ProblemKind::BodyNotKept`] is sent with the status that
    /// was stored.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy | Self::OutcomeUnknown => StatusCode::CONFLICT,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::OtherVersion | Self::NotYetStored | Self::StoreUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::BodyNotKept => StatusCode::OK,
            Self::HandlerFailed | Self::NoHttpAnswer => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    const fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::KeyMissing => (
                "key-missing",
                "Idempotency-Key is missing",
                "Send an Idempotency-Key header: a name of your own for the operation, such as a random UUID.",
            ),
            Self::KeyInvalid => (
                "key-invalid",
                "Idempotency-Key is invalid",
                "Send one Idempotency-Key header of 1 to 255 visible ASCII characters.",
            ),
            Self::BodyTooLarge => (
                "body-too-large",
                "The body is too large",
                "Nothing was done, and the key is not used.",
            ),
            Self::BodyTooSlow => (
                "body-too-slow",
                "The body did not arrive in time",
                "Nothing was done, and the key is not used. Send the request again.",
            ),
            Self::BodyUnreadable => (
                "body-unreadable",
                "The body did not arrive whole",
                "Nothing was done, and the key is not used. Send the request again.",
            ),
            Self::Busy => (
                "request-in-progress",
                "A request with this Idempotency-Key is still running",
                "Send the same request with the same key again, a little later.",
            ),
            Self::KeyReused => (
                "key-reused",
                "Idempotency-Key already used with a different request",
                "Use a new key for a new operation.",
            ),
            Self::OutcomeUnknown => (
                "outcome-unknown",
                "Nobody knows whether this was done",
                "It is not done again by itself. Do not send it under a new key; ask the operator of this service.",
            ),
            Self::OtherVersion => (
                "other-version",
                "Another version of the service holds this key",
                "Its rules of comparison are not known here. Send the same request with the same key again.",
            ),
            Self::NotYetStored => (
                "not-yet-stored",
                "The answer is not stored yet",
                "Send the same request with the same key again to find out what became of it.",
            ),
            Self::StoreUnavailable => (
                "store-unavailable",
                "Nothing was done",
                "Send the same request with the same key again.",
            ),
            Self::BodyNotKept => (
                "body-not-kept",
                "This was done, and its answer was too large to keep",
                "The status and the headers are those of the first answer. Do not send the request under a new key.",
            ),
            Self::HandlerFailed => (
                "handler-failed",
                "Something went wrong on our side",
                "It is not tried again under this key. Whether something was done has to be found out.",
            ),
            Self::NoHttpAnswer => (
                "no-http-answer",
                "What is stored under this key is no answer",
                "It was written by something else than this service. Use another key.",
            ),
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind) -> Self {
        let (_, title, detail) = kind.texts();
        Self {
            kind,
            status: kind.status(),
            title,
            detail: Cow::Borrowed(detail),
            retry_after: None,
        }
    }

    /// Whole seconds, rounded up, at least one.
    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        self.retry_after = Some(Duration::from_secs(seconds.max(1)));
        self
    }

    pub(crate) fn invalid_key(error: InvalidKeyHeader) -> Self {
        Self {
            detail: Cow::Owned(format!("{error}.")),
            ..Self::new(ProblemKind::KeyInvalid)
        }
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self {
            detail: Cow::Owned(format!(
                "A body has at most {limit} bytes here. Nothing was done, and the key is not used."
            )),
            ..Self::new(ProblemKind::BodyTooLarge)
        }
    }

    pub(crate) fn mismatch(mismatch: Mismatch) -> Self {
        let detail = match mismatch {
            Mismatch::Operation => {
                "The key was used at another endpoint. Use a new key for a new operation."
            }
            Mismatch::Payload => {
                "The key was used with another payload. Use a new key for a new operation."
            }
        };
        Self {
            detail: Cow::Borrowed(detail),
            ..Self::new(ProblemKind::KeyReused)
        }
    }

    /// This problem as JSON, with a type that begins with `types`.
    pub(crate) fn to_json(&self, types: &str) -> Response<Bytes> {
        let body = serde_json::json!({
            "type": format!("{types}{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_and_details_say_more_than_titles() {
        let names: BTreeSet<_> = ProblemKind::ALL.map(ProblemKind::name).into();
        assert_eq!(names.len(), ProblemKind::ALL.len());
        for kind in ProblemKind::ALL {
            let problem = Problem::new(kind);
            assert_ne!(problem.detail, problem.title);
            assert!(problem.detail.ends_with('.'), "{kind}");
        }
    }

    #[test]
    fn a_wait_is_whole_seconds_and_at_least_one() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (90_000, 90)] {
            let problem =
                Problem::new(ProblemKind::Busy).retry_after(Duration::from_millis(millis));
            let response = problem.to_json("urn:");
            assert_eq!(response.headers()[header::RETRY_AFTER], seconds.to_string());
        }
    }
}
