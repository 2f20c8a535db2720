use std::fmt::Write as _;

use bytes::Bytes;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, Encode, PgExecutor, Postgres, Type};

use crate::options::Pooling;

/// A statement that is being written: its text, and its values.
///
/// Straight to a server, values are bound. Through a pooler that hands each transaction to another server, they stand in
/// the text, which is then one message that cannot be torn apart; and since each of them is a number or hexadecimal
/// digits in there, whatever they are, none can be anything but a value.
#[derive(Debug)]
pub(crate) struct Sql {
    text: String,
    values: Values,
    failed: Option<BoxDynError>,
}

#[derive(Debug)]
enum Values {
    Bound(PgArguments),
    Literal,
}

impl Sql {
    pub(crate) fn new(pooling: Pooling) -> Self {
        Self {
            text: String::with_capacity(1024),
            values: match pooling {
                Pooling::Session => Values::Bound(PgArguments::default()),
                Pooling::Transaction => Values::Literal,
            },
            failed: None,
        }
    }

    /// More of the text.
    pub(crate) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub(crate) fn string(&mut self, value: &str) -> &mut Self {
        self.value(value, "text", literal_string)
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.value(value, "bytea", literal_bytes)
    }

    pub(crate) fn integer(&mut self, value: i64) -> &mut Self {
        self.value(value, "bigint", |text, value| {
            let _ = write!(text, "{value}");
        })
    }

    pub(crate) fn optional_bytes(&mut self, value: Option<&[u8]>) -> &mut Self {
        self.value(value, "bytea", |text, value| match value {
            Some(value) => literal_bytes(text, value),
            None => text.push_str("NULL"),
        })
    }

    pub(crate) fn strings<'v>(&mut self, values: impl Iterator<Item = &'v str>) -> &mut Self {
        self.array(values, "text", literal_string)
    }

    pub(crate) fn byte_strings<'v>(&mut self, values: impl Iterator<Item = &'v [u8]>) -> &mut Self {
        self.array(values, "bytea", literal_bytes)
    }

    /// Owner tokens and origins.
    pub(crate) fn tokens(&mut self, values: impl Iterator<Item = [u8; 16]>) -> &mut Self {
        self.array(values, "bytea", |text, value| literal_bytes(text, &value))
    }

    pub(crate) fn optional_byte_strings<'v>(
        &mut self,
        values: impl Iterator<Item = Option<&'v [u8]>>,
    ) -> &mut Self {
        self.array(values, "bytea", |text, value| match value {
            Some(value) => literal_bytes(text, value),
            None => text.push_str("NULL"),
        })
    }

    pub(crate) fn integers(&mut self, values: impl Iterator<Item = i64>) -> &mut Self {
        self.array(values, "bigint", |text, value| {
            let _ = write!(text, "{value}");
        })
    }

    pub(crate) fn booleans(&mut self, values: impl Iterator<Item = bool>) -> &mut Self {
        self.array(values, "boolean", |text, value| {
            text.push_str(if value { "true" } else { "false" });
        })
    }

    /// The statement that tells how this one would be carried out, and does not do it.
    pub(crate) fn explained(mut self) -> Self {
        self.text.insert_str(0, "EXPLAIN ");
        self
    }

    /// Sends it, and reads the answer to its end: before that, nothing is committed.
    pub(crate) async fn fetch(self, executor: impl PgExecutor<'_>) -> sqlx::Result<Vec<PgRow>> {
        if let Some(error) = self.failed {
            return Err(sqlx::Error::Encode(error));
        }
        // Every name in it was checked, and no value is in it but as digits.
        let text = AssertSqlSafe(self.text);
        match self.values {
            Values::Bound(arguments) => sqlx::query_with(text, arguments).fetch_all(executor).await,
            Values::Literal => sqlx::raw_sql(text).fetch_all(executor).await,
        }
    }

    fn value<'v, T>(&mut self, value: T, name: &str, literal: impl Fn(&mut String, T)) -> &mut Self
    where
        T: Encode<'v, Postgres> + Type<Postgres> + 'v,
    {
        match &mut self.values {
            Values::Bound(arguments) => {
                if let Err(error) = arguments.add(value) {
                    self.failed = Some(error);
                }
                // Writing to a string cannot fail, here and below.
                let _ = write!(self.text, "${}", arguments.len());
            }
            Values::Literal => literal(&mut self.text, value),
        }
        let _ = write!(self.text, "::{name}");
        self
    }

    fn array<'v, T>(
        &mut self,
        values: impl Iterator<Item = T>,
        name: &str,
        literal: impl Fn(&mut String, T),
    ) -> &mut Self
    where
        T: 'v,
        Vec<T>: Encode<'v, Postgres> + Type<Postgres>,
    {
        match &mut self.values {
            Values::Bound(arguments) => {
                if let Err(error) = arguments.add(values.collect::<Vec<T>>()) {
                    self.failed = Some(error);
                }
                let _ = write!(self.text, "${}", arguments.len());
            }
            Values::Literal => {
                self.text.push_str("ARRAY[");
                for (index, value) in values.enumerate() {
                    if index > 0 {
                        self.text.push(',');
                    }
                    literal(&mut self.text, value);
                }
                self.text.push(']');
            }
        }
        let _ = write!(self.text, "::{name}[]");
        self
    }
}

/// Without a backslash, which means one thing or another by a setting of the connection.
fn literal_bytes(text: &mut String, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(value.len() * 2 + 16);
    text.push_str("decode('");
    for byte in value {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push_str("','hex')");
}

fn literal_string(text: &mut String, value: &str) {
    text.push_str("convert_from(");
    literal_bytes(text, value.as_bytes());
    text.push_str(",'UTF8')");
}

/// Bytes as a slice, for [`Sql::optional_bytes`].
pub(crate) fn slice(bytes: Option<&Bytes>) -> Option<&[u8]> {
    bytes.map(|bytes| &**bytes)
}
