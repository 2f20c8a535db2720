use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::wire::{Reader, Writer};

/// The header lines of a stored [`Response`](super::Response): in order, with repeats, and byte for byte.
///
/// Values are bytes and not text, since a header value may hold what is not UTF-8, and lines are not merged
/// by name, since `Set-Cookie` cannot be.
///
/// `Debug` shows the names only.
///
/// ```
/// use idem_core::Headers;
///
/// let mut headers = Headers::new();
/// headers.push("set-cookie", "a=1");
/// headers.push("set-cookie", "b=2");
/// assert_eq!(headers.iter().count(), 2);
/// assert_eq!(Headers::decode(headers.encode())?, headers);
/// # Ok::<(), idem_core::MalformedHeaders>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Headers(Vec<(Bytes, Bytes)>);

impl Headers {
    /// No lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line after the others.
    pub fn push(&mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// The lines in order, as name and value.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Bytes, &Bytes)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The value of the first line with this name, whatever the name's case.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&Bytes> {
        self.iter()
            .find(|(held, _)| held.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// How many lines there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines as one value for a column: version, number of lines, then each name and value behind its
    /// length.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let bytes: usize = self
            .0
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum();
        let mut writer = Writer::with_capacity(bytes + 5);
        writer.raw(&[VERSION]);
        writer.u32(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        for (name, value) in &self.0 {
            writer.bytes(name);
            writer.bytes(value);
        }
        writer.finish().into()
    }

    /// Reads what [`Headers::encode`] wrote. The lines share its allocation.
    ///
    /// # Errors
    ///
    /// [`MalformedHeaders`] when it is anything else.
    pub fn decode(encoded: Bytes) -> Result<Self, MalformedHeaders> {
        let mut reader = Reader::new(encoded);
        let mut lines = Vec::new();
        let read = |reader: &mut Reader, lines: &mut Vec<_>| {
            if reader.array()? != [VERSION] {
                return Err(reader.malformed());
            }
            // The count is not trusted with an allocation: a line that is not there ends the loop.
            for _ in 0..reader.u32()? {
                lines.push((reader.bytes()?, reader.bytes()?));
            }
            Ok(())
        };
        read(&mut reader, &mut lines)
            .and_then(|()| reader.finish())
            .map_err(|malformed| MalformedHeaders {
                offset: malformed.offset,
            })?;
        Ok(Self(lines))
    }
}

/// The version of the encoding, its first byte.
const VERSION: u8 = 1;

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|(name, _)| String::from_utf8_lossy(name));
        f.debug_list().entries(names).finish()
    }
}

impl<N: Into<Bytes>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(lines: I) -> Self {
        Self(
            lines
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// Stored header lines that [`Headers::encode`] did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("stored headers are malformed at byte {offset}")]
pub struct MalformedHeaders {
    /// Where reading stopped.
    pub offset: usize,
}
