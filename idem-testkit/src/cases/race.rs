//! Transitions at the same instant: exactly one side wins, and there is an order that explains every answer.

use idem_core::{Expect, Record, Transition, Verdict};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure};
use crate::history::{Answer, Call, Event, Recorder};
use crate::moves::{
    checkpoint, complete, fail_final, fail_retryable, renew, resolve, response, restart, right,
    take_over,
};
use crate::stage::Stage;
use crate::wish::Wish;

const ROUNDS: u32 = 8;

/// Who does what, for a record that is there and the request that it belongs to.
type Moves = fn(&Record, &Wish) -> Result<Vec<Transition>, Failure>;

/// What a race was, and what came of it.
struct Race {
    writes: Vec<Event>,
    left: Option<Record>,
}

impl Race {
    fn applied(&self) -> Vec<usize> {
        let applied = |(index, event): (usize, &Event)| event.was_applied().then_some(index);
        self.writes.iter().enumerate().filter_map(applied).collect()
    }

    fn one_applied(&self, what: &str) -> CaseResult {
        let applied = self.applied().len();
        ensure!(
            applied == 1,
            "{what}: {applied} of {} were Applied, and it must be exactly one",
            self.writes.len()
        );
        Ok(())
    }
}

/// Sends all of these at once to one record, with two readers beside them.
async fn race(bench: &Bench, stage: Stage, wish: Wish, moves: Moves) -> Result<Race, Stop> {
    let (wish, _, track) = stage.reach_from(bench, wish).await?;
    let record = track.record()?.clone();
    let recorder = Recorder::new(bench.store().clone(), track.id().clone());
    let mut calls: Vec<Call> = moves(&record, &wish)?
        .into_iter()
        .map(|change| Call::Transition(right(&record, &change), change))
        .collect();
    let writes = calls.len();
    calls.insert(0, Call::Load);
    calls.push(Call::Claim(wish.claim()?));
    let senders = calls.into_iter().enumerate().map(|(task, call)| {
        let recorder = recorder.clone();
        async move { Ok(recorder.send(task, call).await?.0) }
    });
    let mut events = bench.at_once(senders).await?;
    let (last, left) = recorder.send(0, Call::Load).await?;
    events.push(last);
    recorder.explain(Some(&record), &events)?;
    let writes = events.drain(1..=writes).collect();
    Ok(Race { writes, left })
}

pub(crate) async fn race_of_takeovers(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Lapsed, Stage::Retryable, Stage::Uncertain] {
        for _ in 0..ROUNDS {
            let race = race(bench, stage, bench.wish(), |_, _| {
                Ok((0..8).map(|_| take_over()).collect())
            })
            .await?;
            race.one_applied("eight takeovers")?;
        }
    }
    Ok(())
}

/// At exactly the end of the lease: the owner's writes succeed and the takeover loses, or the other way round.
pub(crate) async fn race_of_takeover_and_owner(bench: &mut Bench) -> CaseResult {
    let sides: [Moves; 6] = [
        |_, _| Ok(vec![renew(), take_over()]),
        |_, _| Ok(vec![complete(1), take_over()]),
        |_, _| Ok(vec![fail_final(1), take_over()]),
        |_, _| Ok(vec![checkpoint(1)?, take_over()]),
        |_, _| Ok(vec![take_over(), renew()]),
        |_, _| Ok(vec![take_over(), complete(1)]),
    ];
    for side in sides {
        for _ in 0..ROUNDS {
            let race = race(bench, Stage::Lapsed, bench.wish(), side).await?;
            race.one_applied("a takeover and the owner")?;
        }
    }
    Ok(())
}

/// Renewal, completion, takeovers and a sweep, all at once.
pub(crate) async fn race_of_everybody(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let wish = bench.wish().forgotten();
        let (wish, _, track) = Stage::Lapsed.reach_from(bench, wish).await?;
        let record = track.record()?.clone();
        let recorder = Recorder::new(bench.store().clone(), track.id().clone());
        let owner = Expect::Owner(record.token);
        let other = Expect::unchanged(&record);
        let calls = vec![
            Call::Transition(owner, renew()),
            Call::Transition(owner, complete(1)),
            Call::Transition(other, take_over()),
            Call::Transition(other, resolve(Verdict::Retryable)),
            Call::Sweep,
            Call::Claim(wish.claim()?),
            Call::Load,
        ];
        let senders = calls.into_iter().enumerate().map(|(task, call)| {
            let recorder = recorder.clone();
            async move { Ok(recorder.send(task, call).await?.0) }
        });
        let mut events = bench.at_once(senders).await?;
        events.push(recorder.send(0, Call::Load).await?.0);
        recorder.explain(Some(&record), &events)?;
        bench.store().sweep_all(100).await?;
    }
    Ok(())
}

/// A release and a takeover: the key is free, or it has a new owner.
pub(crate) async fn race_of_takeover_and_release(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS * 2 {
        let race = race(bench, Stage::Lapsed, bench.wish(), |_, _| {
            Ok(vec![Transition::Release, take_over()])
        })
        .await?;
        race.one_applied("a release and a takeover")?;
    }
    Ok(())
}

/// Two answers of one owner: the first stays.
pub(crate) async fn race_of_answers(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let race = race(bench, Stage::Live, bench.wish(), |_, _| {
            Ok(vec![
                complete(1),
                complete(2),
                fail_final(3),
                fail_retryable(true),
            ])
        })
        .await?;
        race.one_applied("four outcomes of one owner")?;
    }
    Ok(())
}

pub(crate) async fn race_of_restarts(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::CompletedExpired, Stage::RetryableExpired] {
        for _ in 0..ROUNDS {
            let race = race(bench, stage, bench.wish(), |_, wish| {
                (0..6)
                    .map(|number| Ok(restart(&wish.clone().payload(number).claim()?)))
                    .collect()
            })
            .await?;
            race.one_applied("six restarts")?;
        }
    }
    Ok(())
}

/// An owner's own renewals do not shut each other out, and none is lost.
pub(crate) async fn race_of_renewals(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let race = race(bench, Stage::Live, bench.wish(), |_, _| {
            Ok((0..8).map(|_| renew()).collect())
        })
        .await?;
        let revision = race.left.map(|record| record.revision.as_u64());
        let applied = race.writes.iter().filter(|event| event.was_applied());
        ensure!(
            applied.count() == 8,
            "an owner's renewal was Lost to another of its own"
        );
        ensure!(
            revision == Some(9),
            "after a claim and eight renewals the revision must be 9, and is {revision:?}"
        );
    }
    Ok(())
}

/// Whatever their order, the newest checkpoint is the one that is left.
pub(crate) async fn race_of_checkpoints(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let race = race(bench, Stage::Live, bench.wish(), |_, _| {
            (1..=6).map(checkpoint).collect()
        })
        .await?;
        let left = race.left.and_then(|record| record.recovery);
        ensure!(
            left.as_ref().map(|recovery| recovery.sequence) == Some(6),
            "of six checkpoints at once the newest must be left, and it is {left:?}"
        );
    }
    Ok(())
}

pub(crate) async fn race_of_verdicts(bench: &mut Bench) -> CaseResult {
    let sides: [(Stage, Moves); 4] = [
        (Stage::Lapsed, |_, _| {
            Ok(vec![resolve(Verdict::Released), take_over()])
        }),
        (Stage::Lapsed, |_, _| {
            Ok(vec![resolve(Verdict::Completed(response(1))), complete(2)])
        }),
        (Stage::LapsedUnderHold, |_, _| {
            Ok(vec![
                resolve(Verdict::Completed(response(1))),
                resolve(Verdict::Failed(response(2))),
                resolve(Verdict::Released),
            ])
        }),
        (Stage::UncertainUnderHold, |_, _| {
            Ok(vec![
                resolve(Verdict::Retryable),
                resolve(Verdict::Completed(response(1))),
            ])
        }),
    ];
    for (stage, side) in sides {
        for _ in 0..ROUNDS {
            race(bench, stage, bench.wish(), side)
                .await?
                .one_applied("a verdict and others")?;
        }
    }
    Ok(())
}

/// The same through several stores on the same data, and each sees what the others wrote.
pub(crate) async fn race_of_instances(bench: &mut Bench) -> CaseResult {
    let subjects = [
        bench.store().clone(),
        bench.another_instance().await?,
        bench.another_instance().await?,
    ];
    for _ in 0..ROUNDS {
        let (wish, _, track) = Stage::Lapsed.reach(bench).await?;
        let record = track.record()?.clone();
        let recorder = Recorder::new(bench.store().clone(), track.id().clone());
        let other = Expect::unchanged(&record);
        let mut calls = Vec::new();
        for subject in &subjects {
            calls.push((recorder.through(subject), Call::Load));
            calls.push((
                recorder.through(subject),
                Call::Transition(other, take_over()),
            ));
        }
        let owner = Expect::Owner(record.token);
        calls.push((
            recorder.through(&subjects[1]),
            Call::Transition(owner, complete(1)),
        ));
        let senders = calls
            .into_iter()
            .enumerate()
            .map(|(task, (recorder, call))| async move { Ok(recorder.send(task, call).await?.0) });
        let mut events = bench.at_once(senders).await?;
        let applied = events.iter().filter(|event| event.was_applied()).count();
        // What one has written, every other sees, as soon as it was answered.
        for (task, subject) in subjects.iter().enumerate() {
            let through = recorder.through(subject);
            events.push(through.send(task, Call::Load).await?.0);
            let claim = Call::Claim(wish.claim()?);
            events.push(through.send(task, claim).await?.0);
            let late = Call::Transition(other, take_over());
            let event = through.send(task, late).await?.0;
            ensure!(
                matches!(event.answer(), Some(Answer::Lost(Some(_)))),
                "a takeover by an old snapshot through another store must be Lost"
            );
            events.push(event);
        }
        recorder.explain(Some(&record), &events)?;
        ensure!(
            applied == 1,
            "of three takeovers and a completion through three stores, {applied} were Applied"
        );
    }
    Ok(())
}
