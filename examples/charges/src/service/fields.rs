use std::num::NonZeroU64;

use serde_json::{Map, Number, Value};

use super::members::Members;
use super::payload::Payload;
use super::problem::Problem;

/// The fields of a request, whether it came as JSON or as a form.
#[derive(Debug)]
pub(super) struct Fields {
    values: Map<String, Value>,
    /// In a form every value is text; in JSON a number in quotes is a mistake.
    numbers_are_text: bool,
}

impl Fields {
    pub(super) fn parse(payload: &Payload) -> Result<Self, Problem> {
        let media_type = payload.content_type.as_deref().unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        let (members, numbers_are_text) = if media_type.eq_ignore_ascii_case("application/json") {
            let members: Result<Members, _> = serde_json::from_slice(&payload.body);
            (members.map_err(|error| not_an_object(&error))?, false)
        } else if media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            let pairs = form_urlencoded::parse(&payload.body).into_owned();
            let members = pairs.map(|(name, value)| (name, value.into())).collect();
            (members, true)
        } else {
            return Err(Problem::unsupported_media_type());
        };
        if members.is_one_named_twice {
            return Err(Problem::invalid(
                "the body names a field twice, and it is not for us to choose one",
            ));
        }
        Ok(Self {
            values: members.values,
            numbers_are_text,
        })
    }

    /// An amount of money in the currency's smallest unit.
    pub(super) fn amount(&self) -> Result<NonZeroU64, Problem> {
        let amount = match self.values.get("amount") {
            Some(Value::Number(number)) => whole(number),
            Some(Value::String(text)) if self.numbers_are_text => text.parse().ok(),
            _ => None,
        };
        amount.and_then(NonZeroU64::new).ok_or_else(|| {
            Problem::invalid("amount must be a positive integer, such as 2500 for 25.00")
        })
    }

    /// A field that may be absent, or null.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_str()
    }
}

/// Why a body has no fields.
fn not_an_object(error: &serde_json::Error) -> Problem {
    if error.is_data() {
        return Problem::invalid("the body must be a JSON object");
    }
    // It says what and where, and repeats nothing of the body.
    Problem::invalid(format!("the body is not valid JSON: {error}"))
}

/// The first number from which on not every integer is a double.
const FIRST_INEXACT: f64 = 9_007_199_254_740_992.0;

/// The integer that a number is, in whatever spelling: 2500, 2500.0 and 25e2 are the same number, and a
/// client's JSON library chooses. One with a point or an exponent is read as a double, and refused where a
/// double may have been rounded to an integer.
fn whole(number: &Number) -> Option<u64> {
    if let Some(integer) = number.as_u64() {
        return Some(integer);
    }
    let double = number.as_f64()?;
    if double.fract() != 0.0 || !(0.0..FIRST_INEXACT).contains(&double) {
        return None;
    }
    // An integer's text has no point and no exponent in it.
    format!("{double}").parse().ok()
}
