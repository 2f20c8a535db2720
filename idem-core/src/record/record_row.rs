use bytes::Bytes;
use thiserror::Error;

use crate::fingerprint::{Fingerprint, Profile, Scheme};
use crate::identity::{IdempotencyKey, Operation, RecordId, Scope};
use crate::time::{Span, Timestamp};

use super::{
    AttemptNumber, Body, Contract, Finish, Headers, Note, Origin, OwnerToken, Record, Recovery,
    RecoveryPoint, Response, Revision, State, Status, Terms,
};

/// A [`Record`] as columns: what a store writes and reads, in the types that databases have.
///
/// Every store goes through here, so what counts as a whole row and what as a corrupt one is the same
/// everywhere. Column names in a store are the field names.
///
/// A response is there when `response_code` and `response_headers` are; then a `response_body` that is `None`
/// means that the body was omitted, and an empty one means that it was empty.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each field is the field of `Record` with the same name, as a column"
)]
pub struct RecordRow {
    pub id: RecordId,
    pub operation: String,
    pub fingerprint_encoding: i64,
    pub fingerprint_profile: i64,
    pub fingerprint: Vec<u8>,
    pub status: String,
    pub origin: Vec<u8>,
    pub token: Vec<u8>,
    pub revision: i64,
    pub attempt: i64,
    pub reclaims: i64,
    pub uncertain: bool,
    pub recovery_name: Option<String>,
    pub recovery_data: Option<Bytes>,
    pub recovery_attempt: Option<i64>,
    pub recovery_sequence: Option<i64>,
    pub response_code: Option<i64>,
    pub response_headers: Option<Bytes>,
    pub response_body: Option<Bytes>,
    pub note: Option<String>,
    pub contract: String,
    pub retention: i64,
    pub reclaim_window: i64,
    pub max_reclaims: i64,
    pub created_at: i64,
    pub effect_since: i64,
    pub locked_at: i64,
    pub locked_until: i64,
    pub finished_at: Option<i64>,
    pub expires_at: Option<i64>,
}

impl RecordRow {
    /// The id that these two columns hold.
    ///
    /// # Errors
    ///
    /// [`CorruptRow`] when they hold none.
    pub fn id(scope: &str, key: &str) -> Result<RecordId, CorruptRow> {
        let scope = Scope::new(scope).map_err(|_| CorruptRow::in_column("scope"))?;
        let key = IdempotencyKey::new(key).map_err(|_| CorruptRow::in_column("key"))?;
        Ok(RecordId::new(scope, key))
    }
}

/// A stored row that this version would not have written.
///
/// It may be damaged, or a newer version may have written it. It is never taken for absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the stored record has a value in `{column}` that this version does not know")]
pub struct CorruptRow {
    /// The first column whose value is wrong by itself, or does not fit the others.
    pub column: &'static str,
}

impl CorruptRow {
    /// A row that is wrong in this column.
    #[must_use]
    pub fn in_column(column: &'static str) -> Self {
        Self { column }
    }
}

impl From<&Record> for RecordRow {
    fn from(record: &Record) -> Self {
        let finish = record.state.finish();
        let response = record.state.response();
        let recovery = record.recovery.as_ref();
        Self {
            id: record.id.clone(),
            operation: record.operation.as_str().to_owned(),
            fingerprint_encoding: record.fingerprint.scheme().encoding().into(),
            fingerprint_profile: record.fingerprint.scheme().profile().number().into(),
            fingerprint: record.fingerprint.digest().to_vec(),
            status: record.status().as_str().to_owned(),
            origin: record.origin.as_bytes().to_vec(),
            token: record.token.as_bytes().to_vec(),
            revision: saturate(record.revision.as_u64()),
            attempt: record.attempt.as_u32().into(),
            reclaims: record.reclaims.into(),
            uncertain: record.uncertain,
            recovery_name: recovery.map(|recovery| recovery.point.name().to_owned()),
            recovery_data: recovery.and_then(|recovery| recovery.point.data().cloned()),
            recovery_attempt: recovery.map(|recovery| recovery.attempt.as_u32().into()),
            recovery_sequence: recovery.map(|recovery| recovery.sequence.into()),
            response_code: response.map(|response| response.code().into()),
            response_headers: response.map(|response| response.headers().encode()),
            response_body: response.and_then(|response| response.body_ref().bytes().cloned()),
            note: record.note.as_ref().map(|note| note.as_str().to_owned()),
            contract: record.terms.contract.as_str().to_owned(),
            retention: saturate(record.terms.retention.as_micros()),
            reclaim_window: saturate(record.terms.reclaim_window.as_micros()),
            max_reclaims: record.terms.max_reclaims.into(),
            created_at: record.created_at.as_micros(),
            effect_since: record.effect_since.as_micros(),
            locked_at: record.locked_at.as_micros(),
            locked_until: record.locked_until.as_micros(),
            finished_at: finish.map(|finish| finish.finished_at.as_micros()),
            expires_at: finish.map(|finish| finish.expires_at.as_micros()),
        }
    }
}

/// Spans and revisions stay far below this bound; it is here so that nothing wraps.
fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl TryFrom<RecordRow> for Record {
    type Error = CorruptRow;

    fn try_from(mut row: RecordRow) -> Result<Self, CorruptRow> {
        Ok(Self {
            operation: Operation::new(&row.operation)
                .map_err(|_| CorruptRow::in_column("operation"))?,
            fingerprint: fingerprint(&row)?,
            origin: Origin::from_bytes(exact(&row.origin, "origin")?),
            token: OwnerToken::from_bytes(exact(&row.token, "token")?),
            revision: Revision::new(number(row.revision, "revision")?),
            attempt: attempt(row.attempt, "attempt")?,
            reclaims: number(row.reclaims, "reclaims")?,
            uncertain: row.uncertain,
            recovery: recovery(&mut row)?,
            terms: Terms {
                contract: Contract::parse(&row.contract)
                    .map_err(|_| CorruptRow::in_column("contract"))?,
                retention: span(row.retention, "retention")?,
                reclaim_window: span(row.reclaim_window, "reclaim_window")?,
                max_reclaims: number(row.max_reclaims, "max_reclaims")?,
            },
            created_at: Timestamp::from_micros(row.created_at),
            effect_since: Timestamp::from_micros(row.effect_since),
            locked_at: Timestamp::from_micros(row.locked_at),
            locked_until: Timestamp::from_micros(row.locked_until),
            state: state(&mut row)?,
            note: row.note.map(Note::new),
            id: row.id,
        })
    }
}

fn number<T: TryFrom<i64>>(value: i64, column: &'static str) -> Result<T, CorruptRow> {
    T::try_from(value).map_err(|_| CorruptRow::in_column(column))
}

fn exact<const N: usize>(bytes: &[u8], column: &'static str) -> Result<[u8; N], CorruptRow> {
    bytes.try_into().map_err(|_| CorruptRow::in_column(column))
}

fn span(micros: i64, column: &'static str) -> Result<Span, CorruptRow> {
    Span::from_micros(number(micros, column)?).map_err(|_| CorruptRow::in_column(column))
}

fn attempt(value: i64, column: &'static str) -> Result<AttemptNumber, CorruptRow> {
    let value: u32 = number(value, column)?;
    Ok(AttemptNumber::new(
        value
            .try_into()
            .map_err(|_| CorruptRow::in_column(column))?,
    ))
}

fn fingerprint(row: &RecordRow) -> Result<Fingerprint, CorruptRow> {
    let encoding = number(row.fingerprint_encoding, "fingerprint_encoding")?;
    let profile: u16 = number(row.fingerprint_profile, "fingerprint_profile")?;
    let digest = exact(&row.fingerprint, "fingerprint")?;
    Ok(Fingerprint::from_parts(
        Scheme::new(encoding, Profile::new(profile)),
        digest,
    ))
}

fn recovery(row: &mut RecordRow) -> Result<Option<Recovery>, CorruptRow> {
    let corrupt = || CorruptRow::in_column("recovery_name");
    let parts = (
        row.recovery_name.take(),
        row.recovery_attempt,
        row.recovery_sequence,
    );
    let (name, at, sequence) = match parts {
        (Some(name), Some(at), Some(sequence)) => (name, at, sequence),
        (None, None, None) if row.recovery_data.is_none() => return Ok(None),
        _ => return Err(corrupt()),
    };
    let mut point = RecoveryPoint::new(name).map_err(|_| corrupt())?;
    if let Some(data) = row.recovery_data.take() {
        point = point
            .with_data(data)
            .map_err(|_| CorruptRow::in_column("recovery_data"))?;
    }
    Ok(Some(Recovery {
        point,
        attempt: attempt(at, "recovery_attempt")?,
        sequence: number(sequence, "recovery_sequence")?,
    }))
}

fn state(row: &mut RecordRow) -> Result<State, CorruptRow> {
    let status = Status::parse(&row.status).map_err(|_| CorruptRow::in_column("status"))?;
    let finish = match (row.finished_at, row.expires_at) {
        (Some(finished), Some(expires)) => Some(Finish {
            finished_at: Timestamp::from_micros(finished),
            expires_at: Timestamp::from_micros(expires),
        }),
        (None, None) => None,
        _ => return Err(CorruptRow::in_column("expires_at")),
    };
    let response = match (row.response_code, row.response_headers.take()) {
        (Some(code), Some(headers)) => {
            let headers =
                Headers::decode(headers).map_err(|_| CorruptRow::in_column("response_headers"))?;
            let body = row.response_body.take().map_or(Body::Omitted, Body::Bytes);
            Some(Response::from_parts(
                number(code, "response_code")?,
                headers,
                body,
            ))
        }
        (None, None) if row.response_body.is_none() => None,
        _ => return Err(CorruptRow::in_column("response_code")),
    };
    match (status, response, finish) {
        (Status::InProgress, None, None) => Ok(State::InProgress),
        (Status::Completed, Some(response), Some(finish)) => {
            Ok(State::Completed { response, finish })
        }
        (Status::FailedFinal, Some(response), Some(finish)) => {
            Ok(State::FailedFinal { response, finish })
        }
        (Status::FailedRetryable, None, Some(finish)) => Ok(State::FailedRetryable { finish }),
        _ => Err(CorruptRow::in_column("status")),
    }
}
