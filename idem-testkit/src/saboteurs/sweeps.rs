//! Sweeps that remove too much, too little, or the wrong record.

use std::num::NonZeroU32;

use idem_core::{Moment, Record, RecordId, StoreError, Swept};

use super::Saboteur;
use super::engine::Engine;

type Done = Result<Swept, StoreError>;

/// Everything that the store holds, as a sweep sees it.
fn rows(engine: Engine<'_>) -> Vec<(RecordId, Record)> {
    let tables = engine.database.tables();
    let known = |id: &RecordId| !tables.unknown.contains(id);
    let rows = tables.live.iter().filter(|(id, _)| known(id));
    rows.map(|(id, record)| (id.clone(), record.clone()))
        .collect()
}

fn past_its_retention(record: &Record, moment: Moment) -> bool {
    record
        .state
        .finish()
        .is_some_and(|finish| finish.expires_at <= moment.now)
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        saboteur!(sweeps_by_key: "removes by key what it found expired some time before" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let moment = Moment::exact(engine.now());
                let due: Vec<RecordId> = rows(engine)
                    .into_iter()
                    .filter(|(_, record)| record.is_expired(moment))
                    .map(|(id, _)| id)
                    .take(limit.get() as usize)
                    .collect();
                tokio::task::yield_now().await;
                let mut swept = engine.sweep_if(limit, |_, _| false)?;
                for id in due {
                    engine.remove(&id);
                    swept.removed += 1;
                }
                Ok(swept)
            }
        }),
        saboteur!(sweeps_the_stuck: "removes what is in progress past its lease" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, |record, moment| record.is_expired(moment) || record.is_stuck(moment))
            }
        }),
        saboteur!(sweeps_the_uncertain: "removes failures past their retention, uncertain or not" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, past_its_retention)
            }
        }),
        saboteur!(sweeps_the_finished: "removes what is finished, expired or not" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, |record, _| record.is_finished())
            }
        }),
        saboteur!(sweeps_the_old: "removes what was claimed a day ago" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, |record, moment| {
                    record.is_expired(moment) || moment.now.since(record.created_at) > idem_core::Span::from_secs(86_400)
                })
            }
        }),
        saboteur!(sweeps_without_limit: "removes everything that has expired at once" {
            async fn sweep(&self, engine: Engine<'_>, _: NonZeroU32) -> Done {
                engine.sweep(NonZeroU32::MAX)
            }
        }),
        saboteur!(sweeps_whole_batches: "removes a hundred at a time, the last hundred as well" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                const BATCH: NonZeroU32 = NonZeroU32::new(100).unwrap();
                let mut swept = engine.sweep(limit.min(BATCH))?;
                while swept.removed >= BATCH.get() && swept.removed < limit.get() {
                    let more = engine.sweep(BATCH)?;
                    swept.removed += more.removed;
                    if more.removed < BATCH.get() {
                        break;
                    }
                }
                Ok(swept)
            }
        }),
        saboteur!(sweeps_are_not_synced: "acknowledges sweeps before they are durable" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let before = rows(engine);
                let swept = engine.sweep(limit)?;
                let mut tables = engine.database.tables();
                for (id, record) in before {
                    if !tables.live.contains_key(&id) {
                        tables.write(&id, Some(record));
                        tables.write_unsynced(&id, None);
                    }
                }
                drop(tables);
                Ok(swept)
            }
        }),
        saboteur!(sweeps_wait_for_locks: "waits with a sweep for everybody else's transactions to end" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                while engine.database.tables().is_anything_uncommitted() {
                    tokio::time::sleep(super::engine::RETRY_AFTER).await;
                }
                engine.sweep(limit)
            }
        }),
        saboteur!(sweeps_one_too_many: "removes one record more than its limit, and does not say so" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let swept = engine.sweep(limit)?;
                engine.sweep(NonZeroU32::MIN)?;
                Ok(swept)
            }
        }),
        saboteur!(sweeps_nothing: "counts what it would remove, and removes nothing" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let moment = Moment::exact(engine.now());
                let due = rows(engine).iter().filter(|(_, record)| record.is_expired(moment)).count();
                let mut swept = engine.sweep_if(limit, |_, _| false)?;
                swept.removed = u32::try_from(due).unwrap_or(u32::MAX).min(limit.get());
                Ok(swept)
            }
        }),
        saboteur!(sweeps_completions_only: "leaves failures for ever" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, |record, moment| {
                    record.is_expired(moment) && record.state.response().is_some()
                })
            }
        }),
        saboteur!(sweeps_the_first_rows: "looks at as many rows as its limit, and removes what has expired among them" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let moment = Moment::exact(engine.now());
                let mut first: Vec<_> = rows(engine)
                    .into_iter()
                    .filter(|(_, record)| past_its_retention(record, moment) || record.is_stuck(moment))
                    .collect();
                first.sort_by_key(|(_, record)| record.created_at);
                first.truncate(limit.get() as usize);
                let mut swept = engine.sweep_if(limit, |_, _| false)?;
                for (id, _) in first.iter().filter(|(_, record)| record.is_expired(moment)) {
                    engine.remove(id);
                    swept.removed += 1;
                }
                Ok(swept)
            }
        }),
        saboteur!(sweeps_in_every_scope: "removes every record with the key of an expired one" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let moment = Moment::exact(engine.now());
                let all = rows(engine);
                for (expired, _) in all.iter().filter(|(_, record)| record.is_expired(moment)) {
                    for (other, _) in all.iter().filter(|(other, _)| other.key() == expired.key()) {
                        if other != expired {
                            engine.remove(other);
                        }
                    }
                }
                engine.sweep(limit)
            }
        }),
        saboteur!(sweeps_count_wrong: "says that it removed what others removed" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let moment = Moment::exact(engine.now());
                let due: Vec<_> = rows(engine)
                    .into_iter()
                    .filter(|(_, record)| record.is_expired(moment))
                    .take(limit.get() as usize)
                    .collect();
                tokio::task::yield_now().await;
                let mut swept = engine.sweep(limit)?;
                swept.removed = u32::try_from(due.len()).unwrap_or(u32::MAX);
                Ok(swept)
            }
        }),
        saboteur!(sweeps_count_no_stuck: "does not count what is stuck" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                Ok(Swept { stuck: 0, ..engine.sweep(limit)? })
            }
        }),
        saboteur!(sweeps_count_the_living: "counts everything in progress as stuck" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                let busy = rows(engine).iter().filter(|(_, record)| record.state.finish().is_none()).count();
                let stuck = u32::try_from(busy).unwrap_or(u32::MAX).min(limit.get());
                Ok(Swept { stuck, ..engine.sweep(limit)? })
            }
        }),
        saboteur!(sweeps_at_the_end_are_late: "leaves what expires at this very instant, and a second more" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Done {
                engine.sweep_if(limit, |record, moment| {
                    let earlier = Moment::exact(moment.now - idem_core::Span::from_secs(1));
                    record.is_expired(earlier)
                })
            }
        }),
    ]
}
