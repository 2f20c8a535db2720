//! Takeovers, restarts and verdicts that take what they must not, or keep what they must not.

use idem_core::{
    AttemptNumber, Contract, Expect, Record, RecordId, Revision, Span, StoreError, Timestamp,
    Transition, TransitionOutcome, Verdict,
};

use super::Saboteur;
use super::engine::Engine;

type Sent = Result<TransitionOutcome, StoreError>;

/// A saboteur that judges takeovers by something else than the record.
macro_rules! judge {
    ($name:ident: $breaks:literal, $pattern:pat, $judge:expr) => {
        saboteur!($name: $breaks {
            fn judged(&self, held: &mut Record, expect: &mut Expect, change: &Transition, now: Timestamp) {
                if let $pattern = change {
                    let judge: fn(&mut Record, &mut Expect, Timestamp) = $judge;
                    judge(held, expect, now);
                }
            }
        })
    };
}

/// A saboteur that changes what is written over the record before.
macro_rules! write {
    ($name:ident: $breaks:literal, $pattern:pat, $write:expr) => {
        saboteur!($name: $breaks {
            fn written(&self, record: &mut Record, before: Option<&Record>, change: Option<&Transition>) {
                if let (Some(before), Some($pattern)) = (before, change) {
                    let write: fn(&mut Record, &Record) = $write;
                    write(record, before);
                }
            }
        })
    };
}

fn any_token(held: &mut Record, expect: &mut Expect, _: Timestamp) {
    if let Expect::Unchanged { token, .. } = expect {
        *token = held.token;
    }
}

fn any_revision(held: &mut Record, expect: &mut Expect, _: Timestamp) {
    if let Expect::Unchanged { revision, .. } = expect {
        *revision = held.revision;
    }
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        judge!(takeovers_of_any_token: "takes over without checking the token", Transition::TakeOver { .. }, any_token),
        judge!(takeovers_of_any_revision: "takes over without checking the revision", Transition::TakeOver { .. }, any_revision),
        judge!(takeovers_of_the_living: "takes over before the lease is over", Transition::TakeOver { .. }, |held, _, now| {
            held.locked_until = held.locked_until.min(now);
        }),
        judge!(takeovers_after_the_window: "takes over after the reclaim window", Transition::TakeOver { .. }, |held, _, _| {
            held.terms.reclaim_window = Span::MAX;
        }),
        judge!(takeovers_without_limit: "takes over more often than the terms allow", Transition::TakeOver { .. }, |held, _, _| {
            held.terms.max_reclaims = u32::MAX;
        }),
        judge!(takeovers_under_hold: "takes over what was to be run at most once", Transition::TakeOver { .. }, |held, _, _| {
            held.terms.contract = Contract::Reclaim;
        }),
        judge!(failures_are_never_retried: "does not take over failures", Transition::TakeOver { .. }, |held, expect, _| {
            if held.state.finish().is_some()
                && let Expect::Unchanged { revision, .. } = expect
            {
                *revision = revision.next();
            }
        }),
        judge!(takeovers_at_the_end_are_late: "takes over only after the end of the lease, not at it", Transition::TakeOver { .. }, |held, expect, now| {
            if held.state.finish().is_none()
                && held.locked_until == held.locked_at
                && now.since(held.locked_at) < Span::from_secs(1)
                && let Expect::Unchanged { revision, .. } = expect
            {
                *revision = revision.next();
            }
        }),
        judge!(restarts_of_any_revision: "restarts without checking the revision", Transition::Restart(_), any_revision),
        judge!(restarts_of_any_token: "restarts without checking the token", Transition::Restart(_), any_token),
        judge!(restarts_of_the_valid: "restarts what has not expired", Transition::Restart(_), |held, _, now| {
            if let idem_core::State::Completed { finish, .. } | idem_core::State::FailedFinal { finish, .. } = &mut held.state {
                finish.expires_at = finish.expires_at.min(now);
            }
        }),
        judge!(restarts_of_the_uncertain: "restarts what nobody knows the outcome of, by age", Transition::Restart(_), |held, _, _| {
            held.uncertain = false;
        }),
        judge!(verdicts_without_comparing: "settles without looking whether the record is unchanged", Transition::Resolve { .. }, |held, expect, now| {
            any_token(held, expect, now);
            any_revision(held, expect, now);
        }),
        judge!(verdicts_against_the_living: "settles what a live owner is working on", Transition::Resolve { .. }, |held, _, now| {
            held.locked_until = held.locked_until.min(now);
        }),
        judge!(verdicts_about_leases_only: "settles no failures", Transition::Resolve { .. }, |held, expect, _| {
            if held.state.finish().is_some()
                && let Expect::Unchanged { revision, .. } = expect
            {
                *revision = revision.next();
            }
        }),
        write!(takeovers_begin_the_window: "begins the reclaim window anew with every takeover", Transition::TakeOver { .. }, |record, _| {
            record.effect_since = record.locked_at;
        }),
        write!(takeovers_keep_the_window: "keeps the window of a harmless failure running", Transition::TakeOver { .. }, |record, before| {
            record.effect_since = before.effect_since;
        }),
        write!(takeovers_keep_the_token: "keeps the token of the owner before", Transition::TakeOver { .. }, |record, before| {
            record.token = before.token;
        }),
        write!(takeovers_are_no_attempts: "does not count a takeover as an attempt", Transition::TakeOver { .. }, |record, before| {
            record.attempt = before.attempt;
        }),
        write!(takeovers_are_certain: "does not mark what was taken over uncertain", Transition::TakeOver { .. }, |record, before| {
            record.uncertain = before.uncertain;
        }),
        write!(takeovers_are_not_counted: "does not count reclaims", Transition::TakeOver { .. }, |record, before| {
            record.reclaims = before.reclaims;
        }),
        write!(takeovers_always_count: "counts retries of harmless failures as reclaims", Transition::TakeOver { .. }, |record, before| {
            record.reclaims = before.reclaims + 1;
        }),
        write!(takeovers_forget_the_point: "forgets the recovery point with a takeover", Transition::TakeOver { .. }, |record, _| {
            record.recovery = None;
        }),
        write!(takeovers_are_new_origins: "gives a takeover an origin of its own", Transition::TakeOver { .. }, |record, _| {
            record.origin = idem_core::Origin::from_bytes(*record.token.as_bytes());
        }),
        write!(takeovers_bring_terms: "gives a takeover other terms than the claim's", Transition::TakeOver { .. }, |record, _| {
            record.terms.max_reclaims = record.terms.max_reclaims.max(10);
            record.terms.reclaim_window = Span::MAX;
        }),
        write!(takeovers_keep_the_note: "keeps why the attempt before failed", Transition::TakeOver { .. }, |record, before| {
            record.note.clone_from(&before.note);
        }),
        write!(restarts_keep_the_point: "keeps the recovery point of the operation before", Transition::Restart(_), |record, before| {
            record.recovery.clone_from(&before.recovery);
        }),
        write!(restarts_keep_doubt: "keeps a restarted record uncertain", Transition::Restart(_), |record, before| {
            record.uncertain = before.uncertain;
            record.reclaims = before.reclaims;
        }),
        write!(restarts_begin_the_revision: "counts revisions anew with a restart", Transition::Restart(_), |record, _| {
            record.revision = Revision::FIRST;
        }),
        write!(restarts_keep_the_attempt: "goes on counting attempts with a restart", Transition::Restart(_), |record, before| {
            record.attempt = before.attempt.next();
        }),
        write!(restarts_keep_the_origin: "keeps the origin of the operation before", Transition::Restart(_), |record, before| {
            record.origin = before.origin;
        }),
        write!(restarts_keep_the_payload: "keeps the fingerprint of the request before", Transition::Restart(_), |record, before| {
            record.fingerprint = before.fingerprint;
        }),
        write!(restarts_keep_the_terms: "keeps the terms of the claim before", Transition::Restart(_), |record, before| {
            record.terms = before.terms;
        }),
        write!(restarts_keep_the_age: "keeps when the key was first claimed", Transition::Restart(_), |record, before| {
            record.created_at = before.created_at;
            record.effect_since = before.effect_since;
        }),
        write!(verdicts_keep_the_token: "does not shut out the owner whose record is settled", Transition::Resolve { .. }, |record, before| {
            record.token = before.token;
        }),
        write!(verdicts_begin_anew: "gives a retryable verdict a new origin", Transition::Resolve { verdict: Verdict::Retryable, .. }, |record, _| {
            record.origin = idem_core::Origin::from_bytes(*record.token.as_bytes());
            record.recovery = None;
            record.attempt = AttemptNumber::FIRST;
        }),
        write!(verdicts_are_certain: "takes a retryable verdict for proof", Transition::Resolve { verdict: Verdict::Retryable, .. }, |record, _| {
            record.uncertain = false;
        }),
        saboteur!(verdicts_retry_by_removing: "frees the key when a verdict says retryable" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let sent = engine.transition(id, expect, change)?;
                if let (Transition::Resolve { verdict: Verdict::Retryable, .. }, TransitionOutcome::Applied { .. }) = (change, &sent) {
                    engine.remove(id);
                }
                Ok(sent)
            }
        }),
        saboteur!(takeovers_create: "takes over what is not there" {
            async fn transition(&self, engine: Engine<'_>, id: &RecordId, expect: Expect, change: &Transition) -> Sent {
                let sent = engine.transition(id, expect, change)?;
                if let (Transition::Restart(claim), TransitionOutcome::Lost(None)) = (change, &sent) {
                    let record = claim.first_record(engine.now());
                    let revision = record.revision;
                    engine.put(id, record);
                    return Ok(TransitionOutcome::Applied { revision, now: engine.now() });
                }
                Ok(sent)
            }
        }),
    ]
}
