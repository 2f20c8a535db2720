//! Sweeping: what has expired, up to the limit, and nothing else.

use idem_core::{ClaimOutcome, Expect, Span, TransitionOutcome};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, ensure};
use crate::moves::{complete, restart};
use crate::stage::Stage;
use crate::track::Track;

/// This many records that have expired.
async fn expired(bench: &Bench, count: usize) -> Result<Vec<Track>, crate::failure::Stop> {
    let stages = [
        Stage::CompletedExpired,
        Stage::FailedFinalExpired,
        Stage::RetryableExpired,
    ];
    let mut tracks = Vec::with_capacity(count);
    for stage in stages.into_iter().cycle().take(count) {
        tracks.push(stage.reach(bench).await?.2);
    }
    Ok(tracks)
}

pub(crate) async fn sweep_up_to_its_limit(bench: &mut Bench) -> CaseResult {
    let tracks = expired(bench, 13).await?;
    let mut left = 13;
    for limit in [1, 5, 1, 4, 100, 100] {
        let swept = bench.store().sweep(limit).await?;
        let mut there = 0;
        for track in &tracks {
            there += u32::from(bench.store().load(track.id()).await?.is_some());
        }
        ensure!(
            swept.removed == limit.min(left),
            "with {left} expired records, sweep({limit}) says that it removed {}",
            swept.removed
        );
        ensure!(
            left - there == swept.removed,
            "sweep({limit}) says that it removed {}, and removed {}",
            swept.removed,
            left - there
        );
        left = there;
    }
    Ok(())
}

/// More records than many a store removes in one batch.
pub(crate) async fn sweep_of_many(bench: &mut Bench) -> CaseResult {
    const CALLERS: u32 = 14;
    const EACH: u32 = 10;
    const LIMIT: u32 = 135;
    let calls = (0..CALLERS).map(|_| {
        let store = bench.store().clone();
        let wishes: Vec<_> = (0..EACH).map(|_| bench.wish().forgotten()).collect();
        async move {
            let mut skew = Span::ZERO;
            for wish in wishes {
                let claim = wish.claim()?;
                skew = store.win(&claim).await?.skew;
                let owner = Expect::Owner(claim.token());
                store.apply(claim.id(), owner, &complete(1)).await?;
            }
            Ok(skew)
        }
    });
    let skew = bench.at_once(calls).await?.into_iter().max();
    bench.lapse(skew.unwrap_or(Span::ZERO)).await?;
    let expired = CALLERS * EACH;
    for (limit, due) in [(LIMIT, LIMIT), (LIMIT, expired - LIMIT), (LIMIT, 0)] {
        let swept = bench.store().sweep(limit).await?;
        ensure!(
            swept.removed == due,
            "with {expired} records that have expired, a sweep({limit}) must remove {due}, and removed {}",
            swept.removed
        );
    }
    Ok(())
}

/// Only what has expired: in every state the model says whether that is so.
pub(crate) async fn sweep_only_what_has_expired(bench: &mut Bench) -> CaseResult {
    let mut tracks = Vec::new();
    for _ in 0..2 {
        for stage in Stage::ALL {
            if stage != Stage::Absent {
                tracks.push((stage, stage.reach(bench).await?.2));
            }
        }
    }
    let due = tracks
        .iter()
        .filter(|(stage, _)| stage.is_expired())
        .count();
    let removed = bench.store().sweep_all(1000).await?;
    ensure!(
        removed as usize == due,
        "of {} records {due} have expired, and {removed} were swept",
        tracks.len()
    );
    for (stage, track) in &mut tracks {
        if stage.is_expired() {
            track.swept();
        }
        stage.place(track.check().await.map(|_| ()))?;
    }
    Ok(())
}

/// Records that can never be removed do not keep those from being removed that can: not even for a limit of one.
pub(crate) async fn sweep_is_not_blocked_by_the_unresolved(bench: &mut Bench) -> CaseResult {
    let unresolved = [
        Stage::Lapsed,
        Stage::LapsedUnderHold,
        Stage::UncertainExpired,
    ];
    for stage in unresolved.into_iter().cycle().take(24) {
        stage.reach(bench).await?;
    }
    bench.let_time_pass().await;
    let tracks = expired(bench, 3).await?;
    for _ in &tracks {
        let swept = bench.store().sweep(1).await?;
        ensure!(
            swept.removed == 1,
            "sweep(1) removed {} of the expired records behind 24 unresolved ones",
            swept.removed
        );
    }
    for track in &tracks {
        bench.store().absent(track.id()).await?;
    }
    Ok(())
}

/// Operations that are stuck right now are counted, up to the limit, and left alone.
pub(crate) async fn sweep_counts_what_is_stuck(bench: &mut Bench) -> CaseResult {
    let stages = [
        Stage::Live,
        Stage::Lapsed,
        Stage::LapsedUnderHold,
        Stage::CheckpointedAndLapsed,
        Stage::Completed,
        Stage::Uncertain,
        Stage::UncertainExpired,
        Stage::LapsedAfterItsWindow,
    ];
    for stage in stages {
        stage.reach(bench).await?;
    }
    for (limit, stuck) in [(100, 4), (4, 4), (3, 3), (1, 1)] {
        let swept = bench.store().sweep(limit).await?;
        ensure!(
            swept.stuck == stuck,
            "4 records are stuck, and sweep({limit}) counts {}; it must be {stuck}",
            swept.stuck
        );
        ensure!(
            swept.removed == 0,
            "sweep({limit}) removed {} records, and none has expired",
            swept.removed
        );
    }
    Ok(())
}

pub(crate) async fn sweep_by_many_at_once(bench: &mut Bench) -> CaseResult {
    let tracks = expired(bench, 24).await?;
    let (_, _, mut live) = Stage::Completed.reach(bench).await?;
    let calls = (0..6).map(|_| {
        let subject = bench.store().clone();
        async move { subject.sweep_all(4).await }
    });
    let removed: u32 = bench.at_once(calls).await?.into_iter().sum();
    let rest = bench.store().sweep_all(100).await?;
    ensure!(
        removed + rest == 24,
        "24 expired records were swept {} times",
        removed + rest
    );
    for track in &tracks {
        bench.store().absent(track.id()).await?;
    }
    live.check().await?;
    Ok(())
}

/// An expired record is restarted while it is swept: either it is gone and the restart has lost, or it has
/// been restarted and is there, and its owner owns it.
pub(crate) async fn sweep_against_a_restart(bench: &mut Bench) -> CaseResult {
    for round in 0..36 {
        let wish = bench.wish().forgotten();
        let (wish, _, track) = Stage::Completed.reach_from(bench, wish).await?;
        bench.lapse(track.skew()).await?;
        let claim = wish.clone().retention(Span::MAX).claim()?;
        let expect = track.unchanged()?;
        let restarter = {
            let (subject, claim) = (bench.store().clone(), claim.clone());
            async move {
                // Now earlier and now later, so that it falls between any two steps of a sweep.
                for _ in 0..round % 6 {
                    tokio::task::yield_now().await;
                }
                let change = restart(&claim);
                let outcome = subject.transition(claim.id(), expect, &change).await?;
                Ok(matches!(outcome, TransitionOutcome::Applied { .. }))
            }
        };
        let sweeper = {
            let subject = bench.store().clone();
            async move { Ok(subject.sweep(10).await?.removed == 1) }
        };
        type Call = std::pin::Pin<Box<dyn Future<Output = Result<bool, Failure>> + Send>>;
        let calls: [Call; 2] = [Box::pin(restarter), Box::pin(sweeper)];
        let sides = bench.at_once(calls).await?;
        ensure!(
            sides[0] != sides[1],
            "a restart and a sweep of one expired record: restarted {}, swept {}",
            sides[0],
            sides[1]
        );
        if sides[0] {
            let owner = Expect::Owner(claim.token());
            bench.store().apply(claim.id(), owner, &complete(2)).await?;
            ensure!(
                bench.store().sweep_all(10).await? == 0,
                "a restarted record was swept with the terms of the one before"
            );
            bench.store().held(claim.id()).await?;
        } else {
            bench.store().win(&claim).await?;
        }
    }
    Ok(())
}

/// What a sweep removed is gone for good: the key is unused, for the same scope and no other.
pub(crate) async fn sweep_frees_the_key(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::CompletedExpired.reach(bench).await?;
    let mut neighbour = wish.clone().retention(Span::MAX);
    neighbour.scope = format!("{}x", wish.scope);
    let (_, _, mut beside) = Stage::Completed.reach_from(bench, neighbour).await?;
    ensure!(
        bench.store().sweep_all(10).await? == 1,
        "one record of two has expired, and a sweep must remove it alone"
    );
    beside.check().await?;
    track.swept();
    track.check().await?;
    track
        .refuse(Expect::Owner(claim.token()), &complete(9))
        .await?;
    let next = wish.payload(0x0d).claim()?;
    match track.claim(&next).await? {
        ClaimOutcome::Won(_) => Ok(()),
        _ => Err(Failure::new("a swept id must be claimed as if unused").into()),
    }
}
