//! What was acknowledged stays; and what cannot be read is not taken for absent.

use idem_core::{Expect, StoreErrorKind, Transition};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure, failure};
use crate::moves::{checkpoint, complete, other_moves, owner_moves, right};
use crate::stage::Stage;
use crate::track::{Sent, Track};

/// Every write of every kind, each acknowledged.
async fn written(bench: &Bench) -> Result<Vec<(String, Track)>, Stop> {
    let mut tracks = Vec::new();
    for stage in Stage::ALL {
        tracks.push((format!("{stage:?}"), stage.reach(bench).await?.2));
    }
    for change in owner_moves()? {
        let (_, _, mut track) = Stage::Live.reach(bench).await?;
        let owner = track.owner()?;
        track.apply(owner, &change).await?;
        tracks.push((change.name().to_owned(), track));
    }
    for stage in [Stage::Lapsed, Stage::CompletedExpired] {
        let count = other_moves(&bench.wish().claim()?).len();
        for index in 0..count {
            let (wish, _, mut track) = stage.reach(bench).await?;
            let change = other_moves(&wish.claim()?).swap_remove(index);
            let expect = right(track.record()?, &change);
            if track.send(expect, &change).await? == Sent::Applied {
                tracks.push((change.name().to_owned(), track));
            }
        }
    }
    Ok(tracks)
}

async fn all_there(bench: &Bench, tracks: &mut [(String, Track)]) -> CaseResult {
    for (name, track) in tracks {
        track.through(bench.store());
        track
            .check()
            .await
            .map_err(|failure| failure.within(format!("after {name}")))?;
    }
    Ok(())
}

pub(crate) async fn durable_when_reopened(bench: &mut Bench) -> CaseResult {
    let mut tracks = written(bench).await?;
    for (_, track) in &mut tracks {
        track.through_nothing();
    }
    bench.reopen().await?;
    all_there(bench, &mut tracks).await?;
    for (_, track) in &mut tracks {
        track.through_nothing();
    }
    // And the work goes on where it was.
    let (_, _, mut track) = Stage::Checkpointed.reach(bench).await?;
    let owner = track.owner()?;
    reopened(bench, &mut track).await?;
    track.apply(owner, &checkpoint(6)?).await?;
    reopened(bench, &mut track).await?;
    track.apply(owner, &complete(1)).await?;
    reopened(bench, &mut track).await
}

async fn reopened(bench: &mut Bench, track: &mut Track) -> CaseResult {
    track.through_nothing();
    bench.reopen().await?;
    track.through(bench.store());
    track.check().await?;
    Ok(())
}

/// Looked at after each single write, so that no later one can make an earlier one durable.
pub(crate) async fn durable_after_a_crash(bench: &mut Bench) -> CaseResult {
    crashes_of_an_owner(bench).await?;
    crash_after_a_release(bench).await?;
    crash_after_a_sweep(bench).await
}

async fn crashes_of_an_owner(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::Live.reach(bench).await?;
    crashed(bench, &mut track, "a claim").await?;
    let owner = Expect::Owner(claim.token());
    for change in [
        crate::moves::renew(),
        checkpoint(1)?,
        crate::moves::renew_lapsed(),
    ] {
        track.apply(owner, &change).await?;
        crashed(bench, &mut track, change.name()).await?;
    }
    bench.lapse(track.skew()).await?;
    let change = crate::moves::take_over();
    track.apply(track.unchanged()?, &change).await?;
    crashed(bench, &mut track, "a takeover").await?;
    let owner = track.owner()?;
    track.apply(owner, &complete(1)).await?;
    crashed(bench, &mut track, "a completion").await?;
    track.claim(&wish.claim()?).await?;
    Ok(())
}

async fn crash_after_a_release(bench: &mut Bench) -> CaseResult {
    let (_, _, mut track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    track.apply(owner, &Transition::Release).await?;
    crashed(bench, &mut track, "a release").await
}

async fn crash_after_a_sweep(bench: &mut Bench) -> CaseResult {
    let (_, _, mut track) = Stage::CompletedExpired.reach(bench).await?;
    let swept = bench.store().sweep_all(10).await?;
    ensure!(swept == 1, "one record has expired, and {swept} were swept");
    track.swept();
    crashed(bench, &mut track, "a sweep").await
}

async fn crashed(bench: &mut Bench, track: &mut Track, what: &str) -> CaseResult {
    track.through_nothing();
    bench.crash().await?;
    track.through(bench.store());
    track
        .check()
        .await
        .map(|_| ())
        .map_err(|failure| failure.within(format!("after a crash after {what}")).into())
}

/// A status that this version does not know is an error for every call, and the row is left as it is.
pub(crate) async fn unknown_status_is_an_error(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Live, Stage::Lapsed, Stage::CompletedExpired] {
        let (wish, claim, track) = stage.reach(bench).await?;
        bench.corrupt(claim.id()).await?;
        let store = bench.store().clone();
        for round in 0..2 {
            let loaded = store.in_time("load", store.raw().load(claim.id())).await?;
            corrupt("load", loaded.map(|held| held.is_none()))?;
            let another = wish.claim()?;
            let claimed = store.in_time("claim", store.raw().claim(&another)).await?;
            corrupt("claim", claimed.map(|_| false))?;
            let record = track.record()?;
            for change in [complete(1), crate::moves::take_over(), Transition::Release] {
                let call = store
                    .raw()
                    .transition(claim.id(), right(record, &change), &change);
                let sent = store.in_time(change.name(), call).await?;
                corrupt(change.name(), sent.map(|_| false))?;
            }
            if round == 0 {
                // It may fail or pass over such a row, but not remove it.
                let limit = std::num::NonZeroU32::MIN;
                let _ = store.in_time("sweep", store.raw().sweep(limit)).await?;
            }
        }
        // Other records are none the worse for it.
        let (_, _, mut other) = Stage::Live.reach(bench).await?;
        let owner = other.owner()?;
        other.apply(owner, &complete(1)).await?;
    }
    Ok(())
}

fn corrupt(call: &str, answer: Result<bool, idem_core::StoreError>) -> Result<(), Failure> {
    match answer {
        Err(error) if error.kind() == StoreErrorKind::Corrupt => Ok(()),
        Err(error) => Err(failure!(
            "{call} of a record with an unknown status must fail as Corrupt, and failed as {:?}",
            error.kind()
        )),
        Ok(absent) => Err(failure!(
            "{call} of a record with an unknown status must fail as Corrupt, and {}",
            if absent {
                "took it for absent"
            } else {
                "was answered"
            }
        )),
    }
}
