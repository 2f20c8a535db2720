//! The card provider: a process of its own, with its own memory of keys and its own ledger.
//!
//! `POST /charges` and `POST /refunds` take JSON and an `Idempotency-Key`; `GET /calls` counts the calls of the
//! two. Special cards make it misbehave, as [`Card`] says.

mod ledger;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use ledger::{Entry, Kind, Ledger, LedgerError};

/// How long [`Card::Slow`] keeps its caller waiting after the money was moved.
pub const SLOW: Duration = Duration::from_secs(3);

/// How long [`Card::Unhurried`] takes.
pub const UNHURRIED: Duration = Duration::from_millis(200);

/// How a card behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Card {
    /// `tok_declined`: the bank says no.
    Declined,
    /// `tok_busy`: the first call for an order is turned away with a 429.
    RateLimited,
    /// `tok_slow`: it is charged at once, and the first answer for an order comes after [`SLOW`].
    Slow,
    /// `tok_unhurried`: it is charged at once, and the answer comes after [`UNHURRIED`].
    Unhurried,
    /// Any other: it is charged.
    Good,
}

impl Card {
    /// The behaviour of a source.
    #[must_use]
    pub fn of(source: &str) -> Self {
        match source {
            "tok_declined" => Self::Declined,
            "tok_busy" => Self::RateLimited,
            "tok_slow" => Self::Slow,
            "tok_unhurried" => Self::Unhurried,
            _ => Self::Good,
        }
    }
}

/// What the provider is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeOrder {
    /// Whose charge it is.
    pub account: String,
    /// How much, in the currency's smallest unit.
    pub amount: u64,
    /// The currency.
    pub currency: String,
    /// The card.
    pub source: String,
    /// What the customer calls it.
    pub description: String,
}

/// What the provider is asked to give back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundOrder {
    /// Who asks, and must be whose charge it is.
    pub account: String,
    /// The provider's name of the charge.
    pub charge: String,
}

/// The provider with its ledger in this file.
///
/// # Errors
///
/// [`LedgerError`] when the ledger cannot be read.
pub fn router(ledger: &Path) -> Result<Router, LedgerError> {
    let office = Office {
        ledger: Ledger::open(ledger)?,
        met: HashSet::new(),
        calls: 0,
    };
    Ok(Router::new()
        .route("/charges", post(charge))
        .route("/refunds", post(refund))
        .route("/calls", get(calls))
        .with_state(Shared(Arc::new(Mutex::new(office)))))
}

#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Office>>);

#[derive(Debug)]
struct Office {
    ledger: Ledger,
    /// The orders that have been called for: their descriptions, or the keys of those that have none.
    met: HashSet<String>,
    calls: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Office> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn calls(State(shared): State<Shared>) -> Response {
    answer(StatusCode::OK, &json!({ "calls": shared.lock().calls }))
}

async fn charge(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let (answer, delay) = shared.lock().charge(&headers, &body);
    tokio::time::sleep(delay).await;
    answer
}

async fn refund(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    shared.lock().refund(&headers, &body)
}

impl Office {
    /// The answer, and how long to keep the caller waiting for it.
    fn charge(&mut self, headers: &HeaderMap, body: &Bytes) -> (Response, Duration) {
        self.calls += 1;
        let now = |response| (response, Duration::ZERO);
        let Ok(order) = serde_json::from_slice::<ChargeOrder>(body) else {
            return now(refused(StatusCode::BAD_REQUEST, "invalid_order"));
        };
        let Some(key) = key(headers) else {
            return now(refused(StatusCode::BAD_REQUEST, "key_required"));
        };
        let entry = Entry {
            id: self.ledger.next_id(Kind::Charge),
            account: order.account,
            kind: Kind::Charge,
            amount: order.amount,
            currency: order.currency,
            source: order.source,
            description: order.description,
            key,
        };
        if let Some(known) = self.known(&entry) {
            return now(known);
        }
        let card = Card::of(&entry.source);
        if card == Card::Declined {
            return now(refused(StatusCode::PAYMENT_REQUIRED, "card_declined"));
        }
        let order = if entry.description.is_empty() {
            &entry.key
        } else {
            &entry.description
        };
        let is_first = self.met.insert(order.clone());
        if card == Card::RateLimited && is_first {
            return now(refused(StatusCode::TOO_MANY_REQUESTS, "rate_limited"));
        }
        let delay = match card {
            Card::Slow if is_first => SLOW,
            Card::Unhurried => UNHURRIED,
            _ => Duration::ZERO,
        };
        (self.write_down(entry), delay)
    }

    fn refund(&mut self, headers: &HeaderMap, body: &Bytes) -> Response {
        self.calls += 1;
        let Ok(order) = serde_json::from_slice::<RefundOrder>(body) else {
            return refused(StatusCode::BAD_REQUEST, "invalid_order");
        };
        let Some(key) = key(headers) else {
            return refused(StatusCode::BAD_REQUEST, "key_required");
        };
        let Some(charge) = self.ledger.charge(&order.account, &order.charge) else {
            return refused(StatusCode::NOT_FOUND, "no_such_charge");
        };
        let entry = Entry {
            id: self.ledger.next_id(Kind::Refund),
            kind: Kind::Refund,
            source: order.charge,
            key,
            ..charge.clone()
        };
        if let Some(known) = self.known(&entry) {
            return known;
        }
        if self.ledger.is_refunded(&entry.source) {
            return refused(StatusCode::FORBIDDEN, "already_refunded");
        }
        self.write_down(entry)
    }

    /// The answer to an order whose key was used before: the same, if it is the same order.
    fn known(&self, order: &Entry) -> Option<Response> {
        let known = self.ledger.with_key(&order.key)?;
        let same = *known
            == Entry {
                id: known.id.clone(),
                ..order.clone()
            };
        Some(if same {
            moved(known)
        } else {
            refused(StatusCode::CONFLICT, "key_reused")
        })
    }

    fn write_down(&mut self, entry: Entry) -> Response {
        let answer = moved(&entry);
        match self.ledger.append(entry) {
            Ok(()) => answer,
            Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "ledger_failed"),
        }
    }
}

fn key(headers: &HeaderMap) -> Option<String> {
    let key = headers.get("idempotency-key")?.to_str().ok()?;
    Some(key.to_owned())
}

fn moved(entry: &Entry) -> Response {
    answer(
        StatusCode::OK,
        &json!({ "id": entry.id, "amount": entry.amount, "currency": entry.currency }),
    )
}

fn refused(status: StatusCode, code: &str) -> Response {
    answer(status, &json!({ "error": code }))
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}
