//! Length-prefixed bytes: the one encoding behind stored headers and the records of key-value stores.
//!
//! Lengths are 32-bit big-endian. Reading is strict: a length that points outside, a flag that is neither 0
//! nor 1, or a byte left over is an error.

use bytes::Bytes;
use thiserror::Error;

/// Stored bytes that are not what this version writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("stored bytes are malformed at byte {offset}")]
pub(crate) struct Malformed {
    pub(crate) offset: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.raw(&number.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, number: i64) {
        self.raw(&number.to_be_bytes());
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    /// Bytes behind their length. Everything that is written here is bounded far below 4 GiB by its own type;
    /// what is not (a body) is checked against a store's limit first, and a length that did not fit would be
    /// caught by the reader as malformed.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.raw(bytes);
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn malformed(&self) -> Malformed {
        Malformed { offset: self.at }
    }

    /// The next so many bytes, sharing the allocation that they are read from.
    fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        let end = self
            .at
            .checked_add(count)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(self.malformed())?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let error = self.malformed();
        self.take(N)?.as_ref().try_into().map_err(|_| error)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        let error = self.malformed();
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(error),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let count = self.u32()?;
        self.take(usize::try_from(count).map_err(|_| self.malformed())?)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let error = self.malformed();
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| error)
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }
}
