//! Calls that overlapped, and whether there is an order of them that explains every answer.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use idem_core::{
    Applied, Claim, ClaimOutcome, Expect, Finish, Moment, OwnerToken, Record, RecordId, Revision,
    Snapshot, Span, State, Timestamp, Transition, TransitionOutcome,
};

use crate::failure::{Failure, failure};
use crate::subject::{Subject, name_of, outcome_name};
use crate::track::brief;

/// One call about one id.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Claim(Claim),
    Transition(Expect, Transition),
    Load,
    Sweep,
}

/// What was answered. Records are [`timeless`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Won(Record),
    Held(Record),
    Applied(Revision),
    Lost(Option<Record>),
    Loaded(Option<Record>),
    Swept(u32),
}

/// A call from when it was sent to when it was answered, on a clock that everybody in the process shares.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    task: usize,
    call: Call,
    sent: u64,
    /// Without an answer it may have happened at any time since, or never.
    answered: Option<(u64, Answer)>,
}

impl Event {
    pub(crate) fn answer(&self) -> Option<&Answer> {
        self.answered.as_ref().map(|(_, answer)| answer)
    }

    pub(crate) fn was_applied(&self) -> bool {
        matches!(self.answer(), Some(Answer::Applied(_)))
    }
}

/// Sends calls and writes down when they were sent and what came of them.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    subject: Subject,
    id: RecordId,
    clock: Arc<AtomicU64>,
    /// How far the store says that its clock may be off, in microseconds.
    skew: Arc<AtomicU64>,
}

impl Recorder {
    pub(crate) fn new(subject: Subject, id: RecordId) -> Self {
        Self {
            subject,
            id,
            clock: Arc::new(AtomicU64::new(0)),
            skew: Arc::new(AtomicU64::new(0)),
        }
    }

    /// The same history through another store.
    pub(crate) fn through(&self, subject: &Subject) -> Self {
        Self {
            subject: subject.clone(),
            ..self.clone()
        }
    }

    pub(crate) fn id(&self) -> &RecordId {
        &self.id
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Sends a call, and gives the event and the record that the answer showed.
    pub(crate) async fn send(
        &self,
        task: usize,
        call: Call,
    ) -> Result<(Event, Option<Record>), Failure> {
        let sent = self.tick();
        let (answer, seen) = self.ask(&call).await?;
        let answered = Some((self.tick(), answer));
        let event = Event {
            task,
            call,
            sent,
            answered,
        };
        Ok((event, seen))
    }

    /// Sends a call, and drops it when it was polled so many times without being done. Says whether it was done.
    pub(crate) async fn send_and_drop(
        &self,
        task: usize,
        call: Call,
        polls: usize,
    ) -> Result<(Event, bool), Failure> {
        let sent = self.tick();
        let answer = drop_after(polls, self.ask(&call)).await.transpose()?;
        let answered = answer.map(|(answer, _)| (self.tick(), answer));
        let done = answered.is_some();
        let event = Event {
            task,
            call,
            sent,
            answered,
        };
        Ok((event, done))
    }

    /// Whether some order of these calls explains their answers.
    pub(crate) fn explain(
        &self,
        initial: Option<&Record>,
        events: &[Event],
    ) -> Result<(), Failure> {
        explain(initial, events, self.skew.load(Ordering::SeqCst) > 0)
    }

    fn seen(&self, snapshot: &Snapshot) -> Record {
        let skew = snapshot.skew.as_micros();
        self.skew.fetch_max(skew, Ordering::SeqCst);
        Record::clone(&snapshot.record)
    }

    async fn ask(&self, call: &Call) -> Result<(Answer, Option<Record>), Failure> {
        Ok(match call {
            Call::Claim(claim) => match self.subject.claim(claim).await? {
                ClaimOutcome::Won(won) => {
                    let record = self.seen(&won);
                    (Answer::Won(timeless(&record)), Some(record))
                }
                ClaimOutcome::Held(held) => {
                    let record = self.seen(&held);
                    (Answer::Held(timeless(&record)), Some(record))
                }
                other => return Err(failure!("a claim was {}", name_of(&other))),
            },
            Call::Transition(expect, change) => {
                match self.subject.transition(&self.id, *expect, change).await? {
                    TransitionOutcome::Applied { revision, .. } => {
                        (Answer::Applied(revision), None)
                    }
                    TransitionOutcome::Lost(held) => {
                        let record = held.map(|held| self.seen(&held));
                        (Answer::Lost(record.as_ref().map(timeless)), record)
                    }
                    other => {
                        return Err(failure!("{} was {}", change.name(), outcome_name(&other)));
                    }
                }
            }
            Call::Load => {
                let record = self
                    .subject
                    .load(&self.id)
                    .await?
                    .map(|held| self.seen(&held));
                (Answer::Loaded(record.as_ref().map(timeless)), record)
            }
            Call::Sweep => (Answer::Swept(self.subject.sweep(1000).await?.removed), None),
        })
    }
}

/// Polls a future so many times, and drops it if it is not done by then.
pub(crate) async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A record as it would be if all of it had happened at the beginning of time.
///
/// Histories use leases, retentions and windows of no time and of all time, so what may happen to a record does
/// not depend on when it is.
pub(crate) fn timeless(record: &Record) -> Record {
    let mut record = record.clone();
    let zero = AT_ONCE;
    record.locked_until = zero + record.locked_until.since(record.locked_at);
    record.created_at = zero;
    record.effect_since = zero;
    record.locked_at = zero;
    match &mut record.state {
        State::InProgress => {}
        State::Completed { finish, .. }
        | State::FailedFinal { finish, .. }
        | State::FailedRetryable { finish } => {
            *finish = Finish {
                finished_at: zero,
                expires_at: zero + finish.expires_at.since(finish.finished_at),
            };
        }
    }
    record
}

/// Finds an order of the calls in which the model gives every answer that was given, and in which no call
/// comes before one that was answered before it was sent.
///
/// The search is Wing and Gong's, with the memory of Lowe's: a set of calls that are done, and the record that
/// they lead to, are looked at once.
///
/// Where the hosts' clocks are said to be apart, what ended at once is over for certain only that much later. Whether
/// it was over for a call depends on when that was, so there it may have been and it may not.
fn explain(initial: Option<&Record>, events: &[Event], clocks_apart: bool) -> Result<(), Failure> {
    if events.len() > 64 {
        return Err(Failure::new("the suite made a history that is too long"));
    }
    let mut search = Search {
        events,
        moments: if clocks_apart {
            let skew = Span::from_millis(1);
            vec![Moment::exact(AT_ONCE), Moment { now: AT_ONCE, skew }]
        } else {
            vec![Moment::exact(AT_ONCE)]
        },
        states: Vec::new(),
        visited: HashSet::new(),
        furthest: 0,
    };
    let start = search.number(initial.map(timeless));
    if search.reaches_the_end(0, start) {
        return Ok(());
    }
    Err(failure!(
        "no order of these calls explains their answers ({} of {} can be explained):\n{}",
        search.furthest,
        events.len(),
        print(initial, events)
    ))
}

struct Search<'a> {
    events: &'a [Event],
    /// The moments at which a call may have happened.
    moments: Vec<Moment>,
    states: Vec<Option<Record>>,
    visited: HashSet<(u64, usize)>,
    furthest: u32,
}

impl Search<'_> {
    fn number(&mut self, state: Option<Record>) -> usize {
        if let Some(index) = self.states.iter().position(|known| *known == state) {
            return index;
        }
        self.states.push(state);
        self.states.len() - 1
    }

    fn reaches_the_end(&mut self, mut done: u64, state: usize) -> bool {
        // A call can be next only if no other that is not done was answered before it was sent.
        let mut next = Vec::new();
        loop {
            let waiting = self.events.iter().enumerate();
            let waiting = waiting.filter(|(index, _)| done & (1 << index) == 0);
            let answers = waiting
                .clone()
                .filter_map(|(_, event)| event.answered.as_ref());
            let Some(first_answer) = answers.map(|(at, _)| *at).min() else {
                return true;
            };
            next.clear();
            let open = waiting.filter(|(_, event)| event.sent <= first_answer);
            next.extend(open.map(|(index, _)| index));
            // What changes nothing and is explained now may as well be now: whatever comes after it would
            // come just the same.
            let explained = next.iter().copied().find(|index| {
                let event = &self.events[*index];
                let now = self.states[state].as_ref();
                self.moments.iter().any(|moment| {
                    let (after, answer) = happen(now, &event.call, *moment);
                    after.as_ref() == now && event.answer() == Some(&answer)
                })
            });
            match explained {
                Some(index) => done |= 1 << index,
                None => break,
            }
        }
        if !self.visited.insert((done, state)) {
            return false;
        }
        // A history that is too entangled to decide accuses nobody.
        if self.visited.len() > TOO_MANY {
            return true;
        }
        self.furthest = self.furthest.max(done.count_ones());
        for index in next {
            let then = done | (1 << index);
            for after in self.possible(index, state) {
                let after = self.number(after);
                if self.reaches_the_end(then, after) {
                    return true;
                }
            }
        }
        false
    }

    /// What may be there after this call, given its answer.
    fn possible(&self, index: usize, state: usize) -> Vec<Option<Record>> {
        let (event, before) = (&self.events[index], &self.states[state]);
        let mut possible = Vec::new();
        for moment in &self.moments {
            let (after, answer) = happen(before.as_ref(), &event.call, *moment);
            let changes = after != *before;
            match (event.answer(), &answer) {
                // What changes nothing and was not answered need not have happened.
                (None, _) if changes => possible.push(after),
                (Some(Answer::Swept(_)), Answer::Swept(_)) => {
                    // A sweep may leave what somebody else is just writing, and remove other records.
                    possible.push(before.clone());
                    if changes {
                        possible.push(after);
                    }
                }
                (Some(given), expected) if given == expected => possible.push(after),
                _ => {}
            }
        }
        possible
    }
}

/// How many situations are looked at before a history counts as explained.
const TOO_MANY: usize = 50_000;

/// When everything happens in a history: see [`timeless`].
const AT_ONCE: Timestamp = Timestamp::from_micros(0);

/// What the model says and what is there afterwards.
fn happen(state: Option<&Record>, call: &Call, moment: Moment) -> (Option<Record>, Answer) {
    match (call, state) {
        (Call::Claim(claim), None) => {
            let record = claim.first_record(moment.now);
            (Some(record.clone()), Answer::Won(record))
        }
        (Call::Claim(_), Some(held)) => (Some(held.clone()), Answer::Held(held.clone())),
        (Call::Load, held) => (held.cloned(), Answer::Loaded(held.cloned())),
        (Call::Transition(..), None) => (None, Answer::Lost(None)),
        (Call::Transition(expect, change), Some(held)) => {
            match held.apply(*expect, change, moment) {
                Ok(Applied::Changed(next)) => {
                    let answer = Answer::Applied(next.revision);
                    (Some(timeless(&next)), answer)
                }
                Ok(Applied::Removed) => (None, Answer::Applied(held.revision)),
                Ok(Applied::Unchanged) | Err(_) => {
                    (Some(held.clone()), Answer::Lost(Some(held.clone())))
                }
            }
        }
        (Call::Sweep, Some(held)) if held.is_expired(moment) => (None, Answer::Swept(1)),
        (Call::Sweep, held) => (held.cloned(), Answer::Swept(0)),
    }
}

/// The history, a line for each call, with letters for tokens.
pub(crate) fn print(initial: Option<&Record>, events: &[Event]) -> String {
    let mut names = Names(Vec::new());
    let mut text = String::from("    at first: ");
    text.push_str(&names.record(initial));
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.sent);
    for event in events {
        let call = match &event.call {
            Call::Claim(claim) => format!(
                "claim by {}{}",
                names.of(claim.token()),
                spans(claim.lease(), Some(claim.terms().retention))
            ),
            Call::Transition(expect, change) => names.transition(*expect, change),
            Call::Load => "load".to_owned(),
            Call::Sweep => "sweep".to_owned(),
        };
        let answer = match event.answer() {
            None => "no answer".to_owned(),
            Some(Answer::Won(record)) => format!("Won {}", names.record(Some(record))),
            Some(Answer::Held(record)) => format!("Held {}", names.record(Some(record))),
            Some(Answer::Applied(revision)) => format!("Applied revision {revision}"),
            Some(Answer::Lost(record)) => format!("Lost to {}", names.record(record.as_ref())),
            Some(Answer::Loaded(record)) => names.record(record.as_ref()),
            Some(Answer::Swept(removed)) => format!("removed {removed}"),
        };
        let until = event
            .answered
            .as_ref()
            .map_or_else(|| "…".to_owned(), |(at, _)| at.to_string());
        // Writing into a `String` does not fail.
        let _ = write!(
            text,
            "\n    task {} [{}..{until}] {call} -> {answer}",
            event.task, event.sent
        );
    }
    text
}

struct Names(Vec<OwnerToken>);

impl Names {
    fn of(&mut self, token: OwnerToken) -> String {
        let index = self
            .0
            .iter()
            .position(|known| *known == token)
            .unwrap_or_else(|| {
                self.0.push(token);
                self.0.len() - 1
            });
        let letter = char::from(b'A' + u8::try_from(index % 26).unwrap_or_default());
        format!("{letter}{}", "'".repeat(index / 26))
    }

    fn record(&mut self, record: Option<&Record>) -> String {
        match record {
            None => "nothing".to_owned(),
            Some(record) => format!(
                "({} {}{})",
                self.of(record.token),
                brief(record),
                spans(
                    record.locked_until.since(record.locked_at),
                    record
                        .state
                        .finish()
                        .map(|finish| finish.expires_at.since(finish.finished_at))
                )
            ),
        }
    }

    fn transition(&mut self, expect: Expect, change: &Transition) -> String {
        let by = match expect {
            Expect::Owner(token) => format!("by its owner {}", self.of(token)),
            Expect::Unchanged { token, revision } => {
                format!("of {} at revision {revision}", self.of(token))
            }
        };
        let detail = match change {
            Transition::TakeOver { token, lease } => {
                format!(" for {}{}", self.of(*token), spans(*lease, None))
            }
            Transition::Restart(claim) => format!(" for {}", self.of(claim.token())),
            Transition::Renew { lease } => spans(*lease, None),
            Transition::Checkpoint { sequence, .. } => format!(" number {sequence}"),
            Transition::FailRetryable {
                uncertain: true, ..
            } => " uncertain".to_owned(),
            Transition::Resolve { verdict, token, .. } => {
                let verdict = match verdict {
                    idem_core::Verdict::Completed(_) => "completed",
                    idem_core::Verdict::Failed(_) => "failed",
                    idem_core::Verdict::Retryable => "retryable",
                    idem_core::Verdict::Released => "released",
                };
                format!(" as {verdict}, for {}", self.of(*token))
            }
            _ => String::new(),
        };
        format!("{} {by}{detail}", change.name())
    }
}

fn spans(lease: Span, retention: Option<Span>) -> String {
    let mut text = String::new();
    if lease.is_zero() {
        text.push_str(", lease over");
    }
    if retention.is_some_and(Span::is_zero) {
        text.push_str(", no retention");
    }
    text
}
