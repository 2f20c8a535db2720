//! The fingerprint of a JSON body, beside the usual way: parse it, write it canonically by RFC 8785, hash that.
//!
//! The usual way reads numbers as doubles, so it takes 9007199254740992 and 9007199254740993 for the same; ours
//! compares them exactly, and does so for both sizes here. Both sides take the same text. The floor is the hash of
//! the text as it is, which is what comparing byte for byte costs.

use std::fmt::Write as _;
use std::hint::black_box;

use idem_core::{Nulls, Operation, Profile, Rules};
use sha2::{Digest as _, Sha256};

use crate::contest::{Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Round, repeat};

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    Ok(vec![
        contest(
            "fingerprint/1-KiB",
            "the fingerprint of an order of 1 KiB",
            1024,
            16,
        )?,
        contest(
            "fingerprint/64-KiB",
            "the fingerprint of an order of 64 KiB",
            64 * 1024,
            1,
        )?,
    ])
}

fn contest(
    name: &'static str,
    operation: &'static str,
    size: usize,
    together: u32,
) -> Result<Contest, Fault> {
    let text = order(size);
    let ours = Ours {
        text: text.clone(),
        together,
        rules: Rules::new(Profile::new(1), Nulls::Distinct),
        operation: Operation::new("POST /v1/orders")?,
    };
    let canonical = Canonical {
        text: text.clone(),
        together,
    };
    Ok(Contest {
        name,
        operation,
        callers: vec![1],
        length: Length::default_time(),
        ours: Box::new(ours),
        others: vec![
            Other {
                role: Role::Rival,
                contestant: Box::new(canonical),
                goals: vec![Goal {
                    callers: 1,
                    ratio: 2.0,
                }],
            },
            Other {
                role: Role::Floor,
                contestant: Box::new(Floor { text, together }),
                goals: Vec::new(),
            },
        ],
    })
}

/// An order as a shop sends it, of about so many bytes: short strings, some with escapes and some not in ASCII,
/// whole and decimal numbers, and members that are not in order.
fn order(size: usize) -> String {
    let mut text = String::from(
        r#"{"order":"A-20931","customer":{"id":"cus_8f3k2","name":"Zoë Ångström","email":"zoe@example.com","vip":false},"currency":"EUR","placed_at":"2026-03-01T09:30:00Z","note":"leave at the \"back\" door\n","coupon":null,"items":["#,
    );
    let mut item = 0_u32;
    while text.len() + 160 < size || item == 0 {
        let comma = if item == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#"{comma}{{"sku":"SKU-{:05}","title":"Cotton shirt, size {}","quantity":{},"unit_price":{}.{:02},"tax_rate":0.19,"gift":{},"tags":["summer","sale"],"weight_g":{}}}"#,
            item * 37 % 100_000,
            36 + item % 12,
            1 + item % 5,
            9 + item % 90,
            item * 7 % 100,
            item.is_multiple_of(3),
            180 + item % 40,
        );
        item += 1;
    }
    text.push_str(r#"],"total":1999.95}"#);
    text
}

struct Ours {
    text: String,
    together: u32,
    rules: Rules,
    operation: Operation,
}

impl Contestant for Ours {
    fn name(&self) -> String {
        "idem-core".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        // What cannot be read is found out before it is timed.
        let _ = self.rules.of(&self.operation).json(self.text.as_bytes())?;
        repeat(plan, self.together, || {
            let text = black_box(self.text.as_bytes());
            let taken = self.rules.of(&self.operation).json(text);
            let _ = black_box(taken.map(|body| body.finish()));
        })
    }
}

struct Canonical {
    text: String,
    together: u32,
}

impl Contestant for Canonical {
    fn name(&self) -> String {
        "serde_json_canonicalizer".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let _ = canonical_digest(self.text.as_bytes())?;
        repeat(plan, self.together, || {
            let _ = black_box(canonical_digest(black_box(self.text.as_bytes())));
        })
    }
}

fn canonical_digest(text: &[u8]) -> Result<[u8; 32], serde_json::Error> {
    let value: serde_json::Value = serde_json::from_slice(text)?;
    let canonical = serde_json_canonicalizer::to_vec(&value)?;
    Ok(Sha256::digest(&canonical).into())
}

struct Floor {
    text: String,
    together: u32,
}

impl Contestant for Floor {
    fn name(&self) -> String {
        "SHA-256 of the bytes".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        repeat(plan, self.together, || {
            black_box(Sha256::digest(black_box(self.text.as_bytes())));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_json_and_about_as_long_as_asked_for() {
        for size in [1024, 64 * 1024] {
            let text = order(size);
            assert!(text.len().abs_diff(size) < size / 5, "{} bytes", text.len());
            assert!(canonical_digest(text.as_bytes()).is_ok());
        }
    }
}
