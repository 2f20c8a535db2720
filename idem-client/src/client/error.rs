use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::credentials::BoxError;
use crate::{Answer, Failure, JournalError, Parked};

/// Why an operation has no answer that the journal keeps. Operations are named by the hash of their key.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The journal could not be written or read. Nothing was sent since. What was sent before stays pending.
    #[error("operation {operation} is not sent any further, since the journal fails")]
    Journal {
        /// The operation.
        operation: String,
        /// Why.
        source: JournalError,
    },
    /// There is an answer, and the journal could not keep it. The operation stays pending, and the service gives the same answer again.
    #[error(
        "operation {operation} was answered {}, which the journal could not keep; the service will say it again",
        answer.status()
    )]
    NotRecorded {
        /// The operation.
        operation: String,
        /// The answer.
        answer: Box<Answer>,
        /// Why.
        source: JournalError,
    },
    /// Another task or process sends it at this moment.
    #[error(
        "operation {operation} is being sent by another task or process; its answer will be in the journal"
    )]
    Busy {
        /// The operation.
        operation: String,
    },
    /// It is parked, and not sent until somebody has looked.
    #[error("operation {operation} is parked: {}; find out what became of it, then close or un-park it", advice(*why))]
    Parked {
        /// The operation.
        operation: String,
        /// Why.
        why: Parked,
        /// What the service said, if it was now that it was parked, and because of that.
        answer: Option<Box<Answer>>,
    },
    /// It was acknowledged or closed before.
    #[error(
        "operation {operation} was acknowledged or closed before, and is not sent again; for something else, use another key"
    )]
    Closed {
        /// The operation.
        operation: String,
    },
    /// Its key belongs to another request.
    #[error(
        "under the key of operation {operation} the journal has another request; for something else, use another key"
    )]
    Different {
        /// The operation.
        operation: String,
    },
    /// There is none under this key.
    #[error("operation {operation} is not in the journal")]
    Absent {
        /// The operation.
        operation: String,
    },
    /// It was sent as often, or for as long, as the policy allows. It stays pending.
    #[error(
        "operation {operation} has no answer after {attempts} attempts in {elapsed:?}, and stays pending; resume it later"
    )]
    GaveUp {
        /// The operation.
        operation: String,
        /// How many attempts were made in this run.
        attempts: u32,
        /// How long it took.
        elapsed: Duration,
        /// What the last one came to.
        #[source]
        last: LastAttempt,
    },
    /// There are no credentials for it, so the attempt was not made. It stays pending.
    #[error(
        "operation {operation} is not sent, since there are no credentials for it; it stays pending"
    )]
    Credentials {
        /// The operation.
        operation: String,
        /// Why.
        source: BoxError,
    },
}

/// What an attempt came to that was not the last word.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LastAttempt {
    /// An answer after which the same may be sent again.
    #[error("the service answered {status}")]
    Answered {
        /// Its status.
        status: StatusCode,
    },
    /// No answer.
    #[error("{}", failed(*failure))]
    Failed {
        /// Whether anything was sent.
        failure: Failure,
        /// Why, as far as it is known. A time-out has no other reason.
        source: Option<BoxError>,
    },
}

fn advice(why: Parked) -> &'static str {
    match why {
        Parked::OutcomeUnknown => "the service says that nobody knows whether it was done",
        Parked::PastHorizon => "the service may have forgotten its key, and would do it again",
        Parked::Unsendable => "it cannot be sent",
    }
}

fn failed(failure: Failure) -> &'static str {
    match failure {
        Failure::NotSent => "there was no connection",
        Failure::Lost => "the connection broke, or the time was over, before there was an answer",
        Failure::Unsendable => "the request cannot be sent",
    }
}
