use crate::fingerprint::InvalidJson;

/// A string that was read up to its closing quote.
#[derive(Debug)]
pub(super) struct Scanned {
    /// Where the closing quote is.
    pub(super) end: usize,
    /// Whether there were escapes, and the string is in the buffer.
    pub(super) unescaped: bool,
}

/// Reads the string whose first character is at `start`. One with escapes is appended to `decoded` without
/// them. `text` is UTF-8.
#[inline]
pub(super) fn scan_string(
    text: &[u8],
    start: usize,
    decoded: &mut Vec<u8>,
) -> Result<Scanned, InvalidJson> {
    let end = start + plain_length(&text[start..]);
    if text.get(end) == Some(&b'"') {
        return Ok(Scanned {
            end,
            unescaped: false,
        });
    }
    unescape(text, start, end, decoded)
}

fn unescape(
    text: &[u8],
    start: usize,
    plain_end: usize,
    decoded: &mut Vec<u8>,
) -> Result<Scanned, InvalidJson> {
    let mut from = start;
    let mut at = plain_end;
    loop {
        decoded.extend_from_slice(&text[from..at]);
        match text.get(at) {
            Some(b'"') => {
                return Ok(Scanned {
                    end: at,
                    unescaped: true,
                });
            }
            Some(b'\\') => at = escape(text, at, decoded)?,
            Some(_) => return Err(InvalidJson::Syntax { offset: at }),
            None => return Err(InvalidJson::UnexpectedEnd { bytes: text.len() }),
        }
        from = at;
        at += plain_length(&text[at..]);
    }
}

/// Reads the escape at `at`, and returns where it ends.
fn escape(text: &[u8], at: usize, decoded: &mut Vec<u8>) -> Result<usize, InvalidJson> {
    let plain = match text.get(at + 1) {
        Some(plain @ (b'"' | b'\\' | b'/')) => *plain,
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'u') => return unicode_escape(text, at, decoded),
        Some(_) => return Err(InvalidJson::Syntax { offset: at + 1 }),
        None => return Err(InvalidJson::UnexpectedEnd { bytes: text.len() }),
    };
    decoded.push(plain);
    Ok(at + 2)
}

fn unicode_escape(text: &[u8], at: usize, decoded: &mut Vec<u8>) -> Result<usize, InvalidJson> {
    let lone = InvalidJson::LoneSurrogate { offset: at };
    let unit = hex_unit(text, at + 2)?;
    let (scalar, end) = match unit {
        0xd800..=0xdbff => {
            if text.get(at + 6..at + 8) != Some(b"\\u") {
                return Err(lone);
            }
            match hex_unit(text, at + 8)? {
                low @ 0xdc00..=0xdfff => {
                    (0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00), at + 12)
                }
                _ => return Err(lone),
            }
        }
        unit => (unit, at + 6),
    };
    // What is no scalar value at this point is the second half of a pair, without the first.
    let character = char::from_u32(scalar).ok_or(lone)?;
    decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(end)
}

fn hex_unit(text: &[u8], start: usize) -> Result<u32, InvalidJson> {
    let mut unit = 0;
    for at in start..start + 4 {
        let byte = text
            .get(at)
            .ok_or(InvalidJson::UnexpectedEnd { bytes: text.len() })?;
        let digit = char::from(*byte)
            .to_digit(16)
            .ok_or(InvalidJson::Syntax { offset: at })?;
        unit = unit << 4 | digit;
    }
    Ok(unit)
}

/// How many bytes stand before the first quote, backslash or control character: eight are looked at at once.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The high bit of the lowest byte that is less than the limit; bytes above it may be marked by a borrow.
    let below = |word: u64, limit: u64| word.wrapping_sub(LOW * limit) & !word & HIGH;

    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk() {
        let word = u64::from_le_bytes(*chunk);
        let special = below(word ^ (LOW * u64::from(b'"')), 1)
            | below(word ^ (LOW * u64::from(b'\\')), 1)
            | below(word, 0x20);
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    bytes[at..]
        .iter()
        .position(is_special)
        .map_or(bytes.len(), |special| at + special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_special_byte_ends_the_plain_part_at_every_distance() {
        for special in (0..=255).filter(|byte| matches!(byte, b'"' | b'\\' | ..0x20)) {
            for length in 0..20 {
                for filler in [b'a', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xff] {
                    let mut bytes = vec![filler; length];
                    bytes.push(special);
                    bytes.extend_from_slice(b"\"\\\x00aaaaaaaaa");
                    assert_eq!(
                        plain_length(&bytes),
                        length,
                        "{special} after {length} of {filler}"
                    );
                    assert_eq!(plain_length(&bytes[..length]), length);
                }
            }
        }
    }

    #[test]
    fn no_other_byte_ends_it() {
        for plain in (0..=255).filter(|byte| !matches!(byte, b'"' | b'\\' | ..0x20)) {
            assert_eq!(plain_length(&[plain; 19]), 19, "{plain}");
        }
    }
}
