//! The client's half of idempotency keys: when to send a request again, when not, and when to stop and ask somebody.
//!
//! One logical operation has one key, made once and written down before the first attempt. Every attempt sends the same bytes under
//! it, until there is an answer; and when sending it again could do the work twice, somebody is asked. There are three parts, each
//! on the one before:
//!
//! | feature | what it is |
//! |---|---|
//! | none | the rules, pure: [`Verdict`] reads what an attempt came to, [`RetryPolicy`] says what then, [`derived_key`] makes keys |
//! | `journal` | [`Journal`]: operations and their answers in a SQLite file, for any HTTP client |
//! | `reqwest` (default) | [`Client`]: sends them |
//!
#![cfg_attr(
    not(feature = "reqwest"),
    doc = "[`Client`]: https://docs.rs/idem-client"
)]
#![cfg_attr(
    not(feature = "journal"),
    doc = "[`Journal`]: https://docs.rs/idem-client"
)]
#![cfg_attr(feature = "reqwest", doc = "")]
#![cfg_attr(feature = "reqwest", doc = include_str!("example.md"))]
//!
//! # The rules
//!
//! They have no clock, no randomness and no I/O: the caller hands over the time that has passed and a random number.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use http::{HeaderMap, StatusCode};
//! use idem_client::{Horizon, Next, Progress, RetryPolicy, Verdict};
//!
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
//! A parked operation is neither sent again nor given another key by itself. What was sent as often, or for as long, as the policy
//! allows is not parked, and a later run may go on. A POST without a key is sent once: [`Verdict::without_key`].

#[cfg(feature = "reqwest")]
mod client;
mod horizon;
#[cfg(feature = "journal")]
mod journal;
mod key;
mod policy;
mod retry_after;
mod verdict;

#[cfg(feature = "reqwest")]
pub use client::{
    Client, ClientBuilder, Finished, LastAttempt, Outgoing, Resumed, SendError, Source, Step,
};
pub use horizon::{Horizon, InvalidHorizon};
#[cfg(feature = "journal")]
pub use idem_core::{Clock, ManualClock, Span, Timestamp};
pub use idem_core::{IdempotencyKey, InvalidKey};
#[cfg(feature = "journal")]
pub use journal::{
    Answer, Begun, Claim, Entry, Going, InvalidOperation, Journal, JournalError, JournalErrorKind,
    JournalOptions, Operation, OperationBuilder, Recorded, State, SystemClock,
};
pub use key::{derived_key, key_hash, key_header, key_of_random};
pub use policy::{InvalidRetryPolicy, Next, Progress, RetryPolicy};
/// The HTTP client that [`Client`] is around, in the version that it takes. TLS is switched on by the features of the
/// program's own dependency on it.
#[cfg(feature = "reqwest")]
pub use reqwest;
pub use retry_after::retry_after;
pub use verdict::{Failure, Parked, Verdict};

#[cfg(all(doctest, feature = "reqwest"))]
#[doc = include_str!("../../docs/client.md")]
struct Guide;
