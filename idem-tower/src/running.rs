use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::{Operation, RecordId};
use tokio::time::Instant;

/// The handlers that are running, for whoever has to say what a shutdown left.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    next: u64,
    works: BTreeMap<u64, Work>,
}

#[derive(Debug, Clone)]
struct Work {
    id: RecordId,
    operation: Operation,
    since: Instant,
}

/// One that is running for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Entry {
    running: Arc<Running>,
    number: u64,
}

impl Running {
    pub(crate) fn enter(self: &Arc<Self>, id: RecordId, operation: Operation) -> Entry {
        let mut listed = self.lock();
        let number = listed.next;
        listed.next += 1;
        let since = Instant::now();
        listed.works.insert(
            number,
            Work {
                id,
                operation,
                since,
            },
        );
        drop(listed);
        Entry {
            running: Arc::clone(self),
            number,
        }
    }

    pub(crate) fn left(&self) -> Vec<Left> {
        let works: Vec<Work> = self.lock().works.values().cloned().collect();
        let left = |work: Work| Left {
            record: work.id.to_string(),
            operation: work.operation,
            running_for: work.since.elapsed(),
        };
        works.into_iter().map(left).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.lock().works.remove(&self.number);
    }
}

/// What [`IdempotencyLayer::drain`](crate::IdempotencyLayer::drain) found when its time was over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// The handlers that were still running. What they do after the process ends they do not do, and nobody knows
    /// how far they got: their leases run out, and then their contracts say what happens.
    pub left: Vec<Left>,
    /// How many claims, attempts and outcomes to be stored were under way in all, those handlers included.
    pub in_flight: usize,
}

impl Drained {
    /// Whether nothing was left.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.in_flight == 0 && self.left.is_empty()
    }
}

/// A handler that was still running.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// The hash of its scope and key, as logs show it.
    pub record: String,
    /// What it is for.
    pub operation: Operation,
    /// For how long it has been running.
    pub running_for: Duration,
}
