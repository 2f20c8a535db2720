use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where the provider writes down the money that it moved: one line of JSON for each movement, only ever added
/// to.
///
/// It is also the provider's memory of the keys that it was sent, so the two cannot disagree.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    entries: Vec<Entry>,
}

/// One movement of money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The provider's name for it.
    pub id: String,
    /// Whose it is: the account that asked for it.
    pub account: String,
    /// Which way the money went.
    pub kind: Kind,
    /// How much, in the currency's smallest unit.
    pub amount: u64,
    /// The currency, in lower case; of a refund it is that of its charge.
    pub currency: String,
    /// The card, or the charge that is refunded.
    pub source: String,
    /// What the customer calls it.
    pub description: String,
    /// The key that it was asked for with.
    pub key: String,
}

/// Which way money went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// From the card.
    Charge,
    /// Back to the card.
    Refund,
}

impl Ledger {
    /// Opens a ledger, or begins one.
    ///
    /// # Errors
    ///
    /// [`LedgerError`] when it cannot be read, or holds what is no entry.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let failed = |source| LedgerError::Io {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(failed)?;
        Ok(Self {
            file,
            entries: Self::read(path)?,
        })
    }

    /// What a ledger holds, read from its file by anybody.
    ///
    /// # Errors
    ///
    /// [`LedgerError`] when it cannot be read, or holds what is no entry.
    pub fn read(path: &Path) -> Result<Vec<Entry>, LedgerError> {
        let text = std::fs::read_to_string(path).map_err(|source| LedgerError::Io {
            path: path.to_owned(),
            source,
        })?;
        let entry = |(index, line)| {
            serde_json::from_str(line).map_err(|source| LedgerError::NotAnEntry {
                line: index + 1,
                source,
            })
        };
        text.lines().enumerate().map(entry).collect()
    }

    /// The entry that was made with this key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The charge of this name, if it is this account's.
    #[must_use]
    pub fn charge(&self, account: &str, id: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.kind == Kind::Charge && entry.account == account && entry.id == id)
    }

    /// Whether this charge has been given back.
    #[must_use]
    pub fn is_refunded(&self, charge: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.kind == Kind::Refund && entry.source == charge)
    }

    /// The name for the next entry.
    #[must_use]
    pub fn next_id(&self, kind: Kind) -> String {
        let prefix = match kind {
            Kind::Charge => "ch",
            Kind::Refund => "re",
        };
        format!("{prefix}_{:04}", self.entries.len() + 1)
    }

    /// Adds an entry. When this returns, it is on disk.
    ///
    /// # Errors
    ///
    /// When it could not be written.
    pub fn append(&mut self, entry: Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.entries.push(entry);
        Ok(())
    }
}

/// Why a ledger cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The file cannot be read or written.
    #[error("the ledger {} cannot be opened", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is no entry.
    #[error(
        "line {line} of the ledger is no entry: it was not written by this program, or not to its end"
    )]
    NotAnEntry {
        /// Which line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}
