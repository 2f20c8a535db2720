use std::collections::HashMap;

use axum::http::{HeaderMap, header};
use idem_core::{InvalidScope, Scope};

/// Who may call, by bearer token.
///
/// The account becomes the scope of the key. It comes from the credential and from nothing that the request
/// says about itself, so that no customer can reach into another's keys.
#[derive(Debug)]
pub(super) struct Accounts(HashMap<&'static str, Scope>);

/// The tokens of the demo's two customers, and their accounts.
const DEMO: [(&str, &str); 2] = [
    ("sk_test_acme", "acct_acme"),
    ("sk_test_globex", "acct_globex"),
];

impl Accounts {
    pub(super) fn of_the_demo() -> Result<Self, InvalidScope> {
        let account = |(token, account)| Ok((token, Scope::new(account)?));
        DEMO.into_iter()
            .map(account)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The account of the request's bearer token, if there is one.
    pub(super) fn of(&self, headers: &HeaderMap) -> Option<Scope> {
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        // Of two lines a proxy may have checked the other one.
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return None;
        };
        let credentials = line.to_str().ok()?;
        let (scheme, token) = credentials.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        self.0.get(token.trim()).cloned()
    }
}
