use super::encode::{NEGATIVE, POSITIVE, ZERO};
use crate::fingerprint::InvalidJson;

/// Reads the number at `start`, appends its encoding, and returns where it ends.
///
/// A number is encoded by its exact decimal value: sign, exponent, digits, with the last digit not zero. So
/// every value has one encoding, of about the length of its text, whatever its size.
#[inline]
pub(super) fn scan_number(
    text: &[u8],
    start: usize,
    encoding: &mut Vec<u8>,
) -> Result<usize, InvalidJson> {
    let number = Literal::scan(text, start)?;
    number
        .encode(encoding)
        .ok_or(InvalidJson::ExponentTooLarge { offset: start })?;
    Ok(number.end)
}

/// The parts of a number as it is written.
#[derive(Debug)]
struct Literal<'t> {
    tag: u8,
    integer: &'t [u8],
    fraction: &'t [u8],
    exponent: i128,
    end: usize,
}

impl<'t> Literal<'t> {
    #[inline]
    fn scan(text: &'t [u8], start: usize) -> Result<Self, InvalidJson> {
        let is = |at: usize, byte: u8| text.get(at) == Some(&byte);
        let mut at = start;
        let tag = if is(at, b'-') { NEGATIVE } else { POSITIVE };
        at += usize::from(tag == NEGATIVE);

        let integer = if is(at, b'0') {
            &text[at..=at]
        } else {
            digits(text, at)?
        };
        at += integer.len();
        let mut fraction = &[][..];
        if is(at, b'.') {
            fraction = digits(text, at + 1)?;
            at += 1 + fraction.len();
        }
        let mut exponent = 0;
        if is(at, b'e') || is(at, b'E') {
            at += 1;
            let negative = is(at, b'-');
            at += usize::from(negative || is(at, b'+'));
            let written = digits(text, at)?;
            at += written.len();
            exponent = saturating_value(written) * if negative { -1 } else { 1 };
        }
        Ok(Self {
            tag,
            integer,
            fraction,
            exponent,
            end: at,
        })
    }

    /// `None` when the exponent does not fit. That depends on the value alone, not on how it is written.
    #[inline]
    fn encode(&self, encoding: &mut Vec<u8>) -> Option<()> {
        let (mut integer, mut fraction) = (self.integer, trim_end(self.fraction));
        let mut exponent = self.exponent - fraction.len() as i128;
        if fraction.is_empty() {
            let significant = trim_end(integer);
            exponent += (integer.len() - significant.len()) as i128;
            integer = significant;
        }
        // The only integer part with a zero in front is zero, which is trimmed away when alone.
        if integer == b"0" {
            integer = &[];
            fraction = trim_start(fraction);
        }
        let count = integer.len() + fraction.len();
        if count == 0 {
            encoding.push(ZERO);
            return Some(());
        }
        let exponent = i64::try_from(exponent).ok()?;
        encoding.push(self.tag);
        push_varint(encoding, (exponent << 1 ^ exponent >> 63) as u64);
        push_varint(encoding, count as u64);
        encoding.extend_from_slice(integer);
        encoding.extend_from_slice(fraction);
        Some(())
    }
}

/// One digit or more.
#[inline]
fn digits(text: &[u8], start: usize) -> Result<&[u8], InvalidJson> {
    let rest = &text[start..];
    match rest.iter().position(|byte| !byte.is_ascii_digit()) {
        Some(0) => Err(InvalidJson::Syntax { offset: start }),
        None if rest.is_empty() => Err(InvalidJson::UnexpectedEnd { bytes: text.len() }),
        length => Ok(&rest[..length.unwrap_or(rest.len())]),
    }
}

/// The value of an exponent's digits, or of a number far larger than any text can bring back into 64 bits.
fn saturating_value(digits: &[u8]) -> i128 {
    const FAR: i128 = 1 << 100;
    digits.iter().fold(0, |value, digit| {
        (value * 10 + i128::from(digit - b'0')).min(FAR)
    })
}

#[inline]
fn trim_end(digits: &[u8]) -> &[u8] {
    let significant = digits.iter().rposition(|digit| *digit != b'0');
    &digits[..significant.map_or(0, |last| last + 1)]
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

/// An unsigned LEB128.
#[inline]
fn push_varint(encoding: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        encoding.push(value as u8 | 0x80);
        value >>= 7;
    }
    encoding.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &str) -> Result<Vec<u8>, InvalidJson> {
        let mut encoding = Vec::new();
        let end = scan_number(text.as_bytes(), 0, &mut encoding)?;
        assert_eq!(end, text.len(), "{text}");
        Ok(encoding)
    }

    #[test]
    fn spellings_of_one_value_encode_alike() {
        for spellings in [
            &[
                "1",
                "1.0",
                "10e-1",
                "0.1e1",
                "1E+0",
                "1e-0",
                "100.00e-2",
                "0.0001E4",
                "1e00000",
            ][..],
            &[
                "0",
                "-0",
                "0.0",
                "-0.000e5",
                "0e99999999999999999999999999",
                "0E-7",
            ],
            &["-1200", "-1.2e3", "-12e2", "-0.00012e7", "-1200.0"],
            &[
                "9007199254740993",
                "9007199254740993.0",
                "9.007199254740993e15",
            ],
            &[
                "1e9223372036854775807",
                "10e9223372036854775806",
                "0.1e9223372036854775808",
            ],
        ] {
            for spelling in spellings {
                assert_eq!(encoded(spelling), encoded(spellings[0]), "{spelling}");
            }
        }
    }

    #[test]
    fn different_values_encode_differently() {
        let values = [
            "0",
            "1",
            "-1",
            "10",
            "0.1",
            "11",
            "101",
            "1.01",
            "1e9",
            "1e10",
            "1e-9",
            "12e63",
            "12e64",
            "12e-64",
            "9007199254740992",
            "9007199254740993",
            "18446744073709551615",
            "18446744073709551616",
            "0.1000000000000000055511151231257827",
            "1e400",
            "1e401",
            "-1e400",
        ];
        for (index, one) in values.iter().enumerate() {
            for other in &values[..index] {
                assert_ne!(encoded(one), encoded(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn the_encoding_is_sign_exponent_count_digits() {
        assert_eq!(encoded("1200").unwrap(), [POSITIVE, 4, 2, b'1', b'2']);
        assert_eq!(encoded("-0.5").unwrap(), [NEGATIVE, 1, 1, b'5']);
        assert_eq!(encoded("1e64").unwrap(), [POSITIVE, 0x80, 1, 1, b'1']);
        assert_eq!(encoded("-0").unwrap(), [ZERO]);
    }

    #[test]
    fn an_exponent_fits_or_does_not_by_value() {
        for text in [
            "1e9223372036854775808",
            "10e9223372036854775807",
            "0.1e9223372036854775809",
        ] {
            assert_eq!(
                encoded(text),
                Err(InvalidJson::ExponentTooLarge { offset: 0 }),
                "{text}"
            );
        }
        assert!(encoded("1e-9223372036854775808").is_ok());
        assert!(encoded("0.1e-9223372036854775808").is_err());
        let long = format!("1e{}", "9".repeat(1_000_000));
        assert_eq!(
            encoded(&long),
            Err(InvalidJson::ExponentTooLarge { offset: 0 })
        );
        let zeros = format!("1e{}7", "0".repeat(1_000_000));
        assert_eq!(encoded(&zeros), encoded("1e7"));
    }

    #[test]
    fn what_is_no_number_is_named_by_its_offset() {
        for (text, offset) in [("-a", 1), ("1.x", 2), ("1ex", 2), ("1e+x", 3), ("-.5", 1)] {
            assert_eq!(encoded(text), Err(InvalidJson::Syntax { offset }), "{text}");
        }
        for text in ["-", "1.", "1e", "1e-"] {
            assert_eq!(
                encoded(text),
                Err(InvalidJson::UnexpectedEnd { bytes: text.len() }),
                "{text}"
            );
        }
    }
}
