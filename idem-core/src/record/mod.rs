//! What a store holds for one key.

mod attempt_number;
mod body;
mod headers;
mod note;
mod origin;
mod owner_token;
mod provider_key;
mod record;
mod record_row;
mod recovery_point;
mod response;
mod revision;
mod snapshot;
mod status;
mod terms;

pub use attempt_number::{AttemptNumber, Fence};
pub use body::Body;
pub use headers::{Headers, MalformedHeaders};
pub use note::Note;
pub use origin::Origin;
pub use owner_token::OwnerToken;
pub use provider_key::ProviderKey;
pub use record::{Finish, Record, State};
pub use record_row::{CorruptRow, RecordRow};
pub use recovery_point::{InvalidRecoveryPoint, Recovery, RecoveryPoint};
pub use response::Response;
pub use revision::Revision;
pub use snapshot::{Moment, Snapshot};
pub use status::{Status, UnknownStatus};
pub use terms::{Contract, Terms, UnknownContract};
