//! Stored digests, made by another program from the documented encoding.
//!
//! A test that fails here says that records written before could no longer be compared. That needs a new
//! encoding version, never new digests.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use idem_core::{Fingerprint, FingerprintBuilder, Nulls, Operation, Profile, Rules};

fn assert_digest(
    rules: &Rules,
    digest: &str,
    describe: impl Fn(FingerprintBuilder<'_>) -> FingerprintBuilder<'_>,
) {
    let operation = Operation::new("POST /v1/charges").unwrap();
    let fingerprint = describe(rules.of(&operation)).finish();
    assert_eq!(hex(&fingerprint), digest);
    assert_eq!(fingerprint.scheme().encoding(), 1);
}

fn hex(fingerprint: &Fingerprint) -> String {
    fingerprint
        .digest()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn rules() -> Rules {
    Rules::new(Profile::new(1), Nulls::Distinct)
}

#[test]
fn a_request_without_anything() {
    let digest = "3bcecfb6e631cfaf257c77ac25b02ac4fcbc8e80ace32161c5ce418bf9c4f9d5";
    assert_digest(&rules(), digest, |request| request);
}

#[test]
fn path_and_query() {
    let digest = "04ad7291ddda7d044d971c8adc5307396629948ff77024ed6f4b1bea8785f13c";
    assert_digest(&rules(), digest, |request| {
        request
            .path_parameter("b", "2")
            .path_parameter("a", "é")
            .query("x+y=1&%FF&x%20y=0")
    });
}

#[test]
fn a_query_that_cannot_be_decoded() {
    let digest = "bf7000598c912aeabcf4bf1a73e96a12e471ddff2e80295fb8871a585f94f08c";
    assert_digest(&rules(), digest, |request| request.query("a=%zz"));
}

#[test]
fn a_form() {
    let digest = "0bfc5fa057ce054a05e3739828000d747bf5bc0a2ea4c14b0939ac2a4738f241";
    assert_digest(&rules(), digest, |request| {
        request.form(b"b=2&a=1&b").unwrap()
    });
}

#[test]
fn exact_bytes() {
    let digest = "d47b58a8865d4364dc706619ab66a1cd54c634b871d2da0710db9afc3b53b033";
    assert_digest(&rules(), digest, |request| request.bytes(b"\x00\xff"));
}

#[test]
fn a_coded_body() {
    let digest = "51242e186eff72fff21db6bf8bafdb66d64b59826cf0ea440e0d1f4c712805cb";
    assert_digest(&rules(), digest, |request| {
        request.body(Some("application/json"), Some("gzip"), b"\x1f\x8b")
    });
}

#[test]
fn json_without_one_meaning() {
    let digest = "0133df2c13388fa9fb9862f72d959b3511e40e48fcb794747a4143131d5a4931";
    assert_digest(&rules(), digest, |request| {
        request.body(Some("application/json"), None, br#"{"a":1,"a":2}"#)
    });
}

#[test]
fn a_form_that_is_none() {
    let digest = "04366825503bd3550d47e5cb3a1ae0bc6eb3130543b1e640c31dd52a4c898fb5";
    assert_digest(&rules(), digest, |request| {
        request.body(Some("application/x-www-form-urlencoded"), None, b"a=%zz")
    });
}

#[test]
fn another_profile() {
    let rules = Rules::new(Profile::new(0x0203), Nulls::Distinct);
    let digest = "254f239940a257bd89a2c71a7b2363c1237fdc7879155e0acfde6bd48131c13c";
    assert_digest(&rules, digest, |request| request);
}

#[test]
fn json() {
    let long = "x".repeat(200);
    let text = format!(
        r#"{{
            "amount": 1.2e3, "zero": -0.0, "currency": "eur", "small": -0.50, "huge": 1E400,
            "int": 9007199254740993, "flags": [true, false, null, {{}}], "\u00e9\"": "\n\ud83d\ude00", "long": "{long}"
        }}"#
    );
    let digest = "a2182491826dc21f24f64250700948a1c1be05a649162f049840664da1a997ce";
    let operation = Operation::new("POST /v1/charges").unwrap();
    let rules = rules();
    let fingerprint = rules.of(&operation).json(text.as_bytes()).unwrap().finish();
    assert_eq!(hex(&fingerprint), digest);
}

#[test]
fn json_with_exclusions() {
    let rules = Rules::new(Profile::new(1), Nulls::SameAsAbsent)
        .exclude_pointer("/drop")
        .unwrap()
        .exclude_pointer("/list/1")
        .unwrap();
    let digest = "935addc12f7a910469b93683e5b4fc82cd06c48ee01df6ca8ed672aa107908c7";
    let text = br#"{"list":[1,{"a":2}],"drop":3,"keep":{"none":null}}"#;
    assert_digest(&rules, digest, |request| request.json(text).unwrap());
}
