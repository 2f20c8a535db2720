//! `docs/state-machine.md` says what the code does, because it is made from what the code does.
//!
//! After a change that is meant, write it anew with `IDEM_BLESS=1 cargo test --test state_machine_doc`.

#![expect(
    clippy::unwrap_used,
    reason = "this is all test code, also outside of the test functions"
)]

mod machine;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::{env, fs};

use idem_core::{
    Applied, AttemptColumn, Claim, Columns, Condition, Contract, Decision, EffectColumn, Expect,
    Finish, FinishColumn, Mismatch, Moment, Note, NoteColumn, ReclaimsColumn, Record,
    RecoveryColumn, Request, ResponseColumn, Snapshot, Span, State, Status, Transition,
    UncertainColumn, Verdict, Write, decide,
};

use machine::{HOUR, at, claim, fingerprint, id, point, refund, request, response, terms, token};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/state-machine.md");

#[test]
fn the_document_says_what_the_code_does() {
    let document = document();
    if env::var_os("IDEM_BLESS").is_some() {
        fs::write(PATH, &document).unwrap();
    }
    let written = fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        written == document,
        "docs/state-machine.md is out of date; if the change is meant, run this test with IDEM_BLESS=1.\n\n{document}"
    );
}

fn document() -> String {
    format!(
        "{INTRODUCTION}\n{}{SUCCESSORS}\n{}{VERDICTS}\n{}{WRITES}\n{}{DECISIONS}\n{}",
        diagram(&edges(&owners_transitions(), Beside::Claim)),
        diagram(&edges(&successors_transitions(), Beside::Sweep)),
        diagram(&edges(&verdicts(), Beside::Nothing)),
        transitions_table(),
        decisions_table(),
    )
}

const INTRODUCTION: &str = "\
<!-- Made by idem-core/tests/state_machine_doc.rs from what the code does. Do not edit: change the code or the
     test, and run the test with IDEM_BLESS=1. -->

# The state machine of one key

Everything that is known about an idempotency key is one record. This page shows what can happen to it: the
states and the writes between them, what each write does to the columns, and what a request is told.

A record is in one of seven states:

| state | meaning |
|---|---|
| `absent` | the key is unused |
| `in_progress` | somebody has claimed it and is at work, for as long as the lease lasts |
| `in_progress (uncertain)` | the same, and an earlier attempt or this one may have begun a side effect |
| `completed` | the work was done; its response replays |
| `failed_final` | it failed after it may have had an effect; its response replays |
| `failed_retryable` | it failed before any effect; the same request may try again |
| `failed_retryable (uncertain)` | it failed without an answer, and an effect may exist all the same |

*Uncertain* is one column. Once set it stays, through every takeover, until the key begins anew. It is what keeps
a key bound to its payload after a crash, and what limits how often and how long the work may be run again.

## The owner's writes

Whoever claimed the key holds its token, and may write for as long as the record is in progress under that
token. Time alone does not end this: past its lease an owner can be replaced, and once it *is* replaced every
write of its own is refused.
";

const SUCCESSORS: &str = "
## When the owner is gone, or the time is over

Another sender of the same request takes over from an owner that is gone, or after a failure that left no answer.
When a record has expired, the next request begins anew, and the sweeper removes what nobody asked for again. All
of them write only if the record is still the very version that they saw.
";

const VERDICTS: &str = "
## Verdicts

Where nobody may run the work any more, a reconciler or an operator looks up what happened and says so
(`resolve`). A verdict is possible as soon as the lease is over. `retryable` lets the same request run again within
the terms that were stored at the claim, and does not widen them. What is `released` is free for any other request,
so only an operator says that.
";

const WRITES: &str = "
## What each write does

A write that is not allowed changes nothing. A column that is not named keeps its value, and `revision` grows by
one with every write. `now` is the store's clock. Where that clock may be off, `earliest` is the earliest that it
can be and `latest` the latest; otherwise both are `now`.

- *owner*: `status` is `in_progress` and `token` is the writer's.
- *unchanged*: `token` and `revision` are those that the writer saw.
- *lease over*: `locked_until <= earliest`.
- *within terms*: `contract` is `reclaim`, `latest < effect_since + reclaim_window`, and
  `reclaims < max_reclaims`.
- *doubtful*: the row, before the write, was `uncertain` or `in_progress`.
";

const DECISIONS: &str = "
## What a request is told

The first row that fits is the answer. The request is compared with the record before anything is said about
progress, so a mismatch is a mismatch however far the work has come.
";

// States and edges

/// The states, in the order of the document, with the names that the diagram's language can take.
const STATES: [(&str, &str); 7] = [
    ("absent", "absent"),
    ("in_progress", "in_progress"),
    ("in_progress_uncertain", "in_progress (uncertain)"),
    ("completed", "completed"),
    ("failed_final", "failed_final"),
    ("failed_retryable", "failed_retryable"),
    ("failed_retryable_uncertain", "failed_retryable (uncertain)"),
];

const ABSENT: usize = 0;

fn state_of(record: &Record) -> usize {
    match (record.status(), record.uncertain) {
        (Status::InProgress, false) => 1,
        (Status::InProgress, true) => 2,
        (Status::Completed, _) => 3,
        (Status::FailedFinal, _) => 4,
        (Status::FailedRetryable, false) => 5,
        (Status::FailedRetryable, true) => 6,
    }
}

/// A write from one state to another.
type Edge = (usize, usize, String);

/// What a diagram shows beside transitions: the way out of `absent`, or back to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Claim,
    Sweep,
    Nothing,
}

/// Every edge that some record takes under one of these transitions.
fn edges(transitions: &[(&'static str, Transition)], beside: Beside) -> BTreeSet<Edge> {
    let mut edges = BTreeSet::new();
    if beside == Beside::Claim {
        let first = claim(1, request(1)).first_record(at(0));
        edges.insert((ABSENT, state_of(&first), "claim".to_owned()));
    }
    for record in representatives() {
        let from = state_of(&record);
        let moment = Moment::exact(at(0));
        if beside == Beside::Sweep && record.is_expired(moment) {
            edges.insert((from, ABSENT, "sweep".to_owned()));
        }
        for (name, change) in transitions {
            match record.apply(expectation(&record, change), change, moment) {
                Ok(Applied::Changed(next)) => {
                    edges.insert((from, state_of(&next), (*name).to_owned()));
                }
                Ok(Applied::Removed) => {
                    edges.insert((from, ABSENT, (*name).to_owned()));
                }
                _ => {}
            }
        }
    }
    edges
}

/// The diagram's text, with one arrow for all the writes between two states.
fn diagram(edges: &BTreeSet<Edge>) -> String {
    let mut text = String::from("```mermaid\nstateDiagram-v2\n");
    let used = |state: usize| {
        edges
            .iter()
            .any(|(from, to, _)| *from == state || *to == state)
    };
    for (state, (name, title)) in STATES.iter().enumerate() {
        if used(state) {
            writeln!(text, "    state \"{title}\" as {name}").unwrap();
        }
    }
    for (from, (name, _)) in STATES.iter().enumerate() {
        for (to, (target, _)) in STATES.iter().enumerate() {
            let labels: Vec<&str> = edges
                .iter()
                .filter(|edge| (edge.0, edge.1) == (from, to))
                .map(|edge| edge.2.as_str())
                .collect();
            // A variant that leads where the plain one does is not worth its own label.
            let plain = |label: &str| {
                let (name, _) = label.split_once(" (").unwrap_or((label, ""));
                name != label && labels.contains(&name)
            };
            let labels: Vec<&str> = labels
                .iter()
                .copied()
                .filter(|label| !plain(label))
                .collect();
            if !labels.is_empty() {
                writeln!(text, "    {name} --> {target}: {}", labels.join(", ")).unwrap();
            }
        }
    }
    text + "```\n"
}

const OWNER: u8 = 1;

/// Records of every state, at every side of every border that a transition looks at. The store's now is `at(0)`.
fn representatives() -> Vec<Record> {
    let mut all = Vec::new();
    for status in Status::ALL {
        for uncertain in [false, true] {
            for lease_over in [false, true] {
                for expired in [false, true] {
                    for contract in Contract::ALL {
                        let record = record(status, contract);
                        all.push(Record {
                            uncertain,
                            locked_until: at(if lease_over { 0 } else { 1 }),
                            state: state(status, at(if expired { 0 } else { 1 })),
                            ..record
                        });
                    }
                }
            }
        }
    }
    all
}

fn record(status: Status, contract: Contract) -> Record {
    Record {
        terms: terms(contract),
        state: state(status, at(HOUR)),
        ..claim(OWNER, request(1)).first_record(at(-1))
    }
}

fn state(status: Status, expires_at: idem_core::Timestamp) -> State {
    let finish = Finish {
        finished_at: at(-1),
        expires_at,
    };
    match status {
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
    }
}

const LEASE: Span = Span::from_secs(90);

fn owners_transitions() -> Vec<(&'static str, Transition)> {
    let fail = |uncertain| Transition::FailRetryable {
        reason: Note::new("why"),
        uncertain,
    };
    vec![
        ("renew", Transition::Renew { lease: LEASE }),
        (
            "checkpoint",
            Transition::Checkpoint {
                point: point("charged"),
                sequence: 1,
                lease: LEASE,
            },
        ),
        ("complete", Transition::Complete(response(202))),
        ("fail_final", Transition::FailFinal(response(502))),
        ("fail_retryable", fail(false)),
        ("fail_retryable (uncertain)", fail(true)),
        ("release", Transition::Release),
    ]
}

fn successors_transitions() -> Vec<(&'static str, Transition)> {
    let take_over = Transition::TakeOver {
        token: token(2),
        lease: LEASE,
    };
    let restart = Transition::Restart(Box::new(claim(2, request(2))));
    vec![("take_over", take_over), ("restart", restart)]
}

fn verdicts() -> Vec<(&'static str, Transition)> {
    let resolve = |verdict| Transition::Resolve {
        verdict,
        token: token(3),
        note: Note::new("who"),
    };
    let completed = Verdict::Completed(response(203));
    vec![
        ("resolve completed", resolve(completed)),
        ("resolve failed", resolve(Verdict::Failed(response(503)))),
        ("resolve retryable", resolve(Verdict::Retryable)),
        ("resolve released", resolve(Verdict::Released)),
    ]
}

/// The expectation that goes with a transition, and that this record meets.
fn expectation(record: &Record, change: &Transition) -> Expect {
    let owner = Expect::Owner(record.token);
    match change.patch(owner) {
        Ok(_) => owner,
        Err(_) => Expect::unchanged(record),
    }
}

// Patches

fn transitions_table() -> String {
    let mut text = String::from("| write | allowed when | effect |\n|---|---|---|\n");
    let held = record(Status::InProgress, Contract::Reclaim);
    let all = [owners_transitions(), successors_transitions(), verdicts()].concat();
    for (name, change) in &all {
        let patch = change.patch(expectation(&held, change)).unwrap();
        let who = match patch.guard.revision {
            None => "owner",
            Some(_) => "unchanged",
        };
        let allowed = match patch.guard.condition {
            Condition::InProgress => String::new(),
            Condition::NewerCheckpoint { .. } => {
                ", and no checkpoint with the same or a higher (`attempt`, `sequence`) is stored"
                    .to_owned()
            }
            Condition::Reclaimable => ", and `in_progress`, lease over, within terms; or \
                 `failed_retryable`, and either not `uncertain` or within terms"
                .to_owned(),
            Condition::Expired => {
                ", and `completed`, `failed_final`, or `failed_retryable` and not \
                 `uncertain`; and `expires_at <= earliest`"
                    .to_owned()
            }
            Condition::Resolvable => ", and `in_progress`, lease over; or `failed_retryable`, \
                 `uncertain`, not within terms"
                .to_owned(),
        };
        let effect = match &patch.write {
            Write::Remove => "the record is removed".to_owned(),
            Write::Set(columns) => effects(columns),
            Write::RemoveUnlessUncertain(columns) => format!(
                "not `uncertain`: the record is removed; `uncertain`: {}",
                effects(columns)
            ),
        };
        writeln!(text, "| {name} | {who}{allowed} | {effect} |").unwrap();
    }
    text
}

/// Every column that a write changes. The patterns name every field, so a new column cannot be forgotten here.
fn effects(columns: &Columns<'_>) -> String {
    let Columns {
        status,
        token,
        lease,
        identity,
        attempt,
        reclaims,
        uncertain,
        effect_since,
        recovery,
        response,
        note,
        finish,
    } = columns;
    let mut effects: Vec<String> = Vec::new();
    let mut add = |effect: &str| effects.push(effect.to_owned());
    if let Some(status) = status {
        add(&format!("`status = {status}`"));
    }
    if token.is_some() {
        add("a new `token`");
    }
    if lease.is_some() {
        add("`locked_at = now`, `locked_until = now + lease`");
    }
    if identity.is_some() {
        add("`operation`, fingerprint, `origin` and terms of the new claim, `created_at = now`");
    }
    match attempt {
        AttemptColumn::Keep => {}
        AttemptColumn::Next => add("`attempt + 1`"),
        AttemptColumn::First => add("`attempt = 1`"),
    }
    match reclaims {
        ReclaimsColumn::Keep => {}
        ReclaimsColumn::CountIfDoubtful => add("`reclaims + 1` if doubtful"),
        ReclaimsColumn::Zero => add("`reclaims = 0`"),
    }
    match uncertain {
        UncertainColumn::Keep => {}
        UncertainColumn::Set => add("`uncertain`"),
        UncertainColumn::SetIfInProgress => add("`uncertain` if doubtful"),
        UncertainColumn::Clear => add("not `uncertain`"),
    }
    match effect_since {
        EffectColumn::Keep => {}
        EffectColumn::Now => add("`effect_since = now`"),
        EffectColumn::NowUnlessDoubtful => add("`effect_since = now` unless doubtful"),
    }
    match recovery {
        RecoveryColumn::Keep => {}
        RecoveryColumn::Clear => add("no recovery point"),
        RecoveryColumn::Set { .. } => add("the recovery point, with `attempt` and `sequence`"),
    }
    match response {
        ResponseColumn::Keep => {}
        ResponseColumn::Clear => add("no response"),
        ResponseColumn::Set(_) => add("the response"),
    }
    match note {
        NoteColumn::Keep => {}
        NoteColumn::Clear => add("no note"),
        NoteColumn::Set(_) => add("the note"),
    }
    match finish {
        FinishColumn::Keep => {}
        FinishColumn::Clear => add("no `finished_at`, no `expires_at`"),
        FinishColumn::Now => add("`finished_at = now`, `expires_at = now + retention`"),
    }
    effects.join("; ")
}

// Decisions

/// What is held, who asks and how, in words and as they are.
type Case = (&'static str, Option<Record>, Claim);

fn decisions_table() -> String {
    let mut text = String::from("| the store holds | decision |\n|---|---|\n");
    let mut told = BTreeSet::new();
    for (held, record, claim) in cases() {
        let snapshot = record.map(|record| Snapshot::new(record, at(0)));
        let decision = decide(&claim, snapshot.as_ref());
        told.insert(name(&decision));
        writeln!(text, "| {held} | {} |", meaning(&decision)).unwrap();
    }
    assert_eq!(told.len(), 10, "every decision is in the table: {told:?}");
    text
}

fn cases() -> Vec<Case> {
    let asking = || claim(9, request(1));
    let held = |status| record(status, Contract::Reclaim);
    let over = |contract, ago: i64| Record {
        locked_until: at(0),
        effect_since: at(-ago),
        ..record(Status::InProgress, contract)
    };
    let failed = |uncertain, ago: i64| Record {
        uncertain,
        effect_since: at(-ago),
        ..held(Status::FailedRetryable)
    };
    let expired = |status| Record {
        state: state(status, at(0)),
        ..record(status, Contract::Reclaim)
    };
    let unresolved_for_a_month = Record {
        locked_until: at(-720 * HOUR),
        ..over(Contract::Reclaim, 720 * HOUR)
    };
    let newer = Record {
        fingerprint: fingerprint(7, 1),
        ..held(Status::Completed)
    };
    let awaited = expired(Status::Completed);
    let waiter = asking().having_seen(awaited.fence());
    let refunding = Claim::new(
        Request::new(id(), refund(), fingerprint(1, 1).into()),
        &idem_core::Policy::default(),
        machine::origin(9),
        token(9),
    );
    let mut exhausted = over(Contract::Reclaim, 1);
    exhausted.reclaims = exhausted.terms.max_reclaims;
    vec![
        ("nothing", None, asking()),
        (
            "`completed`, expired, and this sender of the same request was waiting for it",
            Some(awaited),
            waiter,
        ),
        (
            "`completed`, expired, whatever the request",
            Some(expired(Status::Completed)),
            claim(9, request(2)),
        ),
        (
            "`failed_final`, expired",
            Some(expired(Status::FailedFinal)),
            asking(),
        ),
        (
            "`failed_retryable`, expired",
            Some(expired(Status::FailedRetryable)),
            asking(),
        ),
        (
            "`in_progress` under this very claim's token: its first answer was lost",
            Some(held(Status::InProgress)),
            claim(OWNER, request(1)),
        ),
        (
            "anything else, for another operation",
            Some(held(Status::Completed)),
            refunding,
        ),
        (
            "… with a fingerprint under a scheme that this node does not declare",
            Some(newer),
            asking(),
        ),
        (
            "… with another fingerprint",
            Some(held(Status::InProgress)),
            claim(9, request(2)),
        ),
        ("`completed`", Some(held(Status::Completed)), asking()),
        ("`failed_final`", Some(held(Status::FailedFinal)), asking()),
        (
            "`failed_retryable`",
            Some(failed(false, 30 * HOUR)),
            asking(),
        ),
        (
            "`failed_retryable (uncertain)`, within terms",
            Some(failed(true, 1)),
            asking(),
        ),
        (
            "`failed_retryable (uncertain)`, otherwise",
            Some(failed(true, 20 * HOUR)),
            asking(),
        ),
        (
            "`in_progress`, lease not over",
            Some(held(Status::InProgress)),
            asking(),
        ),
        (
            "`in_progress`, lease over, within terms",
            Some(over(Contract::Reclaim, 1)),
            asking(),
        ),
        (
            "`in_progress`, lease over, window closed",
            Some(over(Contract::Reclaim, 20 * HOUR)),
            asking(),
        ),
        (
            "`in_progress`, lease over, no reclaims left",
            Some(exhausted),
            asking(),
        ),
        (
            "`in_progress`, lease over, contract `hold`",
            Some(over(Contract::Hold, 1)),
            asking(),
        ),
        (
            "`in_progress`, lease over for a month",
            Some(unresolved_for_a_month),
            asking(),
        ),
    ]
}

fn name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Claim => "claim",
        Decision::Resume => "resume",
        Decision::Restart(_) => "restart",
        Decision::TakeOver(_) => "take over",
        Decision::Mismatch(Mismatch::Operation) => "mismatch of the operation",
        Decision::Mismatch(Mismatch::Payload) => "mismatch of the payload",
        Decision::Incomparable { .. } => "incomparable",
        Decision::Replay(_) => "replay",
        Decision::Busy { .. } => "busy",
        Decision::OutcomeUnknown => "outcome unknown",
    }
}

fn meaning(decision: &Decision) -> String {
    let what = match decision {
        Decision::Claim => "write the first record, and run as its first attempt",
        Decision::Resume => "run, since the key is this claim's already",
        Decision::Restart(_) => {
            "write a new record over it, and run as the first attempt of a new operation"
        }
        Decision::TakeOver(_) => {
            "become the owner, and run as the next attempt of the same operation"
        }
        Decision::Mismatch(Mismatch::Operation) => {
            "refuse, because the key was used for another operation"
        }
        Decision::Mismatch(Mismatch::Payload) => {
            "refuse, because the key was used with another payload"
        }
        Decision::Incomparable { .. } => {
            "neither run nor refuse, since another node may be able to compare them"
        }
        Decision::Replay(_) => "answer with the stored response",
        Decision::Busy { .. } => "refuse for now, since somebody is at work",
        Decision::OutcomeUnknown => "nobody may run it; a reconciler or an operator resolves it",
    };
    format!("**{}**: {what}", name(decision))
}
