//! A model of the ordering argument in the crate's documentation: every interleaving in a small world.
//!
//! The record is changed by the real [`Record::apply`] and judged by the real [`decide`]; what is remembered, answered and
//! forgotten is what this crate's own [rule](crate::rule) says. The model adds a clock, a Redis that holds one entry, and
//! messages to it that arrive in any order, at any later time, or never.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use idem_core::{
    Applied, Claim, ClaimOutcome, Decision, Expect, Fingerprint, IdempotencyKey, Moment, Operation,
    Origin, OwnerToken, Policy, Profile, Record, RecordId, Request, Response, Scheme, Scope,
    Snapshot, Status, Timestamp, Transition, TransitionOutcome, decide,
};

use crate::Namespace;
use crate::entry::{Entry, Lifetime};
use crate::names::{Name, Names};
use crate::rule::{ended, learn, refuse, was_refused};

/// Ticks are milliseconds.
const CAP: i64 = 2;
const LEASE: i64 = 3;
const END: i64 = 6;

/// One thing that is done wrong, to see that the model notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// An entry lives from when it arrives, and not from when the store was asked.
    LivesFromArrival,
    /// An entry lives as long as the lease, whatever the cap.
    IgnoresTheCap,
    /// A removal does not compare.
    RemovesAnything,
    /// A late writer removes by the record's token and not by its own.
    RemovesTheSuccessors,
    /// An answer does not compare the token.
    IgnoresTheToken,
    /// An answer does not compare the request.
    IgnoresTheRequest,
    /// Whoever is shown an answer remembers it as being in progress.
    RemembersWhatIsDone,
}

/// Somebody who sends the request: looks in Redis, asks the store, and perhaps owns the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sender {
    /// About to look, for this attempt.
    Begins(u8),
    /// Looked at this time and found nothing that refused it.
    Looked(u8, i64),
    Owns(u8),
    /// Has had its answer, as often as it asks.
    Done,
}

/// What is on its way to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Write { entry: Entry, anchor: i64 },
    Remove(OwnerToken),
}

#[derive(Debug, Clone)]
struct World {
    now: i64,
    record: Option<Record>,
    senders: [Sender; 3],
    messages: Vec<Message>,
    /// The entry, and when it ends.
    redis: Option<(Entry, i64)>,
    /// When each attempt was last truly in progress, within its lease.
    last_true: BTreeMap<u8, i64>,
}

/// How many attempts each sender makes.
const ATTEMPTS: [u8; 3] = [1, 2, 1];

struct Model {
    flaw: Flaw,
    name: Name,
    cap: Lifetime,
}

fn moment(now: i64) -> Moment {
    Moment::exact(Timestamp::from_micros(now * 1000))
}

fn request(operation: &str) -> Request {
    let id = RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new("k-1").unwrap(),
    );
    let fingerprint = Fingerprint::from_parts(Scheme::current(Profile::new(1)), [1; 32]);
    Request::new(id, Operation::new(operation).unwrap(), fingerprint.into())
}

fn claim(operation: &str, token: u8) -> Claim {
    let policy = Policy::builder()
        .lease(Duration::from_millis(LEASE as u64))
        .heartbeat(Duration::ZERO)
        .build()
        .unwrap();
    let bits = [token; 16];
    Claim::new(
        request(operation),
        &policy,
        Origin::from_bytes(bits),
        OwnerToken::from_bytes(bits),
    )
}

fn of_sender(sender: usize, attempt: u8) -> Claim {
    claim("POST /x", token_of(sender, attempt))
}

fn token_of(sender: usize, attempt: u8) -> u8 {
    u8::try_from(sender).unwrap() * 16 + attempt + 1
}

/// What the store says, and what else there is to do.
impl World {
    fn start() -> Self {
        Self {
            now: 0,
            record: None,
            senders: [Sender::Begins(0); 3],
            messages: Vec::new(),
            redis: None,
            last_true: BTreeMap::new(),
        }
    }

    fn snapshot(&self) -> Option<Snapshot> {
        let record = Arc::new(self.record.clone()?);
        Some(Snapshot::new(record, moment(self.now).now))
    }

    fn transition(&mut self, expect: Expect, change: &Transition) -> TransitionOutcome {
        let Some(record) = &self.record else {
            return TransitionOutcome::Lost(None);
        };
        let revision = record.revision;
        match record.apply(expect, change, moment(self.now)) {
            Ok(Applied::Changed(next)) => self.record = Some(*next),
            Ok(Applied::Removed) => self.record = None,
            Ok(Applied::Unchanged) | Err(_) => return TransitionOutcome::Lost(self.snapshot()),
        }
        TransitionOutcome::Applied {
            revision,
            now: moment(self.now).now,
        }
    }

    /// Notes who is truly in progress now.
    fn observe(&mut self) {
        if let Some(record) = &self.record
            && record.status() == Status::InProgress
            && !record.is_lease_over(moment(self.now))
        {
            self.last_true.insert(record.token.as_bytes()[0], self.now);
        }
    }

    /// Everything that tells two worlds apart.
    fn key(&self) -> impl std::hash::Hash + Eq + use<> {
        let entry = |entry: &Entry| (entry.token, entry.lifetime.millis());
        let mut messages: Vec<_> = self
            .messages
            .iter()
            .map(|message| match message {
                Message::Write { entry: e, anchor } => (entry(e), Some(*anchor)),
                Message::Remove(token) => ((*token, 0), None),
            })
            .collect();
        messages.sort();
        (
            self.now,
            self.record.as_ref().map(|record| {
                let locked = record.locked_until.as_micros();
                (record.token, record.status(), record.revision, locked)
            }),
            self.senders,
            messages,
            self.redis.as_ref().map(|(e, end)| (entry(e), *end)),
            self.last_true.clone(),
        )
    }
}

impl Model {
    fn new(flaw: Flaw) -> Self {
        let cap = match flaw {
            Flaw::IgnoresTheCap => 60_000,
            _ => CAP as u64,
        };
        Self {
            flaw,
            name: Names::new("idem:", Namespace::new("n").unwrap()).of(&request("POST /x").id),
            cap: Lifetime::new(Duration::from_millis(cap)).unwrap(),
        }
    }

    /// What Redis says to a claim now.
    fn answer(&self, world: &World, claim: &Claim) -> Option<ClaimOutcome> {
        let (entry, end) = world.redis.as_ref()?;
        let left = Duration::from_millis(u64::try_from(end - world.now).unwrap_or(0));
        match self.flaw {
            Flaw::IgnoresTheToken => refuse(&self.name, entry, left, &of_sender(9, 9)),
            Flaw::IgnoresTheRequest => {
                let same = self::claim("POST /x", claim.token().as_bytes()[0]);
                refuse(&self.name, entry, left, &same)
            }
            _ => refuse(&self.name, entry, left, claim),
        }
    }

    /// All that can happen next.
    fn steps(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        if world.now < END {
            let mut later = world.clone();
            later.now += 1;
            next.push(later);
        }
        if world.redis.is_some() {
            // Flushed, evicted, failed over, restarted, or just over.
            let mut lost = world.clone();
            lost.redis = None;
            next.push(lost);
        }
        for place in 0..world.messages.len() {
            // Or it never arrives: then no step is made with it.
            let mut arrived = world.clone();
            let message = arrived.messages.remove(place);
            self.deliver(&mut arrived, message);
            next.push(arrived);
        }
        for sender in 0..world.senders.len() {
            self.send(world, sender, &mut next);
        }
        for world in &mut next {
            world.observe();
            self.simplify(world);
        }
        next
    }

    /// Takes away what can make no difference any more, so that worlds that differ in nothing else are one.
    fn simplify(&self, world: &mut World) {
        let now = world.now;
        world.redis = world.redis.take().filter(|(_, end)| *end > now);
        if self.flaw != Flaw::LivesFromArrival {
            world.messages.retain(|message| match message {
                Message::Write { entry, anchor } => {
                    anchor + i64::from(entry.lifetime.millis()) > now
                }
                Message::Remove(_) => true,
            });
        }
        let mut matters = HashSet::new();
        matters.extend(world.redis.as_ref().map(|(entry, _)| entry.token));
        matters.extend(world.record.as_ref().map(|record| record.token));
        for message in &world.messages {
            if let Message::Write { entry, .. } = message {
                matters.insert(entry.token);
            }
        }
        if self.flaw != Flaw::RemovesAnything {
            world.messages.retain(|message| match message {
                Message::Write { .. } => true,
                Message::Remove(token) => matters.contains(token),
            });
        }
        world
            .last_true
            .retain(|token, _| matters.contains(&OwnerToken::from_bytes([*token; 16])));
    }

    fn deliver(&self, world: &mut World, message: Message) {
        match message {
            Message::Write { entry, anchor } => {
                let lifetime = i64::from(entry.lifetime.millis());
                let from = match self.flaw {
                    Flaw::LivesFromArrival => world.now,
                    _ => anchor,
                };
                let left = from + lifetime - world.now;
                if left >= 1 && left <= lifetime {
                    world.redis = Some((entry, from + lifetime));
                }
            }
            Message::Remove(token) => {
                let Some((entry, _)) = &world.redis else {
                    return;
                };
                let same = entry.encode().starts_with(&Entry::holder(token));
                if same || self.flaw == Flaw::RemovesAnything {
                    assert!(
                        same,
                        "an entry was removed by somebody else than its attempt"
                    );
                    world.redis = None;
                }
            }
        }
    }

    fn send(&self, world: &World, sender: usize, next: &mut Vec<World>) {
        let mut after = world.clone();
        match world.senders[sender] {
            Sender::Done => {}
            Sender::Begins(attempt) => {
                let claim = of_sender(sender, attempt);
                after.senders[sender] = match self.answer(world, &claim) {
                    Some(_) => answered(sender, attempt),
                    None => Sender::Looked(attempt, world.now),
                };
                next.push(after);
            }
            Sender::Looked(attempt, anchor) => {
                self.ask(&mut after, sender, attempt, anchor);
                next.push(after);
            }
            // Or it never does anything again: then no step is made, while others make theirs.
            Sender::Owns(attempt) => {
                let token = of_sender(sender, attempt).token();
                for change in [
                    Transition::Complete(Response::new(201)),
                    Transition::Release,
                ] {
                    let mut after = world.clone();
                    let outcome = after.transition(Expect::Owner(token), &change);
                    self.forget(&mut after, Expect::Owner(token), &change, &outcome);
                    after.senders[sender] = answered(sender, attempt);
                    next.push(after);
                }
            }
        }
    }

    /// The store's part of a claim.
    fn ask(&self, world: &mut World, sender: usize, attempt: u8, anchor: i64) {
        let claim = of_sender(sender, attempt);
        world.senders[sender] = answered(sender, attempt);
        let Some(held) = world.snapshot() else {
            world.record = Some(claim.first_record(moment(world.now).now));
            world.senders[sender] = Sender::Owns(attempt);
            return;
        };
        match decide(&claim, Some(&held)) {
            Decision::TakeOver(swap) => {
                let outcome = world.transition(swap.expect, &swap.change);
                if matches!(outcome, TransitionOutcome::Applied { .. }) {
                    world.senders[sender] = Sender::Owns(attempt);
                }
                self.forget(world, swap.expect, &swap.change, &outcome);
            }
            decision => {
                assert!(!decision.runs(), "{decision:?}");
                if self.flaw == Flaw::RemembersWhatIsDone {
                    let mut as_before = (*held.record).clone();
                    as_before.state = idem_core::State::InProgress;
                    let as_before = Snapshot::new(as_before, held.now);
                    if let Some(entry) = learn(&self.name, &as_before, self.cap) {
                        world.messages.push(Message::Write { entry, anchor });
                    }
                } else if was_refused(&claim, &held)
                    && let Some(entry) = learn(&self.name, &held, self.cap)
                {
                    world.messages.push(Message::Write { entry, anchor });
                }
            }
        }
    }

    fn forget(
        &self,
        world: &mut World,
        expect: Expect,
        change: &Transition,
        outcome: &TransitionOutcome,
    ) {
        let Some(mut token) = ended(expect, change, outcome) else {
            return;
        };
        if self.flaw == Flaw::RemovesTheSuccessors
            && let Some(record) = &world.record
        {
            token = record.token;
        }
        if let Some(record) = &world.record
            && record.status() == Status::InProgress
        {
            assert_ne!(
                token, record.token,
                "the entry of an attempt that goes on is removed"
            );
        }
        world.messages.push(Message::Remove(token));
    }

    /// What must hold in every world.
    fn check(&self, world: &World) {
        // Another operation is never answered from Redis: a stale mismatch would make a client give up.
        assert_eq!(self.answer(world, &claim("POST /y", 0xee)), None);
        for (sender, state) in world.senders.iter().enumerate() {
            // Nor is an owner that sends its claim again, because the answer was lost.
            if let Sender::Owns(attempt) = state {
                let own = of_sender(sender, *attempt);
                if let Some(ClaimOutcome::Refused { token, .. }) = self.answer(world, &own) {
                    assert_ne!(token, own.token(), "an owner is refused by its own entry");
                }
            }
        }
        // A refusal of anybody else was true less than the cap ago. There is no other kind of answer.
        match self.answer(world, &claim("POST /x", 0xee)) {
            None => {}
            Some(ClaimOutcome::Refused { token, .. }) => {
                let true_until = world.last_true.get(&token.as_bytes()[0]);
                let since = true_until.map(|until| world.now - until);
                assert!(
                    since.is_some_and(|since| since < CAP),
                    "a refusal that was true {since:?} ticks ago: {world:?}"
                );
            }
            Some(other) => panic!("Redis answered {other:?}"),
        }
    }

    /// Goes through all worlds, and says how many there are.
    fn explore(&self) -> usize {
        let mut seen = HashSet::new();
        let mut frontier = vec![World::start()];
        while let Some(world) = frontier.pop() {
            self.check(&world);
            for next in self.steps(&world) {
                if seen.insert(next.key()) {
                    frontier.push(next);
                }
            }
        }
        seen.len()
    }
}

fn answered(sender: usize, attempt: u8) -> Sender {
    if attempt + 1 < ATTEMPTS[sender] {
        Sender::Begins(attempt + 1)
    } else {
        Sender::Done
    }
}

#[test]
fn every_interleaving_keeps_the_rule() {
    let worlds = Model::new(Flaw::None).explore();
    println!("{worlds} worlds");
    assert!(worlds > 100_000, "only {worlds} worlds");
}

#[test]
fn every_flaw_breaks_it() {
    for flaw in [
        Flaw::LivesFromArrival,
        Flaw::IgnoresTheCap,
        Flaw::RemovesAnything,
        Flaw::RemovesTheSuccessors,
        Flaw::IgnoresTheToken,
        Flaw::IgnoresTheRequest,
        Flaw::RemembersWhatIsDone,
    ] {
        let found = std::panic::catch_unwind(|| Model::new(flaw).explore());
        assert!(found.is_err(), "{flaw:?} went unnoticed");
    }
}
