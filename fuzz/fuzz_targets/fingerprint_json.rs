//! Any bytes: a JSON document is refused with an error, or has the fingerprint of every other spelling.
#![no_main]

use idem_core::{FingerprintError, InvalidJson, Nulls, Operation, Profile, Rules};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &[u8]| {
    let operation = Operation::new("POST /v1/charges").unwrap();
    let distinct = Rules::new(Profile::new(1), Nulls::Distinct);
    let dropping = Rules::new(Profile::new(1), Nulls::SameAsAbsent)
        .exclude_pointer("/a/0/b")
        .and_then(|rules| rules.exclude_pointer("/0"))
        .and_then(|rules| rules.exclude_pointer("/a~1/~0"))
        .unwrap();

    let parsed = parse(text);
    match distinct.of(&operation).json(text) {
        Ok(_) => {
            let value = parsed.expect("what one parser reads, the other one reads as well");
            let mut printed = String::new();
            print(&value, &mut printed);
            for rules in [&distinct, &dropping] {
                let fingerprint = |text| rules.of(&operation).json(text).unwrap().finish();
                assert_eq!(
                    fingerprint(text),
                    fingerprint(printed.as_bytes()),
                    "{printed}"
                );
            }
        }
        Err(FingerprintError::Json(error)) => {
            let only_ours = matches!(
                error,
                InvalidJson::DuplicateMember { .. }
                    | InvalidJson::TooDeep { .. }
                    | InvalidJson::ExponentTooLarge { .. }
            );
            assert!(only_ours || parsed.is_none(), "{error:?}");
            assert!(dropping.of(&operation).json(text).is_err());
        }
        Err(error) => panic!("{error:?}"),
    }
});

fn parse(text: &[u8]) -> Option<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let value = serde::Deserialize::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Prints members backwards, everything in strings escaped, and numbers with another exponent.
fn print(value: &Value, text: &mut String) {
    match value {
        Value::Null | Value::Bool(_) => *text += &value.to_string(),
        Value::Number(number) => *text += &print_number(number.as_str()),
        Value::String(string) => print_string(string, text),
        Value::Array(elements) => {
            text.push('[');
            for (index, element) in elements.iter().enumerate() {
                *text += if index == 0 { " " } else { ",\n" };
                print(element, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            text.push('{');
            for (index, (name, value)) in members.iter().rev().enumerate() {
                *text += if index == 0 { "\t" } else { " , " };
                print_string(name, text);
                *text += " : ";
                print(value, text);
            }
            text.push('}');
        }
    }
}

fn print_string(string: &str, text: &mut String) {
    text.push('"');
    string
        .encode_utf16()
        .for_each(|unit| *text += &format!("\\u{unit:04x}"));
    text.push('"');
}

/// `12.5e3` as `1250e1`: the point moves to the end, a zero is added, and the exponent makes up for both.
fn print_number(number: &str) -> String {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (sign, integer) = match integer.strip_prefix('-') {
        Some(integer) => ("-", integer),
        None => ("", integer),
    };
    let digits = format!("{integer}{fraction}0");
    let digits = match digits.trim_start_matches('0') {
        // Zero, whatever the exponent, which may be of any length.
        "" => return format!("{sign}0.00E+7"),
        digits => digits,
    };
    let exponent: i128 = exponent
        .parse()
        .expect("only numbers with an exponent of 64 bits have a fingerprint");
    format!("{sign}{digits}e{}", exponent - fraction.len() as i128 - 1)
}
