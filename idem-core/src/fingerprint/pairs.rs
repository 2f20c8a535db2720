use std::borrow::Cow;

use super::InvalidForm;
use super::encoder::Encoder;

/// Names and values, of which the order between names carries no meaning.
///
/// They are bytes: a percent-encoded text need not be UTF-8, and replacing what is not would make two
/// different texts one.
#[derive(Debug, Clone, Default)]
pub(super) struct Pairs<'a>(Vec<Pair<'a>>);

impl<'a> Pairs<'a> {
    /// Reads `application/x-www-form-urlencoded` as the WHATWG URL standard does, except that a malformed
    /// escape is an error: that standard reads `%zz` and `%25zz` as the same.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, InvalidForm> {
        let mut pairs = Self::default();
        let mut start = 0;
        for piece in text.split(|byte| *byte == b'&') {
            if !piece.is_empty() {
                let equals = piece.iter().position(|byte| *byte == b'=');
                let (name, value) = match equals {
                    Some(equals) => (&piece[..equals], &piece[equals + 1..]),
                    None => (piece, &[][..]),
                };
                let value_start = start + equals.map_or(piece.len(), |equals| equals + 1);
                pairs.0.push(Pair {
                    name: decode(name, start)?,
                    value: decode(value, value_start)?,
                });
            }
            start += piece.len() + 1;
        }
        Ok(pairs)
    }

    pub(super) fn push(&mut self, name: &'a [u8], value: &'a [u8]) {
        self.0.push(Pair {
            name: Cow::Borrowed(name),
            value: Cow::Borrowed(value),
        });
    }

    pub(super) fn without(mut self, names: &[Vec<u8>]) -> Self {
        self.0
            .retain(|pair| !names.iter().any(|excluded| **excluded == *pair.name));
        self
    }

    pub(super) fn encode(mut self, encoder: &mut Encoder) {
        // Stable, because the order within one name counts.
        self.0.sort_by(|one, other| one.name.cmp(&other.name));
        encoder.count(self.0.len());
        for Pair { name, value } in &self.0 {
            encoder.bytes(name);
            encoder.bytes(value);
        }
    }
}

#[derive(Debug, Clone)]
struct Pair<'a> {
    name: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
}

fn decode(text: &[u8], offset: usize) -> Result<Cow<'_, [u8]>, InvalidForm> {
    let Some(plain) = text.iter().position(|byte| matches!(byte, b'%' | b'+')) else {
        return Ok(Cow::Borrowed(text));
    };
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend_from_slice(&text[..plain]);
    let mut at = plain;
    while let Some(byte) = text.get(at) {
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                let digit = |index: usize| (*text.get(index)? as char).to_digit(16);
                let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else {
                    return Err(InvalidForm::MalformedEscape {
                        offset: offset + at,
                    });
                };
                decoded.push((high << 4 | low) as u8);
                at += 2;
            }
            other => decoded.push(*other),
        }
        at += 1;
    }
    Ok(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let pairs = Pairs::parse(text.as_bytes()).unwrap();
        pairs
            .0
            .iter()
            .map(|pair| (text_of(&pair.name), text_of(&pair.value)))
            .collect()
    }

    #[test]
    fn pairs_are_split_and_decoded() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(parsed("a=1&b=x+y%21"), [pair("a", "1"), pair("b", "x y!")]);
        assert_eq!(
            parsed("&a&&b=&=c&"),
            [pair("a", ""), pair("b", ""), pair("", "c")]
        );
        assert_eq!(
            parsed("a=b=c&%3D=%26%2b"),
            [pair("a", "b=c"), pair("=", "&+")]
        );
        assert_eq!(parsed(""), []);
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        let pairs = Pairs::parse(b"a=%ff&a=%fe&a=\xfd").unwrap();
        let values: Vec<&[u8]> = pairs.0.iter().map(|pair| &*pair.value).collect();
        assert_eq!(values, [b"\xff", b"\xfe", b"\xfd"]);
    }

    #[test]
    fn a_malformed_escape_is_named_by_its_offset() {
        for (text, offset) in [
            ("%", 0),
            ("a=1&b=%4", 6),
            ("a&xx%zz=", 4),
            ("a=%+1", 2),
            ("é=%", 3),
        ] {
            let error = Pairs::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, InvalidForm::MalformedEscape { offset }, "{text}");
        }
    }
}
