use thiserror::Error;

use crate::record::{OwnerToken, Record, Revision};

/// What a writer believes about the record that it is about to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// It is in progress and this token owns it. For everything that an owner does, renewals and releases
    /// included, so that a late owner cannot write anything.
    Owner(OwnerToken),
    /// It is the very version that was seen. For everybody who is not the owner.
    Unchanged {
        /// The token that was seen.
        token: OwnerToken,
        /// The revision that was seen.
        revision: Revision,
    },
}

impl Expect {
    /// That the record is still as it is here.
    #[must_use]
    pub fn unchanged(record: &Record) -> Self {
        Self::Unchanged {
            token: record.token,
            revision: record.revision,
        }
    }
}

/// A transition under an expectation that does not go with it, such as a takeover that claims to be the
/// owner. It is a mistake in the calling program, and nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a {transition} cannot be made under this expectation; owners use `Expect::Owner`, everybody else `Expect::Unchanged`"
)]
pub struct Misuse {
    /// The transition's name.
    pub transition: &'static str,
}
