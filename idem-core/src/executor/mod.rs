//! Running work: claims it, keeps its lease alive, stores its outcome, and answers everybody else.
//!
//! [`Idempotency`] is where to begin. This is the only part of the crate that needs tokio, random numbers and
//! a clock, and it is behind the feature `executor`, which is on by default.

mod acquire;
mod answer;
mod attempt;
mod backoff;
mod catch_panic;
mod execution;
mod finish;
mod idempotency;
mod keeper;
mod lease;
mod outcome;
mod ownership;
mod poll_once;
mod random;
mod same_transaction;
mod shared;
mod storable;
mod sweeper;
mod unabandoned;
mod waiters;

pub use answer::Answer;
pub use attempt::{Attempt, AttemptError, NoProviderKey};
pub use execution::{Begin, Execution};
pub use idempotency::Idempotency;
pub use outcome::{IntoOutcome, Outcome, PublicError};
pub use same_transaction::{TxAttempt, TxEnd};
pub use storable::{Json, Storable, Unreadable};
pub use sweeper::{SweepReport, SweepTotals, Sweeper, SweeperBuilder};
