//! What a request asks for, as far as its head says.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::uri::Uri;
use idem_core::{Fingerprints, Operation, RuleSet};
use sha2::{Digest as _, Sha256};

use super::Options;

/// The operation of a request, and its fingerprint under every set of rules.
pub(crate) fn describe(
    request: &Parts,
    body: &[u8],
    rules: &RuleSet,
    options: &Options,
) -> (Operation, Fingerprints) {
    let uri = uri_as_sent(request);
    let named = options.name_operation(request);
    // Under an operation that says less than the path, the path must still count.
    let path = named.is_some().then(|| uri.path());
    let operation = named.unwrap_or_else(|| of_path(request.method.as_str(), uri.path()));
    let content_type = content_type(&request.headers);
    let content_encoding = content_encoding(&request.headers);
    let fingerprints = rules.of(&operation, |fingerprint| {
        let fingerprint = match path {
            Some(path) => fingerprint.path_parameter("path", path),
            None => fingerprint,
        };
        fingerprint.query(uri.query().unwrap_or_default()).body(
            content_type,
            content_encoding.as_deref(),
            body,
        )
    });
    (operation, fingerprints)
}

/// The target of the request before routers took prefixes off its path.
fn uri_as_sent(request: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &request.uri
}

/// A method and a path. A path that is too long for an operation is cut, and its hash added.
fn of_path(method: &str, path: &str) -> Operation {
    let whole = format!("{method} {path}");
    if let Ok(operation) = Operation::new(&whole) {
        return operation;
    }
    let hash = Sha256::digest(&whole);
    let mut short: String = whole
        .chars()
        .take(SHOWN)
        .filter(|character| *character != '\0')
        .collect();
    short.push_str("...#");
    for byte in hash {
        short.push_str(&format!("{byte:02x}"));
    }
    // It is neither empty, nor too long, nor does it hold a NUL, so there is always one.
    Operation::new(short).unwrap_or_else(|_| unnameable())
}

/// How many characters of a long path are shown: at four bytes each they leave room for the hash.
const SHOWN: usize = 200;

#[expect(
    clippy::expect_used,
    reason = "the text is a constant that is an operation"
)]
fn unnameable() -> Operation {
    Operation::new("request").expect("a constant operation")
}

/// What the body is said to be. Of two lines nobody knows which one the handler will go by.
fn content_type(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().ok(),
        _ => None,
    }
}

/// How the body is coded: all lines as one. What is not text is a coding that nobody knows.
fn content_encoding(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(CONTENT_ENCODING).iter();
    let codings: Vec<_> = lines
        .map(|line| line.to_str().unwrap_or("unknown"))
        .collect();
    (!codings.is_empty()).then(|| codings.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_length_is_an_operation_of_its_own() {
        assert_eq!(of_path("POST", "/v1/charges").as_str(), "POST /v1/charges");
        let longest = format!("/{}", "a".repeat(Operation::MAX_BYTES - 6));
        assert_eq!(
            of_path("POST", &longest).as_str().len(),
            Operation::MAX_BYTES
        );
        let one = of_path("POST", &format!("{longest}a"));
        let other = of_path("POST", &format!("{longest}b"));
        assert_ne!(one, other);
        assert!(one.as_str().starts_with("POST /aaa"));
        let wide = of_path("POST", &"\u{1f600}".repeat(2000));
        assert!(wide.as_str().len() <= Operation::MAX_BYTES);
    }
}
