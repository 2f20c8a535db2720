//! Owners' writes that are not fenced, or write something else.

use idem_core::{
    Expect, Record, RecordId, Response, State, StoreError, Timestamp, Transition, TransitionOutcome,
};

use super::Saboteur;
use super::engine::Engine;

type Sent = Result<TransitionOutcome, StoreError>;

/// Whoever asks, it is the owner who asks.
fn anybody(held: &Record, expect: &mut Expect) {
    if let Expect::Owner(token) = expect {
        *token = held.token;
    }
}

fn in_progress(held: &mut Record) {
    held.state = State::InProgress;
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        saboteur!(releases_are_not_fenced: "releases by key, whoever asks" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Release = change {
                    anybody(held, expect);
                }
            }
        }),
        saboteur!(renewals_are_not_fenced: "renews by key, whoever asks" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Renew { .. } = change {
                    anybody(held, expect);
                }
            }
        }),
        saboteur!(completions_are_not_fenced: "completes by key, whoever asks" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Complete(_) = change {
                    anybody(held, expect);
                }
            }
        }),
        saboteur!(failures_are_not_fenced: "fails by key, whoever asks" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::FailFinal(_) | Transition::FailRetryable { .. } = change {
                    anybody(held, expect);
                }
            }
        }),
        saboteur!(checkpoints_are_not_fenced: "stores checkpoints by key, whoever asks" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Checkpoint { .. } = change {
                    anybody(held, expect);
                }
            }
        }),
        saboteur!(answers_can_be_replaced: "lets an owner complete what it has finished" {
            fn judged(&self, held: &mut Record, _: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Complete(_) = change {
                    in_progress(held);
                }
            }
        }),
        saboteur!(the_finished_are_renewed: "lets an owner renew what it has finished" {
            fn judged(&self, held: &mut Record, _: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Renew { .. } = change {
                    in_progress(held);
                }
            }
        }),
        saboteur!(lapsed_owners_are_shut_out: "refuses an owner whose lease is over, though nobody took over" {
            fn judged(&self, held: &mut Record, expect: &mut Expect, _: &Transition, now: Timestamp) {
                if let Expect::Owner(token) = expect
                    && held.locked_until <= now
                    && *token == held.token
                {
                    held.token = held.origin_as_token();
                }
            }
        }),
        saboteur!(checkpoints_in_any_order: "stores a delayed checkpoint over a newer one" {
            fn judged(&self, held: &mut Record, _: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Checkpoint { .. } = change {
                    held.recovery = None;
                }
            }
        }),
        saboteur!(checkpoints_without_attempts: "orders checkpoints by their number alone" {
            fn judged(&self, held: &mut Record, _: &mut Expect, change: &Transition, _: Timestamp) {
                let attempt = held.attempt;
                if let (Transition::Checkpoint { .. }, Some(recovery)) = (change, &mut held.recovery) {
                    recovery.attempt = attempt;
                }
            }
        }),
        saboteur!(checkpoints_are_certain: "does not mark a checkpointed record uncertain" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Checkpoint { .. })) = (before, change) {
                    record.uncertain = before.uncertain;
                }
            }
        }),
        saboteur!(checkpoints_do_not_renew: "does not renew the lease with a checkpoint" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Checkpoint { .. })) = (before, change) {
                    record.locked_at = before.locked_at;
                    record.locked_until = before.locked_until;
                }
            }
        }),
        saboteur!(checkpoints_are_dropped: "acknowledges checkpoints and keeps their first" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Checkpoint { .. })) = (before, change)
                    && before.recovery.is_some()
                {
                    record.recovery.clone_from(&before.recovery);
                }
            }
        }),
        saboteur!(the_uncertain_are_released: "removes an uncertain record that is released" {
            fn judged(&self, held: &mut Record, _: &mut Expect, change: &Transition, _: Timestamp) {
                if let Transition::Release = change {
                    held.uncertain = false;
                }
            }
        }),
        saboteur!(releases_are_kept: "keeps the record of a released key" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let before = engine.held(id);
                let sent = engine.transition(id, expect, change)?;
                if let (Transition::Release, Some(before)) = (change, before)
                    && let TransitionOutcome::Applied { .. } = sent
                {
                    engine.put(id, before);
                }
                Ok(sent)
            }
        }),
        saboteur!(failures_are_certain: "does not keep that a failure may have had an effect" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::FailRetryable { .. })) = (before, change) {
                    record.uncertain = before.uncertain;
                }
            }
        }),
        saboteur!(failures_clear_doubt: "takes a harmless failure for proof that nothing ever happened" {
            fn written(&self, record: &mut Record, _: Option<&Record>, change: Option<&Transition>) {
                if let Some(Transition::FailRetryable { uncertain: false, .. }) = change {
                    record.uncertain = false;
                }
            }
        }),
        saboteur!(retention_from_the_claim: "counts the retention from the claim" {
            fn written(&self, record: &mut Record, _: Option<&Record>, _: Option<&Transition>) {
                let from = record.created_at + record.terms.retention;
                if let State::Completed { finish, .. } = &mut record.state {
                    finish.expires_at = from;
                }
            }
        }),
        saboteur!(retention_from_the_lease: "counts the retention of failures from the last renewal" {
            fn written(&self, record: &mut Record, _: Option<&Record>, _: Option<&Transition>) {
                let from = record.locked_at + record.terms.retention;
                if let State::FailedFinal { finish, .. } | State::FailedRetryable { finish } = &mut record.state {
                    finish.expires_at = from;
                }
            }
        }),
        saboteur!(renewals_are_not_counted: "does not count a renewal as a revision" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Renew { .. })) = (before, change) {
                    record.revision = before.revision;
                }
            }
        }),
        saboteur!(renewals_only_lengthen: "does not let a renewal end a lease earlier" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Renew { .. })) = (before, change) {
                    record.locked_until = record.locked_until.max(before.locked_until);
                }
            }
        }),
        saboteur!(renewals_add_up: "counts a renewal from the end of the lease before" {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some(Transition::Renew { lease })) = (before, change) {
                    record.locked_until = before.locked_until + *lease;
                }
            }
        }),
        saboteur!(answers_come_second: "frees the key in one write and stores the answer in another" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                if let Transition::Complete(_) = change
                    && let Some(before) = engine.held(id)
                {
                    let half = Transition::Complete(Response::new(0));
                    let sent = engine.transition(id, expect, &half)?;
                    if let TransitionOutcome::Applied { .. } = sent {
                        tokio::task::yield_now().await;
                        engine.put(id, before);
                        return engine.transition(id, expect, change);
                    }
                    return Ok(sent);
                }
                engine.transition(id, expect, change)
            }
        }),
        saboteur!(reads_then_writes: "reads, decides, and then writes" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                change.patch(expect)?;
                let Some(before) = engine.held(id) else {
                    return engine.transition(id, expect, change);
                };
                tokio::task::yield_now().await;
                let now = engine.held(id);
                engine.put(id, before);
                let sent = engine.transition(id, expect, change)?;
                if !matches!(sent, TransitionOutcome::Applied { .. }) {
                    match now {
                        Some(now) => engine.put(id, now),
                        None => engine.remove(id),
                    }
                }
                Ok(sent)
            }
        }),
        saboteur!(lost_with_an_early_read: "shows to a write that lost what was there before it waited" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let early = engine.load(id)?;
                tokio::task::yield_now().await;
                Ok(match engine.transition(id, expect, change)? {
                    TransitionOutcome::Lost(Some(_)) if early.is_some() => TransitionOutcome::Lost(early),
                    sent => sent,
                })
            }
        }),
        saboteur!(lost_to_the_one_before: "shows to a write that lost what a replica holds" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                Ok(match engine.transition(id, expect, change)? {
                    TransitionOutcome::Lost(Some(held)) => {
                        let before = engine.database.tables().before.get(id).cloned().flatten();
                        TransitionOutcome::Lost(Some(before.map_or(held, |before| engine.snapshot(before))))
                    }
                    sent => sent,
                })
            }
        }),
        saboteur!(lost_to_nothing: "does not read what a write lost to" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                Ok(match engine.transition(id, expect, change)? {
                    TransitionOutcome::Lost(_) => TransitionOutcome::Lost(None),
                    sent => sent,
                })
            }
        }),
        saboteur!(writes_to_nothing_apply: "takes a write that touched no row for applied" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                Ok(match engine.transition(id, expect, change)? {
                    TransitionOutcome::Lost(None) => TransitionOutcome::Applied {
                        revision: idem_core::Revision::FIRST,
                        now: engine.now(),
                    },
                    sent => sent,
                })
            }
        }),
        saboteur!(misuse_is_lost: "answers Lost to what has no meaning" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                if change.patch(expect).is_err() {
                    return Ok(TransitionOutcome::Lost(engine.load(id)?));
                }
                engine.transition(id, expect, change)
            }
        }),
        saboteur!(revisions_are_guessed: "answers with the revision that was expected, not the one that was written" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                Ok(match engine.transition(id, expect, change)? {
                    TransitionOutcome::Applied { now, .. } => TransitionOutcome::Applied {
                        revision: idem_core::Revision::new(2),
                        now,
                    },
                    sent => sent,
                })
            }
        }),
    ]
}

trait OriginAsToken {
    fn origin_as_token(&self) -> idem_core::OwnerToken;
}

impl OriginAsToken for Record {
    /// A token that nobody has.
    fn origin_as_token(&self) -> idem_core::OwnerToken {
        idem_core::OwnerToken::from_bytes(*self.origin.as_bytes())
    }
}
