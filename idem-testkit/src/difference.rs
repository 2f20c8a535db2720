//! What is different between two records, in words.

use std::fmt::{Debug, Write as _};

use idem_core::{Body, Headers, Record, Response};

/// Everything in which `found` is not `expected`, or nothing.
pub(crate) fn difference(expected: &Record, found: &Record) -> Option<String> {
    if expected == found {
        return None;
    }
    let mut text = String::new();
    let mut note = |field: &str, expected: &dyn Debug, found: &dyn Debug, same: bool| {
        if !same {
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing into a `String` does not fail.
            let _ = write!(
                text,
                "{separator}{field} must be {expected:?} and is {found:?}"
            );
        }
    };
    macro_rules! fields {
        ($($field:ident),*) => {$(
            note(stringify!($field), &expected.$field, &found.$field, expected.$field == found.$field);
        )*};
    }
    fields!(
        id,
        operation,
        fingerprint,
        origin,
        token,
        revision,
        attempt,
        reclaims,
        uncertain,
        terms,
        created_at,
        effect_since,
        locked_at,
        locked_until,
        note
    );
    note(
        "status",
        &expected.status(),
        &found.status(),
        expected.status() == found.status(),
    );
    note(
        "finish",
        &expected.state.finish(),
        &found.state.finish(),
        expected.state.finish() == found.state.finish(),
    );
    if expected.recovery != found.recovery {
        note("recovery", &expected.recovery, &found.recovery, false);
    }
    if let Some(responses) = response_difference(expected.state.response(), found.state.response())
    {
        note("response", &responses.0, &responses.1, false);
    }
    Some(text)
}

fn response_difference(
    expected: Option<&Response>,
    found: Option<&Response>,
) -> Option<(String, String)> {
    if expected == found {
        return None;
    }
    let (Some(expected), Some(found)) = (expected, found) else {
        return Some((presence(expected), presence(found)));
    };
    if expected.code() != found.code() {
        return Some((expected.code().to_string(), found.code().to_string()));
    }
    if expected.headers() != found.headers() {
        return Some(first_line(expected.headers(), found.headers()));
    }
    Some(first_byte(expected.body_ref(), found.body_ref()))
}

fn presence(response: Option<&Response>) -> String {
    if response.is_some() {
        "there"
    } else {
        "absent"
    }
    .to_owned()
}

fn first_line(expected: &Headers, found: &Headers) -> (String, String) {
    let lines = |headers: &Headers| -> Vec<String> {
        headers
            .iter()
            .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect()
    };
    let (expected, found) = (lines(expected), lines(found));
    let at = expected
        .iter()
        .zip(&found)
        .position(|(one, other)| one != other)
        .unwrap_or_else(|| expected.len().min(found.len()));
    let line = |lines: &[String]| {
        let line: String = lines
            .get(at)
            .map_or("no line", String::as_str)
            .chars()
            .take(80)
            .collect();
        format!("{} lines, line {at}: {line}", lines.len())
    };
    (line(&expected), line(&found))
}

fn first_byte(expected: &Body, found: &Body) -> (String, String) {
    let (Body::Bytes(one), Body::Bytes(other)) = (expected, found) else {
        return (format!("{expected:?}"), format!("{found:?}"));
    };
    let at = one
        .iter()
        .zip(other)
        .position(|(one, other)| one != other)
        .unwrap_or_else(|| one.len().min(other.len()));
    let byte = |bytes: &bytes::Bytes| match bytes.get(at) {
        Some(byte) => format!("{} bytes, byte {at} is {byte:#04x}", bytes.len()),
        None => format!("{} bytes", bytes.len()),
    };
    (byte(one), byte(other))
}
