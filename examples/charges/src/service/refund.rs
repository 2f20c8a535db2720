use idem_core::Response;
use idem_core::executor::{Attempt, Outcome};
use serde_json::json;

use super::fields::Fields;
use super::payload::Payload;
use super::problem::Problem;
use super::{Service, step};
use crate::provider::RefundOrder;

pub(super) const PATH: &str = "/v1/refunds";

/// Gives a whole charge back.
pub(super) async fn refund(
    service: &Service,
    attempt: &Attempt,
    payload: Payload,
) -> Outcome<Response> {
    let charge = match Fields::parse(&payload).and_then(|fields| charge_of(&fields)) {
        Ok(charge) => charge,
        Err(problem) => return Outcome::Rejected(problem.to_response()),
    };
    // Whether there is such a charge, and whose it is, is for the provider to say: its ledger is the truth.
    let order = RefundOrder {
        account: attempt.id().scope().as_str().to_owned(),
        charge,
    };
    let id = match step::once(service, attempt, "refund", "/refunds", &order).await {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let body =
        json!({ "id": id, "object": "refund", "charge": order.charge, "status": "succeeded" });
    Outcome::Completed(
        Response::new(201)
            .header("content-type", "application/json")
            .body(body.to_string()),
    )
}

fn charge_of(fields: &Fields) -> Result<String, Problem> {
    match fields.text("charge") {
        Some(charge) if charge.starts_with("ch_") => Ok(charge.to_owned()),
        _ => Err(Problem::invalid(
            "charge must be the id of a charge, such as ch_0001",
        )),
    }
}
