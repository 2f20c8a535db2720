//! The meaning of everything, as pure functions.
//!
//! [`decide`] says what a request means for what a store holds. [`Transition`] is everything that can happen
//! to a record, [`Transition::patch`] says how a store writes it, and [`Record::apply`](crate::Record::apply)
//! carries the same patch out in memory.

mod apply;
mod claim;
mod compile;
mod decide;
mod decision;
mod expect;
mod patch;
mod policy;
mod request;
mod settle;
mod transition;

pub use apply::{Applied, Rejected};
pub use claim::Claim;
pub use decide::decide;
pub use decision::{Decision, Mismatch, Swap};
pub use expect::{Expect, Misuse};
pub use patch::{
    AttemptColumn, Columns, Condition, EffectColumn, FinishColumn, Guard, NoteColumn, Patch,
    ReclaimsColumn, RecoveryColumn, ResponseColumn, UncertainColumn, Write,
};
pub use policy::{InvalidPolicy, OnBusy, Policy, PolicyBuilder};
pub use request::Request;
pub use settle::{Settled, settle};
pub use transition::{Transition, Verdict};
