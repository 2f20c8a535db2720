//! Expiry is the machine's business, and counts from the finish.

use idem_core::{Span, Transition};

use crate::bench::Bench;
use crate::failure::{CaseResult, ensure};
use crate::harness::Missing;
use crate::moves::{complete, decision, fail_final, fail_retryable, restart, take_over, verdicts};
use crate::stage::Stage;

/// What has expired is still there, for everybody, until it is swept or restarted.
pub(crate) async fn expiry_hides_nothing(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::CompletedExpired,
        Stage::FailedFinalExpired,
        Stage::RetryableExpired,
        Stage::UncertainExpired,
    ] {
        let (wish, _, mut track) = stage.reach(bench).await?;
        for _ in 0..2 {
            bench.let_time_pass().await;
            track.check().await?;
            track.claim(&wish.claim()?).await?;
        }
        // A write that loses is shown it as well.
        let owner = track.owner()?;
        let sent = track.send(owner, &complete(55)).await?;
        ensure!(
            sent == crate::track::Sent::Refused,
            "{stage:?}: what is finished was written, or not shown: {sent:?}"
        );
    }
    Ok(())
}

/// Retention is counted from the finish, whichever finish it is, and not from the claim or the lease.
pub(crate) async fn expiry_counts_from_the_finish(bench: &mut Bench) -> CaseResult {
    let retention = Span::from_secs(24 * 3600);
    for change in [
        complete(1),
        fail_final(2),
        fail_retryable(false),
        fail_retryable(true),
    ] {
        let wish = bench.wish().lapsed().retention(retention);
        let (_, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
        bench.let_time_pass().await;
        if bench.store().held(track.id()).await?.now <= track.record()?.created_at {
            return Err(Missing::new(
                "the store's clock stands still, and the harness has no `advance`",
            )
            .into());
        }
        bench.lapse(track.skew()).await?;
        track.apply(track.unchanged()?, &take_over()).await?;
        bench.let_time_pass().await;
        let owner = track.owner()?;
        track.apply(owner, &change).await?;
        let record = track.record()?.clone();
        let Some(finish) = record.state.finish() else {
            return Err(crate::failure::failure!("a finish left no finish").into());
        };
        ensure!(
            finish.finished_at > record.locked_at && record.locked_at > record.created_at,
            "{}: the finish must be later than the takeover, and that later than the claim",
            change.name()
        );
        ensure!(
            finish.expires_at == finish.finished_at + retention,
            "{}: the retention must begin with the finish",
            change.name()
        );
    }
    Ok(())
}

/// A crash, and a takeover a day later that completes: the answer is there for another day.
pub(crate) async fn expiry_of_a_late_takeover(bench: &mut Bench) -> CaseResult {
    let day = Span::from_secs(24 * 3600);
    let wish = bench
        .wish()
        .lease(Span::from_secs(90))
        .retention(day)
        .window(Span::MAX);
    let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
    bench.advance(day).await?;
    track.check().await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let owner = track.owner()?;
    track.apply(owner, &complete(1)).await?;
    bench.advance(Span::from_secs(23 * 3600)).await?;
    track.check().await?;
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "Replay",
        "an hour before its retention is over an answer must be replayed"
    );
    ensure!(
        bench.store().sweep_all(10).await? == 0,
        "an answer was swept before its retention was over"
    );
    bench.advance(Span::from_secs(3600)).await?;
    bench.lapse(track.skew()).await?;
    track.check().await?;
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "Restart",
        "at the very end of its retention a record must be a new request"
    );
    ensure!(
        bench.store().sweep_all(10).await? == 1,
        "a record whose retention is over must be swept"
    );
    Ok(())
}

/// Stuck for a month: not run again, not swept, not restarted by itself.
pub(crate) async fn expiry_never_resolves(bench: &mut Bench) -> CaseResult {
    let month = Span::from_secs(30 * 24 * 3600);
    let wish = bench
        .wish()
        .lease(Span::from_secs(90))
        .retention(Span::from_secs(3600))
        .window(Span::from_secs(20 * 3600));
    let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
    bench.advance(month).await?;
    track.check().await?;
    let claim = wish.claim()?;
    for change in [take_over(), restart(&claim)] {
        track.refuse(track.unchanged()?, &change).await?;
    }
    ensure!(
        bench.store().sweep_all(10).await? == 0,
        "a record in progress was swept, because it was old"
    );
    track.claim(&claim).await?;
    for verdict in verdicts().into_iter().take(1) {
        let change = crate::moves::resolve(verdict);
        track.apply(track.unchanged()?, &change).await?;
    }
    let owner = track.owner()?;
    track.refuse(owner, &Transition::Release).await?;
    Ok(())
}

/// A restart is written over what is there, with a revision that goes on, and loses to everything that came
/// between.
pub(crate) async fn expiry_restart_goes_on_counting(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::CompletedExpired.reach(bench).await?;
    let mut before = track.record()?.revision;
    for round in 0..4 {
        let shown = track.unchanged()?;
        let next = wish.clone().payload(round).claim()?;
        track.apply(shown, &restart(&next)).await?;
        track.refuse(shown, &restart(&wish.claim()?)).await?;
        let record = track.record()?;
        ensure!(
            record.revision == before.next() && record.attempt.as_u32() == 1,
            "a restart must go on counting revisions, and begin anew counting attempts"
        );
        ensure!(
            record.created_at == record.locked_at && record.effect_since == record.locked_at,
            "a restarted record must be as new"
        );
        bench.let_time_pass().await;
        let owner = track.owner()?;
        track.apply(owner, &complete(u32::from(round))).await?;
        bench.lapse(track.skew()).await?;
        before = track.record()?.revision;
    }
    Ok(())
}
