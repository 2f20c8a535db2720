use std::collections::BTreeMap;

use http::StatusCode;

/// What an HTTP response says about the work, and so what becomes of the key.
///
/// The status decides by default ([`Dispositions`]). A handler that knows better puts a value of this type into
/// the extensions of its response; in axum it can be a part of what the handler returns:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use idem_tower::Disposition;
///
/// async fn charge() -> impl IntoResponse {
///     // The queue was full and nothing was begun, so the same request may try again.
///     (StatusCode::SERVICE_UNAVAILABLE, Disposition::Retryable, "try again")
/// }
/// # }
/// ```
///
/// Once the handler asked for a provider key or made a checkpoint, `Rejected` and `Retryable` no longer free
/// the key, whatever the status is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// Done. Stored, and replayed.
    Completed,
    /// Failed after a side effect may have begun. Stored, and replayed.
    Failed,
    /// Failed before any side effect. Answered and not stored; the same request may try again.
    Retryable,
    /// Refused by validation. Answered and not stored; the key stays unused.
    Rejected,
    /// Nobody knows. Answered and not stored; the lease runs out, and then the contract says what happens.
    Unknown,
    /// The handler has stored the outcome itself, in its own database transaction, and committed it.
    ///
    /// The layer stores nothing. It reads the record back and sends the bytes that are stored there; the
    /// response with this disposition is not looked at. Where the record does not hold this attempt's outcome,
    /// the transaction never committed: the client is told to send the same request again, and the lease runs
    /// out as it does for `Unknown`.
    Joined,
}

/// Which status means what.
///
/// | status | disposition |
/// |---|---|
/// | 1xx, 2xx, 3xx, 402, 409, 410, and other 4xx not below | [`Completed`](Disposition::Completed) |
/// | 400 401 403 404 405 406 411 413 414 415 422 428 431 | [`Rejected`](Disposition::Rejected) |
/// | 425 429 | [`Retryable`](Disposition::Retryable) |
/// | 408 502 503 504 | [`Unknown`](Disposition::Unknown): a time-out inside may have cut a live call to a provider |
/// | other 5xx | [`Failed`](Disposition::Failed) |
///
/// ```
/// use http::StatusCode;
/// use idem_tower::{Disposition, Dispositions};
///
/// // This service answers 503 only from its load limit, before it does anything.
/// let table = Dispositions::default().with(StatusCode::SERVICE_UNAVAILABLE, Disposition::Retryable);
/// assert_eq!(table.of(StatusCode::SERVICE_UNAVAILABLE), Disposition::Retryable);
/// assert_eq!(table.of(StatusCode::BAD_GATEWAY), Disposition::Unknown);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dispositions(BTreeMap<u16, Disposition>);

impl Dispositions {
    /// This table with another disposition for one status.
    #[must_use]
    pub fn with(mut self, status: StatusCode, disposition: Disposition) -> Self {
        self.0.insert(status.as_u16(), disposition);
        self
    }

    /// What a status means.
    #[must_use]
    pub fn of(&self, status: StatusCode) -> Disposition {
        let code = status.as_u16();
        self.0
            .get(&code)
            .copied()
            .unwrap_or_else(|| by_default(code))
    }
}

fn by_default(code: u16) -> Disposition {
    match code {
        400 | 401 | 403..=406 | 411 | 413..=415 | 422 | 428 | 431 => Disposition::Rejected,
        425 | 429 => Disposition::Retryable,
        408 | 502..=504 => Disposition::Unknown,
        500.. => Disposition::Failed,
        _ => Disposition::Completed,
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponseParts for Disposition {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        mut parts: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}
