//! Sending what is in a journal.

mod client;
mod credentials;
mod error;
mod finished;
mod step;

pub use client::{Client, ClientBuilder};
pub use credentials::Outgoing;
pub use error::{LastAttempt, SendError};
pub use finished::{Finished, Resumed, Source};
pub use step::Step;
