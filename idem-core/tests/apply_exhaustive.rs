//! Every record state under every transition, expectation and time, compared with the transition table.
//!
//! [`expected`] is the specification. It says for every transition when it is allowed and, as a record that
//! differs from the old one in exactly the fields that are named, what it does; comparing whole records then
//! checks every field. It shares no code with what it checks.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is all test code, also outside of the test functions"
)]

mod machine;

use std::collections::BTreeMap;

use idem_core::{
    Applied, AttemptNumber, Claim, Contract, Expect, Fingerprints, Finish, Moment, Note, Policy,
    Record, Recovery, Rejected, Request, Response, Revision, Span, State, Status, Terms,
    Transition, Verdict,
};

use machine::{at, attempt, charge, fingerprint, id, origin, point, refund, response, span, token};

/// How a record and its surroundings are, in the words of the transition table. The three distances are from
/// the store's now, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Facts {
    status: Status,
    uncertain: bool,
    contract: Contract,
    reclaims: u32,
    recovery: StoredCheckpoint,
    noted: bool,
    until_lease_is_over: i64,
    until_expiry: i64,
    until_window_closes: i64,
    skew: i64,
}

/// Which checkpoint the record holds. The record is at its attempt 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoredCheckpoint {
    None,
    /// Number 9 of attempt 2.
    OfAnEarlierAttempt,
    /// Number 5 of attempt 3.
    OfThisAttempt,
}

const OWNER: u8 = 7;
const FRESH: u8 = 8;
const STRANGER: u8 = 9;
const REVISION: u64 = 12;
const MAX_RECLAIMS: u32 = 4;
const RETENTION: i64 = 60;
const WINDOW: i64 = 1_000_000;
const LEASE: i64 = 90;

impl Facts {
    fn lease_is_over(&self) -> bool {
        self.until_lease_is_over <= -self.skew
    }

    /// The terms allow another run of work that may have had an effect.
    fn terms_allow(&self) -> bool {
        self.contract == Contract::Reclaim
            && self.until_window_closes > self.skew
            && self.reclaims < MAX_RECLAIMS
    }

    /// Rows 9 and 11 of the decision table: somebody else may run the work.
    fn may_be_taken_over(&self) -> bool {
        match self.status {
            Status::InProgress => self.lease_is_over() && self.terms_allow(),
            Status::FailedRetryable => !self.uncertain || self.terms_allow(),
            Status::Completed | Status::FailedFinal => false,
        }
    }

    /// Row 2: finished, and the retention is over.
    fn may_be_restarted(&self) -> bool {
        let finished = match self.status {
            Status::InProgress => false,
            Status::Completed | Status::FailedFinal => true,
            Status::FailedRetryable => !self.uncertain,
        };
        finished && self.until_expiry <= -self.skew
    }

    /// Rows 9b and 12, or in progress with the lease over.
    fn may_be_resolved(&self) -> bool {
        match self.status {
            Status::InProgress => self.lease_is_over(),
            Status::FailedRetryable => self.uncertain && !self.terms_allow(),
            Status::Completed | Status::FailedFinal => false,
        }
    }

    /// A side effect may exist: the record says so, or somebody was at work and is not heard of.
    fn is_doubtful(&self) -> bool {
        self.uncertain || self.status == Status::InProgress
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Changed(Box<Record>),
    AlreadyApplied,
    Removed,
    Lost,
    Superseded,
    Conflict,
    Misuse,
}

/// What must happen. The store's now is `at(0)`.
fn expected(facts: &Facts, old: &Record, expect: Expect, change: &Transition) -> Expected {
    let next = Record {
        revision: Revision::new(REVISION + 1),
        ..old.clone()
    };
    let finish = Finish {
        finished_at: at(0),
        expires_at: at(RETENTION),
    };
    match (expect, change) {
        (Expect::Owner(writer), Transition::Renew { lease }) => {
            if !is_owner(facts, old, writer) {
                return Expected::Lost;
            }
            Expected::changed(Record {
                locked_at: at(0),
                locked_until: at(0) + *lease,
                ..next
            })
        }
        (
            Expect::Owner(writer),
            Transition::Checkpoint {
                point,
                sequence,
                lease,
            },
        ) => {
            if !is_owner(facts, old, writer) {
                return Expected::Lost;
            }
            // Attempts are compared before numbers: the first checkpoint of a new attempt is newer than the
            // ninth of the one before.
            let stored = match facts.recovery {
                StoredCheckpoint::None | StoredCheckpoint::OfAnEarlierAttempt => 0,
                StoredCheckpoint::OfThisAttempt => 5,
            };
            if *sequence < stored {
                return Expected::Superseded;
            }
            if *sequence == stored {
                return if point.name() == "stored" && point.data().is_none() {
                    Expected::AlreadyApplied
                } else {
                    Expected::Conflict
                };
            }
            Expected::changed(Record {
                recovery: Some(Recovery {
                    point: point.clone(),
                    attempt: old.attempt,
                    sequence: *sequence,
                }),
                uncertain: true,
                locked_at: at(0),
                locked_until: at(0) + *lease,
                ..next
            })
        }
        (Expect::Owner(writer), Transition::Complete(response)) => {
            if is_owner(facts, old, writer) {
                return Expected::changed(Record {
                    state: State::Completed {
                        response: response.clone(),
                        finish,
                    },
                    ..next
                });
            }
            let stored = matches!(&old.state, State::Completed { response: stored, .. } if stored == response);
            Expected::already_applied_if(writer == token(OWNER) && stored)
        }
        (Expect::Owner(writer), Transition::FailFinal(response)) => {
            if is_owner(facts, old, writer) {
                return Expected::changed(Record {
                    state: State::FailedFinal {
                        response: response.clone(),
                        finish,
                    },
                    ..next
                });
            }
            let stored = matches!(&old.state, State::FailedFinal { response: stored, .. } if stored == response);
            Expected::already_applied_if(writer == token(OWNER) && stored)
        }
        (Expect::Owner(writer), Transition::FailRetryable { reason, uncertain }) => {
            if is_owner(facts, old, writer) {
                return Expected::changed(Record {
                    state: State::FailedRetryable { finish },
                    note: Some(reason.clone()),
                    uncertain: facts.uncertain || *uncertain,
                    ..next
                });
            }
            // The flag may have been set before, but a flag that was sent and is not there was never applied.
            let stored = facts.status == Status::FailedRetryable
                && old.note.as_ref() == Some(reason)
                && (facts.uncertain || !uncertain);
            Expected::already_applied_if(writer == token(OWNER) && stored)
        }
        (Expect::Owner(writer), Transition::Release) => {
            if is_owner(facts, old, writer) {
                return if facts.uncertain {
                    Expected::changed(Record {
                        state: State::FailedRetryable { finish },
                        ..next
                    })
                } else {
                    Expected::Removed
                };
            }
            // An uncertain record that was released stands as a failure.
            let stored = facts.status == Status::FailedRetryable && facts.uncertain;
            Expected::already_applied_if(writer == token(OWNER) && stored)
        }
        (Expect::Unchanged { .. }, Transition::TakeOver { token, lease }) => {
            if !(is_unchanged(expect) && facts.may_be_taken_over()) {
                return Expected::already_applied_if(*token == old.token);
            }
            let doubtful = facts.is_doubtful();
            Expected::changed(Record {
                state: State::InProgress,
                token: *token,
                attempt: attempt(4),
                reclaims: if doubtful {
                    facts.reclaims + 1
                } else {
                    facts.reclaims
                },
                uncertain: doubtful,
                // Counted from the first owner who may have had an effect, so that crash after crash cannot
                // outlive the provider's memory.
                effect_since: if doubtful { old.effect_since } else { at(0) },
                locked_at: at(0),
                locked_until: at(0) + *lease,
                note: None,
                ..next
            })
        }
        (Expect::Unchanged { .. }, Transition::Restart(claim)) => {
            if !(is_unchanged(expect) && facts.may_be_restarted()) {
                return Expected::already_applied_if(claim.token() == old.token);
            }
            // Exactly what a first claim writes, but for the revision. No field is taken from the old record.
            Expected::changed(Record {
                id: id(),
                operation: refund(),
                fingerprint: fingerprint(2, 2),
                origin: origin(5),
                token: claim.token(),
                revision: Revision::new(REVISION + 1),
                attempt: AttemptNumber::FIRST,
                reclaims: 0,
                uncertain: false,
                recovery: None,
                terms: Policy::default().terms(),
                created_at: at(0),
                effect_since: at(0),
                locked_at: at(0),
                locked_until: at(0) + Policy::default().lease(),
                state: State::InProgress,
                note: None,
            })
        }
        (
            Expect::Unchanged { .. },
            Transition::Resolve {
                verdict,
                token,
                note,
            },
        ) => {
            if !(is_unchanged(expect) && facts.may_be_resolved()) {
                return Expected::already_applied_if(*token == old.token);
            }
            let next = Record {
                token: *token,
                note: Some(note.clone()),
                ..next
            };
            match verdict {
                Verdict::Completed(response) => Expected::changed(Record {
                    state: State::Completed {
                        response: response.clone(),
                        finish,
                    },
                    ..next
                }),
                Verdict::Failed(response) => Expected::changed(Record {
                    state: State::FailedFinal {
                        response: response.clone(),
                        finish,
                    },
                    ..next
                }),
                Verdict::Retryable => Expected::changed(Record {
                    state: State::FailedRetryable { finish },
                    uncertain: true,
                    ..next
                }),
                Verdict::Released => Expected::Removed,
            }
        }
        _ => Expected::Misuse,
    }
}

/// In progress, and under this token. Nothing about time: an owner whose lease is over and who was not replaced
/// is the owner.
fn is_owner(facts: &Facts, old: &Record, writer: idem_core::OwnerToken) -> bool {
    facts.status == Status::InProgress && writer == old.token
}

/// Token and revision are those of the record.
fn is_unchanged(expect: Expect) -> bool {
    expect
        == Expect::Unchanged {
            token: token(OWNER),
            revision: Revision::new(REVISION),
        }
}

impl Expected {
    fn changed(record: Record) -> Self {
        Self::Changed(Box::new(record))
    }

    fn already_applied_if(applied: bool) -> Self {
        if applied {
            Self::AlreadyApplied
        } else {
            Self::Lost
        }
    }
}

impl From<Result<Applied, Rejected>> for Expected {
    fn from(result: Result<Applied, Rejected>) -> Self {
        match result {
            Ok(Applied::Changed(record)) => Self::Changed(record),
            Ok(Applied::Unchanged) => Self::AlreadyApplied,
            Ok(Applied::Removed) => Self::Removed,
            Err(Rejected::Lost) => Self::Lost,
            Err(Rejected::Superseded) => Self::Superseded,
            Err(Rejected::Conflict) => Self::Conflict,
            Err(Rejected::Misuse(_)) => Self::Misuse,
            Err(other) => panic!("a rejection that the tests do not know: {other:?}"),
        }
    }
}

fn record(facts: &Facts) -> Record {
    let finish = Finish {
        finished_at: at(-5),
        expires_at: at(facts.until_expiry),
    };
    let recovery = |attempt: AttemptNumber, sequence| {
        Some(Recovery {
            point: point("stored"),
            attempt,
            sequence,
        })
    };
    Record {
        id: id(),
        operation: charge(),
        fingerprint: fingerprint(1, 1),
        origin: origin(3),
        token: token(OWNER),
        revision: Revision::new(REVISION),
        attempt: attempt(3),
        reclaims: facts.reclaims,
        uncertain: facts.uncertain,
        recovery: match facts.recovery {
            StoredCheckpoint::None => None,
            StoredCheckpoint::OfAnEarlierAttempt => recovery(attempt(2), 9),
            StoredCheckpoint::OfThisAttempt => recovery(attempt(3), 5),
        },
        terms: Terms {
            contract: facts.contract,
            retention: span(RETENTION),
            reclaim_window: span(WINDOW),
            max_reclaims: MAX_RECLAIMS,
        },
        created_at: at(-2 * WINDOW),
        effect_since: at(facts.until_window_closes - WINDOW),
        locked_at: at(-50),
        locked_until: at(facts.until_lease_is_over),
        state: match facts.status {
            Status::InProgress => State::InProgress,
            Status::Completed => State::Completed {
                response: response(201),
                finish,
            },
            Status::FailedFinal => State::FailedFinal {
                response: response(201),
                finish,
            },
            Status::FailedRetryable => State::FailedRetryable { finish },
        },
        note: facts.noted.then(|| Note::new("noted")),
    }
}

/// Every transition, with every content that can make a difference: what is stored, and something else.
fn transitions() -> Vec<Transition> {
    let mut all = vec![Transition::Release];
    for lease in [Span::ZERO, span(LEASE)] {
        all.push(Transition::Renew { lease });
    }
    for sequence in [1, 4, 5, 6, 9, 10] {
        for point in [
            point("stored"),
            point("other"),
            point("stored").with_data("data").unwrap(),
        ] {
            all.push(Transition::Checkpoint {
                point,
                sequence,
                lease: span(LEASE),
            });
        }
    }
    for response in [response(201), response(202), almost(response(201))] {
        all.push(Transition::Complete(response.clone()));
        all.push(Transition::FailFinal(response));
    }
    for reason in ["noted", "other"] {
        for uncertain in BOTH {
            all.push(Transition::FailRetryable {
                reason: Note::new(reason),
                uncertain,
            });
        }
    }
    // A fresh token, as it should be, and the one that the record has: the same write sent twice.
    for bringing in [token(FRESH), token(OWNER)] {
        all.push(Transition::TakeOver {
            token: bringing,
            lease: span(LEASE),
        });
        let fingerprints = Fingerprints::new(fingerprint(2, 2));
        all.push(Transition::Restart(Box::new(Claim::new(
            Request::new(id(), refund(), fingerprints),
            &Policy::default(),
            origin(5),
            bringing,
        ))));
        for verdict in [
            Verdict::Completed(response(203)),
            Verdict::Failed(response(503)),
            Verdict::Retryable,
            Verdict::Released,
        ] {
            all.push(Transition::Resolve {
                verdict,
                token: bringing,
                note: Note::new("looked it up"),
            });
        }
    }
    all
}

/// The same answer but for its body, which is marked omitted.
fn almost(response: Response) -> Response {
    response.without_body()
}

fn expectations() -> [Expect; 6] {
    let unchanged = |token, revision| Expect::Unchanged {
        token,
        revision: Revision::new(revision),
    };
    [
        Expect::Owner(token(OWNER)),
        Expect::Owner(token(STRANGER)),
        unchanged(token(OWNER), REVISION),
        unchanged(token(STRANGER), REVISION),
        unchanged(token(OWNER), REVISION - 1),
        unchanged(token(OWNER), REVISION + 1),
    ]
}

const BOTH: [bool; 2] = [false, true];
const SKEW: i64 = 10;

/// Around the end of a lease and of a retention: before, exactly at and after it.
const UNTIL_OVER: [(i64, [i64; 3]); 2] = [(0, [1, 0, -1]), (SKEW, [-9, -10, -11])];

/// The same for the reclaim window, which a doubtful clock closes early.
const UNTIL_CLOSED: [(i64, [i64; 3]); 2] = [(0, [1, 0, -1]), (SKEW, [11, 10, 9])];

#[test]
fn every_transition_does_what_the_table_says_and_nothing_else() {
    let transitions = transitions();
    let expectations = expectations();
    let mut combinations = 0_u64;
    let mut results = BTreeMap::<(&str, &str), u64>::new();

    every_record(|facts| {
        let old = record(facts);
        let moment = Moment {
            now: at(0),
            skew: span(facts.skew),
        };
        for change in &transitions {
            for expect in expectations {
                let wanted = expected(facts, &old, expect, change);
                let got = Expected::from(old.apply(expect, change, moment));
                assert_eq!(
                    got, wanted,
                    "{change:?} under {expect:?} at {facts:?}, left is what it did to {old:#?}"
                );
                combinations += 1;
                *results.entry((change.name(), wanted.name())).or_default() += 1;
            }
        }
    });

    println!("{combinations} combinations: {results:#?}");
    assert_eq!(combinations, COMBINATIONS);
    for expected in EVERY_RESULT {
        assert!(results.contains_key(expected), "{expected:?} never happens");
    }
    assert_eq!(results.len(), EVERY_RESULT.len(), "{results:#?}");
}

/// 43 transitions × 6 expectations × 2 uncertain × 2 contracts × 3 counts of reclaims × 3 checkpoints × 2 notes,
/// times 2 clocks with 3 × 3 × 3 times for the three statuses that expire and 3 × 3 for the one that does not.
const COMBINATIONS: u64 = 43 * 6 * 2 * 2 * 3 * 3 * 2 * 2 * (3 * 27 + 9);

/// What can come of each transition: a combination that the enumeration did not reach would be missing here.
const EVERY_RESULT: &[(&str, &str)] = &[
    ("checkpoint", "already applied"),
    ("checkpoint", "changed"),
    ("checkpoint", "conflict"),
    ("checkpoint", "lost"),
    ("checkpoint", "misuse"),
    ("checkpoint", "superseded"),
    ("complete", "already applied"),
    ("complete", "changed"),
    ("complete", "lost"),
    ("complete", "misuse"),
    ("fail_final", "already applied"),
    ("fail_final", "changed"),
    ("fail_final", "lost"),
    ("fail_final", "misuse"),
    ("fail_retryable", "already applied"),
    ("fail_retryable", "changed"),
    ("fail_retryable", "lost"),
    ("fail_retryable", "misuse"),
    ("release", "already applied"),
    ("release", "changed"),
    ("release", "lost"),
    ("release", "misuse"),
    ("release", "removed"),
    ("renew", "changed"),
    ("renew", "lost"),
    ("renew", "misuse"),
    ("resolve", "already applied"),
    ("resolve", "changed"),
    ("resolve", "lost"),
    ("resolve", "misuse"),
    ("resolve", "removed"),
    ("restart", "already applied"),
    ("restart", "changed"),
    ("restart", "lost"),
    ("restart", "misuse"),
    ("take_over", "already applied"),
    ("take_over", "changed"),
    ("take_over", "lost"),
    ("take_over", "misuse"),
];

impl Expected {
    fn name(&self) -> &'static str {
        match self {
            Self::Changed(_) => "changed",
            Self::AlreadyApplied => "already applied",
            Self::Removed => "removed",
            Self::Lost => "lost",
            Self::Superseded => "superseded",
            Self::Conflict => "conflict",
            Self::Misuse => "misuse",
        }
    }
}

fn every_record(mut visit: impl FnMut(&Facts)) {
    for status in Status::ALL {
        for ((skew, until_over), (_, until_closed)) in UNTIL_OVER.iter().zip(&UNTIL_CLOSED) {
            // What is in progress does not expire, so there is one distance to it only.
            let expiries = match status {
                Status::InProgress => &until_over[..1],
                _ => &until_over[..],
            };
            for &until_lease_is_over in until_over {
                for &until_expiry in expiries {
                    for &until_window_closes in until_closed {
                        let facts = Facts {
                            status,
                            uncertain: false,
                            contract: Contract::Reclaim,
                            reclaims: 0,
                            recovery: StoredCheckpoint::None,
                            noted: false,
                            until_lease_is_over,
                            until_expiry,
                            until_window_closes,
                            skew: *skew,
                        };
                        every_combination_of_the_rest(facts, &mut visit);
                    }
                }
            }
        }
    }
}

fn every_combination_of_the_rest(facts: Facts, visit: &mut impl FnMut(&Facts)) {
    for uncertain in BOTH {
        for contract in Contract::ALL {
            for reclaims in [0, MAX_RECLAIMS - 1, MAX_RECLAIMS] {
                for recovery in [
                    StoredCheckpoint::None,
                    StoredCheckpoint::OfAnEarlierAttempt,
                    StoredCheckpoint::OfThisAttempt,
                ] {
                    for noted in BOTH {
                        visit(&Facts {
                            uncertain,
                            contract,
                            reclaims,
                            recovery,
                            noted,
                            ..facts
                        });
                    }
                }
            }
        }
    }
}
