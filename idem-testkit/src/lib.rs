//! Conformance suite for stores of idempotency keys.
//!
//! A [`KeyStore`](idem_core::KeyStore) that is wrong works in every demonstration: it lets two claims win one time in
//! fifty, forgets the order of header lines, or loses an answer when a client hangs up. This crate runs any store
//! through everything that its contract says, and has a collection of [broken stores](saboteurs) to prove that it
//! notices.
//!
//! A backend writes a [`Harness`], fifteen lines, and asks for its tests:
//!
//! ```
//! use std::sync::Arc;
//!
//! use idem_core::{async_trait, ManualClock, MemoryKeyStore, Timestamp};
//! use idem_testkit::{Harness, Unavailable};
//!
//! struct Memory;
//!
//! #[async_trait]
//! impl Harness for Memory {
//!     type Data = Arc<MemoryKeyStore<ManualClock>>;
//!     type Store = Arc<MemoryKeyStore<ManualClock>>;
//!
//!     async fn create(&self) -> Result<Self::Data, Unavailable> {
//!         Ok(Arc::new(MemoryKeyStore::new(ManualClock::new(Timestamp::from_micros(0)))))
//!     }
//!
//!     async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
//!         Ok(data.clone())
//!     }
//! }
//!
//! mod memory {
//!     idem_testkit::conformance!(super::Memory);
//! }
//! # fn main() {}
//! ```
//!
//! [`conformance!`] makes one test of each [`Case`], from the one list in this crate. [`Suite`] runs the same cases
//! from a program and gives a [`Report`].
//!
//! # What the cases are
//!
//! Each names the [clauses](Clause) that it is about: those of the store's contract, and the rows of the decision
//! table.
//!
//! - **Step by step.** Every transition, on a record in every state, under every expectation that is right or
//!   wrong. What the store answers and what it then holds is compared with
//!   [`Record::apply`](idem_core::Record::apply), column by column.
//! - **Races.** Barriers, and leases and retentions of zero, so that everybody acts at the same instant; no case hopes
//!   that a sleep is long enough. The answers of a race must be explained by some order of its calls.
//! - **Random histories.** Sequences on two records, and up to three callers at once on one, some of whose calls are
//!   dropped in the middle; the first that fails is made small and printed. The seed is always the same, unless
//!   `IDEM_TESTKIT_SEED` says otherwise.
//! - **Calls that come to nothing.** Every call is dropped at every await, and sent again as if its answer had been
//!   lost.
//!
//! Times are read from the records and compared with each other, never with a clock of the suite, so a store
//! can have a real clock.
//!
//! What the suite cannot see: whether a disk syncs when it says so, what a server does when it fails over, and
//! how it all behaves under load. A case that passes once may fail the next time if the store is broken only now and then.

mod bench;
mod case;
mod cases;
mod clause;
mod closed;
mod conformance;
mod difference;
mod failure;
mod harness;
mod history;
mod moves;
mod registry;
mod report;
pub mod saboteurs;
mod stage;
mod subject;
mod suite;
mod track;
mod wish;

pub use case::Case;
pub use clause::Clause;
pub use failure::{CaseResult, Failure, Stop};
pub use harness::{Foreign, Harness, Instances, LockScope, Missing, OpenWrite, Unavailable};
pub use report::{CaseReport, CaseVerdict, Report};
pub use suite::Suite;
#[doc(hidden)]
pub use suite::run_as_test;

/// The guide and the README are compiled and run by the tests, so that they cannot go out of date.
#[cfg(doctest)]
#[doc = include_str!("../../docs/write-your-own-store.md")]
#[doc = include_str!("../README.md")]
struct Guide;
