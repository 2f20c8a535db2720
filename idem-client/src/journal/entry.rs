use std::time::Duration;

use idem_core::{IdempotencyKey, Timestamp};

use super::Answer;
use crate::Parked;

/// What a journal holds of one operation, for people and programs that look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its key.
    pub key: IdempotencyKey,
    /// What the caller calls it.
    pub label: Option<String>,
    /// How far it has come.
    pub state: State,
    /// When it was written down.
    pub created_at: Timestamp,
    /// When the first attempt began, if one has.
    pub first_attempt_at: Option<Timestamp>,
    /// When the last attempt began, if one has.
    pub last_attempt_at: Option<Timestamp>,
    /// How many attempts were begun, in all runs together.
    pub attempts: u32,
    /// How long it may be sent, from the first attempt on.
    pub horizon: Duration,
    /// What the last attempt came to, in words, as far as it was written down: attempts of a run are, when the run ends.
    pub last_outcome: Option<String>,
    /// What was noted by whoever un-parked or closed it.
    pub note: Option<String>,
}

/// How far an operation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It has no answer yet, and is sent when it is resumed.
    Pending,
    /// It has no answer, and is not sent until somebody has looked.
    Parked(Parked),
    /// It has an answer, which nobody has acknowledged.
    Answered(Answer),
    /// It is over: its answer was acknowledged, or somebody closed it. Neither what was sent nor what was answered is kept.
    Closed,
}

/// What a journal says to an operation that it is to write down.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recorded {
    /// It is there, and has come so far.
    There(State),
    /// Under its key there is another request: with another method, URL, header line or body.
    Different,
}
