//! Calls whose answers are lost, and that are sent again.

use idem_core::{ClaimOutcome, Expect, Record, Settled, Transition, settle};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, ensure, failure};
use crate::moves::{
    checkpoint, complete, decision, fail_final, fail_retryable, renew, resolve, restart, right,
    take_over, verdicts,
};
use crate::stage::Stage;
use crate::track::{Sent, Track};

/// Sends a transition twice, and says what the second sending was settled as.
async fn twice(track: &mut Track, expect: Expect, change: &Transition) -> Result<Sent, Failure> {
    track.apply(expect, change).await?;
    let after: Option<Record> = track.model().cloned();
    let sent = track.send(expect, change).await?;
    if sent != Sent::Applied {
        ensure!(
            track.model() == after.as_ref(),
            "the second {} changed something",
            change.name()
        );
    }
    Ok(sent)
}

pub(crate) async fn lost_answer_of_a_claim(bench: &mut Bench) -> CaseResult {
    let wish = bench.wish();
    let claim = wish.claim()?;
    // The answer is dropped here.
    bench.store().win(&claim).await?;
    for _ in 0..3 {
        let held = bench.store().find(&claim).await?;
        ensure!(
            *held.record == claim.first_record(held.record.created_at),
            "a claim sent again must find the record that it wrote, unchanged"
        );
        ensure!(
            decision(&claim, Some(&held)) == "Resume",
            "a claim sent again must find itself the owner"
        );
    }
    // Others do not.
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "Busy",
        "somebody else's claim must find the key busy"
    );
    Ok(())
}

/// The record was taken over before the claim was sent again.
pub(crate) async fn lost_answer_of_a_claim_that_was_replaced(bench: &mut Bench) -> CaseResult {
    let (_, claim, mut track) = Stage::Lapsed.reach(bench).await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let ClaimOutcome::Held(held) = track.claim(&claim).await? else {
        return Err(Failure::new("a claim that was taken over was Won again").into());
    };
    ensure!(
        decision(&claim, Some(&held)) == "Busy",
        "a claim that was taken over must not find itself the owner"
    );
    Ok(())
}

pub(crate) async fn lost_answer_of_a_finish(bench: &mut Bench) -> CaseResult {
    for change in [
        complete(1),
        fail_final(2),
        fail_retryable(false),
        fail_retryable(true),
    ] {
        for stage in [
            Stage::Live,
            Stage::Lapsed,
            Stage::Checkpointed,
            Stage::TakenOver,
        ] {
            let (_, _, mut track) = stage.reach(bench).await?;
            let owner = track.owner()?;
            let sent = twice(&mut track, owner, &change).await?;
            ensure!(
                sent == Sent::AlreadyApplied,
                "{stage:?}: {} sent again must be known for applied, and was {sent:?}",
                change.name()
            );
            // Another answer is not the same answer.
            track.refuse(owner, &complete(99)).await?;
        }
    }
    Ok(())
}

pub(crate) async fn lost_answer_of_a_release(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Live, Stage::Checkpointed] {
        let (_, _, mut track) = stage.reach(bench).await?;
        let owner = track.owner()?;
        let sent = twice(&mut track, owner, &Transition::Release).await?;
        ensure!(
            sent == Sent::AlreadyApplied,
            "{stage:?}: a release sent again must be known for applied, and was {sent:?}"
        );
    }
    Ok(())
}

pub(crate) async fn lost_answer_of_a_renewal_or_checkpoint(bench: &mut Bench) -> CaseResult {
    let (_, _, mut track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    let sent = twice(&mut track, owner, &renew()).await?;
    ensure!(
        sent == Sent::Applied,
        "a renewal sent again is one more renewal, and was {sent:?}"
    );
    let sent = twice(&mut track, owner, &checkpoint(1)?).await?;
    ensure!(
        sent == Sent::AlreadyApplied,
        "a checkpoint sent again must be known for applied, and was {sent:?}"
    );
    Ok(())
}

pub(crate) async fn lost_answer_of_a_swap(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::Lapsed.reach(bench).await?;
    let sent = swap_twice(&mut track, &take_over()).await?;
    ensure!(
        sent == Sent::AlreadyApplied,
        "a takeover sent again was {sent:?}"
    );
    drop(wish);

    let (wish, _, mut track) = Stage::CompletedExpired.reach(bench).await?;
    let sent = swap_twice(&mut track, &restart(&wish.claim()?)).await?;
    ensure!(
        sent == Sent::AlreadyApplied,
        "a restart sent again was {sent:?}"
    );

    for verdict in verdicts() {
        let (_, _, mut track) = Stage::LapsedUnderHold.reach(bench).await?;
        let sent = swap_twice(&mut track, &resolve(verdict.clone())).await?;
        let gone = track.model().is_none();
        ensure!(
            sent == Sent::AlreadyApplied || (gone && sent == Sent::Refused),
            "the verdict {verdict:?} sent again was {sent:?}"
        );
    }
    Ok(())
}

async fn swap_twice(track: &mut Track, change: &Transition) -> Result<Sent, Failure> {
    let expect = right(track.record()?, change);
    twice(track, expect, change).await
}

/// Applied, the answer lost, the record expired and restarted by somebody else: then it is not known for applied.
pub(crate) async fn lost_answer_and_then_replaced(bench: &mut Bench) -> CaseResult {
    for change in [complete(1), fail_final(2)] {
        let wish = bench.wish().forgotten();
        let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
        let late = track.owner()?;
        track.apply(late, &change).await?;
        bench.lapse(track.skew()).await?;
        let next = wish.claim()?;
        track.apply(track.unchanged()?, &restart(&next)).await?;
        track.refuse(late, &change).await?;
        // With the very same answer stored by the other, it is still not this one's.
        let owner = track.owner()?;
        track.apply(owner, &change).await?;
        track.refuse(late, &change).await?;
        bench.lapse(track.skew()).await?;
        if bench.store().sweep_all(100).await? == 0 {
            return Err(failure!("an expired record was not swept").into());
        }
        track.swept();
        track.refuse(late, &change).await?;
        ensure!(
            settle(late, &change, None) == Settled::Lost,
            "a finish whose record is gone must be settled as lost"
        );
    }
    Ok(())
}
