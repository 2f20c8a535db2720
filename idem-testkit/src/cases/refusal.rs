//! Refusals, which only caches make.

use std::time::{Duration, Instant};

use idem_core::{ClaimOutcome, Expect};

use crate::bench::Bench;
use crate::failure::{CaseResult, ensure, failure, unexpected};
use crate::harness::Missing;
use crate::moves::complete;
use crate::stage::Stage;

/// A store without a cache says so, and never refuses: not even when it has been asked before.
pub(crate) async fn refusal_never_by_a_store(bench: &mut Bench) -> CaseResult {
    let store = bench.store().raw();
    if !store.refusal_staleness().is_zero() {
        return Err(Missing::new("this store declares refusals").into());
    }
    for stage in [Stage::Live, Stage::Completed, Stage::Retryable] {
        let (wish, _, _) = stage.reach(bench).await?;
        for _ in 0..4 {
            let outcome = bench.store().raw().claim(&wish.claim()?).await;
            let outcome = outcome.map_err(|error| unexpected("claim", &error))?;
            ensure!(
                !matches!(outcome, ClaimOutcome::Refused { .. }),
                "{stage:?}: a store whose refusal_staleness is zero must not Refuse"
            );
        }
    }
    Ok(())
}

/// A cache may refuse what is in progress, to the same request of another sender, and nothing else.
pub(crate) async fn refusal_only_of_the_same_request(bench: &mut Bench) -> CaseResult {
    needs_a_cache(bench)?;
    let (wish, claim, _) = Stage::Live.reach(bench).await?;
    let others = [
        (
            "another operation",
            wish.clone().operation("PUT /x").claim()?,
        ),
        ("another payload", wish.clone().payload(0x1f).claim()?),
        ("the owner's own claim", claim),
    ];
    for _ in 0..4 {
        // Whoever is refused may leave a refusal behind for the others.
        let same = bench.store().raw().claim(&wish.claim()?).await;
        same.map_err(|error| unexpected("claim", &error))?;
        for (name, claim) in &others {
            let outcome = bench.store().raw().claim(claim).await;
            let outcome = outcome.map_err(|error| unexpected("claim", &error))?;
            ensure!(
                !matches!(outcome, ClaimOutcome::Refused { .. }),
                "{name} must not be Refused: it must be shown the record"
            );
        }
    }
    Ok(())
}

/// What is finished is refused for no longer than the cache declares.
pub(crate) async fn refusal_is_soon_over(bench: &mut Bench) -> CaseResult {
    needs_a_cache(bench)?;
    let staleness = bench.store().raw().refusal_staleness();
    let (wish, claim, _) = Stage::Live.reach(bench).await?;
    for _ in 0..3 {
        let outcome = bench.store().raw().claim(&wish.claim()?).await;
        outcome.map_err(|error| unexpected("claim", &error))?;
    }
    let owner = Expect::Owner(claim.token());
    bench.store().apply(claim.id(), owner, &complete(1)).await?;
    let finished = Instant::now();
    loop {
        let asked = finished.elapsed();
        let outcome = bench.store().raw().claim(&wish.claim()?).await;
        match outcome.map_err(|error| unexpected("claim", &error))? {
            ClaimOutcome::Held(held) if held.record.state.response().is_some() => return Ok(()),
            ClaimOutcome::Refused { .. } => {}
            _ => return Err(failure!("a completed record must be shown").into()),
        }
        ensure!(
            asked <= staleness,
            "a claim was Refused {asked:?} after the record completed, and the cache declares {staleness:?}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn needs_a_cache(bench: &Bench) -> Result<(), Missing> {
    if bench.store().raw().refusal_staleness().is_zero() {
        return Err(Missing::new("this store never refuses"));
    }
    Ok(())
}
