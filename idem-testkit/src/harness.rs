use std::time::Duration;

use async_trait::async_trait;
use idem_core::{Claim, KeyStore, RecordId, Span};
use thiserror::Error;

/// How the suite gets at a store: what a backend writes to be tested.
///
/// Two methods are required. [`create`](Harness::create) makes a place for data that nobody else uses, and
/// [`open`](Harness::open) opens a store on it; the suite calls `open` again to look at the same data with fresh
/// eyes. Everything else is a hook: a backend that has it is tested more, and one that has it not sees the
/// cases that need it reported as skipped, with the reason.
///
/// ```
/// use std::sync::Arc;
///
/// use idem_core::{async_trait, ManualClock, MemoryKeyStore, Timestamp};
/// use idem_testkit::{Harness, Unavailable};
///
/// struct Memory;
///
/// #[async_trait]
/// impl Harness for Memory {
///     type Data = Arc<MemoryKeyStore<ManualClock>>;
///     type Store = Arc<MemoryKeyStore<ManualClock>>;
///
///     async fn create(&self) -> Result<Self::Data, Unavailable> {
///         Ok(Arc::new(MemoryKeyStore::new(ManualClock::new(Timestamp::from_micros(0)))))
///     }
///
///     async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
///         Ok(data.clone())
///     }
/// }
///
/// mod memory {
///     idem_testkit::conformance!(super::Memory);
/// }
/// # fn main() {}
/// ```
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Where the records of one case are: a directory, a schema, a map. Dropping it cleans up, after
    /// [`destroy`](Harness::destroy) did what cannot be done in a `Drop`.
    type Data: Send + Sync + 'static;
    /// The store that is tested.
    type Store: KeyStore + 'static;

    /// A new place without any records, which no other case sees.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when the database cannot be reached: the case is skipped, and under `CI=true` it fails.
    async fn create(&self) -> Result<Self::Data, Unavailable>;

    /// A store on this data. Called once for each case, again after the first store was dropped, and, if
    /// [`instances`](Harness::instances) says so, while it is open.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], as for [`create`](Harness::create).
    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable>;

    /// Removes what dropping the data cannot. Called at the end of every case, and after a failed one too.
    async fn destroy(&self, data: &Self::Data) {
        let _ = data;
    }

    /// Whether several stores can be open on the same data at once.
    fn instances(&self) -> Instances {
        Instances::Many
    }

    /// The longest that a call may wait for somebody else's uncommitted write before it answers
    /// [`Contended`](idem_core::ClaimOutcome::Contended) or fails.
    fn contention_bound(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// A store on this data with a single connection, or whatever else it shares out among its calls.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden: calls of this store hold nothing that could run out.
    async fn open_with_one_connection(&self, data: &Self::Data) -> Result<Self::Store, Missing> {
        let _ = data;
        Err(Missing::hook("open_with_one_connection"))
    }

    /// A store in the same database that is meant to have nothing in common with the first: another table
    /// prefix, another namespace.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden: the store has no such setting.
    async fn open_beside(&self, data: &Self::Data) -> Result<Self::Store, Missing> {
        let _ = data;
        Err(Missing::hook("open_beside"))
    }

    /// Moves the clock that the store goes by.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden: the store has a real clock.
    async fn advance(&self, data: &Self::Data, by: Span) -> Result<(), Missing> {
        let _ = (data, by);
        Err(Missing::hook("advance"))
    }

    /// Loses everything that would not survive a loss of power. The stores that were open are dropped first.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden.
    async fn crash(&self, data: &Self::Data) -> Result<(), Missing> {
        let _ = data;
        Err(Missing::hook("crash"))
    }

    /// Gives the record of this id, which exists, a status that this version does not know, as a newer version
    /// might have written.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden: the suite cannot reach behind the store.
    async fn corrupt(&self, data: &Self::Data, id: &RecordId) -> Result<(), Missing> {
        let _ = (data, id);
        Err(Missing::hook("corrupt"))
    }

    /// Begins a write in a transaction of somebody else, and leaves it open.
    ///
    /// # Errors
    ///
    /// [`Missing`], unless overridden: the store has no uncommitted rows.
    async fn interfere(
        &self,
        data: &Self::Data,
        write: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        let _ = (data, write);
        Err(Missing::hook("interfere"))
    }
}

/// Whether several stores can be open on the same data at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instances {
    /// Any number, in this process or in others.
    Many,
    /// One. A second one cannot be opened before the first is dropped.
    One,
}

/// What somebody else is just writing.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Foreign<'a> {
    /// The first record of a claim, for an id that has none.
    Creating(&'a Claim),
    /// The record of this id, which exists: it is locked, and nothing of it changes.
    Locking(&'a RecordId),
}

/// A write of somebody else that is neither committed nor rolled back. Dropping it rolls it back.
#[async_trait]
pub trait OpenWrite: Send + Sync {
    /// Commits it.
    async fn commit(self: Box<Self>);

    /// Rolls it back.
    async fn roll_back(self: Box<Self>);

    /// Whether it keeps every other write of the database waiting, and not only those to the same id.
    fn scope(&self) -> LockScope;
}

/// What an open write keeps waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockScope {
    /// Writes to the same id.
    Record,
    /// Every write.
    Database,
}

/// The database cannot be reached, so nothing can be said about the store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the store cannot be opened: {reason}")]
pub struct Unavailable {
    reason: String,
}

impl Unavailable {
    /// It cannot be reached, for this reason.
    #[must_use]
    pub fn new(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
        }
    }
}

/// Something that a case needs and that this backend does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Missing {
    reason: String,
}

impl Missing {
    /// It is missing, for this reason.
    #[must_use]
    pub fn new(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
        }
    }

    /// The harness does not override this hook.
    #[must_use]
    pub(crate) fn hook(name: &str) -> Self {
        Self::new(format!("the harness has no `{name}`"))
    }
}
