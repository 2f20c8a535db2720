//! Idempotency keys: what a key means, decided once, for any store.
//!
//! A client that does not know whether its request succeeded sends it again with the same key. Once an outcome
//! is stored the work must not be done again, and every sender must get that same answer: when two requests come
//! at once, when the process dies between the work and the record of it, when an owner wakes up after it was
//! replaced, when the payload is another one, when the client hangs up.
//!
//! # How a request travels
//!
//! ```text
//!   Request ──> Claim ──> KeyStore::claim ──> Won ───────────────────────────────> run the work
//!                                        └──> Held(Snapshot) ──> decide ──┬──────> replay, busy, mismatch, …
//!                                                  ▲                      └─ swap ─> KeyStore::transition ──> run the work
//!                                                  └────── Lost(Snapshot) ◄──────────┘
//!   the work ──> Outcome ──> Transition ──> patch ──> KeyStore::transition
//! ```
//!
//! - A [`Request`] is bound to a [`Scope`] (whose key), an [`Operation`] (what for) and a [`Fingerprint`] (with
//!   what meaning). All three are compared on every route.
//! - [`decide`] is the table of everything that a request can mean for what a store holds. It is pure and total.
//! - A [`Transition`] is everything that can happen to a record. [`Transition::patch`] compiles it to columns
//!   under a guard, so that a store needs one insert and one update and decides nothing, and
//!   [`Record::apply`] carries the same patch out in memory: it is the model that stores are tested against.
//! - A [`KeyStore`] is a database that has to get concurrency and durability right, and nothing else.
//!   [`key_value`] makes one from any database with a compare-and-swap, and [`MemoryKeyStore`] is the reference.
//! - [`executor::Idempotency`] runs work: it claims, keeps the lease alive, stores the outcome, and answers
//!   everybody else.
//!
//! # What it promises, and what it cannot
//!
//! Within the retention, the work of one operation is run again only where the outcome of an attempt is unknown
//! and the terms of the record allow it: its lease is over, the contract is to reclaim, the window is open. An
//! effect outside of the database that is attempted again is as safe as the provider's own idempotency, for
//! which [`executor::Attempt::provider_key`] derives a key that is the same on every attempt. No library can do
//! better than that, and one that says it can has not met a crash between a charge and its record.
//!
//! # Features
//!
//! - `executor` (default): [`executor`], [`SystemClock`], [`TokioClock`]. Needs tokio.
//!
//! Without it the crate has no clock, no randomness, no environment, no I/O and no runtime.

#[cfg(feature = "executor")]
pub mod executor;
mod fingerprint;
mod hex;
mod identity;
pub mod key_value;
mod machine;
mod memory;
mod record;
mod store;
mod time;
mod wire;

pub use async_trait::async_trait;

pub use fingerprint::*;
pub use identity::{
    IdempotencyKey, InvalidKey, InvalidOperation, InvalidScope, Operation, RecordId, Scope,
};
pub use machine::{
    Applied, AttemptColumn, Claim, Columns, Condition, Decision, EffectColumn, Expect,
    FinishColumn, Guard, InvalidPolicy, Mismatch, Misuse, NoteColumn, OnBusy, Patch, Policy,
    PolicyBuilder, ReclaimsColumn, RecoveryColumn, Rejected, Request, ResponseColumn, Settled,
    Swap, Transition, UncertainColumn, Verdict, Write, decide, settle,
};
pub use memory::MemoryKeyStore;
pub use record::{
    AttemptNumber, Body, Contract, CorruptRow, Fence, Finish, Headers, InvalidRecoveryPoint,
    MalformedHeaders, Moment, Note, Origin, OwnerToken, ProviderKey, Record, RecordRow, Recovery,
    RecoveryPoint, Response, Revision, Snapshot, State, Status, Terms, UnknownContract,
    UnknownStatus,
};
pub use store::{
    ClaimOutcome, Counts, Filter, Inspect, KeyStore, Selection, StoreError, StoreErrorKind, Swept,
    TransitionOutcome,
};
pub use time::{Clock, ManualClock, Span, SpanTooLong, Timestamp};
#[cfg(feature = "executor")]
pub use time::{SystemClock, TokioClock};
