//! Calls whose futures are dropped at every await, and stores with a single connection.

use idem_core::{ClaimOutcome, Expect, Record, Span, Transition};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, ensure};
use crate::history::{Call, Recorder, drop_after};
use crate::moves::{complete, other_moves, owner_moves, renew, restart, right, take_over};
use crate::stage::Stage;
use crate::subject::Subject;
use crate::wish::Wish;

/// More awaits than a call has. One that is not done by then is polled to its end.
const POLLS: usize = 60;

/// How often each cut is made: to drop a future at an await is a matter of chance for stores with threads.
const REPEATS: usize = 3;

pub(crate) async fn cancel_a_claim(bench: &mut Bench) -> CaseResult {
    let store = bench.store().clone();
    cut_claims(bench, &store).await
}

async fn cut_claims(bench: &Bench, store: &Subject) -> CaseResult {
    for polls in 0..POLLS {
        let mut done = true;
        for _ in 0..REPEATS {
            let claim = bench.wish().claim()?;
            let recorder = Recorder::new(store.clone(), claim.id().clone());
            let call = Call::Claim(claim.clone());
            let (cut, ended) = recorder.send_and_drop(0, call.clone(), polls).await?;
            done &= ended;
            let mut events = vec![cut];
            events.push(recorder.send(0, Call::Load).await?.0);
            // Sent again, as somebody does who has had no answer.
            events.push(recorder.send(0, call).await?.0);
            let owner = Expect::Owner(claim.token());
            for change in [renew(), complete(1)] {
                let call = Call::Transition(owner, change);
                events.push(recorder.send(0, call).await?.0);
            }
            events.push(recorder.send(0, Call::Load).await?.0);
            recorder.explain(None, &events)?;
        }
        if done {
            return Ok(());
        }
    }
    Ok(())
}

pub(crate) async fn cancel_an_owners_write(bench: &mut Bench) -> CaseResult {
    let count = owner_moves()?.len();
    for index in 0..count {
        let change = |_: &Wish| Ok(owner_moves()?.swap_remove(index));
        cut_transitions(bench, Stage::Live, change).await?;
    }
    Ok(())
}

pub(crate) async fn cancel_a_swap(bench: &mut Bench) -> CaseResult {
    let count = other_moves(&bench.wish().claim()?).len();
    for index in 0..count {
        let stage = match index {
            1 => Stage::CompletedExpired,
            _ => Stage::Lapsed,
        };
        let change = |wish: &Wish| Ok(other_moves(&wish.claim()?).swap_remove(index));
        cut_transitions(bench, stage, change).await?;
    }
    Ok(())
}

async fn cut_transitions(
    bench: &Bench,
    stage: Stage,
    change: impl Fn(&Wish) -> Result<Transition, Failure>,
) -> CaseResult {
    for polls in 0..POLLS {
        let mut done = true;
        for _ in 0..REPEATS {
            let (wish, _, track) = stage.reach(bench).await?;
            let record: Record = track.record()?.clone();
            let change = change(&wish)?;
            let call = Call::Transition(right(&record, &change), change);
            let recorder = Recorder::new(bench.store().clone(), track.id().clone());
            let (cut, ended) = recorder.send_and_drop(0, call.clone(), polls).await?;
            done &= ended;
            let mut events = vec![cut];
            events.push(recorder.send(0, Call::Load).await?.0);
            events.push(recorder.send(0, call).await?.0);
            events.push(recorder.send(0, Call::Load).await?.0);
            recorder.explain(Some(&record), &events)?;
        }
        if done {
            return Ok(());
        }
    }
    Ok(())
}

pub(crate) async fn cancel_a_read_or_a_sweep(bench: &mut Bench) -> CaseResult {
    for polls in 0..POLLS {
        let (_, _, mut live) = Stage::Checkpointed.reach(bench).await?;
        let (wish, _, expired) = Stage::CompletedExpired.reach(bench).await?;
        let store = bench.store().clone();
        let read = drop_after(polls, store.load(live.id())).await;
        let swept = drop_after(polls, store.sweep(10)).await.transpose()?;
        let done = read.transpose()?.is_some() && swept.is_some();
        live.check().await?;
        let owner = live.owner()?;
        live.apply(owner, &renew()).await?;
        // A sweep that was dropped has removed it, or not, or will; and locks nothing.
        let claimed = store.claim(&wish.retention(Span::MAX).claim()?).await?;
        if let ClaimOutcome::Held(_) = claimed {
            store.sweep_all(10).await?;
            store.absent(expired.id()).await?;
        }
        if done {
            return Ok(());
        }
    }
    Ok(())
}

/// Many calls about one id, most of them dropped somewhere in the middle: whoever is left goes on at once.
pub(crate) async fn cancel_many_at_once(bench: &mut Bench) -> CaseResult {
    for round in 0..6_usize {
        let wish = bench.wish().lapsed();
        let (wish, _, track) = Stage::Live.reach_from(bench, wish).await?;
        let record = track.record()?.clone();
        let recorder = Recorder::new(bench.store().clone(), track.id().clone());
        let mut calls = Vec::new();
        for task in 0..20_usize {
            let call = match task % 5 {
                0 => Call::Claim(wish.claim()?),
                1 => Call::Transition(Expect::unchanged(&record), take_over()),
                2 => Call::Transition(Expect::Owner(record.token), renew()),
                3 => Call::Load,
                _ => Call::Transition(Expect::Owner(record.token), complete(7)),
            };
            calls.push((task, call));
        }
        let senders = calls.into_iter().map(|(task, call)| {
            let recorder = recorder.clone();
            async move {
                let polls = (task + round) % 7;
                Ok(recorder.send_and_drop(task, call, polls).await?.0)
            }
        });
        let mut events = bench.at_once(senders).await?;
        for call in [Call::Load, Call::Claim(wish.claim()?), Call::Load] {
            events.push(recorder.send(0, call).await?.0);
        }
        recorder.explain(Some(&record), &events)?;
    }
    Ok(())
}

/// A store with a single connection is not wedged by calls that were dropped.
pub(crate) async fn cancel_with_one_connection(bench: &mut Bench) -> CaseResult {
    let store = bench.with_one_connection().await?;
    cut_claims(bench, &store).await?;
    for polls in 0..12 {
        let claim = bench.wish().claim()?;
        let owner = Expect::Owner(claim.token());
        store.win(&claim).await?;
        let change = complete(1);
        drop_after(polls, store.transition(claim.id(), owner, &change)).await;
        drop_after(polls, store.load(claim.id())).await;
        drop_after(polls, store.sweep(1)).await;
        store.transition(claim.id(), owner, &change).await?;
        store.held(claim.id()).await?;
    }
    Ok(())
}

/// Many more callers than connections: nobody waits for somebody who waits for him.
pub(crate) async fn one_connection_is_enough(bench: &mut Bench) -> CaseResult {
    let store = bench.with_one_connection().await?;
    let wish = bench.wish().lapsed().forgotten();
    let calls = (0..16).map(|number| {
        let (store, wish) = (store.clone(), wish.clone());
        async move { flow(&store, &wish, number).await }
    });
    let finished: u32 = bench.at_once(calls).await?.into_iter().sum();
    ensure!(
        finished > 0,
        "sixteen callers with one connection, and none finished anything"
    );
    // Afterwards the store is as quick as ever.
    let claim = bench.wish().claim()?;
    store.win(&claim).await?;
    Ok(())
}

/// Whatever the decision is, carried out, and says how many times it finished the work.
async fn flow(store: &Subject, wish: &Wish, number: u32) -> Result<u32, Failure> {
    let mut finished = 0;
    for _ in 0..3 {
        let claim = wish.claim()?;
        let owned = match store.claim(&claim).await? {
            idem_core::ClaimOutcome::Won(_) => true,
            idem_core::ClaimOutcome::Held(held) => {
                let expect = Expect::unchanged(&held.record);
                let change = match crate::moves::decision(&claim, Some(&held)) {
                    "Restart" => restart(&claim),
                    "TakeOver" => crate::moves::take_over_as(claim.token(), wish.lease),
                    _ => continue,
                };
                let outcome = store.transition(claim.id(), expect, &change).await?;
                matches!(outcome, idem_core::TransitionOutcome::Applied { .. })
            }
            _ => false,
        };
        if owned {
            let owner = Expect::Owner(claim.token());
            store.load(claim.id()).await?;
            let change = complete(number);
            let outcome = store.transition(claim.id(), owner, &change).await?;
            finished += u32::from(matches!(
                outcome,
                idem_core::TransitionOutcome::Applied { .. }
            ));
        }
        store.sweep(1).await?;
    }
    let last = wish.claim()?;
    if let idem_core::ClaimOutcome::Won(_) = store.claim(&last).await? {
        let owner = Expect::Owner(last.token());
        store
            .transition(last.id(), owner, &complete(number))
            .await?;
    }
    Ok(finished)
}
