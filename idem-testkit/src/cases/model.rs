//! Random sequences and random concurrent histories, against the model.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use idem_core::{Claim, Expect, OwnerToken, Record, Revision, Span, Transition, Verdict};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure, failure};
use crate::history::{Answer, Call, Event, Recorder};
use crate::moves::{
    checkpoint_named, complete, fail_final, fail_retryable, fresh_token, resolve, response,
    restart, take_over_as,
};
use crate::stage::Stage;
use crate::track::Track;
use crate::wish::{Wish, mix};

/// Something to do to a record, before it is known what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    Claim(Terms),
    Renew { over: bool },
    Checkpoint { sequence: u32, name: u8, over: bool },
    Complete(u8),
    FailFinal(u8),
    FailRetryable { uncertain: bool },
    Release,
    TakeOver { over: bool },
    Restart(Terms),
    Resolve(u8),
    Sweep { limit: u32 },
    Load,
}

/// What a claim promises, at one end of each range or the other.
#[derive(Debug, Clone, Copy)]
struct Terms {
    over: bool,
    forgotten: bool,
    closed: bool,
    hold: bool,
    reclaims: u32,
    payload: u8,
}

/// Whose expectation a step goes by.
#[derive(Debug, Clone, Copy)]
enum Whose {
    /// That of somebody who knows the record as it is.
    Current,
    /// That of somebody who saw it, this many versions ago.
    Earlier(usize),
    /// That of somebody who never did.
    Nobodys,
}

fn terms() -> impl Strategy<Value = Terms> {
    (any::<(bool, bool)>(), 0..6_u8, 0..4_u8, 0..3_u32, 0..3_u8).prop_map(
        |((over, forgotten), closed, hold, reclaims, payload)| Terms {
            over,
            forgotten,
            closed: closed == 0,
            hold: hold == 0,
            reclaims: reclaims * 2,
            payload,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => terms().prop_map(Step::Claim),
        2 => any::<bool>().prop_map(|over| Step::Renew { over }),
        3 => (0..4_u32, 0..2_u8, any::<bool>())
            .prop_map(|(sequence, name, over)| Step::Checkpoint { sequence, name, over }),
        2 => (0..2_u8).prop_map(Step::Complete),
        1 => (0..2_u8).prop_map(Step::FailFinal),
        3 => any::<bool>().prop_map(|uncertain| Step::FailRetryable { uncertain }),
        2 => Just(Step::Release),
        4 => any::<bool>().prop_map(|over| Step::TakeOver { over }),
        3 => terms().prop_map(Step::Restart),
        2 => (0..4_u8).prop_map(Step::Resolve),
        1 => select(vec![1, 1000]).prop_map(|limit| Step::Sweep { limit }),
        1 => Just(Step::Load),
    ]
}

impl Terms {
    fn wish(self, id: &idem_core::RecordId) -> Wish {
        let mut wish = Wish::new(id.scope().as_str(), id.key().as_str()).payload(self.payload);
        if self.over {
            wish = wish.lapsed();
        }
        if self.forgotten {
            wish = wish.forgotten();
        }
        if self.closed {
            wish = wish.window(Span::ZERO);
        }
        if self.hold {
            wish = wish.hold();
        }
        wish.max_reclaims(self.reclaims)
    }
}

fn lease(over: bool) -> Span {
    if over { Span::ZERO } else { Span::MAX }
}

/// The transition that a step is, if it is one.
fn transition(step: Step, id: &idem_core::RecordId) -> Result<Option<Transition>, Failure> {
    Ok(Some(match step {
        Step::Claim(_) | Step::Sweep { .. } | Step::Load => return Ok(None),
        Step::Renew { over } => Transition::Renew { lease: lease(over) },
        Step::Checkpoint {
            sequence,
            name,
            over,
        } => checkpoint_named(sequence, &format!("point {name}"), lease(over))?,
        Step::Complete(number) => complete(number.into()),
        Step::FailFinal(number) => fail_final(number.into()),
        Step::FailRetryable { uncertain } => fail_retryable(uncertain),
        Step::Release => Transition::Release,
        Step::TakeOver { over } => take_over_as(fresh_token(), lease(over)),
        Step::Restart(terms) => restart(&terms.wish(id).claim()?),
        Step::Resolve(verdict) => resolve(match verdict {
            0 => Verdict::Completed(response(20)),
            1 => Verdict::Failed(response(21)),
            2 => Verdict::Retryable,
            _ => Verdict::Released,
        }),
    }))
}

fn is_the_owners(change: &Transition) -> bool {
    !matches!(
        change,
        Transition::TakeOver { .. } | Transition::Restart(_) | Transition::Resolve { .. }
    )
}

fn expectation(change: &Transition, token: OwnerToken, revision: Revision) -> Expect {
    if is_the_owners(change) {
        Expect::Owner(token)
    } else {
        Expect::Unchanged { token, revision }
    }
}

/// Runs many random programs, and makes the first that fails as small as it can.
fn search<S>(
    bench: &Bench,
    salt: u64,
    programs: S,
    run: impl Fn(S::Value) -> CaseResult,
) -> CaseResult
where
    S: Strategy,
    S::Value: Debug,
{
    let settings = bench.settings();
    let mut seed = [0; 32];
    for (part, chunk) in (0..).zip(seed.chunks_mut(8)) {
        let bits = mix(settings
            .seed
            .wrapping_add(salt)
            .wrapping_mul(4)
            .wrapping_add(part));
        chunk.copy_from_slice(&bits.to_be_bytes());
    }
    let config = Config {
        cases: settings.histories,
        max_shrink_iters: settings.shrinks,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let interrupted: Mutex<Option<Stop>> = Mutex::new(None);
    let found = runner.run(&programs, |program| match run(program) {
        Ok(()) => Ok(()),
        Err(Stop::Failed(failure)) => Err(TestCaseError::fail(failure.to_string())),
        Err(other) => {
            *interrupted.lock().unwrap_or_else(PoisonError::into_inner) = Some(other);
            Ok(())
        }
    });
    if let Some(stop) = interrupted
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
    {
        return Err(stop);
    }
    match found {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, program)) => Err(failure!(
            "{reason}\n    found with IDEM_TESTKIT_SEED={}, as small as it gets: {program:?}",
            settings.seed
        )
        .into()),
        Err(TestError::Abort(reason)) => Err(failure!("the search was given up: {reason}").into()),
    }
}

/// Runs one program to its end, from inside the search, which knows nothing of futures.
fn wait_for(program: impl Future<Output = CaseResult>) -> CaseResult {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(program))
}

/// One step after the other, on two records: everything is exactly what the model says.
pub(crate) async fn model_of_sequences(bench: &mut Bench) -> CaseResult {
    let whose = prop_oneof![
        6 => Just(Whose::Current),
        2 => (1..4_usize).prop_map(Whose::Earlier),
        1 => Just(Whose::Nobodys),
    ];
    let steps = proptest::collection::vec((0..2_usize, whose, step()), 1..28);
    // Nothing much happens to an id before its first claim.
    let programs = ([terms(), terms()], steps);
    let bench = &*bench;
    search(bench, 1, programs, |(first, steps)| {
        wait_for(sequence(bench, first, steps))
    })
}

async fn sequence(
    bench: &Bench,
    first: [Terms; 2],
    steps: Vec<(usize, Whose, Step)>,
) -> CaseResult {
    let mut tracks = [
        bench.track(&bench.wish().id()?),
        bench.track(&bench.wish().id()?),
    ];
    let mut seen: [Vec<(OwnerToken, Revision)>; 2] = [Vec::new(), Vec::new()];
    for (track, terms) in tracks.iter_mut().zip(first) {
        let claim = terms.wish(track.id()).claim()?;
        track.claim(&claim).await?;
    }
    for (number, (which, whose, step)) in steps.into_iter().enumerate() {
        let place = || format!("step {number}, {step:?} of record {which} by {whose:?}");
        if let Step::Sweep { limit } = step {
            sweep(bench, &mut tracks, limit)
                .await
                .map_err(|stop| stop.within(place()))?;
            continue;
        }
        let track = &mut tracks[which];
        bench.lapse(track.skew()).await?;
        one_step(track, &seen[which], whose, step)
            .await
            .map_err(|failure| failure.within(place()))?;
        if let Some(record) = track.model() {
            let version = (record.token, record.revision);
            if seen[which].last() != Some(&version) {
                seen[which].push(version);
            }
        }
    }
    for track in &tracks {
        bench.lapse(track.skew()).await?;
    }
    bench.store().sweep_all(1000).await?;
    Ok(())
}

async fn one_step(
    track: &mut Track,
    seen: &[(OwnerToken, Revision)],
    whose: Whose,
    step: Step,
) -> Result<(), Failure> {
    let id = track.id().clone();
    match (step, transition(step, &id)?) {
        (Step::Claim(terms), _) => {
            track.claim(&terms.wish(&id).claim()?).await?;
        }
        (_, Some(change)) => {
            let current = track.model().map(|record| (record.token, record.revision));
            let version = match whose {
                Whose::Current => current,
                Whose::Earlier(back) => seen.iter().rev().nth(back).copied().or(current),
                Whose::Nobodys => None,
            };
            let (token, revision) = version.unwrap_or((fresh_token(), Revision::FIRST));
            track
                .send(expectation(&change, token, revision), &change)
                .await?;
        }
        _ => {
            track.check().await?;
        }
    }
    Ok(())
}

async fn sweep(bench: &Bench, tracks: &mut [Track; 2], limit: u32) -> Result<(), Stop> {
    for track in tracks.iter() {
        bench.lapse(track.skew()).await?;
    }
    let mut expired = [false, false];
    for (track, expired) in tracks.iter_mut().zip(&mut expired) {
        let moment = track.check().await?.map(|held| held.moment());
        *expired = match (track.model(), moment) {
            (Some(record), Some(moment)) => record.is_expired(moment),
            _ => false,
        };
    }
    let due = u32::from(expired[0]) + u32::from(expired[1]);
    let swept = bench.store().sweep(limit).await?;
    ensure!(
        swept.removed == due.min(limit),
        "{due} records have expired, and sweep({limit}) says that it removed {}",
        swept.removed
    );
    for (track, expired) in tracks.iter_mut().zip(expired) {
        let left = bench.store().load(track.id()).await?;
        if expired && left.is_none() {
            track.swept();
        }
        track.check().await?;
    }
    Ok(())
}

/// Three callers at once, on one record: some order of their calls explains every answer.
pub(crate) async fn model_of_histories(bench: &mut Bench) -> CaseResult {
    let stage = select(Stage::ALL.to_vec());
    let polls = prop_oneof![8 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    let task = proptest::collection::vec((step(), polls), 1..5);
    let tasks = proptest::collection::vec(task, 2..4);
    let bench = &*bench;
    search(bench, 2, (stage, tasks), |(stage, tasks)| {
        wait_for(history(bench, stage, tasks))
    })
}

type Task = Vec<(Step, Option<usize>)>;

async fn history(bench: &Bench, stage: Stage, tasks: Vec<Task>) -> CaseResult {
    let (_, _, track) = stage.reach(bench).await?;
    let initial = track.model().cloned();
    let recorder = Recorder::new(bench.store().clone(), track.id().clone());
    let callers = tasks.into_iter().enumerate().map(|(number, steps)| {
        let caller = Caller {
            number,
            recorder: recorder.clone(),
            seen: initial.clone(),
            own: initial.as_ref().map(|record| record.token),
        };
        caller.run(steps)
    });
    let mut events: Vec<Event> = bench
        .at_once(callers)
        .await?
        .into_iter()
        .flatten()
        .collect();
    events.push(recorder.send(9, Call::Load).await?.0);
    recorder.explain(initial.as_ref(), &events)?;
    bench.lapse(track.skew()).await?;
    bench.store().sweep_all(1000).await?;
    Ok(())
}

/// One caller with what it knows: the record that it last saw, and the token that it last got.
struct Caller {
    number: usize,
    recorder: Recorder,
    seen: Option<Record>,
    own: Option<OwnerToken>,
}

impl Caller {
    async fn run(mut self, steps: Task) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        for (step, polls) in steps {
            let call = self.call(step)?;
            let new = new_token(&call);
            let event = match polls {
                Some(polls) => {
                    self.recorder
                        .send_and_drop(self.number, call, polls)
                        .await?
                        .0
                }
                None => {
                    let (event, seen) = self.recorder.send(self.number, call).await?;
                    if seen.is_some() {
                        self.seen = seen;
                    }
                    event
                }
            };
            if matches!(
                event.answer(),
                Some(Answer::Won(_) | Answer::Applied(_)) | None
            ) {
                self.own = new.or(self.own);
            }
            events.push(event);
        }
        Ok(events)
    }

    fn call(&self, step: Step) -> Result<Call, Failure> {
        let id = self.recorder.id();
        Ok(match (step, transition(step, id)?) {
            (Step::Claim(terms), _) => Call::Claim(terms.wish(id).claim()?),
            (Step::Sweep { .. }, _) => Call::Sweep,
            (_, Some(change)) if is_the_owners(&change) => {
                Call::Transition(Expect::Owner(self.own.unwrap_or(fresh_token())), change)
            }
            (_, Some(change)) => match &self.seen {
                Some(seen) => Call::Transition(Expect::unchanged(seen), change),
                None => Call::Load,
            },
            _ => Call::Load,
        })
    }
}

/// The token that the record has if this call is applied.
fn new_token(call: &Call) -> Option<OwnerToken> {
    let of = |claim: &Claim| claim.token();
    match call {
        Call::Claim(claim) => Some(of(claim)),
        Call::Transition(_, Transition::TakeOver { token, .. }) => Some(*token),
        Call::Transition(_, Transition::Restart(claim)) => Some(of(claim)),
        _ => None,
    }
}
