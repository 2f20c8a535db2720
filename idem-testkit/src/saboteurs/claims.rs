//! Claims that do not say who won.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use idem_core::{Claim, ClaimOutcome, Moment, RecordId, Snapshot, Span, StoreError};

use super::Saboteur;
use super::engine::{Engine, RETRY_AFTER};

type Claimed = Result<ClaimOutcome, StoreError>;
type Loaded = Result<Option<Snapshot>, StoreError>;

/// Writes the claim's record, whatever is there.
fn overwrite(engine: Engine<'_>, claim: &Claim) -> Claimed {
    let record = claim.first_record(engine.now());
    engine.put(claim.id(), record.clone());
    Ok(ClaimOutcome::Won(engine.snapshot(record)))
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        saboteur!(looks_then_inserts: "looks whether there is a record, and then inserts one" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                if let Some(held) = engine.load(claim.id())? {
                    return Ok(ClaimOutcome::Held(held));
                }
                tokio::task::yield_now().await;
                overwrite(engine, claim)
            }
        }),
        saboteur!(two_winners_one_time_in_fifty: "lets one in fifty conflicting claims win as well", AtomicU32 {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(held)
                        if held.record.token != claim.token()
                            && self.0.fetch_add(1, Ordering::Relaxed) % 50 == 49 =>
                    {
                        overwrite(engine, claim)
                    }
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(everybody_wins: "answers every claim with Won" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                Ok(match engine.claim(claim)? {
                    ClaimOutcome::Held(held) => ClaimOutcome::Won(held),
                    outcome => outcome,
                })
            }
        }),
        saboteur!(own_claim_wins_again: "answers a claim that is sent again with Won" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                Ok(match engine.claim(claim)? {
                    ClaimOutcome::Held(held) if held.record.token == claim.token() => {
                        ClaimOutcome::Won(held)
                    }
                    outcome => outcome,
                })
            }
        }),
        saboteur!(claim_takes_over: "lets a claim win over a record whose lease is over" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(held) if held.record.is_stuck(held.moment()) => {
                        overwrite(engine, claim)
                    }
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(claim_restarts: "lets a claim win over a record that has expired" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(held) if held.record.is_expired(held.moment()) => {
                        overwrite(engine, claim)
                    }
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(claim_forgets_old_failures: "lets a claim win over any failure past its retention" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(held)
                        if held.record.uncertain
                            && held
                                .record
                                .state
                                .finish()
                                .is_some_and(|finish| finish.expires_at <= held.now) =>
                    {
                        overwrite(engine, claim)
                    }
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(load_hides_the_expired: "does not load what has expired" {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                let held = engine.load(id)?;
                Ok(held.filter(|held| !held.record.is_expired(held.moment())))
            }
        }),
        saboteur!(refusal_touches_the_record: "renews the lease of a record that keeps a claim out" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let outcome = engine.claim(claim)?;
                if let ClaimOutcome::Held(held) = &outcome
                    && held.record.token != claim.token()
                {
                    let mut record = idem_core::Record::clone(&held.record);
                    record.locked_at = held.now;
                    record.locked_until = held.now + Span::from_secs(90);
                    engine.put(claim.id(), record);
                }
                Ok(outcome)
            }
        }),
        saboteur!(refusal_takes_the_token: "writes the token of a claim that is kept out" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let outcome = engine.claim(claim)?;
                if let ClaimOutcome::Held(held) = &outcome {
                    let mut record = idem_core::Record::clone(&held.record);
                    record.token = claim.token();
                    engine.put(claim.id(), record);
                }
                Ok(outcome)
            }
        }),
        saboteur!(claim_reads_a_replica: "shows to a claim what a replica holds, one write behind" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                Ok(match engine.claim(claim)? {
                    ClaimOutcome::Held(held) => {
                        let before = engine.database.tables().before.get(claim.id()).cloned();
                        match before.flatten() {
                            Some(before) => ClaimOutcome::Held(engine.snapshot(before)),
                            None => ClaimOutcome::Held(held),
                        }
                    }
                    outcome => outcome,
                })
            }
        }),
        saboteur!(load_reads_a_replica: "loads from a replica, one write behind" {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                engine.load(id)?;
                let before = engine.database.tables().before.get(id).cloned();
                match before {
                    Some(before) => Ok(before.map(|before| engine.snapshot(before))),
                    None => engine.load(id),
                }
            }
        }),
        saboteur!(instance_caches_answers: "keeps in each process the answers that it has seen", Mutex<BTreeMap<RecordId, Snapshot>> {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(claim.id()).cloned();
                if let Some(known) = known {
                    return Ok(ClaimOutcome::Held(known));
                }
                let outcome = engine.claim(claim)?;
                if let ClaimOutcome::Held(held) = &outcome
                    && held.record.state.response().is_some()
                {
                    let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(claim.id().clone(), held.clone());
                }
                Ok(outcome)
            }
        }),
        saboteur!(instance_caches_loads: "keeps in each process, for ten loads, what it has loaded", Mutex<BTreeMap<RecordId, (Snapshot, u32)>> {
            async fn load(&self, engine: Engine<'_>, id: &RecordId) -> Loaded {
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((snapshot, left)) = known.get_mut(id)
                    && *left > 0
                {
                    *left -= 1;
                    return Ok(Some(snapshot.clone()));
                }
                let held = engine.load(id)?;
                if let Some(held) = &held {
                    known.insert(id.clone(), (held.clone(), 10));
                }
                Ok(held)
            }
        }),
        saboteur!(conflict_is_an_error: "reports the violation of the primary key instead of reading the record" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(_) => Err(StoreError::unavailable("inserting").about(claim.id())),
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(contended_for_ever: "is contended for as long as the record is in progress" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                match engine.claim(claim)? {
                    ClaimOutcome::Held(held) if held.record.state.finish().is_none() => {
                        Ok(ClaimOutcome::Contended { retry_after: RETRY_AFTER })
                    }
                    outcome => Ok(outcome),
                }
            }
        }),
        saboteur!(contended_at_first: "is contended every third time, with nobody there", AtomicU32 {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                if self.0.fetch_add(1, Ordering::Relaxed) % 3 == 1 {
                    return Ok(ClaimOutcome::Contended { retry_after: RETRY_AFTER });
                }
                engine.claim(claim)
            }
        }),
        saboteur!(loser_sees_nothing: "gives up a claim that lost with a record made up from the claim" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                Ok(match engine.claim(claim)? {
                    ClaimOutcome::Held(held) => {
                        let mut record = claim.first_record(held.now);
                        record.token = held.record.token;
                        ClaimOutcome::Held(engine.snapshot(record))
                    }
                    outcome => outcome,
                })
            }
        }),
        saboteur!(refuses_without_a_cache: "refuses what is in progress, without being a cache" {
            async fn claim(&self, engine: Engine<'_>, claim: &Claim) -> Claimed {
                Ok(match engine.claim(claim)? {
                    ClaimOutcome::Held(held)
                        if held.record.state.finish().is_none()
                            && !held.record.is_stuck(Moment::exact(held.now)) =>
                    {
                        ClaimOutcome::Refused {
                            token: held.record.token,
                            remaining: held.record.locked_until.since(held.now),
                        }
                    }
                    outcome => outcome,
                })
            }
        }),
    ]
}
