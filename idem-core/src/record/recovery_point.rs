use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use super::AttemptNumber;

/// Where an attempt has got to, so that the next one can go on from there: a name and, if need be, what has to
/// be known to go on.
///
/// `Debug` shows the name and the length of the data.
///
/// ```
/// use idem_core::RecoveryPoint;
///
/// let point = RecoveryPoint::new("charged")?.with_data("ch_3MmlLrLkdIwHu7ix")?;
/// assert_eq!(point.name(), "charged");
/// # Ok::<(), idem_core::InvalidRecoveryPoint>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RecoveryPoint {
    name: Arc<str>,
    data: Option<Bytes>,
}

impl RecoveryPoint {
    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;
    /// The most data, in bytes.
    pub const MAX_DATA_BYTES: usize = 256 * 1024;

    /// A recovery point without data.
    ///
    /// # Errors
    ///
    /// [`InvalidRecoveryPoint`] when the name is empty, too long, or holds a NUL.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidRecoveryPoint> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > Self::MAX_NAME_BYTES || name.contains('\0') {
            return Err(InvalidRecoveryPoint::Name);
        }
        Ok(Self {
            name: name.into(),
            data: None,
        })
    }

    /// This recovery point with data. No data and empty data are two things.
    ///
    /// # Errors
    ///
    /// [`InvalidRecoveryPoint`] when it is more than [`RecoveryPoint::MAX_DATA_BYTES`].
    pub fn with_data(mut self, data: impl Into<Bytes>) -> Result<Self, InvalidRecoveryPoint> {
        let data = data.into();
        if data.len() > Self::MAX_DATA_BYTES {
            return Err(InvalidRecoveryPoint::Data { bytes: data.len() });
        }
        self.data = Some(data);
        Ok(self)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The data, if there is any.
    #[must_use]
    pub fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }
}

impl fmt::Debug for RecoveryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.data.as_ref().map(Bytes::len);
        f.debug_struct("RecoveryPoint")
            .field("name", &self.name)
            .field("data_bytes", &bytes)
            .finish()
    }
}

/// Why a text and its data are not a [`RecoveryPoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRecoveryPoint {
    /// The name is empty, too long, or holds a NUL.
    #[error(
        "the name of a recovery point has 1 to {} bytes and no NUL",
        RecoveryPoint::MAX_NAME_BYTES
    )]
    Name,
    /// There is too much data.
    #[error(
        "a recovery point holds at most {} bytes of data, not {bytes}; keep a reference in it and the data elsewhere",
        RecoveryPoint::MAX_DATA_BYTES
    )]
    Data {
        /// How much there is.
        bytes: usize,
    },
}

/// A [`RecoveryPoint`] as stored, with its place in time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// Where the work had got to.
    pub point: RecoveryPoint,
    /// Which attempt said so.
    pub attempt: AttemptNumber,
    /// Which of that attempt's checkpoints it was. A delayed one is known by a lower number.
    pub sequence: u32,
}
