//! The scenes, in order.

use std::time::Duration;

use tokio::time::sleep;

use super::DemoError;
use super::call::{Call, Customer, Spelling, What};
use super::stage::{Difference, Stage};
use crate::http::Reply;
use crate::service::Place;

pub(super) async fn play(stage: &mut Stage) -> Result<(), DemoError> {
    let first = first_charge(stage).await?;
    same_request_spelled_differently(stage).await?;
    answer_lost(stage).await?;
    fifty_at_once(stage).await?;
    key_for_something_else(stage, &first).await?;
    another_customer(stage).await?;
    mistake_corrected(stage).await?;
    declined(stage).await?;
    turned_away(stage).await?;
    provider_silent(stage).await?;
    killed(stage).await?;
    a_day_later(stage).await
}

/// The charge that several scenes come back to.
fn order_1001() -> Call {
    Call::charge("order 1001", "order-1001", 2500, "tok_visa")
}

async fn first_charge(stage: &mut Stage) -> Result<Reply, DemoError> {
    stage.scene("A first charge").await?;
    stage.wants("order 1001", 1);
    let reply = stage.send_for(&order_1001(), 201).await?;
    stage.ledger(&["order 1001"]).await?;
    stage.because(
        "The key was unused. The service claimed it in its store, had the card charged, and stored the answer.",
    );
    Ok(reply)
}

async fn same_request_spelled_differently(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("The same again, spelled differently").await?;
    let odd = Call {
        key: "\"order-1001\"",
        what: What::Charge {
            amount: 2500,
            source: "tok_visa",
            spelling: Spelling::Odd,
        },
        ..order_1001()
    };
    stage.send_for(&odd, 201).await?;
    stage.ledger(&["order 1001"]).await?;
    stage.because(
        "What counts is what a request means: other white space, another order of members, 2500.0 for 2500, \
         a key in quotes. The stored answer comes back byte for byte.",
    );
    Ok(())
}

async fn answer_lost(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("The answer is lost").await?;
    stage.wants("order 1002", 1);
    let call = Call::charge("order 1002", "order-1002", 1900, "tok_unhurried");
    stage.print_call(&format!("POST {}", call.path()), &call.about());
    let sender = stage.spawn(&call)?;
    stage.provider_is_called().await?;
    sender.abort();
    stage.print_accident("the client hangs up while the card is being charged");
    stage.send_again_for(&call, 201).await?;
    stage.ledger(&["order 1002"]).await?;
    stage.because(
        "The work goes on without its client. A retry finds it running (409), and a later one finds its answer.",
    );
    Ok(())
}

async fn fifty_at_once(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("Fifty at once").await?;
    stage.wants("order 1003", 1);
    let call = Call::charge("order 1003", "order-1003", 4200, "tok_unhurried");
    stage.crowd(&call, 50).await?;
    stage.ledger(&["order 1003"]).await?;
    stage.because(
        "One insert into the store decides who does the work. Nobody looks first and inserts then, so no two \
         can both find nothing.",
    );
    Ok(())
}

async fn key_for_something_else(stage: &mut Stage, first: &Reply) -> Result<(), DemoError> {
    stage.scene("A used key for something else").await?;
    let other_amount = Call {
        what: What::Charge {
            amount: 2600,
            source: "tok_visa",
            spelling: Spelling::Usual,
        },
        ..order_1001()
    };
    stage.send_for(&other_amount, 422).await?;
    let other_endpoint = Call {
        what: What::Refund {
            charge: first.json()["id"].as_str().unwrap_or_default().to_owned(),
        },
        ..order_1001()
    };
    stage.send_for(&other_endpoint, 422).await?;
    stage.ledger(&["order 1001"]).await?;
    stage.because(
        "A key is bound to an endpoint and to a payload. A client that mixes two operations up is told so, and \
         gets neither a second charge nor the wrong answer.",
    );
    Ok(())
}

async fn another_customer(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("Another customer has the same key").await?;
    stage.wants("Globex order", 1);
    let call = Call {
        order: "Globex order",
        customer: Customer::Globex,
        ..order_1001()
    };
    stage.send_for(&call, 201).await?;
    stage.ledger(&["order 1001", "Globex order"]).await?;
    stage.because(
        "A key belongs to the account of the bearer token, so each customer has a charge of its own. Nobody can \
         reach another's answer, or get in its way.",
    );
    Ok(())
}

async fn mistake_corrected(stage: &mut Stage) -> Result<(), DemoError> {
    stage
        .scene("A mistake, corrected under the same key")
        .await?;
    stage.wants("order 1004", 1);
    let mistake = Call::charge("order 1004", "order-1004", -999, "tok_visa");
    stage.send_for(&mistake, 400).await?;
    let corrected = Call::charge("order 1004", "order-1004", 999, "tok_visa");
    stage.send_for(&corrected, 201).await?;
    stage.ledger(&["order 1004"]).await?;
    stage.because("Nothing had happened when the request was refused, so its key was given back.");
    Ok(())
}

async fn declined(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("A declined card").await?;
    stage.wants("order 1005", 0);
    let call = Call::charge("order 1005", "order-1005", 8000, "tok_declined");
    stage.send_for(&call, 402).await?;
    stage.send_again_for(&call, 402).await?;
    stage.ledger(&["order 1005"]).await?;
    stage.because(
        "A refusal is an answer too: it is stored and replayed, and the bank is not asked again.",
    );
    Ok(())
}

async fn turned_away(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("The provider is too busy").await?;
    stage.wants("order 1006", 1);
    let call = Call::charge("order 1006", "order-1006", 3100, "tok_busy");
    let reply = stage.send_for(&call, 429).await?;
    stage.retry(&call, reply, 201).await?;
    stage.ledger(&["order 1006"]).await?;
    stage.because(
        "Nothing was charged, so this is not stored as the answer: the same request may try again.",
    );
    Ok(())
}

async fn provider_silent(stage: &mut Stage) -> Result<(), DemoError> {
    stage
        .scene("The provider charges and does not answer in time")
        .await?;
    stage.wants("order 1007", 1);
    let call = Call::charge("order 1007", "order-1007", 5500, "tok_slow");
    let reply = stage.send_for(&call, 504).await?;
    stage.retry(&call, reply, 201).await?;
    stage.ledger(&["order 1007"]).await?;
    stage.because(
        "Silence is not failure: nobody knows whether the card was charged, so the key stays reserved until its \
         lease is over. Then a retry calls the provider again, with the same key of the service's own, and the \
         provider answers with the charge it made.",
    );
    Ok(())
}

async fn killed(stage: &mut Stage) -> Result<(), DemoError> {
    stage
        .scene("The service is killed between the charge and its record")
        .await?;
    stage.wants("order 1008", 1);
    let paused = Difference {
        pause_at: Some(Place::ProviderAnswered),
        ..Difference::default()
    };
    stage.start_service(paused).await?;
    let call = Call::charge("order 1008", "order-1008", 7700, "tok_visa");
    stage.print_call(&format!("POST {}", call.path()), &call.about());
    let sender = stage.spawn(&call)?;
    stage.service_is_paused().await?;
    stage.kill_service()?;
    // There can be no answer: the process that would have given it is gone.
    let _ = sender.await?;
    stage.print_accident("SIGKILL: the card is charged, and the service has stored nothing of it");
    stage.start_service(Difference::default()).await?;
    stage.print_remark("the service is started again, on the same records");
    stage.send_again_for(&call, 201).await?;
    stage.ledger(&["order 1008"]).await?;
    stage.because(
        "The claim was on disk before the provider was called, so the new process knows that something may have \
         happened. It waits for the dead one's lease, takes over, and calls with the same key once more.",
    );
    Ok(())
}

async fn a_day_later(stage: &mut Stage) -> Result<(), DemoError> {
    stage.scene("A day later").await?;
    let short = Difference {
        retention: Some("1s"),
        ..Difference::default()
    };
    stage.start_service(short).await?;
    stage.print_remark("the service is started anew: it keeps an answer for 1 s, not for 24 h");
    stage.wants("order 1009", 1);
    stage.wants("order 1010", 1);
    let today = Call::charge("order 1009", "monthly", 1500, "tok_visa");
    stage.send_for(&today, 201).await?;
    sleep(Duration::from_millis(1100)).await;
    stage.print_remark("more than 1 s goes by");
    let tomorrow = Call::charge("order 1010", "monthly", 1600, "tok_visa");
    stage.send_for(&tomorrow, 201).await?;
    stage.ledger(&["order 1009", "order 1010"]).await?;
    stage.because(
        "Answers are not kept for ever. When one has expired, its key is free for a new request, so a client must \
         stop retrying before that.",
    );
    Ok(())
}
