//! What was sent and not yet answered, in a file: one operation a row.

mod answer;
mod claim;
mod entry;
mod error;
mod filesystem;
mod headers;
mod journal;
mod ledger;
mod operation;
mod options;
mod owner;
mod place;
mod row;
mod schema;
mod system_clock;

pub use answer::Answer;
pub use claim::{Begun, Claim, Going};
pub use entry::{Entry, Recorded, State};
pub use error::{JournalError, JournalErrorKind};
pub use journal::Journal;
pub use operation::{InvalidOperation, Operation, OperationBuilder};
pub use options::JournalOptions;
pub use system_clock::SystemClock;
