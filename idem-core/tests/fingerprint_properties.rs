//! What holds for every document, form and query.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::collections::BTreeMap;

use idem_core::{Fingerprint, Nulls, Operation, Profile, Rules};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

proptest! {
    #[test]
    fn another_spelling_has_the_same_fingerprint(document in json(), one: u64, other: u64) {
        let (one, other) = (Speller(one).spell(&document), Speller(other).spell(&document));
        prop_assert_eq!(fingerprint(&one), fingerprint(&other), "{} and {}", one, other);
    }

    #[test]
    fn another_value_has_another_fingerprint(document in json(), at: Index, seed: u64) {
        let mut changed = document.clone();
        changed.change(&mut at.index(document.size()));
        let (one, other) = (Speller(seed).spell(&document), Speller(seed).spell(&changed));
        prop_assert_ne!(fingerprint(&one), fingerprint(&other), "{} and {}", one, other);
    }

    #[test]
    fn forms_and_queries_are_equal_exactly_when_their_pairs_are(one in pairs(), other in pairs(), seed: u64) {
        let mut speller = Speller(seed);
        let texts = (speller.spell_pairs(&one), speller.spell_pairs(&other));
        let equal = grouped(&one) == grouped(&other);
        prop_assert_eq!(form(&texts.0) == form(&texts.1), equal, "{} and {}", &texts.0, &texts.1);
        prop_assert_eq!(query(&texts.0) == query(&texts.1), equal, "{} and {}", &texts.0, &texts.1);
        prop_assert_eq!(form(&texts.0), form(&speller.spell_pairs(&one)));
        prop_assert_eq!(query(&texts.0), query(&speller.spell_pairs(&one)));
    }

    #[test]
    fn a_body_of_any_bytes_has_a_fingerprint_of_its_own(
        one in vec(select(&b"{}[]\":,\\u01e-%=&a \xff"[..]), 1..8),
        other in vec(select(&b"{}[]\":,\\u01e-%=&a \xff"[..]), 1..8),
    ) {
        let exact = |bytes: &[u8]| rules().of(&operation()).body(Some("text/plain"), None, bytes).finish();
        prop_assert_eq!(exact(&one) == exact(&other), one == other);
        for content_type in ["application/json", "application/x-www-form-urlencoded"] {
            let body = |bytes: &[u8]| rules().of(&operation()).body(Some(content_type), None, bytes).finish();
            prop_assert_ne!(body(&one), exact(&one));
            if body(&one) == body(&other) && one != other {
                let (rules, operation) = (rules(), operation());
                let read = |bytes: &[u8]| match content_type {
                    "application/json" => rules.of(&operation).json(bytes).is_ok(),
                    _ => rules.of(&operation).form(bytes).is_ok(),
                };
                prop_assert!(read(&one) && read(&other), "what cannot be read counts exactly");
            }
        }
    }
}

fn rules() -> Rules {
    Rules::new(Profile::new(1), Nulls::Distinct)
}

fn operation() -> Operation {
    Operation::new("POST /v1/charges").unwrap()
}

fn fingerprint(text: &str) -> Fingerprint {
    rules()
        .of(&operation())
        .json(text.as_bytes())
        .unwrap()
        .finish()
}

fn form(text: &str) -> Fingerprint {
    rules()
        .of(&operation())
        .form(text.as_bytes())
        .unwrap()
        .finish()
}

fn query(text: &str) -> Fingerprint {
    rules().of(&operation()).query(text).finish()
}

/// A document's meaning, from which texts are spelled.
#[derive(Debug, Clone)]
enum Json {
    Null,
    Bool(bool),
    /// The digits neither begin nor end with a zero, and are none for zero.
    Number {
        negative: bool,
        digits: String,
        exponent: i32,
    },
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

fn json() -> impl Strategy<Value = Json> {
    let number = (any::<bool>(), "([1-9]([0-9]{0,30}[1-9])?)?", -40..40_i32);
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number.prop_map(|(negative, digits, exponent)| Json::Number {
            negative,
            digits,
            exponent
        }),
        text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Json::Array),
            btree_map(text(), inner, 0..6).prop_map(Json::Object),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,2}",
        "prefix__[a-c\u{0}]{0,3}",
        ".{0,12}",
        "[\u{0}-\u{1f}\"\\\\/é\u{1f600}\u{10ffff}]{0,9}"
    ]
}

impl Json {
    /// How many values there are, this one and those in it.
    fn size(&self) -> usize {
        1 + match self {
            Self::Array(elements) => elements.iter().map(Self::size).sum(),
            Self::Object(members) => members.values().map(Self::size).sum(),
            _ => 0,
        }
    }

    /// Changes the value that has so many before it, and nothing else.
    fn change(&mut self, before: &mut usize) {
        if *before == 0 {
            self.change_this();
            *before = usize::MAX;
            return;
        }
        *before -= 1;
        let mut inner: Vec<&mut Self> = match self {
            Self::Array(elements) => elements.iter_mut().collect(),
            Self::Object(members) => members.values_mut().collect(),
            _ => Vec::new(),
        };
        for value in &mut inner {
            if *before == usize::MAX {
                return;
            }
            value.change(before);
        }
    }

    fn change_this(&mut self) {
        match self {
            Self::Null => *self = Self::Bool(false),
            Self::Bool(bool) => *bool = !*bool,
            Self::Number {
                digits, exponent, ..
            } if digits.len() % 2 == 1 => {
                digits.push('1');
                *exponent -= 1;
            }
            Self::Number {
                digits, exponent, ..
            } if !digits.is_empty() => *exponent += 1,
            Self::Number { digits, .. } => digits.push('1'),
            Self::Text(text) => text.push('\0'),
            Self::Array(elements) => elements.push(Self::Null),
            Self::Object(members) => match members.pop_first() {
                Some((name, value)) => {
                    members.insert(format!("{name} of another name"), value);
                }
                None => *self = Self::Array(Vec::new()),
            },
        }
    }
}

/// Spells meanings as text, each in one of the ways that the number stands for.
struct Speller(u64);

impl Speller {
    fn choose(&mut self, ways: usize) -> usize {
        // SplitMix64, so that every seed will do.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % ways as u64) as usize
    }

    fn spell(&mut self, value: &Json) -> String {
        let mut text = self.space();
        match value {
            Json::Null => text += "null",
            Json::Bool(bool) => text += &bool.to_string(),
            Json::Number {
                negative,
                digits,
                exponent,
            } => text += &self.number(*negative, digits, *exponent),
            Json::Text(string) => text += &self.string(string),
            Json::Array(elements) => {
                let elements: Vec<String> =
                    elements.iter().map(|element| self.spell(element)).collect();
                text += &format!("[{}{}]", elements.join(","), self.space());
            }
            Json::Object(members) => {
                let members: Vec<_> = members.iter().collect();
                let members: Vec<String> = self
                    .shuffle(members)
                    .into_iter()
                    .map(|member| self.member(member))
                    .collect();
                text += &format!("{{{}{}}}", members.join(","), self.space());
            }
        }
        text + self.space().as_str()
    }

    fn member(&mut self, (name, value): (&String, &Json)) -> String {
        let parts = [
            self.space(),
            self.string(name),
            self.space(),
            ":".to_owned(),
            self.spell(value),
        ];
        parts.concat()
    }

    fn space(&mut self) -> String {
        ["", "", "", " ", "\n\t", " \r\n  "][self.choose(6)].to_owned()
    }

    fn string(&mut self, string: &str) -> String {
        let mut text = "\"".to_owned();
        for character in string.chars() {
            let short = "\"\"\\\\//\u{8}b\u{c}f\nn\rr\tt"
                .as_bytes()
                .chunks(2)
                .find(|pair| character == char::from(pair[0]));
            match (self.choose(3), short) {
                (0, Some(pair)) => text.extend(['\\', char::from(pair[1])]),
                (1, _) if !matches!(character, '"' | '\\' | ..' ') => text.push(character),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        text += &if self.choose(2) == 0 {
                            format!("\\u{unit:04x}")
                        } else {
                            format!("\\u{unit:04X}")
                        };
                    }
                }
            }
        }
        text + "\""
    }

    fn number(&mut self, negative: bool, digits: &str, exponent: i32) -> String {
        let sign = if negative { "-" } else { "" };
        // Zeros in front and behind, and the point anywhere among the digits.
        let behind = self.choose(4);
        let padded = format!(
            "{}{digits}{}",
            "0".repeat(self.choose(4) + 1),
            "0".repeat(behind)
        );
        let point = 1 + self.choose(padded.len());
        let (integer, fraction) = padded.split_at(point);
        let integer = integer.trim_start_matches('0');
        let integer = if integer.is_empty() { "0" } else { integer };
        let exponent = exponent - behind as i32 + fraction.len() as i32;
        let point = if fraction.is_empty() { "" } else { "." };
        let mark = if self.choose(2) == 0 { "e" } else { "E" };
        match (exponent, self.choose(3)) {
            (0, 0) => format!("{sign}{integer}{point}{fraction}"),
            (0.., 1) => format!("{sign}{integer}{point}{fraction}{mark}+{exponent}"),
            (0.., _) => format!("{sign}{integer}{point}{fraction}{mark}0{exponent}"),
            _ => format!("{sign}{integer}{point}{fraction}{mark}{exponent}"),
        }
    }

    fn shuffle<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        (1..items.len()).for_each(|index| items.swap(index, self.choose(index + 1)));
        items
    }

    /// Spells pairs in another order between names, and the same order within each.
    fn spell_pairs(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> String {
        let mut groups: Vec<_> = grouped(pairs)
            .into_iter()
            .map(|(name, values)| (name, values.into_iter()))
            .collect();
        let mut pieces = Vec::new();
        while !groups.is_empty() {
            let index = self.choose(groups.len());
            let (name, values) = &mut groups[index];
            match values.next() {
                Some(value) => {
                    pieces.push(format!("{}={}", self.percent(name), self.percent(value)))
                }
                None => drop(groups.remove(index)),
            }
        }
        pieces.join(["&", "&&"][self.choose(2)])
    }

    fn percent(&mut self, bytes: &[u8]) -> String {
        let mut text = String::new();
        for byte in bytes {
            match (byte, self.choose(3)) {
                (b' ', 0) => text.push('+'),
                (b'a'..=b'z', 0..=1) => text.push(char::from(*byte)),
                (_, 1) => text += &format!("%{byte:02x}"),
                _ => text += &format!("%{byte:02X}"),
            }
        }
        text
    }
}

/// Few of each, so that two lists are often equal up to their order.
fn pairs() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    let name = select(vec![&b"a"[..], b"b", b"", b"\xff", b"=&+%"]).prop_map(<[u8]>::to_vec);
    let value = select(vec![&b""[..], b"x", b" ", b"\xfe"]).prop_map(<[u8]>::to_vec);
    vec((name, value), 0..3)
}

type Grouped<'a> = BTreeMap<&'a [u8], Vec<&'a [u8]>>;

/// What counts in a list of pairs.
fn grouped(pairs: &[(Vec<u8>, Vec<u8>)]) -> Grouped<'_> {
    let mut groups = Grouped::new();
    for (name, value) in pairs {
        groups.entry(name).or_default().push(value);
    }
    groups
}
