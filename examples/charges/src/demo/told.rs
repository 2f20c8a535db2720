//! What an answer tells a client, and the reader of the story.

use crate::http::Reply;

/// What an answer is about: the charge, or what is wrong.
pub(super) fn subject(reply: &Reply) -> String {
    let body = reply.json();
    let invalid = body["type"]
        .as_str()
        .is_some_and(|it| it.ends_with("/invalid-request"));
    let member = match reply.status.is_success() {
        true => "id",
        false if invalid => "detail",
        false => "title",
    };
    body[member].as_str().unwrap_or_default().to_owned()
}

/// The header fields that matter here.
pub(super) fn notes(reply: &Reply) -> String {
    let note = |name: &str| match reply.header(&name.to_ascii_lowercase()) {
        Some(value) => format!("   {name}: {value}"),
        None => String::new(),
    };
    note("Idempotent-Replayed") + &note("Retry-After")
}

/// Whether a client is to send the same request again.
pub(super) fn asks_to_come_back(reply: &Reply) -> bool {
    matches!(reply.status.as_u16(), 409 | 429 | 500..)
}

/// Whether the work was done for this very request.
pub(super) fn is_fresh(reply: &Reply) -> bool {
    reply.status.is_success() && reply.header("idempotent-replayed").is_none()
}

/// How many seconds a client is told to wait, if it is.
pub(super) fn retry_after(reply: &Reply) -> Option<u64> {
    reply.header("retry-after")?.parse().ok()
}
