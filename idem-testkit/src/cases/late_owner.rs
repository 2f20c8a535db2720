//! The owner that comes back late: it can no longer write anything.

use idem_core::{Expect, Transition, Verdict};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure};
use crate::moves::{complete, owner_moves, resolve, response, restart, take_over, verdicts};
use crate::stage::Stage;
use crate::track::{Sent, Track};

/// Everything that the owner of before can do, against what there is now.
async fn all_refused(track: &mut Track, late: Expect, since: &str) -> Result<(), Failure> {
    for change in owner_moves()? {
        let sent = track
            .send(late, &change)
            .await
            .map_err(|failure| failure.within(format!("a late {} {since}", change.name())))?;
        let gone = track.model().is_none() && matches!(change, Transition::Release);
        ensure!(
            sent == Sent::Refused || gone,
            "a late {} {since} must be refused, and was {sent:?}",
            change.name()
        );
    }
    Ok(())
}

pub(crate) async fn late_owner_after_a_takeover(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Lapsed, Stage::CheckpointedAndLapsed] {
        let (_, claim, mut track) = stage.reach(bench).await?;
        let late = Expect::Owner(claim.token());
        track.apply(track.unchanged()?, &take_over()).await?;
        all_refused(&mut track, late, "after a takeover").await?;
        let owner = track.owner()?;
        track.apply(owner, &complete(2)).await?;
        all_refused(&mut track, late, "after the takeover's completion").await?;
    }
    Ok(())
}

pub(crate) async fn late_owner_after_a_restart(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::RetryableExpired.reach(bench).await?;
    let late = Expect::Owner(claim.token());
    let next = wish.claim()?;
    track.apply(track.unchanged()?, &restart(&next)).await?;
    all_refused(&mut track, late, "after a restart").await?;
    Ok(())
}

pub(crate) async fn late_owner_after_a_verdict(bench: &mut Bench) -> CaseResult {
    for verdict in verdicts() {
        let (_, claim, mut track) = Stage::LapsedUnderHold.reach(bench).await?;
        let late = Expect::Owner(claim.token());
        track
            .apply(track.unchanged()?, &resolve(verdict.clone()))
            .await?;
        all_refused(&mut track, late, &format!("after the verdict {verdict:?}")).await?;
    }
    Ok(())
}

pub(crate) async fn late_owner_after_a_release_and_a_new_claim(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::Live.reach(bench).await?;
    let late = Expect::Owner(claim.token());
    track.apply(late, &Transition::Release).await?;
    all_refused(&mut track, late, "after a release").await?;
    track.claim(&wish.payload(3).claim()?).await?;
    all_refused(&mut track, late, "after a release and another's claim").await?;
    Ok(())
}

/// An owner that has finished has nothing more to say.
pub(crate) async fn late_owner_after_its_own_finish(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::Completed,
        Stage::FailedFinal,
        Stage::Retryable,
        Stage::Uncertain,
    ] {
        let (_, claim, mut track) = stage.reach(bench).await?;
        let late = Expect::Owner(claim.token());
        for change in [
            crate::moves::renew(),
            crate::moves::checkpoint(9)?,
            complete(77),
            crate::moves::fail_final(78),
        ] {
            let sent = track.send(late, &change).await?;
            ensure!(
                sent == Sent::Refused,
                "{stage:?}: {} by an owner that has finished must be refused, and was {sent:?}",
                change.name()
            );
        }
    }
    Ok(())
}

/// A snapshot from before a renewal is no longer good for anything: the lease that it saw end has been renewed.
pub(crate) async fn late_snapshot_before_a_renewal(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Lapsed, Stage::LapsedUnderHold] {
        let (wish, _, mut track) = stage.reach(bench).await?;
        let old = track.unchanged()?;
        let owner = track.owner()?;
        // Over again at once, so that nothing but the revision tells the two apart.
        track.apply(owner, &crate::moves::renew_lapsed()).await?;
        bench.lapse(track.skew()).await?;
        for change in crate::moves::other_moves(&wish.claim()?) {
            let sent = track.send(old, &change).await?;
            ensure!(
                sent == Sent::Refused,
                "{} by a snapshot from before a renewal must be refused, and was {sent:?}",
                change.name()
            );
        }
    }
    Ok(())
}

/// An operator's verdict against an owner that lives.
pub(crate) async fn late_verdict_against_a_live_owner(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Live, Stage::Checkpointed, Stage::TakenOver] {
        let (_, _, mut track) = stage.reach(bench).await?;
        for verdict in verdicts() {
            track.refuse(track.unchanged()?, &resolve(verdict)).await?;
        }
        let owner = track.owner()?;
        track.apply(owner, &complete(1)).await?;
        // Nor is an answer that stands overturned.
        let verdict = Verdict::Failed(response(5));
        track
            .refuse(track.unchanged()?, &resolve(verdict))
            .await
            .map_err(Stop::from)?;
    }
    Ok(())
}
