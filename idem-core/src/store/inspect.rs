use std::num::NonZeroU32;

use async_trait::async_trait;

use crate::identity::{RecordId, Scope};
use crate::record::{Moment, Record, Snapshot, Status};
use crate::time::Timestamp;

use super::{KeyStore, StoreError};

/// What operators need beside [`KeyStore`]: to count records and to list them.
///
/// To resolve one, an operator looks at it and sends
/// [`Transition::Resolve`](crate::Transition::Resolve) under
/// [`Expect::unchanged`](crate::Expect::unchanged) of what was shown, so that a record which moved on in the
/// meantime is left alone.
#[async_trait]
pub trait Inspect: KeyStore {
    /// How many records there are of each kind. May read the whole table.
    ///
    /// # Errors
    ///
    /// [`StoreError`] as for every read.
    async fn count(&self) -> Result<Counts, StoreError>;

    /// Up to `limit` records that the filter lets through, in one fixed order of the store's, from the first one after
    /// `after`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] as for every read; a corrupt row among them is an error, not a gap.
    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError>;
}

/// Which records to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those of this scope, if there is one.
    pub scope: Option<Scope>,
    /// And only these.
    pub selection: Selection,
}

/// A kind of record that operators ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Selection {
    /// Every record.
    #[default]
    All,
    /// Those that are not [finished](crate::Record::is_finished): in progress, or failed with an unknown outcome.
    Unresolved,
    /// Those that are in progress past their lease: stuck right now.
    Stuck,
}

/// How many records a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// In progress, stuck or not.
    pub in_progress: u64,
    /// Completed.
    pub completed: u64,
    /// Failed for good.
    pub failed_final: u64,
    /// Failed without an answer.
    pub failed_retryable: u64,
    /// Among those in progress: past their lease.
    pub stuck: u64,
    /// Among those that failed without an answer: uncertain ones, whose outcome nobody knows.
    pub uncertain_failures: u64,
    /// Expired, and not yet swept.
    pub expired: u64,
    /// When the lease of the one that is stuck the longest was over.
    pub oldest_stuck: Option<Timestamp>,
}

impl Filter {
    /// Whether the filter lets this record through.
    #[must_use]
    pub fn admits(&self, record: &Record, moment: Moment) -> bool {
        self.scope
            .as_ref()
            .is_none_or(|scope| scope == record.id.scope())
            && match self.selection {
                Selection::All => true,
                Selection::Unresolved => !record.is_finished(),
                Selection::Stuck => record.is_stuck(moment),
            }
    }
}

impl Counts {
    /// Counts this record as well. For stores that look at every record.
    pub fn add(&mut self, record: &Record, moment: Moment) {
        match record.status() {
            Status::InProgress => self.in_progress += 1,
            Status::Completed => self.completed += 1,
            Status::FailedFinal => self.failed_final += 1,
            Status::FailedRetryable => {
                self.failed_retryable += 1;
                self.uncertain_failures += u64::from(record.uncertain);
            }
        }
        self.expired += u64::from(record.is_expired(moment));
        if record.is_stuck(moment) {
            self.stuck += 1;
            let since = record.locked_until;
            self.oldest_stuck = Some(self.oldest_stuck.map_or(since, |oldest| oldest.min(since)));
        }
    }
}
