//! An honest store over the database, and the places where a saboteur can put his hands.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_core::{
    Applied, Claim, ClaimOutcome, Expect, KeyStore, Moment, Record, RecordId, Rejected, Snapshot,
    StoreError, Swept, Timestamp, Transition, TransitionOutcome,
};
use tokio::sync::Semaphore;

use super::database::Database;

/// What can be broken. Everything that is not overridden is honest.
#[async_trait]
pub(crate) trait Sabotage: Debug + Send + Sync + 'static {
    /// Under what a record is kept.
    fn folded(&self, id: &RecordId) -> RecordId {
        id.clone()
    }

    /// As what a held record is judged by the guard of a transition, and under which expectation.
    fn judged(
        &self,
        _held: &mut Record,
        _expect: &mut Expect,
        _change: &Transition,
        _now: Timestamp,
    ) {
    }

    /// What becomes of a record on its way into the database.
    fn written(
        &self,
        _record: &mut Record,
        _before: Option<&Record>,
        _change: Option<&Transition>,
    ) {
    }

    /// What time it is.
    fn now(&self, database: &Database) -> Timestamp {
        database.now()
    }

    /// Whether a write is synced before it is acknowledged.
    fn syncs(&self, _change: Option<&Transition>) -> Synced {
        Synced::Yes
    }

    /// What happens to the connection of a call.
    fn connection(&self) -> Connection {
        Connection::GivenBack
    }

    /// Whether a store beside another has a table of its own.
    fn isolates(&self) -> bool {
        true
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }

    async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        engine.claim(claim)
    }

    async fn transition(
        &self,
        engine: Engine<'_>,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        engine.transition(id, expect, change)
    }

    async fn load(
        &self,
        engine: Engine<'_>,
        id: &RecordId,
    ) -> Result<Option<Snapshot>, StoreError> {
        engine.load(id)
    }

    async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Result<Swept, StoreError> {
        engine.sweep(limit)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synced {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Whatever happens.
    GivenBack,
    /// Unless the call is dropped.
    LeakedWhenDropped,
    /// When the work of a claim is done.
    HeldUntilFinished,
}

/// The honest store, without its awaits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine<'a> {
    pub(crate) database: &'a Database,
    pub(crate) sabotage: &'a dyn Sabotage,
}

/// What a caller is asked to wait.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(1);

impl Engine<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        self.sabotage.now(self.database)
    }

    pub(crate) fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        let id = self.sabotage.folded(claim.id());
        let mut tables = self.database.tables();
        known(tables.unknown.contains(&id), &id)?;
        if tables.is_uncommitted(&id) {
            return Ok(ClaimOutcome::Contended {
                retry_after: RETRY_AFTER,
            });
        }
        let now = self.now();
        if let Some(held) = tables.live.get(&id) {
            return Ok(ClaimOutcome::Held(Snapshot::new(held.clone(), now)));
        }
        let mut record = claim.first_record(now);
        self.sabotage.written(&mut record, None, None);
        self.write(&mut tables, &id, Some(record.clone()), None);
        Ok(ClaimOutcome::Won(Snapshot::new(record, now)))
    }

    pub(crate) fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        change.patch(expect)?;
        let id = self.sabotage.folded(id);
        let mut tables = self.database.tables();
        known(tables.unknown.contains(&id), &id)?;
        if tables.is_uncommitted(&id) {
            return Ok(TransitionOutcome::Contended {
                retry_after: RETRY_AFTER,
            });
        }
        let now = self.now();
        let Some(held) = tables.live.get(&id).cloned() else {
            return Ok(TransitionOutcome::Lost(None));
        };
        let (mut judged, mut expected) = (held.clone(), expect);
        self.sabotage
            .judged(&mut judged, &mut expected, change, now);
        match judged.apply(expected, change, Moment::exact(now)) {
            Ok(Applied::Changed(mut next)) => {
                if !matches!(change, Transition::Restart(_)) {
                    next.terms = held.terms;
                }
                self.sabotage.written(&mut next, Some(&held), Some(change));
                let revision = next.revision;
                self.write(&mut tables, &id, Some(*next), Some(change));
                Ok(TransitionOutcome::Applied { revision, now })
            }
            Ok(Applied::Removed) => {
                self.write(&mut tables, &id, None, Some(change));
                Ok(TransitionOutcome::Applied {
                    revision: held.revision,
                    now,
                })
            }
            Err(Rejected::Misuse(misuse)) => Err(misuse.into()),
            Ok(Applied::Unchanged) | Err(_) => {
                Ok(TransitionOutcome::Lost(Some(Snapshot::new(held, now))))
            }
        }
    }

    pub(crate) fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let id = self.sabotage.folded(id);
        let tables = self.database.tables();
        known(tables.unknown.contains(&id), &id)?;
        let now = self.now();
        let held = tables.live.get(&id);
        Ok(held.map(|record| Snapshot::new(record.clone(), now)))
    }

    pub(crate) fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.sweep_if(limit, Record::is_expired)
    }

    /// Sweeps what this says.
    pub(crate) fn sweep_if(
        &self,
        limit: NonZeroU32,
        due: impl Fn(&Record, Moment) -> bool,
    ) -> Result<Swept, StoreError> {
        let moment = Moment::exact(self.now());
        let mut tables = self.database.tables();
        let mut swept = Swept::default();
        let mut removed = Vec::new();
        for (id, record) in &tables.live {
            if tables.unknown.contains(id) || tables.is_uncommitted(id) {
                continue;
            }
            if record.is_stuck(moment) && swept.stuck < limit.get() {
                swept.stuck += 1;
            }
            if due(record, moment) && swept.removed < limit.get() {
                swept.removed += 1;
                removed.push(id.clone());
            }
        }
        for id in removed {
            self.write(&mut tables, &id, None, None);
        }
        Ok(swept)
    }

    fn write(
        &self,
        tables: &mut super::database::Tables,
        id: &RecordId,
        record: Option<Record>,
        change: Option<&Transition>,
    ) {
        match self.sabotage.syncs(change) {
            Synced::Yes => tables.write(id, record),
            Synced::No => tables.write_unsynced(id, record),
        }
    }

    /// Puts a record there, whatever was there.
    pub(crate) fn put(&self, id: &RecordId, record: Record) {
        self.database
            .tables()
            .write(&self.sabotage.folded(id), Some(record));
    }

    pub(crate) fn remove(&self, id: &RecordId) {
        self.database
            .tables()
            .write(&self.sabotage.folded(id), None);
    }

    pub(crate) fn held(&self, id: &RecordId) -> Option<Record> {
        let id = self.sabotage.folded(id);
        self.database.tables().live.get(&id).cloned()
    }

    pub(crate) fn snapshot(&self, record: Record) -> Snapshot {
        Snapshot::new(record, self.now())
    }
}

fn known(unknown: bool, id: &RecordId) -> Result<(), StoreError> {
    if unknown {
        return Err(StoreError::corrupt("status").about(id));
    }
    Ok(())
}

/// A store: honest, but for one thing.
#[derive(Debug)]
pub struct Broken {
    database: Arc<Database>,
    sabotage: Box<dyn Sabotage>,
    connections: Semaphore,
}

impl Broken {
    pub(crate) fn new(
        database: Arc<Database>,
        sabotage: Box<dyn Sabotage>,
        connections: usize,
    ) -> Self {
        Self {
            database,
            sabotage,
            connections: Semaphore::new(connections),
        }
    }

    /// A connection for the time of a call, with an await before and after the work, where a call can be dropped
    /// or overtaken.
    async fn connected<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let permit = self
            .connections
            .acquire()
            .await
            .map_err(|_| StoreError::unavailable("taking a connection"))?;
        match self.sabotage.connection() {
            Connection::LeakedWhenDropped => {
                permit.forget();
                let answer = working(work).await;
                self.connections.add_permits(1);
                answer
            }
            Connection::GivenBack | Connection::HeldUntilFinished => {
                let answer = working(work).await;
                drop(permit);
                answer
            }
        }
    }

    fn engine(&self) -> Engine<'_> {
        Engine {
            database: &self.database,
            sabotage: &*self.sabotage,
        }
    }
}

async fn working<T>(work: impl Future<Output = T>) -> T {
    tokio::task::yield_now().await;
    let answer = work.await;
    tokio::task::yield_now().await;
    answer
}

#[async_trait]
impl KeyStore for Broken {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        let outcome = self
            .connected(self.sabotage.claim(self.engine(), claim))
            .await?;
        if self.sabotage.connection() == Connection::HeldUntilFinished
            && let ClaimOutcome::Won(_) = outcome
            && let Ok(permit) = self.connections.acquire().await
        {
            permit.forget();
        }
        Ok(outcome)
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        let finishes = !matches!(
            change,
            Transition::Renew { .. } | Transition::Checkpoint { .. }
        );
        if finishes && self.sabotage.connection() == Connection::HeldUntilFinished {
            self.connections.add_permits(1);
        }
        self.connected(self.sabotage.transition(self.engine(), id, expect, change))
            .await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.connected(self.sabotage.load(self.engine(), id)).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.connected(self.sabotage.sweep(self.engine(), limit))
            .await
    }

    fn refusal_staleness(&self) -> Duration {
        self.sabotage.refusal_staleness()
    }
}
