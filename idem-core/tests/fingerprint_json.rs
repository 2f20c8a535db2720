//! What makes two JSON bodies one, what makes them two, and which have no one meaning.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::time::{Duration, Instant};

use idem_core::{Fingerprint, FingerprintError, InvalidJson, Nulls, Operation, Profile, Rules};

fn rules() -> Rules {
    Rules::new(Profile::new(1), Nulls::Distinct)
}

fn charge() -> Operation {
    Operation::new("POST /v1/charges").unwrap()
}

fn json_under(rules: &Rules, text: &str) -> Fingerprint {
    rules.of(&charge()).json(text.as_bytes()).unwrap().finish()
}

fn json(text: &str) -> Fingerprint {
    json_under(&rules(), text)
}

fn json_error(text: impl AsRef<[u8]>) -> InvalidJson {
    match rules().of(&charge()).json(text.as_ref()) {
        Err(FingerprintError::Json(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn assert_all_equal(fingerprints: &[Fingerprint]) {
    for (index, fingerprint) in fingerprints.iter().enumerate() {
        assert_eq!(fingerprint, &fingerprints[0], "the one at {index}");
    }
}

fn assert_all_different(fingerprints: &[Fingerprint]) {
    for (index, one) in fingerprints.iter().enumerate() {
        for (other_index, other) in fingerprints[..index].iter().enumerate() {
            assert_ne!(one, other, "those at {other_index} and {index}");
        }
    }
}

// Numbers.

#[test]
fn integers_that_a_float_cannot_tell_apart_are_different() {
    assert_ne!(
        json(r#"{"amount":9007199254740992}"#),
        json(r#"{"amount":9007199254740993}"#)
    );
    assert_ne!(
        json(r#"{"amount":18446744073709551615}"#),
        json(r#"{"amount":18446744073709551616}"#)
    );
    assert_ne!(json("0.1"), json("0.1000000000000000055511151231257827"));
}

#[test]
fn another_spelling_of_a_number_is_the_same_number() {
    assert_eq!(json(r#"{"max":5.0}"#), json(r#"{"max":5}"#));
    assert_all_equal(&["1", "1.0", "10e-1", "0.1E1", "1e+0"].map(json));
    assert_all_equal(&["0", "-0", "0.00", "0e400", "-0E-99999999999999999999999"].map(json));
    assert_all_different(&["0", "1", "-1", "10", "0.1", r#""1""#, "[1]", "true"].map(json));
}

#[test]
fn a_number_of_a_million_digits_is_quick_and_exact() {
    let start = Instant::now();
    let digits = "7".repeat(1_000_000);
    assert_eq!(json(&digits), json(&format!("0.{digits}e1000000")));
    assert_ne!(json(&digits), json(&format!("{digits}7")));
    assert_ne!(json(&digits), json(&format!("{}8", &digits[1..])));
    assert_eq!(
        json(&format!("1{}", "0".repeat(1_000_000))),
        json("1e1000000")
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_huge_exponent_is_exact_or_a_typed_error() {
    assert_ne!(json("1e999999999"), json("1e999999998"));
    assert_ne!(json("1e999999999"), json("1e-999999999"));
    assert_eq!(
        json_error("[1e99999999999999999999999]"),
        InvalidJson::ExponentTooLarge { offset: 1 }
    );
    assert_eq!(
        json_error("[-1e-99999999999999999999999]"),
        InvalidJson::ExponentTooLarge { offset: 1 }
    );
}

// Objects, arrays, strings.

#[test]
fn the_order_of_members_does_not_matter() {
    assert_eq!(
        json(r#"{"a":1,"o":{"x":1,"y":2}}"#),
        json(r#"{"o":{"y":2,"x":1},"a":1}"#)
    );
    assert_eq!(json(r#"[{"a":1,"b":2}]"#), json(r#"[{"b":2,"a":1}]"#));
    assert_eq!(
        json(r#"{"long_name_one":1,"long_name_two":2,"":3,"l":4}"#),
        json(r#"{"l":4,"":3,"long_name_two":2,"long_name_one":1}"#)
    );
}

#[test]
fn the_order_of_elements_matters() {
    assert_ne!(json("[1,2]"), json("[2,1]"));
    assert_ne!(json("[[],[[]]]"), json("[[[]],[]]"));
}

#[test]
fn values_do_not_move_between_members_and_levels() {
    assert_all_different(
        &[
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
            r#"{"a":{"b":2}}"#,
            r#"{"a":1}"#,
            r#"{"ab":1}"#,
            r#"{"a":{}}"#,
            r#"{"a":[]}"#,
            r#"["a",1,"b",2]"#,
            r#"["a"]"#,
            r#"[["a"]]"#,
            "[]",
            "{}",
            "[{}]",
            "[[]]",
            "[[],[]]",
            "[null]",
            "null",
            "false",
            "true",
            r#""""#,
            r#""null""#,
            r#"[""]"#,
            "12",
            "[1,2]",
            "[12]",
        ]
        .map(json),
    );
}

#[test]
fn the_text_of_a_string_cannot_pass_for_its_end() {
    // The byte before a string in the encoding is 7.
    assert_all_different(&[r#"["a","b\u0007c"]"#, r#"["a\u0007b","c"]"#].map(json));
    assert_all_different(&[r#"{"a\u0007":"b"}"#, r#"{"a":"\u0007b"}"#].map(json));
}

#[test]
fn white_space_and_escapes_do_not_matter() {
    assert_eq!(
        json("{\"a\":[1,2]}"),
        json(" {\r\n\t\"a\" : [ 1 , 2 ] } \n")
    );
    assert_all_equal(
        &[
            r#"{"é/\n😀":"\""}"#,
            r#"{"\u00e9\/\u000a\uD83D\uDE00":"\u0022"}"#,
            "{\"\\u00E9/\\n\u{1f600}\":\"\\\"\"}",
        ]
        .map(json),
    );
}

#[test]
fn strings_are_not_normalised() {
    assert_all_different(
        &[
            "\"\u{e9}\"",
            "\"e\u{301}\"",
            "\"E\u{301}\"",
            "\" \u{e9}\"",
            "\"\\u0000\u{e9}\"",
        ]
        .map(json),
    );
}

#[test]
fn escaped_names_are_sorted_and_compared_as_what_they_mean() {
    assert_eq!(json(r#"{"\u0062":2,"a":1}"#), json(r#"{"a":1,"b":2}"#));
    assert_eq!(
        json_error(r#"{"b":2,"a":1,"\u0062":2}"#),
        InvalidJson::DuplicateMember { offset: 13 }
    );
}

#[test]
fn a_hundred_thousand_members_are_quick() {
    let start = Instant::now();
    let member = |n: u32| {
        format!(
            "\"a rather long common prefix {}\":{n}",
            n.wrapping_mul(2_654_435_761)
        )
    };
    let forward: Vec<String> = (0..100_000).map(member).collect();
    let backward: Vec<String> = (0..100_000).rev().map(member).collect();
    let object = |members: &[String]| format!("{{{}}}", members.join(","));
    assert_eq!(json(&object(&forward)), json(&object(&backward)));
    let repeated = format!("{{{},{}}}", forward.join(","), forward[500]);
    assert!(matches!(
        json_error(repeated),
        InvalidJson::DuplicateMember { .. }
    ));
    assert!(start.elapsed() < Duration::from_secs(60));
}

// Texts without one meaning.

#[test]
fn duplicate_members_are_an_error() {
    assert_eq!(
        json_error(r#"{"a":1,"a":1}"#),
        InvalidJson::DuplicateMember { offset: 7 }
    );
    assert_eq!(
        json_error(r#"[{"x":{"":0,"":1}}]"#),
        InvalidJson::DuplicateMember { offset: 12 }
    );
    let forgiving = Rules::new(Profile::new(1), Nulls::SameAsAbsent)
        .exclude_pointer("/a")
        .unwrap();
    let error = forgiving
        .of(&charge())
        .json(br#"{"a":null,"a":null}"#)
        .unwrap_err();
    assert!(matches!(
        error,
        FingerprintError::Json(InvalidJson::DuplicateMember { offset: 10 })
    ));
    assert_ne!(
        json(r#"{"a":{"a":1}}"#),
        json(r#"{"a":1}"#),
        "one name on two levels is no repetition"
    );
}

#[test]
fn text_that_is_not_utf_8_is_an_error() {
    assert_eq!(
        json_error(b"\"ab\xff\""),
        InvalidJson::InvalidUtf8 { offset: 3 }
    );
    assert_eq!(
        json_error(b"\"\xed\xa0\x80\""),
        InvalidJson::InvalidUtf8 { offset: 1 }
    );
    assert_eq!(json_error("\u{feff}{}"), InvalidJson::ByteOrderMark);
}

#[test]
fn lone_surrogates_are_an_error() {
    for text in [
        r#"["\ud83d"]"#,
        r#"["\ude00"]"#,
        r#"["\ud83dx"]"#,
        r#"["\ud83d\n"]"#,
        r#"["\ud83d\ud83d"]"#,
    ] {
        assert_eq!(
            json_error(text),
            InvalidJson::LoneSurrogate { offset: 2 },
            "{text}"
        );
    }
    assert_eq!(json(r#""\ud83d\ude00""#), json("\"\u{1f600}\""));
}

#[test]
fn nesting_has_a_limit_and_takes_no_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_ne!(json(&nested(128)), json(&nested(127)));
    assert_eq!(
        json_error(nested(129)),
        InvalidJson::TooDeep {
            offset: 128,
            limit: 128
        }
    );
    assert_eq!(
        json_error(nested(10_000)),
        InvalidJson::TooDeep {
            offset: 128,
            limit: 128
        }
    );
    let objects = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    assert_eq!(
        json_error(objects),
        InvalidJson::TooDeep {
            offset: 640,
            limit: 128
        }
    );
}

#[test]
fn what_is_no_json_is_an_error_with_its_place() {
    for text in ["", " ", "\n\t"] {
        assert_eq!(json_error(text), InvalidJson::Empty);
    }
    for (text, offset) in [
        ("{a:1}", 1),
        ("{\"a\" 1}", 5),
        ("{\"a\":1,}", 7),
        ("[1,]", 3),
        ("[1 2]", 3),
        ("[1}", 2),
        ("{\"a\":1]", 6),
        ("nul!", 3),
        ("True", 0),
        ("NaN", 0),
        ("-Infinity", 1),
        ("+1", 0),
        (".5", 0),
        ("[01]", 2),
        ("1.e5", 2),
        ("'a'", 0),
        ("\"\\x\"", 2),
        ("\"\\u12g4\"", 5),
        ("\"a\nb\"", 2),
        ("[//\n]", 1),
        ("]", 0),
        (",", 0),
        ("\u{a0}1", 0),
    ] {
        assert_eq!(json_error(text), InvalidJson::Syntax { offset }, "{text}");
    }
    for text in [
        "{",
        "[",
        "[1",
        "[1,",
        "{\"a",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "tru",
        "\"\\",
        "\"\\u00",
        "-",
        "\"\\ud83d\\u",
    ] {
        assert_eq!(
            json_error(text),
            InvalidJson::UnexpectedEnd { bytes: text.len() },
            "{text}"
        );
    }
    for (text, offset) in [
        ("1 2", 2),
        ("{}{}", 2),
        ("null\0", 4),
        ("01", 1),
        ("[] ]", 3),
    ] {
        assert_eq!(
            json_error(text),
            InvalidJson::TrailingData { offset },
            "{text}"
        );
    }
}

#[test]
fn a_text_of_more_than_a_gibibyte_is_an_error() {
    let limit = 1 << 30;
    // Zeroed memory that nobody reads is not there.
    assert_eq!(
        json_error(vec![0; limit + 1]),
        InvalidJson::TooLarge {
            bytes: limit + 1,
            limit
        }
    );
}

#[test]
fn errors_do_not_repeat_the_body() {
    for text in [
        r#"{"secret":1,"secret":2}"#,
        r#""secret\ud83d""#,
        "secret",
        r#"["secret"#,
        r#""secret" "secret""#,
    ] {
        let error = rules().of(&charge()).json(text.as_bytes()).unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        let shown = format!("{error} {error:?} {source} {source:?}");
        assert!(!shown.contains("secret"), "{shown}");
    }
}

// Nulls and exclusions.

#[test]
fn null_is_absent_exactly_where_the_rules_say_so() {
    let distinct = rules();
    let same = Rules::new(Profile::new(1), Nulls::SameAsAbsent);
    for (with, without) in [
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":null,"b":1}"#, r#"{"b":1}"#),
        (r#"[{"x":{"a":null}}]"#, r#"[{"x":{}}]"#),
    ] {
        assert_ne!(
            json_under(&distinct, with),
            json_under(&distinct, without),
            "{with}"
        );
        assert_eq!(
            json_under(&same, with),
            json_under(&same, without),
            "{with}"
        );
    }
}

#[test]
fn only_members_are_dropped_when_null_is_absent() {
    let same = Rules::new(Profile::new(1), Nulls::SameAsAbsent);
    for (one, other) in [
        ("[null]", "[]"),
        ("[1,null]", "[1]"),
        (r#"{"a":{"b":null}}"#, "{}"),
        (r#"{"a":[null]}"#, "{}"),
        ("null", "{}"),
    ] {
        assert_ne!(json_under(&same, one), json_under(&same, other), "{one}");
    }
}

#[test]
fn a_pointer_takes_out_a_member_with_its_name() {
    let rules = rules().exclude_pointer("/meta/sent~1at").unwrap();
    let fingerprint = |text| json_under(&rules, text);
    assert_all_equal(
        &[
            r#"{"amount":5,"meta":{"sent/at":1,"from":"x"}}"#,
            r#"{"amount":5,"meta":{"from":"x","sent/at":{"deep":[1,2,{}]}}}"#,
            r#"{"amount":5,"meta":{"from":"x"}}"#,
        ]
        .map(fingerprint),
    );
    assert_ne!(
        fingerprint(r#"{"meta":{"sent/at":1}}"#),
        fingerprint("{}"),
        "the emptied object stays"
    );
    assert_ne!(
        fingerprint(r#"{"sent/at":1}"#),
        fingerprint("{}"),
        "only there"
    );
}

#[test]
fn a_pointer_leaves_a_hole_in_an_array() {
    let first = rules().exclude_pointer("/0").unwrap();
    assert_eq!(json_under(&first, "[1,2]"), json_under(&first, "[[3,4],2]"));
    assert_ne!(json_under(&first, "[1,2]"), json_under(&first, "[2]"));
    assert_ne!(json_under(&first, "[1,2]"), json_under(&first, "[2,1]"));
    let third = rules().exclude_pointer("/a/2/t").unwrap();
    assert_eq!(
        json_under(&third, r#"{"a":[{"t":1},[[7]],{"t":1,"u":2}]}"#),
        json_under(&third, r#"{"a":[{"t":1},[[7]],{"u":2}]}"#)
    );
    assert_ne!(
        json_under(&third, r#"{"a":[{"t":1},[[7]],{"t":1}]}"#),
        json_under(&third, r#"{"a":[{"t":2},[[7]],{"t":1}]}"#)
    );
    let document = rules().exclude_pointer("").unwrap();
    assert_eq!(json_under(&document, "[1,2]"), json_under(&document, "3"));
    assert_ne!(json_under(&document, "3"), document.of(&charge()).finish());
}

#[test]
fn pointers_may_overlap_in_any_order() {
    let pointers = ["/a/b", "/a", "/a/b/c", "/a", "/l/1", "/l/1/x"];
    let required = |rules: Rules, pointer| rules.exclude_required_pointer(pointer).unwrap();
    let forward = pointers.into_iter().fold(rules(), required);
    let backward = pointers.into_iter().rev().fold(rules(), required);
    let text = r#"{"a":{"b":{"c":1}},"l":[1,{"x":2},3]}"#;
    assert_eq!(json_under(&forward, text), json_under(&backward, text));
    let simple = rules()
        .exclude_pointer("/a")
        .unwrap()
        .exclude_pointer("/l/1")
        .unwrap();
    assert_eq!(json_under(&forward, text), json_under(&simple, text));
}

#[test]
fn a_required_pointer_that_matches_nothing_is_an_error() {
    let required = rules().exclude_required_pointer("/a/0").unwrap();
    assert_eq!(
        json_under(&required, r#"{"a":[1]}"#),
        json_under(&required, r#"{"a":[2]}"#)
    );
    for text in [
        "{}",
        r#"{"a":[]}"#,
        r#"{"a":1}"#,
        r#"{"a":{"1":0}}"#,
        "1",
        "[]",
    ] {
        let error = required.of(&charge()).json(text.as_bytes()).unwrap_err();
        assert!(
            matches!(&error, FingerprintError::PointerUnmatched { pointer } if pointer == "/a/0"),
            "{text}"
        );
    }
    let optional = rules().exclude_pointer("/a/0").unwrap();
    assert_ne!(json_under(&optional, "{}"), json_under(&optional, "[]"));
}

// The typed form.

#[cfg(feature = "executor")]
#[test]
fn a_typed_value_is_its_json_text() {
    #[derive(serde::Serialize)]
    struct Charge<'a> {
        note: Option<&'a str>,
        amount: u128,
        rate: f64,
        tags: Vec<char>,
    }
    let charge = Charge {
        note: None,
        amount: u128::MAX,
        rate: 5.0,
        tags: vec!['é', '"'],
    };
    let text = format!(
        r#"{{"amount":{},"note":null,"rate":5,"tags":["\u00e9","\""]}}"#,
        u128::MAX
    );
    for nulls in [Nulls::Distinct, Nulls::SameAsAbsent] {
        let (rules, operation) = (Rules::new(Profile::new(1), nulls), self::charge());
        let typed = rules.of(&operation).typed(&charge).unwrap().finish();
        assert_eq!(typed, json_under(&rules, &text));
        assert_eq!(
            typed,
            json_under(&rules, &serde_json::to_string_pretty(&charge).unwrap())
        );
    }
}

#[cfg(feature = "executor")]
#[test]
fn a_parsed_value_has_the_fingerprint_of_its_text() {
    let text = r#"{"z":1,"a":[1.5,-7,18446744073709551615,1e3],"m":{"b":"é","a":null}}"#;
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        rules().of(&charge()).typed(&value).unwrap().finish(),
        json(text)
    );
}

#[cfg(feature = "executor")]
#[test]
fn a_value_that_is_no_json_is_an_error() {
    let map = std::collections::BTreeMap::from([((1, 2), 3)]);
    let error = rules().of(&charge()).typed(&map).unwrap_err();
    assert!(matches!(error, FingerprintError::Unserializable(_)));
}
