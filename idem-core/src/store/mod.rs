//! What a database has to do, and what it answers.

mod inspect;
mod key_store;
mod outcome;
mod store_error;

pub use inspect::{Counts, Filter, Inspect, Selection};
pub use key_store::KeyStore;
pub use outcome::{ClaimOutcome, Swept, TransitionOutcome};
pub use store_error::{StoreError, StoreErrorKind};
