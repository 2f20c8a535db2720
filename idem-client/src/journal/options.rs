use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use idem_core::Clock;

use super::{Journal, JournalError, SystemClock};

/// How a [`Journal`] is opened.
///
/// ```
/// use std::time::Duration;
/// use idem_client::JournalOptions;
///
/// # async fn open() -> Result<(), idem_client::JournalError> {
/// let journal = JournalOptions::new().busy_timeout(Duration::from_secs(30)).open("sent.db").await?;
/// # let _ = journal; Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct JournalOptions {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) busy_timeout: Duration,
    pub(crate) filesystem: FilesystemPolicy,
}

/// What to do about a network filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilesystemPolicy {
    RefuseNetwork,
    Trust,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
            filesystem: FilesystemPolicy::RefuseNetwork,
        }
    }
}

impl JournalOptions {
    /// The usual ones.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another clock than the host's, for tests. Everybody who opens the same file must see the same.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long a call waits for another process that writes. By default it is 5 seconds.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Accepts any filesystem. Without this the ones that are known to be on another machine are refused on Linux, since their
    /// locks have lost many a database, and are what keeps two processes from sending one operation at once.
    pub fn trust_filesystem(mut self) -> Self {
        self.filesystem = FilesystemPolicy::Trust;
        self
    }

    /// Opens the journal in this file, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// As [`Journal::open`].
    pub async fn open(self, path: impl AsRef<Path>) -> Result<Journal, JournalError> {
        let path = std::path::absolute(path.as_ref()).map_err(|error| {
            JournalError::new(
                super::JournalErrorKind::Misplaced,
                "this path names no file; a journal is in one",
            )
            .because(error)
        })?;
        Journal::start(Some(path), self).await
    }

    /// Opens a journal that is in memory: what it holds is gone with the process.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when the system gives no thread or no memory for it.
    pub async fn open_in_memory(self) -> Result<Journal, JournalError> {
        Journal::start(None, self).await
    }
}
