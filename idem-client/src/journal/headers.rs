//! Header lines in a column: as they are sent, so that people can read them.

use http::{HeaderMap, HeaderName, HeaderValue};

/// `name: value`, and a line break that no value holds.
pub(crate) fn encode(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

/// Nothing, if it is not what [`encode`] makes.
pub(crate) fn decode(mut lines: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    while !lines.is_empty() {
        let end = lines.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, rest) = (&lines[..end], &lines[end + 2..]);
        let colon = line.windows(2).position(|pair| pair == b": ")?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(&line[colon + 2..]).ok()?;
        headers.append(name, value);
        lines = rest;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_not_written_here_is_none() {
        for lines in [
            &b"a"[..],
            b"a: b",
            b"a: b\n",
            b": b\r\n",
            b"a:b\r\n",
            b"a b: c\r\n",
            b"a: \0\r\n",
        ] {
            assert_eq!(decode(lines), None, "{lines:?}");
        }
        assert_eq!(decode(b""), Some(HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            lines in proptest::collection::vec(("[a-z][a-z-]{0,9}", proptest::collection::vec(any::<u8>(), 0..20)), 0..9),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in &lines {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
                }
            }
            prop_assert_eq!(decode(&encode(&headers)), Some(headers));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
