//! The rule, as pure functions: what is remembered, what is answered from it, and when it is forgotten.

use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Decision, Expect, OwnerToken, Snapshot, Span, Status, Transition,
    TransitionOutcome, decide,
};

use crate::entry::{Entry, Lifetime};
use crate::names::Name;

/// What a store's answer is worth remembering for: that this attempt had the record in progress, within its lease.
///
/// The entry may live for as long as the lease is certain to last, and for `cap` at most, from when the store was
/// *asked*, which is before it answered.
pub(crate) fn learn(name: &Name, held: &Snapshot, cap: Lifetime) -> Option<Entry> {
    let record = &held.record;
    if record.status() != Status::InProgress {
        return None;
    }
    // By a clock that may be off, the lease lasts no longer than until it might be over...
    let certain = record.locked_until.since(held.moment().latest());
    let lifetime = Lifetime::new(certain.as_duration().min(cap.as_duration()))?;
    // ... and the owner may be replaced when it is over for certain. This one is for people.
    let lease_left = record.locked_until.since(held.moment().earliest());
    let request = (&record.operation, &record.fingerprint);
    Some(Entry::new(
        name,
        record.token,
        request,
        lifetime,
        lease_left,
    ))
}

/// Whether the caller of this claim was refused because somebody has the record in progress. Those, and no others,
/// leave an entry behind.
pub(crate) fn was_refused(claim: &Claim, held: &Snapshot) -> bool {
    matches!(decide(claim, Some(held)), Decision::Busy { .. })
}

/// What an entry that lives for `left` more says to a claim: that its very request is in progress, or nothing.
///
/// Another operation, another payload, a payload that cannot be compared, and the claim's own token are nothing: the
/// store is asked.
pub(crate) fn refuse(
    name: &Name,
    entry: &Entry,
    left: Duration,
    claim: &Claim,
) -> Option<ClaimOutcome> {
    // An entry that lives for longer than it was given has lost its clock: somebody made it persistent, or set the
    // server's clock back.
    if left.is_zero() || left > entry.lifetime.as_duration() || entry.token == claim.token() {
        return None;
    }
    let fingerprint = claim.request().fingerprints.under(entry.scheme)?;
    if !entry.is_of(name, claim.operation(), fingerprint) {
        return None;
    }
    let age = entry.lifetime.as_duration() - left;
    let remaining = entry.lease_left.as_duration().saturating_sub(age);
    Some(ClaimOutcome::Refused {
        token: entry.token,
        remaining: Span::new(remaining).unwrap_or(Span::ZERO),
    })
}

/// Whose entry is no longer true after a transition was answered so.
///
/// The token is that of the expectation, never that of the record now: a late writer learns that it lost, and takes
/// away its own entry and not its successor's.
pub(crate) fn ended(
    expect: Expect,
    change: &Transition,
    outcome: &TransitionOutcome,
) -> Option<OwnerToken> {
    let (Expect::Owner(token) | Expect::Unchanged { token, .. }) = expect;
    let over = match outcome {
        TransitionOutcome::Applied { .. } => !matches!(
            change,
            Transition::Renew { .. } | Transition::Checkpoint { .. }
        ),
        // Also for a finish whose first acknowledgement was lost.
        TransitionOutcome::Lost(held) => held.as_ref().is_none_or(|held| {
            held.record.token != token || held.record.status() != Status::InProgress
        }),
        TransitionOutcome::Contended { .. } => false,
    };
    over.then_some(token)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use idem_core::{
        Fingerprint, Fingerprints, IdempotencyKey, Moment, Operation, Origin, Policy, Profile,
        Record, RecordId, Request, Response, Scheme, Scope, Timestamp,
    };

    use super::*;
    use crate::Namespace;
    use crate::names::Names;

    fn cap() -> Lifetime {
        Lifetime::new(Duration::from_secs(1)).unwrap()
    }

    fn fingerprint(profile: u16, byte: u8) -> Fingerprint {
        Fingerprint::from_parts(Scheme::current(Profile::new(profile)), [byte; 32])
    }

    fn request(operation: &str, fingerprints: Fingerprints) -> Request {
        let id = RecordId::new(
            Scope::new("acct_1").unwrap(),
            IdempotencyKey::new("k-1").unwrap(),
        );
        Request::new(id, Operation::new(operation).unwrap(), fingerprints)
    }

    fn claim_of(request: Request, token: u8) -> Claim {
        let policy = Policy::builder()
            .lease(Duration::from_secs(90))
            .build()
            .unwrap();
        let token = OwnerToken::from_bytes([token; 16]);
        Claim::new(request, &policy, Origin::from_bytes([1; 16]), token)
    }

    fn claim(token: u8) -> Claim {
        claim_of(request("POST /x", fingerprint(1, 1).into()), token)
    }

    fn name(claim: &Claim) -> Name {
        Names::new("idem:", Namespace::new("n").unwrap()).of(claim.id())
    }

    fn held(record: Record, now: i64) -> Snapshot {
        Snapshot::new(Arc::new(record), Timestamp::from_micros(now))
    }

    fn entry() -> Entry {
        let owner = claim(1);
        let record = owner.first_record(Timestamp::from_micros(0));
        learn(&name(&owner), &held(record, 0), cap()).unwrap()
    }

    #[test]
    fn an_entry_lives_for_the_cap_or_for_the_lease() {
        let owner = claim(1);
        let record = owner.first_record(Timestamp::from_micros(0));
        let learnt = |now| learn(&name(&owner), &held(record.clone(), now), cap());
        let lifetime = |now| learnt(now).map(|entry| entry.lifetime.millis());
        let end = record.locked_until.as_micros();
        assert_eq!(lifetime(0), Some(1000));
        assert_eq!(lifetime(end - 1_000_000), Some(1000));
        assert_eq!(lifetime(end - 250_500), Some(250));
        assert_eq!(lifetime(end - 1_000), Some(1));
        // Less than a millisecond, nothing, and less than nothing.
        assert_eq!(lifetime(end - 999), None);
        assert_eq!(lifetime(end), None);
        assert_eq!(lifetime(end + 1), None);
        assert_eq!(learnt(0).unwrap().lease_left, Span::from_secs(90));
    }

    #[test]
    fn a_clock_in_doubt_makes_it_shorter() {
        let owner = claim(1);
        let record = owner.first_record(Timestamp::from_micros(0));
        let mut snapshot = held(record.clone(), record.locked_until.as_micros() - 500_000);
        snapshot.skew = Span::from_millis(200);
        let learnt = learn(&name(&owner), &snapshot, cap()).unwrap();
        assert_eq!(learnt.lifetime.millis(), 300);
        assert_eq!(learnt.lease_left, Span::from_millis(700));
    }

    #[test]
    fn what_is_not_in_progress_is_not_remembered() {
        let owner = claim(1);
        let record = owner.first_record(Timestamp::from_micros(0));
        let now = Moment::exact(Timestamp::from_micros(1));
        let finishes = [
            Transition::Complete(Response::new(200)),
            Transition::FailFinal(Response::new(500)),
            Transition::FailRetryable {
                reason: idem_core::Note::new("no"),
                uncertain: true,
            },
        ];
        for change in finishes {
            let applied = record.apply(Expect::Owner(owner.token()), &change, now);
            let Ok(idem_core::Applied::Changed(done)) = applied else {
                panic!("{applied:?}");
            };
            assert_eq!(learn(&name(&owner), &held(*done, 1), cap()), None);
        }
    }

    #[test]
    fn the_same_request_of_somebody_else_is_refused_and_nothing_else() {
        let entry = entry();
        let left = Duration::from_millis(400);
        let answer = |claim: &Claim| refuse(&name(claim), &entry, left, claim);
        assert_eq!(
            answer(&claim(2)),
            Some(ClaimOutcome::Refused {
                token: OwnerToken::from_bytes([1; 16]),
                remaining: Span::from_millis(90_000 - 600),
            })
        );
        assert_eq!(answer(&claim(1)), None, "its own token");
        let other = |operation, fingerprints| claim_of(request(operation, fingerprints), 2);
        assert_eq!(answer(&other("POST /y", fingerprint(1, 1).into())), None);
        assert_eq!(answer(&other("POST /x", fingerprint(1, 2).into())), None);
        assert_eq!(
            answer(&other("POST /x", fingerprint(2, 1).into())),
            None,
            "another scheme"
        );
        // Written under the new scheme, and still able to read the old one.
        let both = Fingerprints::new(fingerprint(2, 9)).and_reads(fingerprint(1, 1));
        assert!(answer(&other("POST /x", both)).is_some());
        // Able to read it, and different under it.
        let both = Fingerprints::new(fingerprint(2, 9)).and_reads(fingerprint(1, 7));
        assert_eq!(answer(&other("POST /x", both)), None);
    }

    #[test]
    fn an_entry_of_another_record_says_nothing() {
        let entry = entry();
        let other = RecordId::new(
            Scope::new("acct_2").unwrap(),
            IdempotencyKey::new("k-1").unwrap(),
        );
        let request = Request::new(
            other,
            Operation::new("POST /x").unwrap(),
            fingerprint(1, 1).into(),
        );
        let claim = claim_of(request, 2);
        assert_eq!(
            refuse(&name(&claim), &entry, Duration::from_millis(400), &claim),
            None
        );
    }

    /// Also in the token: or an owner would not know its own.
    #[test]
    fn an_entry_with_a_wrong_byte_says_nothing() {
        let (good, claim) = (entry().encode(), claim(2));
        let left = Duration::from_millis(400);
        for place in 0..good.len() {
            for change in 1..=u8::MAX {
                let mut bytes = good.clone();
                bytes[place] ^= change;
                let answer = Entry::decode(&bytes, cap())
                    .and_then(|entry| refuse(&name(&claim), &entry, left, &claim));
                assert_eq!(answer, None, "byte {place}");
            }
        }
    }

    #[test]
    fn an_entry_without_a_clock_says_nothing() {
        let (entry, claim) = (entry(), claim(2));
        let answer = |left| refuse(&name(&claim), &entry, left, &claim);
        assert!(answer(Duration::from_millis(1)).is_some());
        assert!(answer(Duration::from_millis(1000)).is_some());
        assert_eq!(answer(Duration::ZERO), None);
        assert_eq!(answer(Duration::from_millis(1001)), None);
        assert_eq!(answer(Duration::MAX), None);
    }

    #[test]
    fn what_ends_an_attempt_takes_its_entry_away() {
        let token = OwnerToken::from_bytes([1; 16]);
        let other = OwnerToken::from_bytes([2; 16]);
        let owner = Expect::Owner(token);
        let seen = Expect::Unchanged {
            token,
            revision: idem_core::Revision::FIRST,
        };
        let applied = TransitionOutcome::Applied {
            revision: idem_core::Revision::FIRST,
            now: Timestamp::from_micros(0),
        };
        let lease = Span::from_secs(1);
        let complete = Transition::Complete(Response::new(200));
        let take_over = Transition::TakeOver {
            token: other,
            lease,
        };
        assert_eq!(ended(owner, &complete, &applied), Some(token));
        assert_eq!(ended(owner, &Transition::Release, &applied), Some(token));
        assert_eq!(ended(seen, &take_over, &applied), Some(token));
        assert_eq!(ended(owner, &Transition::Renew { lease }, &applied), None);
        let checkpoint = Transition::Checkpoint {
            point: idem_core::RecoveryPoint::new("charged").unwrap(),
            sequence: 1,
            lease,
        };
        assert_eq!(ended(owner, &checkpoint, &applied), None);
        let fail = Transition::FailRetryable {
            reason: idem_core::Note::new("no"),
            uncertain: true,
        };
        assert_eq!(ended(owner, &fail, &applied), Some(token));

        let contended = TransitionOutcome::Contended {
            retry_after: Duration::ZERO,
        };
        assert_eq!(ended(owner, &complete, &contended), None);
        // A late owner takes away its own entry, and not that of whoever replaced it.
        let replaced = claim(2).first_record(Timestamp::from_micros(0));
        let lost = TransitionOutcome::Lost(Some(held(replaced, 0)));
        assert_eq!(ended(owner, &complete, &lost), Some(token));
        assert_eq!(
            ended(owner, &complete, &TransitionOutcome::Lost(None)),
            Some(token)
        );
        // A takeover that lost to a renewal: the entry is still true.
        let renewed = claim(1).first_record(Timestamp::from_micros(0));
        let lost = TransitionOutcome::Lost(Some(held(renewed, 0)));
        assert_eq!(ended(seen, &take_over, &lost), None);
    }
}
