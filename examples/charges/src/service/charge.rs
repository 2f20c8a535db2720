use idem_core::Response;
use idem_core::executor::{Attempt, Outcome};
use serde_json::json;
use std::num::NonZeroU64;

use super::fields::Fields;
use super::payload::Payload;
use super::problem::Problem;
use super::{Service, step};
use crate::provider::ChargeOrder;

pub(super) const PATH: &str = "/v1/charges";

/// Charges a card.
pub(super) async fn charge(
    service: &Service,
    attempt: &Attempt,
    payload: Payload,
) -> Outcome<Response> {
    let charge = match Fields::parse(&payload).and_then(|fields| Charge::parse(&fields)) {
        Ok(charge) => charge,
        // Nothing has happened yet, so the key is given back and can be used for the corrected request.
        Err(problem) => return Outcome::Rejected(problem.to_response()),
    };
    let order = ChargeOrder {
        account: attempt.id().scope().as_str().to_owned(),
        amount: charge.amount.get(),
        currency: charge.currency,
        source: charge.source,
        description: charge.description,
    };
    let id = match step::once(service, attempt, "charge", "/charges", &order).await {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let body = json!({
        "id": id,
        "object": "charge",
        "amount": order.amount,
        "currency": order.currency,
        "description": order.description,
        "status": "succeeded",
    });
    Outcome::Completed(
        Response::new(201)
            .header("content-type", "application/json")
            .body(body.to_string()),
    )
}

/// A charge that can be asked for.
#[derive(Debug)]
struct Charge {
    amount: NonZeroU64,
    currency: String,
    source: String,
    description: String,
}

impl Charge {
    fn parse(fields: &Fields) -> Result<Self, Problem> {
        let currency = fields.text("currency").unwrap_or_default();
        if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return Err(Problem::invalid(
                "currency must be a code of three letters, such as eur",
            ));
        }
        let source = fields.text("source").unwrap_or_default();
        if !source.starts_with("tok_") {
            return Err(Problem::invalid(
                "source must be a card's token, such as tok_visa",
            ));
        }
        Ok(Self {
            amount: fields.amount()?,
            currency: currency.to_ascii_lowercase(),
            source: source.to_owned(),
            description: fields.text("description").unwrap_or_default().to_owned(),
        })
    }
}
