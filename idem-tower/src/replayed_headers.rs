//! Which header lines of a response are kept, and how a kept response becomes one of HTTP again.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use idem_core::Headers;

use super::IDEMPOTENT_REPLAYED;

/// Whether `Set-Cookie` lines are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Cookies {
    /// A cookie was meant for the one who asked first.
    #[default]
    Dropped,
    Kept,
}

/// The lines of a response that its retries get as well.
pub(crate) fn kept(
    headers: &HeaderMap,
    cookies: Cookies,
    is_wanted: impl Fn(&HeaderName) -> bool,
) -> Headers {
    let named_by_connection = named_by_connection(headers);
    headers
        .iter()
        .filter(|(name, _)| {
            !is_of_the_connection(name)
                && !named_by_connection.contains(name)
                && (cookies == Cookies::Kept || *name != header::SET_COOKIE)
                && is_wanted(name)
        })
        .map(|(name, value)| {
            let name = Bytes::copy_from_slice(name.as_str().as_bytes());
            (name, Bytes::copy_from_slice(value.as_bytes()))
        })
        .collect()
}

/// Lines that say something about one message on one connection, and not about the answer.
fn is_of_the_connection(name: &HeaderName) -> bool {
    const HOP_BY_HOP: [&str; 3] = ["keep-alive", "proxy-connection", "proxy-authenticate"];
    *name == header::CONNECTION
        || *name == header::CONTENT_LENGTH
        || *name == header::DATE
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::TRANSFER_ENCODING
        || *name == header::UPGRADE
        || *name == IDEMPOTENT_REPLAYED
        || HOP_BY_HOP.contains(&name.as_str())
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

/// Adds kept lines to a response. One that HTTP does not have was not written by this layer, and is left out.
pub(crate) fn restore<B>(lines: &Headers, response: &mut Response<B>) {
    for (name, value) in lines.iter() {
        let name = HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value.clone())) {
            // Fails only where there are more lines than a response can have.
            let _ = response.headers_mut().try_append(name, value);
        }
    }
}

/// Whether a line describes the bytes of a body, and so is wrong beside another body.
pub(crate) fn describes_the_body(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 4] = [b"digest", b"repr-digest", b"etag", b"accept-ranges"];
    let starts = name.get(..8).unwrap_or_default();
    starts.eq_ignore_ascii_case(b"content-")
        || OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// A code as a status, if HTTP has it.
pub(crate) fn status(code: u16) -> Option<StatusCode> {
    StatusCode::from_u16(code).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pairs: &[(&'static str, &'static [u8])]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                let value = HeaderValue::from_bytes(value).unwrap();
                (HeaderName::from_static(name), value)
            })
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            })
    }

    fn kept_of(headers: &HeaderMap, cookies: Cookies) -> Vec<(String, Vec<u8>)> {
        kept(headers, cookies, |_| true)
            .iter()
            .map(|(name, value)| (String::from_utf8(name.to_vec()).unwrap(), value.to_vec()))
            .collect()
    }

    #[test]
    fn repeats_commas_and_bytes_survive() {
        let headers = lines(&[
            ("x-a", b"1, 2"),
            ("x-a", b"\xff"),
            ("set-cookie", b"a=1"),
            ("set-cookie", b"b=2"),
            ("set-cookie", b"c=3"),
        ]);
        let kept = kept_of(&headers, Cookies::Kept);
        let values = |name: &str| -> Vec<&[u8]> {
            let of_name = kept.iter().filter(|(held, _)| held == name);
            of_name.map(|(_, value)| value.as_slice()).collect()
        };
        assert_eq!(values("x-a"), [&b"1, 2"[..], b"\xff"]);
        assert_eq!(values("set-cookie"), [b"a=1", b"b=2", b"c=3"]);
        assert_eq!(kept_of(&headers, Cookies::Dropped).len(), 2);
    }

    #[test]
    fn what_is_of_one_connection_is_not_kept() {
        let headers = lines(&[
            ("connection", b"close, X-Internal"),
            ("x-internal", b"1"),
            ("keep-alive", b"timeout=5"),
            ("transfer-encoding", b"chunked"),
            ("content-length", b"5"),
            ("date", b"now"),
            ("upgrade", b"h2c"),
            ("trailer", b"x"),
            ("idempotent-replayed", b"true"),
            ("content-type", b"text/plain"),
            ("etag", b"\"1\""),
        ]);
        let kept = kept_of(&headers, Cookies::Kept);
        let names: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "etag"]);
    }
}
