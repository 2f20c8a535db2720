//! From a row of the table to a record.

use bytes::Bytes;
use idem_core::{CorruptRow, Record, RecordId, RecordRow};
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};

use crate::error::ReadError;

/// Every column but the two of the key, in the order in which [`record`] reads them.
macro_rules! columns {
    () => {
        "operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, origin, token, revision, \
         attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, created_at, \
         effect_since, locked_at, locked_until, finished_at, expires_at, recovery_name, recovery_attempt, \
         recovery_sequence, note, response_code, response_headers, recovery_data, response_body"
    };
}
pub(crate) use columns;

/// How many columns [`columns!`] names, which is where the key's begin in a list.
const COLUMNS: usize = 29;

/// The record in a row that was selected by its id. The id is the caller's own, so it comes back exactly.
pub(crate) fn record(id: &RecordId, row: &Row<'_>) -> Result<Record, ReadError> {
    let blob = |index| Ok::<_, ReadError>(optional_blob(row, index)?.map(Bytes::copy_from_slice));
    let uncertain = match field::<i64>(row, 10, "uncertain")? {
        0 => false,
        1 => true,
        _ => return Err(CorruptRow::in_column("uncertain").into()),
    };
    let row = RecordRow {
        id: id.clone(),
        operation: field(row, 0, "operation")?,
        fingerprint_encoding: field(row, 1, "fingerprint_encoding")?,
        fingerprint_profile: field(row, 2, "fingerprint_profile")?,
        fingerprint: field(row, 3, "fingerprint")?,
        status: field(row, 4, "status")?,
        origin: field(row, 5, "origin")?,
        token: field(row, 6, "token")?,
        revision: field(row, 7, "revision")?,
        attempt: field(row, 8, "attempt")?,
        reclaims: field(row, 9, "reclaims")?,
        uncertain,
        contract: field(row, 11, "contract")?,
        retention: field(row, 12, "retention")?,
        reclaim_window: field(row, 13, "reclaim_window")?,
        max_reclaims: field(row, 14, "max_reclaims")?,
        created_at: field(row, 15, "created_at")?,
        effect_since: field(row, 16, "effect_since")?,
        locked_at: field(row, 17, "locked_at")?,
        locked_until: field(row, 18, "locked_until")?,
        finished_at: field(row, 19, "finished_at")?,
        expires_at: field(row, 20, "expires_at")?,
        recovery_name: field(row, 21, "recovery_name")?,
        recovery_attempt: field(row, 22, "recovery_attempt")?,
        recovery_sequence: field(row, 23, "recovery_sequence")?,
        note: field(row, 24, "note")?,
        response_code: field(row, 25, "response_code")?,
        response_headers: blob(26)?,
        recovery_data: blob(27)?,
        response_body: blob(28)?,
    };
    Ok(Record::try_from(row)?)
}

/// The record in a row whose last two columns are its scope and its key.
pub(crate) fn listed(row: &Row<'_>) -> Result<Record, ReadError> {
    let scope: String = field(row, COLUMNS, "scope")?;
    let key: String = field(row, COLUMNS + 1, "key")?;
    record(&RecordRow::id(&scope, &key)?, row)
}

/// A value of another type than the column's was not written by this crate.
fn field<T: FromSql>(row: &Row<'_>, index: usize, column: &'static str) -> Result<T, CorruptRow> {
    row.get(index).map_err(|_| CorruptRow::in_column(column))
}

fn optional_blob<'row>(row: &'row Row<'_>, index: usize) -> Result<Option<&'row [u8]>, ReadError> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        ValueRef::Blob(bytes) => Ok(Some(bytes)),
        _ => Err(CorruptRow::in_column(match index {
            26 => "response_headers",
            27 => "recovery_data",
            _ => "response_body",
        })
        .into()),
    }
}
