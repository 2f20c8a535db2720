use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::identity::RecordId;
use crate::machine::{Applied, Claim, Expect, Rejected, Transition};
use crate::record::{Moment, Record, Snapshot};
use crate::store::{
    ClaimOutcome, Counts, Filter, Inspect, KeyStore, StoreError, Swept, TransitionOutcome,
};

use super::{Entry, KeyValue, codec};

/// A [`KeyStore`] over a [`KeyValue`] database.
///
/// A transition reads the record, asks [`Record::apply`], and replaces the value if it is unchanged; when it
/// changed, it reads again. So every write is a compare-and-swap on the whole record. After sixteen lost races
/// in a row a call answers `Contended`.
#[derive(Debug, Clone)]
pub struct KeyValueStore<K> {
    database: K,
}

/// How often a call reads again after it lost a race. Each loss means that somebody else's write succeeded.
const RACES: u32 = 16;

/// What a caller is asked to wait after as many lost races.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// How many entries a count or a listing reads at a time.
const PAGE: NonZeroU32 = NonZeroU32::new(256).unwrap();

impl<K: KeyValue> KeyValueStore<K> {
    /// A store over this database.
    pub fn new(database: K) -> Self {
        Self { database }
    }

    /// The database.
    pub fn database(&self) -> &K {
        &self.database
    }

    async fn read(&self, key: &[u8], id: &RecordId) -> Result<Option<Held>, StoreError> {
        let Some(value) = self.database.get(key).await? else {
            return Ok(None);
        };
        let record = decode(&value).map_err(|error| error.about(id))?;
        if record.id != *id {
            return Err(StoreError::corrupt("the value of another key").about(id));
        }
        Ok(Some(Held { value, record }))
    }

    async fn snapshot(&self, record: Record) -> Result<Snapshot, StoreError> {
        Ok(snapshot(record, self.database.moment().await?))
    }

    /// Every record, page by page, until `visit` breaks off with what the walk came to. What cannot be read is
    /// shown to it as well.
    async fn walk(
        &self,
        after: Option<Vec<u8>>,
        mut visit: impl FnMut(Result<Record, StoreError>) -> ControlFlow<Result<(), StoreError>> + Send,
    ) -> Result<(), StoreError> {
        let mut after: Option<Bytes> = after.map(Bytes::from);
        loop {
            let page = self.database.scan(after.as_deref(), PAGE).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = Some(last.key.clone());
            for entry in page {
                if let ControlFlow::Break(end) = visit(decode(&entry.value)) {
                    return end;
                }
            }
        }
    }
}

fn go_on_while(wanted: bool) -> ControlFlow<Result<(), StoreError>> {
    if wanted {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(Ok(()))
    }
}

fn snapshot(record: Record, moment: Moment) -> Snapshot {
    Snapshot {
        record: record.into(),
        now: moment.now,
        skew: moment.skew,
    }
}

struct Held {
    value: Bytes,
    record: Record,
}

fn decode(value: &Bytes) -> Result<Record, StoreError> {
    codec::decode(value).map_err(|error| StoreError::corrupt("a stored value").because(error))
}

#[async_trait]
impl<K: KeyValue> KeyStore for KeyValueStore<K> {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        let key = codec::key(claim.id());
        for _ in 0..RACES {
            // The time is read before the record is created: its lease must not begin later than its claim.
            let moment = self.database.moment().await?;
            let record = claim.first_record(moment.now);
            if self.database.create(&key, codec::encode(&record)).await? {
                return Ok(ClaimOutcome::Won(snapshot(record, moment)));
            }
            if let Some(held) = self.read(&key, claim.id()).await? {
                return Ok(ClaimOutcome::Held(self.snapshot(held.record).await?));
            }
            // It was removed between the two: it can be claimed.
        }
        Ok(ClaimOutcome::Contended {
            retry_after: RETRY_AFTER,
        })
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        change.patch(expect)?;
        let key = codec::key(id);
        for _ in 0..RACES {
            let Some(held) = self.read(&key, id).await? else {
                return Ok(TransitionOutcome::Lost(None));
            };
            let moment = self.database.moment().await?;
            let (written, revision) = match held.record.apply(expect, change, moment) {
                Ok(Applied::Changed(next)) => {
                    let value = codec::encode(&next);
                    (
                        self.database.replace_if(&key, &held.value, value).await?,
                        next.revision,
                    )
                }
                Ok(Applied::Removed) => (
                    self.database.remove_if(&key, &held.value).await?,
                    held.record.revision,
                ),
                Err(Rejected::Misuse(misuse)) => return Err(misuse.into()),
                Ok(Applied::Unchanged) | Err(_) => {
                    return Ok(TransitionOutcome::Lost(Some(snapshot(held.record, moment))));
                }
            };
            if written {
                return Ok(TransitionOutcome::Applied {
                    revision,
                    now: moment.now,
                });
            }
        }
        Ok(TransitionOutcome::Contended {
            retry_after: RETRY_AFTER,
        })
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        match self.read(&codec::key(id), id).await? {
            Some(held) => self.snapshot(held.record).await.map(Some),
            None => Ok(None),
        }
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        let moment = self.database.moment().await?;
        let mut swept = Swept::default();
        // An entry that cannot be read is passed over, so that it does not keep all others from being removed, and
        // reported in the end, since nobody else may ever look at it.
        let mut unreadable = None;
        let due = self.database.scan_expired(moment.earliest(), limit).await?;
        for Entry { key, value } in due {
            let due = match decode(&value) {
                Ok(record) => record.is_expired(moment) && swept.removed < limit.get(),
                Err(error) => {
                    unreadable = Some(error);
                    false
                }
            };
            if due && self.database.remove_if(&key, &value).await? {
                swept.removed += 1;
            }
        }
        self.walk(None, |record| {
            match record {
                Ok(record) => swept.stuck += u32::from(record.is_stuck(moment)),
                Err(error) => unreadable = Some(error),
            }
            go_on_while(swept.stuck < limit.get())
        })
        .await?;
        if let Some(error) = unreadable {
            return Err(error);
        }
        Ok(swept)
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

#[async_trait]
impl<K: KeyValue> Inspect for KeyValueStore<K> {
    async fn count(&self) -> Result<Counts, StoreError> {
        let moment = self.database.moment().await?;
        let mut counts = Counts::default();
        self.walk(None, |record| match record {
            Ok(record) => {
                counts.add(&record, moment);
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(Err(error)),
        })
        .await?;
        Ok(counts)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError> {
        let moment = self.database.moment().await?;
        let mut found = Vec::new();
        self.walk(after.map(codec::key), |record| {
            let record = match record {
                Ok(record) => record,
                Err(error) => return ControlFlow::Break(Err(error)),
            };
            if filter.admits(&record, moment) {
                found.push(snapshot(record, moment));
            }
            go_on_while(found.len() < limit.get() as usize)
        })
        .await?;
        Ok(found)
    }
}
