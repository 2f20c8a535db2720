//! Running uncertain work again: within its window, up to its limit, and never under `Hold`.

use idem_core::{Span, Transition, Verdict};

use crate::bench::Bench;
use crate::failure::{CaseResult, ensure};
use crate::harness::Missing;
use crate::moves::{
    complete, decision, fail_retryable, fresh_token, renew, resolve, take_over, take_over_as,
};
use crate::stage::Stage;

pub(crate) async fn reclaim_up_to_its_limit(bench: &mut Bench) -> CaseResult {
    for limit in [0, 1, 3] {
        let wish = bench.wish().lapsed().max_reclaims(limit);
        let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
        for taken in 0..limit {
            bench.lapse(track.skew()).await?;
            let change = take_over_as(fresh_token(), Span::ZERO);
            track.apply(track.unchanged()?, &change).await?;
            let record = track.record()?;
            ensure!(
                record.reclaims == taken + 1 && record.attempt.as_u32() == taken + 2,
                "takeover {} of an uncertain record must count as reclaim {0} and be attempt {}",
                taken + 1,
                taken + 2
            );
        }
        bench.lapse(track.skew()).await?;
        track.refuse(track.unchanged()?, &take_over()).await?;
        let held = bench.store().find(&wish.claim()?).await?;
        ensure!(
            decision(&wish.claim()?, Some(&held)) == "OutcomeUnknown",
            "after {limit} of {limit} reclaims the outcome must be unknown"
        );
        // A person can still settle it.
        let verdict = Verdict::Completed(crate::moves::response(1));
        track.apply(track.unchanged()?, &resolve(verdict)).await?;
    }
    Ok(())
}

/// Failures that certainly had no effect use nothing up, and a later crash still recovers.
pub(crate) async fn reclaim_is_not_used_up_by_harmless_failures(bench: &mut Bench) -> CaseResult {
    let wish = bench.wish().max_reclaims(1);
    let (_, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
    for attempt in 2..=12 {
        let owner = track.owner()?;
        track.apply(owner, &fail_retryable(false)).await?;
        bench.let_time_pass().await;
        let change = take_over_as(fresh_token(), Span::ZERO);
        track.apply(track.unchanged()?, &change).await?;
        let record = track.record()?;
        ensure!(
            record.attempt.as_u32() == attempt && record.reclaims == 0 && !record.uncertain,
            "a takeover of a harmless failure must be attempt {attempt}, certain, and no reclaim"
        );
        ensure!(
            record.effect_since == record.locked_at,
            "the window of a certain record begins with its takeover"
        );
    }
    bench.lapse(track.skew()).await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let record = track.record()?;
    ensure!(
        record.reclaims == 1 && record.uncertain,
        "a takeover of a lapsed lease must count, and make the record uncertain"
    );
    Ok(())
}

/// A crash after the charge, then a takeover that fails harmlessly: what may have happened stays possible.
pub(crate) async fn reclaim_doubt_is_kept(bench: &mut Bench) -> CaseResult {
    let wish = bench.wish().lapsed();
    let (_, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
    let since = track.record()?.effect_since;
    for _ in 0..3 {
        bench.let_time_pass().await;
        bench.lapse(track.skew()).await?;
        track.apply(track.unchanged()?, &take_over()).await?;
        let owner = track.owner()?;
        track.apply(owner, &renew()).await?;
        track.apply(owner, &fail_retryable(false)).await?;
        let record = track.record()?;
        ensure!(
            record.uncertain && record.effect_since == since,
            "an uncertain record stays uncertain, since when it was first possible"
        );
    }
    let owner = track.owner()?;
    let sent = track.send(owner, &Transition::Release).await?;
    ensure!(
        sent != crate::track::Sent::Applied,
        "a failure was released after it was stored"
    );
    track.apply(track.unchanged()?, &take_over()).await?;
    let owner = track.owner()?;
    track.apply(owner, &Transition::Release).await?;
    ensure!(
        track.model().is_some(),
        "the release of an uncertain record freed its key"
    );
    Ok(())
}

/// The window counts from when a side effect may first have existed. Needs a clock that can be moved.
pub(crate) async fn reclaim_within_its_window(bench: &mut Bench) -> CaseResult {
    let hour = Span::from_secs(3600);
    for failed in [false, true] {
        let wish = bench.wish().lapsed().window(hour);
        let (wish, _, mut track) = Stage::Live.reach_from(bench, wish).await?;
        if track.skew() > Span::from_secs(60) {
            return Err(Missing::new(
                "the store's skew is over a minute, and the window of this case is an hour",
            )
            .into());
        }
        if failed {
            let owner = track.owner()?;
            track.apply(owner, &fail_retryable(true)).await?;
        }
        bench.advance(Span::from_secs(3000)).await?;
        let change = take_over_as(fresh_token(), Span::ZERO);
        track.check().await?;
        track.apply(track.unchanged()?, &change).await?;
        if failed {
            let owner = track.owner()?;
            track.apply(owner, &fail_retryable(false)).await?;
        }
        // The takeover must not have begun the window anew.
        bench.advance(Span::from_secs(601)).await?;
        track.check().await?;
        track.refuse(track.unchanged()?, &take_over()).await?;
        let held = bench.store().find(&wish.claim()?).await?;
        ensure!(
            decision(&wish.claim()?, Some(&held)) == "OutcomeUnknown",
            "past its reclaim window the outcome must be unknown"
        );
        let verdict = resolve(Verdict::Retryable);
        track.apply(track.unchanged()?, &verdict).await?;
    }
    Ok(())
}

/// The terms are those of the claim, whatever the next sender would have liked.
pub(crate) async fn reclaim_by_the_terms_of_the_claim(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::LapsedUnderHold.reach(bench).await?;
    let terms = track.record()?.terms;
    let mut lavish = wish;
    lavish.contract = idem_core::Contract::Reclaim;
    let claim = lavish.claim()?;
    track.claim(&claim).await?;
    track.refuse(track.unchanged()?, &take_over()).await?;
    let owner = track.owner()?;
    track.apply(owner, &complete(1)).await?;
    ensure!(
        track.record()?.terms == terms,
        "the terms of a record changed"
    );
    Ok(())
}
