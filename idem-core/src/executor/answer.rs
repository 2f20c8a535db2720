use crate::fingerprint::Scheme;
use crate::machine::Mismatch;
use crate::record::Response;
use crate::time::Span;

use super::{Storable, Unreadable};

/// What a request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Answer<T> {
    /// The work ran for this request, and this is what it said.
    Fresh(T),
    /// The work had been done before, and this is what it said then.
    Replayed(T),
    /// There is an answer, fresh or replayed, but none that can be read as a value: the work ended in an error or
    /// a panic, whose public response this is, or the body was too large to keep.
    Unreadable(Response),
    /// Somebody is running it. Try again.
    Busy {
        /// How long the owner's lease still is: the longest that it can take until somebody may take over.
        /// Most owners are done long before.
        remaining: Span,
    },
    /// The key was used with something else.
    Mismatch(Mismatch),
    /// The record was written under a scheme that this program does not declare. Another node may know it.
    Incomparable {
        /// The scheme that it was written under.
        stored: Scheme,
    },
    /// Nobody knows whether the work was done, and it is not run again by itself.
    OutcomeUnknown,
    /// The work ran and its outcome could not be stored in time. Storing goes on; try again.
    NotYetStored,
}

impl<T> Answer<T> {
    /// The value, fresh or replayed, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Fresh(value) | Self::Replayed(value) => Some(value),
            _ => None,
        }
    }
}

impl<T: Storable> Answer<T> {
    pub(super) fn replayed(response: Response) -> Self {
        match T::from_response(response) {
            Ok(value) => Self::Replayed(value),
            Err(Unreadable { response }) => Self::Unreadable(response),
        }
    }

    pub(super) fn fresh(response: Response) -> Self {
        match T::from_response(response) {
            Ok(value) => Self::Fresh(value),
            Err(Unreadable { response }) => Self::Unreadable(response),
        }
    }
}

impl Answer<Response> {
    /// This answer, with its response read as a value.
    pub(super) fn read<T: Storable>(self) -> Answer<T> {
        match self {
            Self::Fresh(response) => Answer::fresh(response),
            Self::Replayed(response) => Answer::replayed(response),
            Self::Unreadable(response) => Answer::Unreadable(response),
            Self::Busy { remaining } => Answer::Busy { remaining },
            Self::Mismatch(mismatch) => Answer::Mismatch(mismatch),
            Self::Incomparable { stored } => Answer::Incomparable { stored },
            Self::OutcomeUnknown => Answer::OutcomeUnknown,
            Self::NotYetStored => Answer::NotYetStored,
        }
    }
}
