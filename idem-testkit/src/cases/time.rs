//! Leases and retentions of no time and of all time, and whose clock it is.

use idem_core::{Span, Transition, TransitionOutcome};

use crate::bench::Bench;
use crate::failure::{CaseResult, ensure};
use crate::moves::{complete, decision, renew, renew_lapsed, take_over};
use crate::stage::Stage;

/// A lease of zero is over at once, and is never for ever.
pub(crate) async fn time_lease_of_zero(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::Lapsed.reach(bench).await?;
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        held.record.locked_until == held.record.locked_at,
        "a lease of zero must be over when it begins"
    );
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "TakeOver",
        "a lease of zero must be over at once"
    );
    track.apply(track.unchanged()?, &take_over()).await?;
    // And one that is renewed to zero.
    let owner = track.owner()?;
    track.apply(owner, &renew_lapsed()).await?;
    bench.lapse(track.skew()).await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    Ok(())
}

/// The longest lease is not over yet, and overflows nothing.
pub(crate) async fn time_lease_at_its_maximum(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    for _ in 0..2 {
        track.apply(owner, &renew()).await?;
        let record = track.record()?;
        ensure!(
            record.locked_until == record.locked_at + Span::MAX,
            "the longest lease must be as long as it says"
        );
        let held = bench.store().find(&wish.claim()?).await?;
        ensure!(
            decision(&wish.claim()?, Some(&held)) == "Busy",
            "the longest lease must not be over"
        );
        track.refuse(track.unchanged()?, &take_over()).await?;
    }
    Ok(())
}

pub(crate) async fn time_retention_at_its_maximum(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::Completed.reach(bench).await?;
    let finish = track.record()?.state.finish();
    ensure!(
        finish.is_some_and(|finish| finish.expires_at == finish.finished_at + Span::MAX),
        "the longest retention must be as long as it says"
    );
    ensure!(
        bench.store().sweep_all(10).await? == 0,
        "a record with the longest retention was swept"
    );
    track.claim(&wish.claim()?).await?;
    Ok(())
}

/// A retention of zero makes the key a new request as soon as the work is done.
pub(crate) async fn time_retention_of_zero(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::CompletedExpired.reach(bench).await?;
    let finish = track.record()?.state.finish();
    ensure!(
        finish.is_some_and(|finish| finish.expires_at == finish.finished_at),
        "a retention of zero must be over when it begins"
    );
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "Restart",
        "a retention of zero must be over at once"
    );
    track.check().await?;
    Ok(())
}

/// The store's clock goes on and not back, in all its answers.
pub(crate) async fn time_goes_on(bench: &mut Bench) -> CaseResult {
    let (wish, claim, track) = Stage::Live.reach(bench).await?;
    for _ in 0..20 {
        let before = bench.store().held(claim.id()).await?;
        let change = renew();
        let owner = track.owner()?;
        let TransitionOutcome::Applied { now, .. } =
            bench.store().transition(claim.id(), owner, &change).await?
        else {
            return Err(crate::failure::failure!("an owner's renewal was not Applied").into());
        };
        let after = bench.store().find(&wish.claim()?).await?;
        let slack = before.skew.saturating_add(Span::from_millis(1));
        ensure!(
            now + slack >= before.now && after.now + slack >= now,
            "the store's now went back: {:?}, {now:?}, {:?}",
            before.now,
            after.now
        );
        ensure!(
            after.record.locked_at + slack >= before.now
                && after.record.locked_at <= after.now + slack,
            "a renewal between {:?} and {:?} was written at {:?}",
            before.now,
            after.now,
            after.record.locked_at
        );
    }
    let owner = track.owner()?;
    let left = bench.store().held(claim.id()).await?;
    ensure!(
        left.record.revision.as_u64() == 21,
        "after a claim and 20 renewals the revision must be 21, and is {}",
        left.record.revision
    );
    bench.store().apply(claim.id(), owner, &complete(1)).await?;
    Ok(())
}

/// It is the store's clock that leases run by: when that has moved on, they are over.
pub(crate) async fn time_is_the_stores(bench: &mut Bench) -> CaseResult {
    let lease = Span::from_secs(90);
    let wish = bench.wish().lease(lease);
    let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
    let owner = track.owner()?;
    track.apply(owner, &Transition::Renew { lease }).await?;
    let before = bench.store().held(track.id()).await?;
    let nearly = Span::from_secs(80);
    bench.advance(nearly).await?;
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        held.now.since(before.now) >= nearly,
        "the store's clock moved by {nearly:?}, and its answers by {:?}",
        held.now.since(before.now)
    );
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "Busy",
        "after 80 of its 90 seconds a lease must not be over"
    );
    track.check().await?;
    track.refuse(track.unchanged()?, &take_over()).await?;
    bench.advance(Span::from_secs(10)).await?;
    bench.lapse(track.skew()).await?;
    let held = bench.store().find(&wish.claim()?).await?;
    ensure!(
        decision(&wish.claim()?, Some(&held)) == "TakeOver",
        "after its 90 seconds a lease must be over"
    );
    track.check().await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let owner = track.owner()?;
    track.apply(owner, &complete(1)).await?;
    let record = track.record()?;
    ensure!(
        record
            .state
            .finish()
            .is_some_and(|finish| finish.finished_at.since(before.now) >= lease),
        "a completion must be stored with the store's time"
    );
    Ok(())
}
