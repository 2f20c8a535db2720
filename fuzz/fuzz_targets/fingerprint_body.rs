//! Any request: it has a fingerprint, the same one every time, and shares it with no body that reads otherwise.
#![no_main]

use idem_core::{Nulls, Operation, Profile, Rules};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, Option<&str>, &str, &[u8])| {
    let (content_type, content_encoding, query, body) = input;
    let operation = Operation::new("POST /v1/charges").unwrap();
    let rules = Rules::new(Profile::new(1), Nulls::SameAsAbsent)
        .exclude_query("a")
        .exclude_required_pointer("/a")
        .unwrap();
    // Reading is what makes bodies equal: one that is not read differs from itself with a space behind.
    let longer = [body, b" "].concat();

    let known = [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/plain",
    ];
    for content_type in known.into_iter().chain([content_type]) {
        let of = |body| {
            let request = rules.of(&operation).query(query);
            request
                .body(Some(content_type), content_encoding, body)
                .finish()
        };
        assert_eq!(of(body), of(body));
        assert!(body.is_empty() || of(body) != of(b""));
        if known.contains(&content_type) && content_encoding.is_none() && !body.is_empty() {
            let is_json =
                content_type == "application/json" && rules.of(&operation).json(body).is_ok();
            assert_eq!(of(body) == of(&longer), is_json, "{content_type}");
        }
    }
});
