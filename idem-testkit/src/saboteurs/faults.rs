//! Faults that are not about meaning: durability, errors, cancellation, clocks, locks.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use idem_core::{
    Claim, ClaimOutcome, Expect, OwnerToken, RecordId, Snapshot, Span, StoreError, StoreErrorKind,
    Swept, Timestamp, Transition, TransitionOutcome,
};

use super::Saboteur;
use super::database::Database;
use super::engine::{Connection, Engine, Synced};

type Claimed = Result<ClaimOutcome, StoreError>;
type Loaded = Result<Option<Snapshot>, StoreError>;
type Sent = Result<TransitionOutcome, StoreError>;

fn is_corrupt(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Corrupt
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        saboteur!(nothing_is_synced: "acknowledges before anything is durable" {
            fn syncs(&self, _: Option<&Transition>) -> Synced {
                Synced::No
            }
        }),
        saboteur!(claims_are_not_synced: "acknowledges claims and sweeps before they are durable" {
            fn syncs(&self, change: Option<&Transition>) -> Synced {
                if change.is_none() { Synced::No } else { Synced::Yes }
            }
        }),
        saboteur!(completions_are_not_synced: "acknowledges completions before they are durable" {
            fn syncs(&self, change: Option<&Transition>) -> Synced {
                if let Some(Transition::Complete(_)) = change { Synced::No } else { Synced::Yes }
            }
        }),
        saboteur!(releases_are_not_synced: "acknowledges releases before they are durable" {
            fn syncs(&self, change: Option<&Transition>) -> Synced {
                if let Some(Transition::Release) = change { Synced::No } else { Synced::Yes }
            }
        }),
        saboteur!(renewals_are_not_synced: "acknowledges renewals and checkpoints before they are durable" {
            fn syncs(&self, change: Option<&Transition>) -> Synced {
                match change {
                    Some(Transition::Renew { .. } | Transition::Checkpoint { .. }) => Synced::No,
                    _ => Synced::Yes,
                }
            }
        }),
        saboteur!(opening_forgets: "begins with an empty table when it is opened", AtomicU32 {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                    // Nobody claims before it loads, but who opens what is there already.
                    engine.database.tables().live.clear();
                }
                engine.load(id)
            }
        }),
        saboteur!(the_unknown_is_absent: "takes a record with an unknown status for absent" {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                match engine.load(id) {
                    Err(error) if is_corrupt(&error) => Ok(None),
                    loaded => loaded,
                }
            }
        }),
        saboteur!(the_unknown_is_claimed: "lets a claim win over a record with an unknown status" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim) {
                    Err(error) if is_corrupt(&error) => {
                        let record = claim.first_record(engine.now());
                        engine.put(claim.id(), record.clone());
                        Ok(ClaimOutcome::Won(engine.snapshot(record)))
                    }
                    claimed => claimed,
                }
            }
        }),
        saboteur!(the_unknown_is_lost: "takes a record with an unknown status for none that a write could lose to" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                match engine.transition(id, expect, change) {
                    Err(error) if is_corrupt(&error) => Ok(TransitionOutcome::Lost(None)),
                    sent => sent,
                }
            }
        }),
        saboteur!(the_unknown_is_unavailable: "reports an unknown status as a passing trouble" {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                engine.load(id).map_err(|error| {
                    if is_corrupt(&error) { StoreError::unavailable("reading a row").because(error) } else { error }
                })
            }
        }),
        saboteur!(the_unknown_is_swept: "removes what it cannot read" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Result<Swept, StoreError> {
                let unknown = std::mem::take(&mut engine.database.tables().unknown);
                for id in unknown {
                    engine.remove(&id);
                }
                engine.sweep(limit)
            }
        }),
        saboteur!(dropped_calls_leak: "does not give back the connection of a call that is dropped" {
            fn connection(&self) -> Connection {
                Connection::LeakedWhenDropped
            }
        }),
        saboteur!(owners_hold_connections: "holds a connection while the work of a claim runs" {
            fn connection(&self) -> Connection {
                Connection::HeldUntilFinished
            }
        }),
        saboteur!(dropped_calls_lock: "locks the record for the time of a write, and unlocks it at the end of the call" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let sent = engine.transition(id, expect, change)?;
                if let TransitionOutcome::Applied { .. } = sent {
                    engine.database.lock(id, None);
                    tokio::task::yield_now().await;
                    engine.database.unlock(id, false);
                }
                Ok(sent)
            }
        }),
        saboteur!(dropped_claims_lock: "locks the id for the time of a claim, and unlocks it at the end of the call" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let claimed = engine.claim(claim)?;
                if let ClaimOutcome::Won(_) = claimed {
                    engine.database.lock(claim.id(), None);
                    tokio::task::yield_now().await;
                    engine.database.unlock(claim.id(), false);
                }
                Ok(claimed)
            }
        }),
        saboteur!(dropped_reads_lock: "locks the record for the time of a read, and unlocks it at the end of the call" {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                let loaded = engine.load(id)?;
                if loaded.is_some() && !engine.database.tables().is_uncommitted(id) {
                    engine.database.lock(id, None);
                    tokio::task::yield_now().await;
                    engine.database.unlock(id, false);
                }
                Ok(loaded)
            }
        }),
        saboteur!(dropped_claims_are_halves: "writes a claim in two steps" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let claimed = engine.claim(claim)?;
                if let ClaimOutcome::Won(won) = &claimed {
                    let mut half = idem_core::Record::clone(&won.record);
                    half.token = OwnerToken::from_bytes([0; 16]);
                    engine.put(claim.id(), half);
                    tokio::task::yield_now().await;
                    engine.put(claim.id(), idem_core::Record::clone(&won.record));
                }
                Ok(claimed)
            }
        }),
        saboteur!(dropped_swaps_are_halves: "writes a takeover in two steps" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let before = engine.held(id);
                let sent = engine.transition(id, expect, change)?;
                if let (Expect::Unchanged { .. }, TransitionOutcome::Applied { .. }, Some(before)) = (expect, &sent, before)
                    && let Some(after) = engine.held(id)
                {
                    let mut half = after.clone();
                    half.token = before.token;
                    engine.put(id, half);
                    tokio::task::yield_now().await;
                    engine.put(id, after);
                }
                Ok(sent)
            }
        }),
        saboteur!(dropped_sweeps_lock: "locks what it sweeps, and unlocks it at the end of the call" {
            async fn sweep(&self, engine: Engine<'_>, limit: NonZeroU32) -> Result<Swept, StoreError> {
                let moment = idem_core::Moment::exact(engine.now());
                let due: Vec<RecordId> = {
                    let tables = engine.database.tables();
                    let due = tables.live.iter().filter(|(_, record)| record.is_expired(moment));
                    due.map(|(id, _)| id.clone()).collect()
                };
                for id in &due {
                    engine.database.lock(id, None);
                }
                tokio::task::yield_now().await;
                for id in &due {
                    engine.database.unlock(id, false);
                }
                engine.sweep(limit)
            }
        }),
        saboteur!(the_uncommitted_is_won: "lets a claim win over an uncommitted one" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Contended { .. } => {
                        Ok(ClaimOutcome::Won(engine.snapshot(claim.first_record(engine.now()))))
                    }
                    claimed => Ok(claimed),
                }
            }
        }),
        saboteur!(the_uncommitted_is_waited_for: "waits for somebody else's transaction to end" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                loop {
                    match engine.claim(claim)? {
                        ClaimOutcome::Contended { retry_after } => tokio::time::sleep(retry_after).await,
                        claimed => return Ok(claimed),
                    }
                }
            }
        }),
        saboteur!(the_locked_is_lost: "takes a locked record for a lost lease" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                match engine.transition(id, expect, change)? {
                    TransitionOutcome::Contended { .. } => Ok(TransitionOutcome::Lost(engine.load(id)?)),
                    sent => Ok(sent),
                }
            }
        }),
        saboteur!(the_locked_is_waited_for: "waits for somebody else's lock to be released" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                loop {
                    match engine.transition(id, expect, change)? {
                        TransitionOutcome::Contended { retry_after } => tokio::time::sleep(retry_after).await,
                        sent => return Ok(sent),
                    }
                }
            }
        }),
        saboteur!(one_hot_key_stalls_all: "makes every claim wait for one uncommitted row" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let own = engine.database.tables().is_uncommitted(claim.id());
                while !own && engine.database.tables().is_anything_uncommitted() {
                    tokio::time::sleep(super::engine::RETRY_AFTER).await;
                }
                engine.claim(claim)
            }
        }),
        saboteur!(writes_are_contended_at_first: "is contended every third time that it writes, with nobody there", AtomicU32 {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                change.patch(expect)?;
                if self.0.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
                    return Ok(TransitionOutcome::Contended { retry_after: super::engine::RETRY_AFTER });
                }
                engine.transition(id, expect, change)
            }
        }),
        saboteur!(the_hosts_clock: "goes by the clock of its own host" {
            fn now(&self, database: &Database) -> Timestamp {
                database.host_now()
            }
        }),
        saboteur!(the_clock_jumps: "has a clock that jumps back now and then", AtomicU32 {
            fn now(&self, database: &Database) -> Timestamp {
                let now = database.now();
                if self.0.fetch_add(1, Ordering::Relaxed) % 5 == 4 { now - Span::from_secs(30) } else { now }
            }
        }),
        saboteur!(panics_on_the_unexpected: "panics when a write finds no record" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let sent = engine.transition(id, expect, change)?;
                #[expect(clippy::panic, reason = "that a panic is reported is what this one is for")]
                if let TransitionOutcome::Lost(None) = sent {
                    panic!("no rows returned by a query that expected to return at least one row");
                }
                Ok(sent)
            }
        }),
    ]
}
