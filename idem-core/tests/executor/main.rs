//! The executor, on virtual time: nothing here sleeps, and every race is forced.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test, a panic is the verdict"
)]

mod answers;
mod faults;
mod leases;
mod support;
mod sweeping;
mod waiting;
