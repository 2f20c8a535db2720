//! A row of the table, and what it means.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use idem_core::{IdempotencyKey, Timestamp};
use rusqlite::Row as SqlRow;

use super::{Answer, Entry, JournalError, Operation, State, headers};
use crate::Parked;

/// The columns, in the order in which [`Row::read`] takes them.
pub(crate) const COLUMNS: &str = "\"key\", label, digest, state, parked, method, url, headers, body, horizon, created_at, \
     first_attempt_at, horizon_from, last_attempt_at, attempts, last_outcome, owner, answer_status, answer_headers, \
     answer_body, answer_cut, note";

/// One row, its values as they are stored.
#[derive(Debug)]
pub(crate) struct Row {
    key: String,
    label: Option<String>,
    pub(crate) digest: [u8; 32],
    state: String,
    parked: Option<String>,
    method: Option<String>,
    url: Option<String>,
    headers: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
    horizon: i64,
    created_at: i64,
    first_attempt_at: Option<i64>,
    pub(crate) horizon_from: Option<i64>,
    pub(crate) last_attempt_at: Option<i64>,
    attempts: u32,
    last_outcome: Option<String>,
    pub(crate) owner: Option<[u8; 16]>,
    answer_status: Option<u16>,
    answer_headers: Option<Vec<u8>>,
    answer_body: Option<Vec<u8>>,
    answer_cut: Option<bool>,
    note: Option<String>,
}

impl Row {
    pub(crate) fn read(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: row.get(0)?,
            label: row.get(1)?,
            digest: row.get(2)?,
            state: row.get(3)?,
            parked: row.get(4)?,
            method: row.get(5)?,
            url: row.get(6)?,
            headers: row.get(7)?,
            body: row.get(8)?,
            horizon: row.get(9)?,
            created_at: row.get(10)?,
            first_attempt_at: row.get(11)?,
            horizon_from: row.get(12)?,
            last_attempt_at: row.get(13)?,
            attempts: row.get(14)?,
            last_outcome: row.get(15)?,
            owner: row.get(16)?,
            answer_status: row.get(17)?,
            answer_headers: row.get(18)?,
            answer_body: row.get(19)?,
            answer_cut: row.get(20)?,
            note: row.get(21)?,
        })
    }

    pub(crate) fn key(&self) -> Result<IdempotencyKey, JournalError> {
        IdempotencyKey::new(&self.key).map_err(JournalError::corrupt)
    }

    pub(crate) fn horizon(&self) -> Duration {
        Duration::from_micros(self.horizon.unsigned_abs())
    }

    pub(crate) fn state(&self) -> Result<State, JournalError> {
        Ok(match self.state.as_str() {
            "pending" => State::Pending,
            "parked" => State::Parked(self.why_parked()?),
            "answered" => State::Answered(self.answer()?),
            "closed" => State::Closed,
            other => return Err(self.corrupt(&format!("its state is {other:?}"))),
        })
    }

    pub(crate) fn operation(&self) -> Result<Operation, JournalError> {
        let (Some(method), Some(url), Some(lines), Some(body)) =
            (&self.method, &self.url, &self.headers, &self.body)
        else {
            return Err(self.corrupt("it is not closed, and what is to be sent is missing"));
        };
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| self.corrupt("its method is none"))?;
        let headers =
            headers::decode(lines).ok_or_else(|| self.corrupt("its header lines are none"))?;
        let operation = Operation::restored(
            self.key()?,
            self.label.clone(),
            method,
            url.clone(),
            headers,
            Bytes::copy_from_slice(body),
        );
        // Other bytes under the same key would be refused at best.
        if operation.digest() != self.digest {
            return Err(self.corrupt("what is to be sent was altered"));
        }
        Ok(operation)
    }

    pub(crate) fn entry(&self) -> Result<Entry, JournalError> {
        Ok(Entry {
            key: self.key()?,
            label: self.label.clone(),
            state: self.state()?,
            created_at: Timestamp::from_micros(self.created_at),
            first_attempt_at: self.first_attempt_at.map(Timestamp::from_micros),
            last_attempt_at: self.last_attempt_at.map(Timestamp::from_micros),
            attempts: self.attempts,
            horizon: self.horizon(),
            last_outcome: self.last_outcome.clone(),
            note: self.note.clone(),
        })
    }

    fn why_parked(&self) -> Result<Parked, JournalError> {
        let name = self.parked.as_deref().unwrap_or_default();
        parked_of(name).ok_or_else(|| self.corrupt(&format!("it is parked because of {name:?}")))
    }

    fn answer(&self) -> Result<Answer, JournalError> {
        let (Some(status), Some(lines), Some(body), Some(is_cut)) = (
            self.answer_status,
            &self.answer_headers,
            &self.answer_body,
            self.answer_cut,
        ) else {
            return Err(self.corrupt("it is answered, and its answer is missing"));
        };
        let status = StatusCode::from_u16(status)
            .map_err(|_| self.corrupt("the answer's status is none"))?;
        let headers = headers::decode(lines)
            .ok_or_else(|| self.corrupt("the answer's header lines are none"))?;
        let answer = Answer::new(status, headers, body.clone());
        Ok(if is_cut { answer.cut() } else { answer })
    }

    fn corrupt(&self, what: &str) -> JournalError {
        let hash = self.key().map(|key| crate::key_hash(&key));
        let hash = hash.unwrap_or_else(|_| "none".to_owned());
        JournalError::corrupt(format_args!("operation {hash}: {what}"))
    }
}

pub(crate) fn name_of(parked: Parked) -> &'static str {
    match parked {
        Parked::OutcomeUnknown => "outcome_unknown",
        Parked::PastHorizon => "past_horizon",
        Parked::Unsendable => "unsendable",
    }
}

fn parked_of(name: &str) -> Option<Parked> {
    [
        Parked::OutcomeUnknown,
        Parked::PastHorizon,
        Parked::Unsendable,
    ]
    .into_iter()
    .find(|parked| name_of(*parked) == name)
}
