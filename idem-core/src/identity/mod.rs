//! What a record is called: whose key it is, the key itself, and what it was used for.

mod idempotency_key;
mod operation;
mod record_id;
mod scope;

pub use idempotency_key::{IdempotencyKey, InvalidKey};
pub use operation::{InvalidOperation, Operation};
pub use record_id::RecordId;
pub use scope::{InvalidScope, Scope};
