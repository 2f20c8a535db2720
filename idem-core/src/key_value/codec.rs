//! A record as bytes: version, when it may be removed, then its columns.

use bytes::Bytes;
use thiserror::Error;

use crate::identity::RecordId;
use crate::record::{CorruptRow, Record, RecordRow};
use crate::time::Timestamp;
use crate::wire::{Malformed, Reader, Writer};

/// The version of the encoding, its first byte.
const VERSION: u8 = 1;

/// The key under which a record is kept: the length of its scope, the scope, and the idempotency key. A
/// tenant's records stay together, and no two ids share a key.
pub(super) fn key(id: &RecordId) -> Vec<u8> {
    let scope = id.scope().as_str();
    let mut key = Vec::with_capacity(1 + scope.len() + id.key().as_str().len());
    // A scope has at most 255 bytes.
    key.push(u8::try_from(scope.len()).unwrap_or(u8::MAX));
    key.extend_from_slice(scope.as_bytes());
    key.extend_from_slice(id.key().as_str().as_bytes());
    key
}

pub(super) fn encode(record: &Record) -> Bytes {
    let row = RecordRow::from(record);
    let mut writer = Writer::with_capacity(
        512 + record
            .state
            .response()
            .map_or(0, |response| response.size()),
    );
    writer.raw(&[VERSION]);
    writer.option(removable(record), |writer, at| writer.i64(at.as_micros()));
    writer.bytes(row.id.scope().as_str().as_bytes());
    writer.bytes(row.id.key().as_str().as_bytes());
    writer.bytes(row.operation.as_bytes());
    writer.i64(row.fingerprint_encoding);
    writer.i64(row.fingerprint_profile);
    writer.bytes(&row.fingerprint);
    writer.bytes(row.status.as_bytes());
    writer.bytes(&row.origin);
    writer.bytes(&row.token);
    writer.i64(row.revision);
    writer.i64(row.attempt);
    writer.i64(row.reclaims);
    writer.flag(row.uncertain);
    writer.option(row.recovery_name, |writer, name| {
        writer.bytes(name.as_bytes())
    });
    writer.option(row.recovery_data, |writer, data| writer.bytes(&data));
    writer.option(row.recovery_attempt, Writer::i64);
    writer.option(row.recovery_sequence, Writer::i64);
    writer.option(row.response_code, Writer::i64);
    writer.option(row.response_headers, |writer, headers| {
        writer.bytes(&headers)
    });
    writer.option(row.response_body, |writer, body| writer.bytes(&body));
    writer.option(row.note, |writer, note| writer.bytes(note.as_bytes()));
    writer.bytes(row.contract.as_bytes());
    writer.i64(row.retention);
    writer.i64(row.reclaim_window);
    writer.i64(row.max_reclaims);
    writer.i64(row.created_at);
    writer.i64(row.effect_since);
    writer.i64(row.locked_at);
    writer.i64(row.locked_until);
    writer.option(row.finished_at, Writer::i64);
    writer.option(row.expires_at, Writer::i64);
    writer.finish().into()
}

pub(super) fn decode(value: &Bytes) -> Result<Record, MalformedEntry> {
    let mut reader = Reader::new(value.clone());
    if reader.array()? != [VERSION] {
        return Err(reader.malformed().into());
    }
    let head = reader.option(Reader::i64)?.map(Timestamp::from_micros);
    let head_ends = reader.malformed();
    let (scope, key) = (reader.text()?, reader.text()?);
    let row = RecordRow {
        id: RecordRow::id(&scope, &key)?,
        operation: reader.text()?,
        fingerprint_encoding: reader.i64()?,
        fingerprint_profile: reader.i64()?,
        fingerprint: reader.bytes()?.to_vec(),
        status: reader.text()?,
        origin: reader.bytes()?.to_vec(),
        token: reader.bytes()?.to_vec(),
        revision: reader.i64()?,
        attempt: reader.i64()?,
        reclaims: reader.i64()?,
        uncertain: reader.flag()?,
        recovery_name: reader.option(Reader::text)?,
        recovery_data: reader.option(Reader::bytes)?,
        recovery_attempt: reader.option(Reader::i64)?,
        recovery_sequence: reader.option(Reader::i64)?,
        response_code: reader.option(Reader::i64)?,
        response_headers: reader.option(Reader::bytes)?,
        response_body: reader.option(Reader::bytes)?,
        note: reader.option(Reader::text)?,
        contract: reader.text()?,
        retention: reader.i64()?,
        reclaim_window: reader.i64()?,
        max_reclaims: reader.i64()?,
        created_at: reader.i64()?,
        effect_since: reader.i64()?,
        locked_at: reader.i64()?,
        locked_until: reader.i64()?,
        finished_at: reader.option(Reader::i64)?,
        expires_at: reader.option(Reader::i64)?,
    };
    reader.finish()?;
    let record = row.try_into()?;
    // Databases index the head alone: one that says something else would be swept never, or again and again.
    if head != removable(&record) {
        return Err(head_ends.into());
    }
    Ok(record)
}

/// From when on a record may be removed, or `None` while its outcome is not known.
fn removable(record: &Record) -> Option<Timestamp> {
    let finish = record.state.finish().filter(|_| record.is_finished());
    finish.map(|finish| finish.expires_at)
}

/// From when on the record in this value may be removed, or `None` while its outcome is not known.
///
/// For databases that keep an index of it, and to tell in a scan.
///
/// # Errors
///
/// [`MalformedEntry`] when this version did not write the value.
pub fn expires_at(value: &[u8]) -> Result<Option<Timestamp>, MalformedEntry> {
    // The head is all that is read, so only the head is copied.
    let head = Bytes::copy_from_slice(&value[..value.len().min(10)]);
    let mut reader = Reader::new(head);
    if reader.array()? != [VERSION] {
        return Err(reader.malformed().into());
    }
    Ok(reader.option(Reader::i64)?.map(Timestamp::from_micros))
}

/// A stored value that this version would not have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MalformedEntry {
    /// It is no encoded record.
    #[error("the stored value is malformed at byte {offset}")]
    Encoding {
        /// Where reading stopped.
        offset: usize,
    },
    /// It is an encoded record with a column that makes no sense.
    #[error(transparent)]
    Row(#[from] CorruptRow),
}

impl From<Malformed> for MalformedEntry {
    fn from(malformed: Malformed) -> Self {
        Self::Encoding {
            offset: malformed.offset,
        }
    }
}
