use std::time::{Duration, SystemTime};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};

use super::retry_after;

/// What one attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// This is the answer. It would be the same if the request were sent again.
    Final,
    /// The request may be sent again, with the same key and the same bytes.
    Again {
        /// How long the server asks to be left alone, if it does.
        no_sooner: Option<Duration>,
    },
    /// It may not have been done, and must not be sent again: it has no key. See [`Verdict::without_key`].
    Once,
    /// Sending it again does not help. Somebody has to look.
    Park(Parked),
}

/// Why an operation is neither finished nor sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parked {
    /// The server says that nobody knows whether it was done.
    OutcomeUnknown,
    /// The server may have forgotten the key, and would take the request for a new one.
    PastHorizon,
    /// The request cannot be sent at all.
    Unsendable,
}

/// Why an attempt has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// There was no connection, so nothing was sent.
    NotSent,
    /// The connection broke, or the time was over, after something may have been sent: it may have been done.
    Lost,
    /// The request cannot be sent at all: a malformed address, say. It never can.
    Unsendable,
}

impl Verdict {
    /// What an answer comes to. `now` is for a `Retry-After` that is a date.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use idem_client::Verdict;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("retry-after", "2".parse()?);
    /// let of = |status, headers: &HeaderMap| Verdict::of_reply(status, headers, b"", SystemTime::UNIX_EPOCH);
    /// let no_sooner = Some(Duration::from_secs(2));
    /// assert_eq!(of(StatusCode::CONFLICT, &headers), Verdict::Again { no_sooner });
    /// assert_eq!(of(StatusCode::UNPROCESSABLE_ENTITY, &headers), Verdict::Final);
    ///
    /// headers.insert("idempotent-replayed", "true".parse()?);
    /// assert_eq!(of(StatusCode::INTERNAL_SERVER_ERROR, &headers), Verdict::Final);
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn of_reply(status: StatusCode, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Self {
        if is_replayed(headers) {
            return Self::Final;
        }
        // Services may give it another status than 409, and a status that is final would say that it was not done.
        let is_error = status.is_client_error() || status.is_server_error();
        if is_error && says_that_nobody_knows(headers, body) {
            return Self::Park(Parked::OutcomeUnknown);
        }
        if !is_worth_another(status) {
            return Self::Final;
        }
        Self::Again {
            no_sooner: retry_after(headers, now),
        }
    }

    /// What no answer comes to.
    #[must_use]
    pub fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::NotSent | Failure::Lost => Self::Again { no_sooner: None },
            Failure::Unsendable => Self::Park(Parked::Unsendable),
        }
    }

    /// What it comes to for a request that was sent without a key. Whoever sends a POST or a PATCH a second time
    /// without one may have it done twice, so it is never sent again. A method that is idempotent by itself, PUT and DELETE
    /// among them, needs no key.
    ///
    /// ```
    /// use http::Method;
    /// use idem_client::{Failure, Verdict};
    ///
    /// let lost = Verdict::of_failure(Failure::Lost);
    /// assert_eq!(lost.without_key(&Method::POST), Verdict::Once);
    /// assert_eq!(lost.without_key(&Method::PUT), lost);
    /// ```
    #[must_use]
    pub fn without_key(self, method: &Method) -> Self {
        match self {
            Self::Again { .. } if !method.is_idempotent() => Self::Once,
            other => other,
        }
    }
}

fn is_worth_another(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 409 | 425 | 429)
}

pub(crate) fn is_replayed(headers: &HeaderMap) -> bool {
    let value = headers.get("idempotent-replayed");
    value.is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"true"))
}

/// Whether it is a problem of that type. Services choose what its URI begins with.
fn says_that_nobody_knows(headers: &HeaderMap, body: &[u8]) -> bool {
    let media_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let media_type = media_type.and_then(|value| value.split(|byte| *byte == b';').next());
    if !media_type.is_some_and(|media_type| {
        media_type
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/problem+json")
    }) {
        return false;
    }
    let problem: serde_json::Value = match serde_json::from_slice(body) {
        Ok(problem) => problem,
        Err(_) => return false,
    };
    let name = problem.get("type").and_then(|of_type| of_type.as_str());
    name.and_then(|name| name.rsplit(['/', ':', '#']).next()) == Some("outcome-unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, lines: &[(&'static str, &str)], body: &str) -> Verdict {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        Verdict::of_reply(status, &headers, body.as_bytes(), SystemTime::UNIX_EPOCH)
    }

    const AGAIN: Verdict = Verdict::Again { no_sooner: None };

    #[test]
    fn exactly_these_are_sent_again() {
        for status in 100..1000 {
            let again = matches!(status, 408 | 409 | 425 | 429 | 500..=599);
            let expected = if again { AGAIN } else { Verdict::Final };
            assert_eq!(of(status, &[], ""), expected, "{status}");
        }
    }

    #[test]
    fn what_is_replayed_is_final() {
        for status in [200, 409, 429, 500, 503] {
            assert_eq!(
                of(status, &[("idempotent-replayed", "true")], ""),
                Verdict::Final
            );
        }
        assert_eq!(of(500, &[("idempotent-replayed", "false")], ""), AGAIN);
    }

    #[test]
    fn an_outcome_that_nobody_knows_is_parked() {
        let json = ("content-type", "application/problem+json; charset=utf-8");
        for (of_type, expected) in [
            (
                "urn:idem:problem:outcome-unknown",
                Verdict::Park(Parked::OutcomeUnknown),
            ),
            (
                "https://a.example/problems/outcome-unknown",
                Verdict::Park(Parked::OutcomeUnknown),
            ),
            ("urn:idem:problem:request-in-progress", AGAIN),
            ("urn:idem:problem:not-outcome-unknown", AGAIN),
        ] {
            let body = format!(r#"{{"type":"{of_type}"}}"#);
            assert_eq!(of(409, &[json], &body), expected, "{of_type}");
        }
        let body = r#"{"type":"urn:idem:problem:outcome-unknown"}"#;
        let parked = Verdict::Park(Parked::OutcomeUnknown);
        for (status, expected) in [(422, parked), (503, parked), (200, Verdict::Final)] {
            assert_eq!(of(status, &[json], body), expected, "{status}");
        }
        let replayed = ("idempotent-replayed", "true");
        assert_eq!(of(409, &[json, replayed], body), Verdict::Final);
        let body = r#"{"type":"outcome-unknown"}"#;
        assert_eq!(
            of(409, &[("content-type", "application/json")], body),
            AGAIN
        );
        for broken in ["", "{", "[]", r#"{"type":7}"#] {
            assert_eq!(of(409, &[json], broken), AGAIN, "{broken}");
        }
    }

    #[test]
    fn no_answer_is_sent_again_unless_it_never_can_be() {
        assert_eq!(Verdict::of_failure(Failure::NotSent), AGAIN);
        assert_eq!(Verdict::of_failure(Failure::Lost), AGAIN);
        assert_eq!(
            Verdict::of_failure(Failure::Unsendable),
            Verdict::Park(Parked::Unsendable)
        );
    }

    #[test]
    fn without_a_key_only_idempotent_methods_are_sent_again() {
        for (method, again) in [
            (Method::POST, false),
            (Method::PATCH, false),
            (Method::CONNECT, false),
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::PUT, true),
            (Method::DELETE, true),
        ] {
            let expected = if again { AGAIN } else { Verdict::Once };
            assert_eq!(AGAIN.without_key(&method), expected, "{method}");
            assert_eq!(Verdict::Final.without_key(&method), Verdict::Final);
        }
    }
}
