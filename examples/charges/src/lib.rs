//! A card-charging service with idempotency keys, the provider it charges at, and a demo that tells their
//! story.
//!
//! Three programs in one executable, each a process of its own when the demo runs:
//!
//! - [`service`] is the API that customers call: `POST /v1/charges` and `POST /v1/refunds`. Begin with
//!   `service/idempotent.rs`, which is all the HTTP there is around an idempotency key, and `service/step.rs`,
//!   which is how a call with a side effect is made.
//! - [`provider`] moves the money, and writes what it moved into a ledger.
//! - [`demo`] starts both, plays the client, and judges by the ledger.

pub mod arguments;
pub mod demo;
pub mod http;
pub mod listen;
pub mod provider;
pub mod service;
