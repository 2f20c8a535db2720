//! Several actors over one key, each with what it saw last, in any order and under a clock that goes back and
//! forth.
//!
//! The laws are checked against a ghost that remembers what really began and when, and which reads no field of
//! the record for that.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is all test code, also outside of the test functions"
)]

mod machine;

use std::time::Duration;

use idem_core::{
    Applied, Claim, Decision, Fence, Fingerprints, Note, Origin, Policy, Record, Request, Span,
    State, Swap, Timestamp, Transition, Verdict, decide,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use machine::cell::Cell;
use machine::{at, charge, fingerprint, id, origin, point, refund, response, token};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_breaks_the_promise(events in vec(event(), 1..60)) {
        let mut world = World::new();
        for event in events {
            let before = world.cell.clone();
            let done = world.play(&event);
            let lawful = changes_lawfully(&before, &world.cell, &done)
                .and_then(|()| world.ghost.admits(&before, &world.cell, &done));
            prop_assert!(
                lawful.is_ok(),
                "{:?} by {:?}: {:?}, from {:#?} to {:#?}",
                lawful, event, done, before, world.cell
            );
        }
    }
}

/// What the event came to.
#[derive(Debug)]
enum Done {
    Nothing,
    /// The work of this claim runs from now on.
    Run(Box<Claim>),
    /// An owner's write was applied.
    Owned(Transition),
    /// A verdict was applied.
    Resolved(Verdict),
    Swept,
}

/// What may become of a record, whatever the order.
fn changes_lawfully(before: &Cell, after: &Cell, done: &Done) -> Result<(), &'static str> {
    let law = |holds: bool, law| if holds { Ok(()) } else { Err(law) };
    if let Done::Run(claim) = done {
        let record = after.held.as_ref().ok_or("work runs under no record")?;
        let under = record.fingerprint.scheme();
        let fingerprints = &claim.request().fingerprints;
        law(
            record.token == claim.token(),
            "work runs under another's token",
        )?;
        law(
            record.operation == *claim.operation(),
            "work runs for another operation",
        )?;
        law(
            fingerprints.under(under) == Some(&record.fingerprint),
            "work runs for another payload",
        )?;
        law(
            record.state == State::InProgress,
            "work runs under a record that has an outcome",
        )?;
    }
    let (old, new) = match (&before.held, &after.held) {
        (Some(old), Some(new)) => (old, new),
        (Some(old), None) => {
            return match done {
                Done::Owned(Transition::Release) => {
                    law(!old.uncertain, "an uncertain key was freed")
                }
                Done::Resolved(Verdict::Released) => Ok(()),
                Done::Swept => law(
                    has_expired(old, before),
                    "a record was removed before its time",
                ),
                _ => Err("a record was removed"),
            };
        }
        (None, Some(_)) => return law(matches!(done, Done::Run(_)), "a record appeared"),
        (None, None) => return Ok(()),
    };
    if old == new {
        return Ok(());
    }
    law(
        !matches!(done, Done::Nothing | Done::Swept),
        "a record changed",
    )?;
    law(new.revision > old.revision, "a revision did not grow")?;
    law(new.id == old.id, "an id changed")?;
    if new.origin != old.origin {
        law(
            matches!(done, Done::Run(_)),
            "another origin without a claim",
        )?;
        return law(
            has_expired(old, before),
            "a record was restarted before its time",
        );
    }
    law(
        old.state.response().is_none() || new.state == old.state,
        "an answer changed before it expired",
    )?;
    law(new.operation == old.operation, "an operation changed")?;
    law(new.fingerprint == old.fingerprint, "a fingerprint changed")?;
    law(new.terms == old.terms, "terms changed")?;
    law(new.created_at == old.created_at, "a birthday changed")?;
    law(new.uncertain || !old.uncertain, "a doubt was cleared")?;
    let reached = |record: &Record| {
        let recovery = record.recovery.as_ref();
        recovery.map(|recovery| (recovery.attempt, recovery.sequence))
    };
    law(reached(new) >= reached(old), "a recovery point went back")?;
    if matches!(done, Done::Run(_)) {
        law(
            new.attempt == old.attempt.next(),
            "an attempt is not the next one",
        )
    } else {
        law(new.attempt == old.attempt, "an attempt changed")
    }
}

/// Completed, failed for good or certainly without effect, and the retention is over.
fn has_expired(record: &Record, cell: &Cell) -> bool {
    let finished = match record.state {
        State::InProgress => false,
        State::FailedRetryable { .. } => !record.uncertain,
        _ => true,
    };
    finished && record.state.finish().unwrap().expires_at <= cell.now
}

/// Since when the current operation may have had an effect, as the world knows it.
#[derive(Debug, Clone, Default)]
struct Ghost {
    origin: Option<Origin>,
    doubt: Option<Doubt>,
    reruns: u32,
}

#[derive(Debug, Clone, Copy)]
struct Doubt {
    since: Timestamp,
    /// An earlier attempt is in doubt, or this one has said that it began something.
    certain_failure_helps: bool,
}

impl Ghost {
    /// Follows what happened, and says whether work ran again that must not have.
    fn admits(&mut self, before: &Cell, after: &Cell, done: &Done) -> Result<(), &'static str> {
        match done {
            Done::Run(_) if before.held == after.held => {} // the claim was sent again
            Done::Run(_) => {
                let now = after.now;
                let origin = Some(after.record().origin);
                if self.origin != origin {
                    *self = Self {
                        origin,
                        ..Self::default()
                    };
                }
                match &mut self.doubt {
                    None => {
                        self.doubt = Some(Doubt {
                            since: now,
                            certain_failure_helps: true,
                        })
                    }
                    Some(doubt) => {
                        if now >= doubt.since + WINDOW {
                            return Err("the provider may have forgotten its key");
                        }
                        doubt.certain_failure_helps = false;
                        self.reruns += 1;
                        if self.reruns > MAX_RECLAIMS {
                            return Err("it was run again too often");
                        }
                    }
                }
            }
            Done::Owned(
                Transition::Checkpoint { .. }
                | Transition::FailRetryable {
                    uncertain: true, ..
                },
            )
            | Done::Resolved(Verdict::Retryable) => {
                if let Some(doubt) = &mut self.doubt {
                    doubt.certain_failure_helps = false;
                }
            }
            Done::Owned(Transition::FailRetryable {
                uncertain: false, ..
            }) => {
                self.doubt = self.doubt.filter(|doubt| !doubt.certain_failure_helps);
            }
            _ => {}
        }
        Ok(())
    }
}

const ACTORS: usize = 4;

/// Something that happens to one key.
#[derive(Debug, Clone)]
enum Event {
    /// The actor asks, with a fresh attempt, and carries out what is decided.
    Claim {
        actor: usize,
        request: Asked,
        waited: bool,
    },
    /// The actor sends its last claim again.
    ClaimAgain { actor: usize },
    /// The actor decides, and is interrupted before it carries it out.
    Look { actor: usize, request: Asked },
    /// The actor carries out what it decided when it looked.
    SwapAtLast { actor: usize },
    /// The actor writes as the owner, whether it is or not.
    Own { actor: usize, change: Transition },
    /// A verdict is passed on what is held now.
    Resolve { verdict: Verdict },
    /// The clock moves.
    Clock { step: i64 },
    /// What is expired is removed.
    Sweep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Usual,
    OtherPayload,
    OtherOperation,
    /// The usual one, by a node that reads the usual scheme and writes another.
    FromNewerNode,
}

fn event() -> impl Strategy<Value = Event> {
    let actor = || 0..ACTORS;
    let asked = || {
        prop_oneof![
            6 => Just(Asked::Usual),
            1 => Just(Asked::OtherPayload),
            1 => Just(Asked::OtherOperation),
            1 => Just(Asked::FromNewerNode),
        ]
    };
    let change = prop_oneof![
        2 => Just(Transition::Renew { lease: LEASE }),
        3 => (1_u32..4, select(vec!["a", "b"])).prop_map(|(sequence, name)| Transition::Checkpoint {
            point: point(name),
            sequence,
            lease: LEASE,
        }),
        2 => (200_u16..203).prop_map(|code| Transition::Complete(response(code))),
        1 => Just(Transition::FailFinal(response(500))),
        2 => any::<bool>().prop_map(|uncertain| Transition::FailRetryable {
            reason: Note::new("later"),
            uncertain,
        }),
        1 => Just(Transition::Release),
    ];
    let verdict = prop_oneof![
        Just(Verdict::Completed(response(203))),
        Just(Verdict::Failed(response(503))),
        Just(Verdict::Retryable),
        Just(Verdict::Released),
    ];
    let step = prop_oneof![
        select(vec![1, 50, 99, 100, 101, 300, 301, 999, 1_000, 5_000]),
        -400_i64..400,
    ];
    prop_oneof![
        6 => (actor(), asked(), any::<bool>())
            .prop_map(|(actor, request, waited)| Event::Claim { actor, request, waited }),
        1 => actor().prop_map(|actor| Event::ClaimAgain { actor }),
        3 => (actor(), asked()).prop_map(|(actor, request)| Event::Look { actor, request }),
        3 => actor().prop_map(|actor| Event::SwapAtLast { actor }),
        8 => (actor(), change).prop_map(|(actor, change)| Event::Own { actor, change }),
        1 => verdict.prop_map(|verdict| Event::Resolve { verdict }),
        5 => step.prop_map(|step| Event::Clock { step }),
        1 => Just(Event::Sweep),
    ]
}

const LEASE: Span = Span::from_millis(100);
const RETENTION: Duration = Duration::from_millis(300);
const WINDOW: Span = Span::from_millis(1_000);
const MAX_RECLAIMS: u32 = 3;

/// One key, and everybody who wants something from it.
struct World {
    cell: Cell,
    actors: [Actor; ACTORS],
    /// The attempt that was seen running last.
    seen: Option<Fence>,
    /// How many tokens were minted.
    minted: u8,
    ghost: Ghost,
}

#[derive(Default)]
struct Actor {
    claim: Option<Claim>,
    pending: Option<(Claim, Swap)>,
}

impl World {
    fn new() -> Self {
        Self {
            cell: Cell::unused(at(0)),
            actors: Default::default(),
            seen: None,
            minted: 0,
            ghost: Ghost::default(),
        }
    }

    fn mint(&mut self, asked: Asked) -> Claim {
        self.minted += 1;
        let usual = fingerprint(1, 1);
        let (operation, fingerprints) = match asked {
            Asked::Usual => (charge(), Fingerprints::new(usual)),
            Asked::OtherPayload => (charge(), Fingerprints::new(fingerprint(1, 2))),
            Asked::OtherOperation => (refund(), Fingerprints::new(usual)),
            Asked::FromNewerNode => (
                charge(),
                Fingerprints::new(fingerprint(2, 1)).and_reads(usual),
            ),
        };
        let policy = Policy::builder()
            .lease(LEASE.as_duration())
            .heartbeat(Duration::ZERO)
            .retention(RETENTION)
            .reclaim_window(WINDOW.as_duration())
            .max_reclaims(MAX_RECLAIMS)
            .build()
            .unwrap();
        let request = Request::new(id(), operation, fingerprints);
        Claim::new(request, &policy, origin(self.minted), token(self.minted))
    }

    fn ask(&mut self, actor: usize, claim: Claim) -> Done {
        let decision = self.cell.claim(&claim);
        if let Decision::Busy { .. } = decision {
            self.seen = Some(self.cell.record().fence());
        }
        self.actors[actor].claim = Some(claim.clone());
        if decision.runs() {
            Done::Run(Box::new(claim))
        } else {
            Done::Nothing
        }
    }

    fn is_spent(&self, claim: &Claim) -> bool {
        let held = self.cell.held.as_ref();
        held.is_none_or(|held| held.origin == claim.origin() && has_expired(held, &self.cell))
    }

    fn play(&mut self, event: &Event) -> Done {
        match event {
            Event::Claim {
                actor,
                request,
                waited,
            } => {
                let claim = self.mint(*request);
                let claim = match self.seen {
                    Some(seen) if *waited => claim.having_seen(seen),
                    _ => claim,
                };
                self.ask(*actor, claim)
            }
            Event::ClaimAgain { actor } => match self.actors[*actor].claim.clone() {
                // A claim is sent again within seconds of the first time. Nobody sends one again after its
                // operation has finished and expired, since that would begin another under the same name.
                Some(claim) if !self.is_spent(&claim) => self.ask(*actor, claim),
                _ => Done::Nothing,
            },
            Event::Look { actor, request } => {
                let claim = self.mint(*request);
                let decision = decide(&claim, self.cell.snapshot().as_ref());
                if let Decision::TakeOver(swap) | Decision::Restart(swap) = decision {
                    self.actors[*actor].pending = Some((claim, swap));
                }
                Done::Nothing
            }
            Event::SwapAtLast { actor } => {
                let Some((claim, swap)) = self.actors[*actor].pending.take() else {
                    return Done::Nothing;
                };
                match self.cell.apply(swap.expect, &swap.change) {
                    Ok(Applied::Changed(_)) => {
                        self.actors[*actor].claim = Some(claim.clone());
                        Done::Run(Box::new(claim))
                    }
                    Err(_) => Done::Nothing,
                    other => panic!("a swap that was sent once: {other:?}"),
                }
            }
            Event::Own { actor, change } => {
                let Some(claim) = &self.actors[*actor].claim else {
                    return Done::Nothing;
                };
                match self.cell.own(claim.token(), change) {
                    Ok(Applied::Changed(_) | Applied::Removed) => Done::Owned(change.clone()),
                    Ok(Applied::Unchanged) | Err(_) => Done::Nothing,
                }
            }
            Event::Resolve { verdict } => {
                if self.cell.held.is_none() {
                    return Done::Nothing;
                }
                self.minted += 1;
                match self.cell.resolve(verdict.clone(), token(self.minted)) {
                    Ok(_) => Done::Resolved(verdict.clone()),
                    Err(_) => Done::Nothing,
                }
            }
            Event::Clock { step } => {
                self.cell.wait(*step * 1_000);
                Done::Nothing
            }
            Event::Sweep => {
                let moment = idem_core::Moment::exact(self.cell.now);
                self.cell.held.take_if(|held| held.is_expired(moment));
                Done::Swept
            }
        }
    }
}
