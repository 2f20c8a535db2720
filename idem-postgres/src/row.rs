//! From a row of the table to a record.

use bytes::Bytes;
use idem_core::{CorruptRow, Record, RecordId, RecordRow, Timestamp};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Row as _, Type};

use crate::options::Pooling;

/// Every column but the two of the key, in the order in which [`record`] reads them.
const COLUMNS: [&str; COUNT] = [
    "operation",
    "fingerprint_encoding",
    "fingerprint_profile",
    "fingerprint",
    "status",
    "origin",
    "token",
    "revision",
    "attempt",
    "reclaims",
    "uncertain",
    "contract",
    "retention",
    "reclaim_window",
    "max_reclaims",
    "created_at",
    "effect_since",
    "locked_at",
    "locked_until",
    "finished_at",
    "expires_at",
    "recovery_name",
    "recovery_attempt",
    "recovery_sequence",
    "note",
    "response_code",
    "response_headers",
    "recovery_data",
    "response_body",
];

/// How many there are.
pub(crate) const COUNT: usize = 29;

/// Those among them that are instants.
const INSTANTS: std::ops::Range<usize> = 15..21;

/// The columns of `table`, as a selection names them.
pub(crate) fn columns(table: &str, pooling: Pooling) -> String {
    let mut text = String::with_capacity(1024);
    for (index, column) in COLUMNS.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        let column = format!("{table}.{column}");
        if INSTANTS.contains(&index) {
            text.push_str(&instant(&column, pooling));
        } else {
            text.push_str(&column);
        }
    }
    text
}

/// As many nulls as [`columns`] has columns.
pub(crate) fn no_columns() -> String {
    ["NULL"; COUNT].join(", ")
}

/// Where the column is that follows [`columns`] which begin at `first`.
pub(crate) fn after_columns(first: usize) -> usize {
    first + COUNT
}

/// An instant, as a selection names it.
///
/// Bound statements are answered in binary, where an instant is a count of microseconds. In the text of an unbound one it
/// is a date by the settings of the connection, so there the count is asked for.
pub(crate) fn instant(expression: &str, pooling: Pooling) -> String {
    match pooling {
        Pooling::Session => expression.to_owned(),
        Pooling::Transaction => {
            format!("(extract(epoch FROM {expression}) * 1000000)::bigint")
        }
    }
}

/// The record in a row in which [`columns`] begin at `first`.
pub(crate) fn record(id: &RecordId, row: &PgRow, first: usize) -> Result<Record, CorruptRow> {
    let columns = Columns { row, first };
    let row = RecordRow {
        id: id.clone(),
        operation: columns.field(0)?,
        fingerprint_encoding: columns.field(1)?,
        fingerprint_profile: columns.field(2)?,
        fingerprint: columns.octets(3)?,
        status: columns.field(4)?,
        origin: columns.octets(5)?,
        token: columns.octets(6)?,
        revision: columns.field(7)?,
        attempt: columns.field(8)?,
        reclaims: columns.field(9)?,
        uncertain: columns.field(10)?,
        contract: columns.field(11)?,
        retention: columns.field(12)?,
        reclaim_window: columns.field(13)?,
        max_reclaims: columns.field(14)?,
        created_at: columns.instant(15)?,
        effect_since: columns.instant(16)?,
        locked_at: columns.instant(17)?,
        locked_until: columns.instant(18)?,
        finished_at: columns.optional_instant(19)?,
        expires_at: columns.optional_instant(20)?,
        recovery_name: columns.field(21)?,
        recovery_attempt: columns.field(22)?,
        recovery_sequence: columns.field(23)?,
        note: columns.field(24)?,
        response_code: columns.field(25)?,
        response_headers: columns.bytes(26)?,
        recovery_data: columns.bytes(27)?,
        response_body: columns.bytes(28)?,
    };
    Record::try_from(row)
}

/// The record in a row in which its scope and its key are at `first`, and the other columns follow.
pub(crate) fn listed(row: &PgRow, first: usize) -> Result<Record, CorruptRow> {
    let corrupt = |column| move |_| CorruptRow::in_column(column);
    let scope: &str = row.try_get(first).map_err(corrupt("scope"))?;
    let key: &str = row.try_get(first + 1).map_err(corrupt("key"))?;
    record(&RecordRow::id(scope, key)?, row, first + 2)
}

/// The instant in this column.
pub(crate) fn timestamp(row: &PgRow, index: usize) -> Result<Timestamp, CorruptRow> {
    let instant: Instant = row
        .try_get(index)
        .map_err(|_| CorruptRow::in_column("clock_timestamp"))?;
    Ok(Timestamp::from_micros(instant.0))
}

struct Columns<'a> {
    row: &'a PgRow,
    first: usize,
}

impl<'a> Columns<'a> {
    /// A value of another type than the column's was not written by this crate.
    fn field<T>(&self, index: usize) -> Result<T, CorruptRow>
    where
        T: Decode<'a, Postgres> + Type<Postgres>,
    {
        self.row
            .try_get(self.first + index)
            .map_err(|_| CorruptRow::in_column(COLUMNS[index]))
    }

    fn instant(&self, index: usize) -> Result<i64, CorruptRow> {
        self.field::<Instant>(index).map(|instant| instant.0)
    }

    fn optional_instant(&self, index: usize) -> Result<Option<i64>, CorruptRow> {
        let instant = self.field::<Option<Instant>>(index)?;
        Ok(instant.map(|instant| instant.0))
    }

    fn bytes(&self, index: usize) -> Result<Option<Bytes>, CorruptRow> {
        let octets = self.field::<Option<Octets>>(index)?;
        Ok(octets.map(|octets| Bytes::from(octets.0)))
    }

    fn octets(&self, index: usize) -> Result<Vec<u8>, CorruptRow> {
        self.field::<Octets>(index).map(|octets| octets.0)
    }
}

/// Microseconds since 1970.
struct Instant(i64);

const TIMESTAMPTZ: Oid = Oid(1184);
const INT8: Oid = Oid(20);

/// Postgres counts from the year 2000.
const EPOCH: i64 = 946_684_800_000_000;

impl Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }

    fn compatible(of: &PgTypeInfo) -> bool {
        matches!(of.oid(), Some(TIMESTAMPTZ | INT8))
    }
}

impl<'r> Decode<'r, Postgres> for Instant {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let since_2000 = i64::from_be_bytes(value.as_bytes()?.try_into()?);
                // The two infinities do not fit, and nothing of ours ends there.
                let micros = since_2000.checked_add(EPOCH);
                micros.map(Self).ok_or_else(|| "an infinite instant".into())
            }
            PgValueFormat::Text => Ok(Self(value.as_str()?.parse()?)),
        }
    }
}

/// Bytes. In text they come in one of two forms, by a setting of the connection.
struct Octets(Vec<u8>);

impl Type<Postgres> for Octets {
    fn type_info() -> PgTypeInfo {
        <Vec<u8> as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Octets {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let is_text = value.format() == PgValueFormat::Text;
        let bytes = value.as_bytes()?;
        if is_text && !bytes.starts_with(b"\\x") {
            return Ok(Self(unescaped(bytes)?));
        }
        <Vec<u8> as Decode<'r, Postgres>>::decode(value).map(Self)
    }
}

/// What `bytea_output = escape` makes of bytes: most stand for themselves, a backslash for itself when there are two, and
/// three octal digits behind one for any other.
fn unescaped(text: &[u8]) -> Result<Vec<u8>, BoxDynError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Ok(bytes),
            [b'\\', b'\\', rest @ ..] => {
                bytes.push(b'\\');
                rest
            }
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                rest @ ..,
            ] => {
                bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest
            }
            [b'\\', ..] => return Err("half an escape".into()),
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
}
