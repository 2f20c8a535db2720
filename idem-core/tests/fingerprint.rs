//! What makes two requests one, and what makes them two.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use idem_core::{
    Fingerprint, FingerprintError, IdempotencyKey, InvalidForm, Nulls, Operation, Profile,
    ProfileTaken, RecordId, RuleSet, Rules, Scheme, Scope,
};

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

fn form(text: &str) -> Fingerprint {
    rules()
        .of(&charge())
        .form(text.as_bytes())
        .unwrap()
        .finish()
}

fn query_under(rules: &Rules, text: &str) -> Fingerprint {
    rules.of(&charge()).query(text).finish()
}

fn query(text: &str) -> Fingerprint {
    query_under(&rules(), text)
}

fn body(content_type: &str, bytes: &[u8]) -> Fingerprint {
    rules()
        .of(&charge())
        .body(Some(content_type), None, bytes)
        .finish()
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

// Query, path, operation.

#[test]
fn a_query_parameter_counts_unless_it_is_excluded() {
    assert_ne!(query("dry_run=1"), query(""));
    assert_ne!(query("dry_run=1"), query("dry_run=0"));
    let excluding = rules().exclude_query("utm source").exclude_query([0xff_u8]);
    assert_eq!(
        query_under(&excluding, "utm+source=x&a=1"),
        query_under(&excluding, "a=1&utm%20source")
    );
    assert_eq!(
        query_under(&excluding, "utm+source=x&%FF=2"),
        excluding.of(&charge()).finish()
    );
    assert_ne!(
        query_under(&excluding, "utm_source=x"),
        excluding.of(&charge()).finish()
    );
}

#[test]
fn a_query_without_parameters_is_no_query() {
    assert_all_equal(&[
        rules().of(&charge()).finish(),
        query(""),
        query("&"),
        query("&&"),
    ]);
    assert_ne!(
        query("="),
        query(""),
        "one parameter without a name is not none"
    );
}

#[test]
fn query_and_form_are_ordered_within_one_name_only() {
    for read in [query, form] {
        assert_eq!(read("a=1&b=2&a=3"), read("b=2&a=1&a=3"));
        assert_ne!(read("a=1&a=3"), read("a=3&a=1"));
        assert_ne!(read("a=1&b=2"), read("a=2&b=1"));
        assert_ne!(read("a=1"), read("a=1&a=1"));
    }
}

#[test]
fn query_and_form_are_decoded_to_bytes() {
    for read in [query, form] {
        assert_all_equal(&["a+b=%41", "a%20b=A", "%61+b=A&"].map(read));
        assert_all_equal(&["a", "a=", "%61="].map(read));
        assert_all_different(
            &[
                "a=%ff",
                "a=%fe",
                "a=%ef%bf%bd",
                "a=%C3%A9",
                "a=e%CC%81",
                "a=%2B",
                "a=+",
            ]
            .map(read),
        );
        assert_all_different(
            &["a=1&b=2", "a=1%26b=2", "a%3D1=&b=2", "a=1b=2", "a=1b&=2"].map(read),
        );
    }
}

#[test]
fn a_query_that_cannot_be_decoded_counts_exactly() {
    let excluding = rules().exclude_query("a");
    assert_all_different(&["%zz", "%25zz", "%", "%25", "%z", "a=1&%zz", "%zz&a=1"].map(query));
    assert_all_different(&["%zz", "a=1&%zz"].map(|text| query_under(&excluding, text)));
}

#[test]
fn a_form_that_cannot_be_decoded_is_an_error() {
    let error = rules().of(&charge()).form(b"a=1&b=%4").unwrap_err();
    assert!(matches!(
        error,
        FingerprintError::Form(InvalidForm::MalformedEscape { offset: 6 })
    ));
}

#[test]
fn the_operation_counts() {
    let of = |operation: &str| {
        let operation = Operation::new(operation).unwrap();
        rules().of(&operation).json(b"{}").unwrap().finish()
    };
    assert_all_different(
        &[
            "POST /orders",
            "POST /withdrawals",
            "PUT /orders",
            "POST /orders/",
        ]
        .map(of),
    );
}

#[test]
fn path_parameters_count_by_name() {
    let path = |parameters: &[(&'static str, &'static str)]| {
        let (rules, operation) = (rules(), charge());
        parameters
            .iter()
            .fold(rules.of(&operation), |request, (name, value)| {
                request.path_parameter(name, value)
            })
            .finish()
    };
    assert_eq!(
        path(&[("a", "1"), ("b", "2")]),
        path(&[("b", "2"), ("a", "1")])
    );
    assert_all_different(&[
        path(&[]),
        path(&[("a", "1")]),
        path(&[("a", "2")]),
        path(&[("a", "1"), ("b", "2")]),
        path(&[("a", "2"), ("b", "1")]),
        path(&[("a", "1"), ("a", "2")]),
        path(&[("a", "2"), ("a", "1")]),
        path(&[("a1", "")]),
        path(&[("", "a1")]),
    ]);
}

#[test]
fn the_parts_do_not_run_into_each_other() {
    let (rules, operation) = (rules(), charge());
    let request = || rules.of(&operation);
    assert_all_different(&[
        request().finish(),
        request().path_parameter("a", "1").finish(),
        request().query("a=1").finish(),
        request().form(b"a=1").unwrap().finish(),
        request().bytes(b"a=1").finish(),
        request().bytes(b"").finish(),
        request().form(b"").unwrap().finish(),
        request().json(br#"{"a":"1"}"#).unwrap().finish(),
        request().path_parameter("a", "1").query("a=1").finish(),
        request().query("a=1").form(b"a=1").unwrap().finish(),
    ]);
}

#[test]
fn the_last_body_and_the_last_query_count() {
    let (rules, operation) = (rules(), charge());
    let request = rules.of(&operation).query("a").json(b"1").unwrap();
    assert_eq!(
        request.query("b").bytes(b"2").finish(),
        rules.of(&operation).bytes(b"2").query("b").finish()
    );
}

#[test]
fn a_request_that_is_being_described_does_not_show_what_was_sent() {
    let (rules, operation) = (rules(), charge());
    let request = rules
        .of(&operation)
        .path_parameter("a", "secret")
        .query("secret")
        .bytes(b"secret");
    let shown = format!("{request:?}");
    assert!(
        shown.contains("POST /v1/charges") && !shown.contains("secret"),
        "{shown}"
    );
    assert!(!shown.contains("115, 101"), "as numbers: {shown}");
}

// Bodies of HTTP requests.

#[test]
fn a_body_is_read_as_its_media_type_says() {
    for media_type in [
        "application/json",
        "application/vnd.api+json; charset=utf-8",
    ] {
        assert_eq!(
            body(media_type, br#"{"a":1,"b":2}"#),
            json(r#"{"b":2,"a":1.0}"#)
        );
    }
    assert_eq!(
        body("application/x-www-form-urlencoded", b"a=1&b=2"),
        form("b=2&a=1")
    );
    let exact = rules().of(&charge()).bytes(b"{ }").finish();
    assert_eq!(body("text/plain", b"{ }"), exact);
    assert_eq!(
        rules().of(&charge()).body(None, None, b"{ }").finish(),
        exact
    );
    assert_ne!(body("application/json", b"{ }"), exact);
}

#[test]
fn a_body_that_cannot_be_read_counts_exactly_and_apart() {
    let unreadable: &[&[u8]] = &[
        br#"{"a":1,"a":2}"#,
        br#"{"a":1, "a":2}"#,
        br#"{"a":2,"a":1}"#,
        b"{",
        b"\"\xff\"",
        b"%",
        b"x",
    ];
    let fingerprints: Vec<Fingerprint> = unreadable
        .iter()
        .flat_map(|bytes| [body("application/json", bytes), body("text/plain", bytes)])
        .chain([body("application/x-www-form-urlencoded", b"%")])
        .collect();
    assert_all_different(&fingerprints);
}

#[test]
fn a_body_without_a_required_member_counts_exactly() {
    let rules = rules().exclude_required_pointer("/sent_at").unwrap();
    let body = |bytes: &[u8]| {
        rules
            .of(&charge())
            .body(Some("application/json"), None, bytes)
            .finish()
    };
    assert_eq!(body(br#"{"sent_at":1}"#), body(br#"{ "sent_at": 2 }"#));
    assert_ne!(body(b"{}"), body(b"{ }"));
    assert_ne!(body(b"{}"), body(br#"{"sent_at":1}"#));
}

#[test]
fn a_coded_body_counts_exactly_and_apart() {
    let coded = |coding| {
        rules()
            .of(&charge())
            .body(Some("application/json"), coding, b"{ }")
            .finish()
    };
    assert_eq!(coded(Some("identity")), coded(None));
    assert_eq!(coded(Some("gzip")), coded(Some("GZIP")));
    assert_all_different(&[
        coded(None),
        coded(Some("gzip")),
        body("text/plain", b"{ }"),
        body("application/json", b"{"),
    ]);
}

#[test]
fn an_empty_body_is_no_body() {
    let none = rules().of(&charge()).finish();
    for media_type in [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/plain",
    ] {
        assert_eq!(body(media_type, b""), none);
    }
    assert_eq!(
        rules().of(&charge()).body(None, Some("gzip"), b"").finish(),
        none
    );
}

// Schemes.

#[test]
fn the_profile_counts_and_is_told() {
    let second = Rules::new(Profile::new(2), Nulls::Distinct);
    assert_eq!(second.scheme(), Scheme::new(1, Profile::new(2)));
    assert_eq!(json_under(&second, "{}").scheme(), second.scheme());
    assert_ne!(json_under(&second, "{}").digest(), json("{}").digest());
}

#[test]
fn an_old_record_is_compared_under_its_own_rules() {
    let old = rules();
    let new = Rules::new(Profile::new(2), Nulls::SameAsAbsent);
    let stored = json_under(&old, r#"{"a":1.0}"#);
    let rules = RuleSet::new(new.clone()).reading(old).unwrap();
    let operation = charge();
    let request = |text: &'static str| {
        rules
            .try_of(&operation, |request| request.json(text.as_bytes()))
            .unwrap()
    };

    assert_eq!(request(r#"{"a":1}"#).under(stored.scheme()), Some(&stored));
    assert_ne!(
        request(r#"{"a":1,"b":null}"#).under(stored.scheme()),
        Some(&stored)
    );
    assert_eq!(
        request(r#"{"a":1}"#).written(),
        request(r#"{"a":1,"b":null}"#).written()
    );
    assert_eq!(request("1").written().scheme(), new.scheme());
    assert_eq!(request("1").under(Scheme::new(2, Profile::new(1))), None);
    assert_eq!(request("1").under(Scheme::new(1, Profile::new(3))), None);
}

#[test]
fn rules_that_are_only_read_cannot_refuse_a_request() {
    let old = rules().exclude_required_pointer("/sent_at").unwrap();
    let new = Rules::new(Profile::new(2), Nulls::Distinct);
    let (both, operation) = (RuleSet::new(new).reading(old.clone()).unwrap(), charge());
    let request = both
        .try_of(&operation, |request| request.json(b"{}"))
        .unwrap();
    assert_eq!(request.under(old.scheme()), None);
    assert!(
        both.of(&operation, |request| request.bytes(b"{}"))
            .under(old.scheme())
            .is_some()
    );
    assert!(
        RuleSet::from(old)
            .try_of(&operation, |request| request.json(b"{}"))
            .is_err()
    );
}

#[test]
fn two_sets_of_rules_cannot_share_a_profile() {
    let same = Rules::new(Profile::new(1), Nulls::SameAsAbsent);
    let error = RuleSet::new(rules()).reading(same).unwrap_err();
    assert!(matches!(error, ProfileTaken { profile, .. } if profile == Profile::new(1)));
    let third = Rules::new(Profile::new(3), Nulls::Distinct);
    let reading = RuleSet::new(rules()).reading(third.clone()).unwrap();
    assert!(reading.reading(third).is_err());
}

// What a fingerprint is stored under.

#[test]
fn scope_and_key_do_not_run_into_each_other() {
    let id = |scope, key| {
        RecordId::new(
            Scope::new(scope).unwrap(),
            IdempotencyKey::new(key).unwrap(),
        )
    };
    for (one, other) in [
        (id("a:b", "c"), id("a", "b:c")),
        (id("ab", "c"), id("a", "bc")),
    ] {
        assert_ne!(one, other);
        assert_ne!(one.digest(), other.digest());
    }
}

#[test]
fn scope_and_key_are_compared_with_their_case() {
    let id = |scope, key| {
        RecordId::new(
            Scope::new(scope).unwrap(),
            IdempotencyKey::new(key).unwrap(),
        )
    };
    let ids = [id("a", "k"), id("A", "k"), id("a", "K")];
    for (index, one) in ids.iter().enumerate() {
        for other in &ids[..index] {
            assert_ne!(one, other);
            assert_ne!(one.digest(), other.digest());
        }
    }
}
