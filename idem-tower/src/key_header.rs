use http::HeaderMap;
use idem_core::{IdempotencyKey, InvalidKey};
use thiserror::Error;

use super::IDEMPOTENCY_KEY;

/// Reads the key of a request. `None` when there is no such header field.
///
/// `"abc"`, a string as the IETF draft has it, and the bare `abc` that most clients send are the same key. A
/// bare one has no quote, comma, semicolon or space: two header lines that a proxy joined into `abc, abc` must
/// not become a new key.
///
/// # Errors
///
/// [`InvalidKeyHeader`] when the header field holds no key.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use idem_tower::key_of;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(key_of(&headers)?, None);
///
/// headers.insert("idempotency-key", HeaderValue::from_static("\"abc\""));
/// assert_eq!(key_of(&headers)?.unwrap().as_str(), "abc");
///
/// headers.append("idempotency-key", HeaderValue::from_static("abc"));
/// assert!(key_of(&headers).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn key_of(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, InvalidKeyHeader> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(InvalidKeyHeader::Repeated);
    }
    let text = value
        .to_str()
        .map_err(|_| InvalidKeyHeader::Malformed)?
        .trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(quoted) => IdempotencyKey::new(unquoted(quoted)?),
        None if text.contains(['"', ',', ';', ' ']) => return Err(InvalidKeyHeader::Malformed),
        None => IdempotencyKey::new(text),
    };
    Ok(Some(key?))
}

/// What a structured-field string holds, from behind its first quote to its last.
fn unquoted(text: &str) -> Result<String, InvalidKeyHeader> {
    let mut key = String::with_capacity(text.len());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('"') if characters.as_str().is_empty() => return Ok(key),
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(InvalidKeyHeader::Malformed),
            },
            Some('"') | None => return Err(InvalidKeyHeader::Malformed),
            Some(character) => key.push(character),
        }
    }
}

/// Why an `Idempotency-Key` header field holds no key. The text itself is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidKeyHeader {
    /// It was sent more than once, and it is not for a server to choose one.
    #[error("the Idempotency-Key header was sent more than once: send it once")]
    Repeated,
    /// It is neither of the two spellings.
    #[error(
        "the Idempotency-Key header is neither a quoted string nor visible ASCII without quotes, commas, semicolons and spaces"
    )]
    Malformed,
    /// It is spelled well, and is no key.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(lines: &[&[u8]]) -> Result<Option<String>, InvalidKeyHeader> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).unwrap());
        }
        Ok(key_of(&headers)?.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn quoted_and_bare_are_one_key() {
        for (line, expected) in [
            (&b"abc"[..], "abc"),
            (b"\"abc\"", "abc"),
            (b"  abc ", "abc"),
            (b"\tabc\t ", "abc"),
            (b"\"a, b; c\"", "a, b; c"),
            (br#""a\"b\\c""#, r#"a"b\c"#),
            (b"\" abc \"", " abc "),
            (br"a\b", r"a\b"),
        ] {
            assert_eq!(of(&[line]), Ok(Some(expected.to_owned())));
        }
        assert_eq!(of(&[]), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert_eq!(of(&[b"abc", b"abc"]), Err(InvalidKeyHeader::Repeated));
        for line in [
            &b"abc, abc"[..],
            b"abc,abc",
            b"abc;q=1",
            b"a b",
            b"\"abc",
            b"\"",
            b"abc\"",
            b"\"abc\" ;q=1",
            b"\"abc\", \"abc\"",
            br#""a\bc""#,
            b"a\tb",
            b"\"a\tb\"",
            "clé".as_bytes(),
            b"\xff",
        ] {
            assert!(of(&[line]).is_err(), "{line:?}");
        }
        for empty in [&b""[..], b"  ", b"\"\""] {
            assert_eq!(
                of(&[empty]),
                Err(InvalidKeyHeader::Invalid(InvalidKey::Empty))
            );
        }
    }

    #[test]
    fn the_limit_is_of_the_key_and_not_of_its_spelling() {
        let longest = "k".repeat(IdempotencyKey::MAX_BYTES);
        assert!(of(&[longest.as_bytes()]).is_ok());
        assert!(of(&[format!("\"{longest}\"").as_bytes()]).is_ok());
        assert_eq!(
            of(&[format!("{longest}k").as_bytes()]),
            Err(InvalidKeyHeader::Invalid(InvalidKey::TooLong {
                bytes: 256
            }))
        );
    }
}
