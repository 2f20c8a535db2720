//! Instants, durations and where the time comes from.
//!
//! Nothing in the state machine reads a clock. A store says what time it is in every answer
//! ([`Snapshot`](crate::Snapshot)), and durations are added to *that*.

mod clock;
#[cfg(feature = "executor")]
mod real_clock;
mod span;
mod timestamp;

pub use clock::{Clock, ManualClock};
#[cfg(feature = "executor")]
pub use real_clock::{SystemClock, TokioClock};
pub use span::{Span, SpanTooLong};
pub use timestamp::Timestamp;
