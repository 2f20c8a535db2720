//! Every combination of what `decide` can look at, compared with the decision table.
//!
//! The table below is the specification: it is written over facts ("another operation", "so many microseconds
//! until the lease is over"), not over records, and shares no code with what it checks.

mod machine;

use std::collections::BTreeMap;

use idem_core::{
    Claim, Contract, Decision, Expect, Fence, Fingerprints, Finish, Mismatch, Origin, OwnerToken,
    Policy, Record, Request, Revision, Scheme, Snapshot, Span, State, Status, Terms, Transition,
    decide,
};

use machine::{at, attempt, charge, fingerprint, id, origin, refund, response, span, token};

/// Which fingerprint is stored, for a caller that writes under rules 1 and still reads under rules 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Same,
    Other,
    SameUnderReadScheme,
    OtherUnderReadScheme,
    UnderUndeclaredScheme,
    UnderUnknownEncoding,
}

/// Whom the claim waited for before it asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Witness {
    Nobody,
    ThisAttempt,
    AnotherAttempt,
    SameNumberOfAnotherOrigin,
}

/// All that a decision may depend on. The three distances are from the store's now, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Facts {
    status: Status,
    own_token: bool,
    same_operation: bool,
    stored: Stored,
    uncertain: bool,
    contract: Contract,
    reclaims: u32,
    max_reclaims: u32,
    until_lease_is_over: i64,
    until_expiry: i64,
    until_window_closes: i64,
    skew: i64,
    witness: Witness,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Restart,
    Resume,
    Mismatch(Mismatch),
    Incomparable,
    Replay,
    TakeOver,
    OutcomeUnknown,
    Busy { remaining: Span },
}

/// A row of the table: its number, what the store holds, and what is decided.
type Row = (&'static str, fn(&Facts) -> bool, fn(&Facts) -> Expected);

/// What is decided when the store holds a record. The first row that matches wins. (Row 1 is: nothing is held.)
///
/// A clock that may be off by `skew` is taken at its earliest for the end of a lease and of a retention, and at
/// its latest for the end of the reclaim window: in doubt nobody is replaced, forgotten or run again.
const TABLE: [Row; 12] = [
    (
        "2",
        |f| f.is_finished() && f.has_expired() && !f.is_awaited_answer(),
        |_| Expected::Restart,
    ),
    (
        "3",
        |f| f.status == Status::InProgress && f.own_token,
        |_| Expected::Resume,
    ),
    (
        "4",
        |f| !f.same_operation,
        |_| Expected::Mismatch(Mismatch::Operation),
    ),
    (
        "5",
        |f| {
            matches!(
                f.stored,
                Stored::UnderUndeclaredScheme | Stored::UnderUnknownEncoding
            )
        },
        |_| Expected::Incomparable,
    ),
    (
        "6",
        |f| matches!(f.stored, Stored::Other | Stored::OtherUnderReadScheme),
        |_| Expected::Mismatch(Mismatch::Payload),
    ),
    ("7", |f| f.status == Status::Completed, |_| Expected::Replay),
    (
        "8",
        |f| f.status == Status::FailedFinal,
        |_| Expected::Replay,
    ),
    (
        "9",
        |f| {
            f.status == Status::FailedRetryable
                && (!f.uncertain
                    || (f.contract == Contract::Reclaim
                        && f.is_inside_window()
                        && f.reclaims < f.max_reclaims))
        },
        |_| Expected::TakeOver,
    ),
    (
        "9b",
        |f| f.status == Status::FailedRetryable,
        |_| Expected::OutcomeUnknown,
    ),
    (
        "10",
        |f| f.status == Status::InProgress && !f.lease_is_over(),
        |f| Expected::Busy {
            // With a doubtful clock it is over when even the earliest reading says so.
            remaining: span(f.until_lease_is_over + f.skew),
        },
    ),
    (
        "11",
        |f| {
            f.status == Status::InProgress
                && f.lease_is_over()
                && f.contract == Contract::Reclaim
                && f.is_inside_window()
                && f.reclaims < f.max_reclaims
        },
        |_| Expected::TakeOver,
    ),
    (
        "12",
        |f| f.status == Status::InProgress && f.lease_is_over(),
        |_| Expected::OutcomeUnknown,
    ),
];

impl Facts {
    /// Completed, failed for good, or failed retryable and not uncertain.
    fn is_finished(&self) -> bool {
        match self.status {
            Status::InProgress => false,
            Status::Completed | Status::FailedFinal => true,
            Status::FailedRetryable => !self.uncertain,
        }
    }

    /// `expires_at <= now - skew`
    fn has_expired(&self) -> bool {
        self.until_expiry <= -self.skew
    }

    /// `locked_until <= now - skew`
    fn lease_is_over(&self) -> bool {
        self.until_lease_is_over <= -self.skew
    }

    /// `now + skew < effect_since + window`
    fn is_inside_window(&self) -> bool {
        self.until_window_closes > self.skew
    }

    /// A waiter that saw an attempt running and then finds its answer takes it, whatever its expiry.
    fn is_awaited_answer(&self) -> bool {
        self.witness == Witness::ThisAttempt
            && matches!(self.status, Status::Completed | Status::FailedFinal)
    }
}

const WINDOW: i64 = 1_000_000;
const OWN: u8 = 7;
const HELD_ORIGIN: u8 = 3;

/// The claim that asks, for each witness.
fn claim(witness: Witness) -> Claim {
    let fingerprints = Fingerprints::new(fingerprint(1, 1)).and_reads(fingerprint(2, 2));
    let claim = Claim::new(
        Request::new(id(), charge(), fingerprints),
        &Policy::default(),
        origin(9),
        token(OWN),
    );
    let seen = |origin: Origin, number| Fence {
        origin,
        attempt: attempt(number),
    };
    match witness {
        Witness::Nobody => claim,
        Witness::ThisAttempt => claim.having_seen(seen(origin(HELD_ORIGIN), 3)),
        Witness::AnotherAttempt => claim.having_seen(seen(origin(HELD_ORIGIN), 2)),
        Witness::SameNumberOfAnotherOrigin => claim.having_seen(seen(origin(4), 3)),
    }
}

/// What the store holds, as these facts have it. The store's now is `at(0)`.
fn snapshot(facts: &Facts) -> Snapshot {
    let finish = Finish {
        finished_at: at(-5),
        expires_at: at(facts.until_expiry),
    };
    let record = Record {
        id: id(),
        operation: if facts.same_operation {
            charge()
        } else {
            refund()
        },
        fingerprint: match facts.stored {
            Stored::Same => fingerprint(1, 1),
            Stored::Other => fingerprint(1, 8),
            Stored::SameUnderReadScheme => fingerprint(2, 2),
            Stored::OtherUnderReadScheme => fingerprint(2, 8),
            Stored::UnderUndeclaredScheme => fingerprint(3, 1),
            Stored::UnderUnknownEncoding => {
                let scheme =
                    Scheme::new(Scheme::ENCODING + 1, fingerprint(1, 1).scheme().profile());
                idem_core::Fingerprint::from_parts(scheme, [1; 32])
            }
        },
        origin: origin(HELD_ORIGIN),
        token: held_token(facts.own_token),
        revision: Revision::new(12),
        attempt: attempt(3),
        reclaims: facts.reclaims,
        uncertain: facts.uncertain,
        recovery: None,
        terms: Terms {
            contract: facts.contract,
            retention: span(60),
            reclaim_window: span(WINDOW),
            max_reclaims: facts.max_reclaims,
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
                response: response(500),
                finish,
            },
            Status::FailedRetryable => State::FailedRetryable { finish },
        },
        note: None,
    };
    Snapshot {
        record: record.into(),
        now: at(0),
        skew: span(facts.skew),
    }
}

fn held_token(own: bool) -> OwnerToken {
    token(if own { OWN } else { 8 })
}

/// Whether a decision is the expected one in everything that it carries.
fn agrees(decision: &Decision, expected: &Expected, held: &Record, claim: &Claim) -> bool {
    let seen = Expect::Unchanged {
        token: held.token,
        revision: held.revision,
    };
    match (decision, expected) {
        (Decision::Resume, Expected::Resume)
        | (Decision::OutcomeUnknown, Expected::OutcomeUnknown) => true,
        (Decision::Restart(swap), Expected::Restart) => match &swap.change {
            Transition::Restart(carried) => {
                swap.expect == seen
                    && carried.token() == claim.token()
                    && carried.origin() == claim.origin()
                    && carried.terms() == claim.terms()
                    && carried.lease() == claim.lease()
                    && carried.operation() == claim.operation()
                    && carried.fingerprint() == claim.fingerprint()
            }
            _ => false,
        },
        (Decision::TakeOver(swap), Expected::TakeOver) => match swap.change {
            Transition::TakeOver { token, lease } => {
                swap.expect == seen && token == claim.token() && lease == claim.lease()
            }
            _ => false,
        },
        (Decision::Mismatch(one), Expected::Mismatch(other)) => one == other,
        (Decision::Incomparable { stored }, Expected::Incomparable) => {
            *stored == held.fingerprint.scheme()
        }
        (Decision::Replay(replayed), Expected::Replay) => held.state.response() == Some(replayed),
        (Decision::Busy { remaining }, Expected::Busy { remaining: wanted }) => remaining == wanted,
        _ => false,
    }
}

const BOTH: [bool; 2] = [false, true];

/// Before, exactly at and after each border, as an exact clock sees it.
const EXACT: [i64; 3] = [-1, 0, 1];

/// The same around every border that a clock with a doubt of [`SKEW`] can make, on both sides.
const DOUBTFUL: [i64; 7] = [-11, -10, -9, 0, 9, 10, 11];
const SKEW: i64 = 10;

#[test]
fn nothing_held_is_claimed() {
    for witness in [Witness::Nobody, Witness::ThisAttempt] {
        let decision = decide(&claim(witness), None);
        assert!(matches!(decision, Decision::Claim), "{decision:?}");
    }
}

#[test]
fn every_combination_is_decided_as_the_table_says() {
    let mut combinations = 0_u64;
    let mut rows = BTreeMap::<&str, u64>::new();

    for witness in [
        Witness::Nobody,
        Witness::ThisAttempt,
        Witness::AnotherAttempt,
        Witness::SameNumberOfAnotherOrigin,
    ] {
        let claim = claim(witness);
        every_held_record(witness, |facts| {
            let snapshot = snapshot(facts);
            let (row, _, decision) = TABLE
                .iter()
                .find(|(_, matches, _)| matches(facts))
                .unwrap_or_else(|| panic!("the table has no row for {facts:?}"));
            let expected = decision(facts);
            let decided = decide(&claim, Some(&snapshot));
            assert!(
                agrees(&decided, &expected, &snapshot.record, &claim),
                "row {row} says {expected:?}, but it was {decided:?} for {facts:?}"
            );
            combinations += 1;
            *rows.entry(row).or_default() += 1;
        });
    }

    println!("{combinations} combinations, by row: {rows:?}");
    assert_eq!(combinations, COMBINATIONS);
    assert_eq!(rows.len(), TABLE.len(), "every row is met: {rows:?}");
}

/// 4 witnesses × 2 tokens × 2 operations × 6 fingerprints × 2 uncertain × 2 contracts × 4 counts of reclaims,
/// times the clocks: 3 × 3 × 3 exact and 7 × 7 × 7 doubtful for each of the three statuses that expire, and
/// 3 × 3 and 7 × 7 for the one that does not.
const COMBINATIONS: u64 = 4 * 2 * 2 * 6 * 2 * 2 * 4 * (3 * (27 + 343) + (9 + 49));

fn every_held_record(witness: Witness, mut visit: impl FnMut(&Facts)) {
    for status in Status::ALL {
        for (skew, distances) in [(0, &EXACT[..]), (SKEW, &DOUBTFUL[..])] {
            // What is in progress does not expire, so there is one distance to it only.
            let expiries = match status {
                Status::InProgress => &distances[..1],
                _ => distances,
            };
            for &until_lease_is_over in distances {
                for &until_expiry in expiries {
                    for &until_window_closes in distances {
                        let facts = Facts {
                            status,
                            own_token: false,
                            same_operation: false,
                            stored: Stored::Same,
                            uncertain: false,
                            contract: Contract::Hold,
                            reclaims: 0,
                            max_reclaims: 0,
                            until_lease_is_over,
                            until_expiry,
                            until_window_closes,
                            skew,
                            witness,
                        };
                        every_combination_of_the_rest(facts, &mut visit);
                    }
                }
            }
        }
    }
}

fn every_combination_of_the_rest(facts: Facts, visit: &mut impl FnMut(&Facts)) {
    for own_token in BOTH {
        for same_operation in BOTH {
            for stored in [
                Stored::Same,
                Stored::Other,
                Stored::SameUnderReadScheme,
                Stored::OtherUnderReadScheme,
                Stored::UnderUndeclaredScheme,
                Stored::UnderUnknownEncoding,
            ] {
                for uncertain in BOTH {
                    for contract in Contract::ALL {
                        for (reclaims, max_reclaims) in [(1, 2), (2, 2), (3, 2), (0, 0)] {
                            visit(&Facts {
                                own_token,
                                same_operation,
                                stored,
                                uncertain,
                                contract,
                                reclaims,
                                max_reclaims,
                                ..facts
                            });
                        }
                    }
                }
            }
        }
    }
}
