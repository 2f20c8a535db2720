//! The client's half of idempotency keys: when to send a request again, when not, and when to stop and ask somebody.
//!
//! One logical operation has one key, made once. Every attempt sends the same bytes under it. What an attempt came to
//! is read by [`Verdict::of_reply`] and [`Verdict::of_failure`], which are pure: no clock, no randomness, no I/O. When the next
//! one may be made is said by a [`RetryPolicy`], to which the caller hands the time that has passed and a random number.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use http::{HeaderMap, StatusCode};
//! use idem_client::{Horizon, Next, Progress, RetryPolicy, Verdict};
//!
//! // The server says that it keeps keys for 24 hours.
//! let horizon = Horizon::within(Duration::from_secs(20 * 3600), Duration::from_secs(24 * 3600))?;
//! let policy = RetryPolicy::until(horizon);
//! let verdict = Verdict::of_reply(StatusCode::CONFLICT, &HeaderMap::new(), b"", SystemTime::now());
//! let elapsed = Duration::from_millis(300);
//! let progress = Progress { attempts: 1, elapsed, age: elapsed, random: 0.5 };
//! match policy.next(&verdict, progress) {
//!     Next::SendAfter(pause) => assert!(pause <= Duration::from_millis(500)),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), idem_client::InvalidHorizon>(())
//! ```
//!
//! | what came | then |
//! |---|---|
//! | no answer: no connection, a broken one, a time-out | again |
//! | 408, 409, 425, 429, or any 5xx | again, no sooner than `Retry-After` says |
//! | any other status, 422 among them | final |
//! | any answer with `Idempotent-Replayed: true` | final, whatever its status: it is what was stored, and comes again as often as it is asked for |
//! | a problem whose type ends in `outcome-unknown` | parked: nobody knows whether it was done, and sending it again does not find out |
//! | the operation is older than its [`Horizon`] | parked: the server may have forgotten the key, and would do the work again |
//!
//! A parked operation is neither sent again nor given another key by itself. A request without a key is sent once.

mod horizon;
mod policy;
mod retry_after;
mod verdict;

pub use horizon::{Horizon, InvalidHorizon};
pub use policy::{InvalidRetryPolicy, Next, Progress, RetryPolicy};
pub use retry_after::retry_after;
pub use verdict::{Failure, Parked, Verdict};
