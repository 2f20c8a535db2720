//! Somebody else's uncommitted writes.

use std::time::{Duration, Instant};

use idem_core::{ClaimOutcome, Expect, StoreErrorKind, TransitionOutcome};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, ensure, failure, unexpected};
use crate::harness::{Foreign, LockScope};
use crate::moves::{complete, renew};
use crate::stage::Stage;

/// More than any scheduler takes.
const SLACK: Duration = Duration::from_millis(500);

/// Somebody is just creating the record: nothing is known yet, and nobody waits for long to hear that.
pub(crate) async fn contention_with_an_uncommitted_claim(bench: &mut Bench) -> CaseResult {
    for commits in [false, true] {
        let wish = bench.wish();
        let foreign = wish.claim()?;
        let write = bench.interfere(Foreign::Creating(&foreign)).await?;
        let claim = wish.claim()?;
        contended_claim(bench, &claim).await?;
        bench.store().absent(claim.id()).await?;
        if write.scope() == LockScope::Record {
            others_flow(bench).await?;
        }
        if commits {
            write.commit().await;
            let held = bench.store().find(&claim).await?;
            ensure!(
                held.record.token == foreign.token(),
                "after the other's commit a claim must find the other's record"
            );
        } else {
            write.roll_back().await;
            bench.store().win(&claim).await?;
        }
    }
    Ok(())
}

async fn contended_claim(bench: &Bench, claim: &idem_core::Claim) -> Result<(), Failure> {
    let started = Instant::now();
    let call = bench.store().raw().claim(claim);
    match bench.store().in_time("claim", call).await? {
        Ok(ClaimOutcome::Contended { .. }) => {}
        // Waiting for a lock of the whole database may fail instead: then nothing was applied.
        Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
        Ok(other) => {
            return Err(failure!(
                "while somebody else's claim is not committed, a claim must be Contended, and was {}",
                crate::subject::name_of(&other)
            ));
        }
        Err(error) => return Err(unexpected("claim", &error)),
    }
    within_the_bound(bench, "claim", started)
}

fn within_the_bound(bench: &Bench, call: &str, started: Instant) -> Result<(), Failure> {
    let (took, bound) = (started.elapsed(), bench.contention_bound());
    ensure!(
        took <= bound + SLACK,
        "{call} waited {took:?} for somebody else's write, and the bound is {bound:?}"
    );
    Ok(())
}

async fn others_flow(bench: &Bench) -> Result<(), Failure> {
    let started = Instant::now();
    let claim = bench.wish().claim()?;
    bench.store().win(&claim).await?;
    let owner = Expect::Owner(claim.token());
    bench.store().apply(claim.id(), owner, &complete(1)).await?;
    bench.store().held(claim.id()).await?;
    ensure!(
        started.elapsed() <= bench.contention_bound() + SLACK,
        "an uncommitted write to one id kept another id waiting"
    );
    Ok(())
}

/// Somebody holds the record locked: an owner's write is contended, which is not a lost lease.
pub(crate) async fn contention_with_a_locked_record(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::Live.reach(bench).await?;
    let write = bench.interfere(Foreign::Locking(claim.id())).await?;
    let owner = Expect::Owner(claim.token());
    for change in [renew(), complete(1)] {
        let started = Instant::now();
        let call = bench.store().raw().transition(claim.id(), owner, &change);
        match bench.store().in_time(change.name(), call).await? {
            Ok(TransitionOutcome::Contended { .. }) => {}
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
            Ok(other) => {
                return Err(failure!(
                    "while somebody else holds the record locked, {} must be Contended, and was {}",
                    change.name(),
                    crate::subject::outcome_name(&other)
                )
                .into());
            }
            Err(error) => return Err(unexpected(change.name(), &error).into()),
        }
        within_the_bound(bench, change.name(), started)?;
    }
    let started = Instant::now();
    let call = bench.store().raw().sweep(std::num::NonZeroU32::MIN);
    match bench.store().in_time("sweep", call).await? {
        Ok(_) => {}
        Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
        Err(error) => return Err(unexpected("sweep", &error).into()),
    }
    within_the_bound(bench, "sweep", started)?;
    // What is committed can be read.
    track.check().await?;
    if write.scope() == LockScope::Record {
        others_flow(bench).await?;
    }
    write.roll_back().await;
    track.check().await?;
    track.apply(owner, &renew()).await?;
    track.apply(owner, &complete(1)).await?;
    track.claim(&wish.claim()?).await?;
    Ok(())
}

/// With nobody else there, nothing is contended.
pub(crate) async fn contention_without_others(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Live, Stage::Completed] {
        let wish = bench.wish();
        let claim = wish.claim()?;
        let store = bench.store().raw();
        let outcome = store.claim(&claim).await;
        let outcome = outcome.map_err(|error| unexpected("claim", &error))?;
        ensure!(
            matches!(outcome, ClaimOutcome::Won(_)),
            "the only claim there is was {}",
            crate::subject::name_of(&outcome)
        );
        let owner = Expect::Owner(claim.token());
        let mut changes = vec![renew()];
        if stage == Stage::Completed {
            changes.push(complete(1));
        }
        for change in changes {
            let outcome = store.transition(claim.id(), owner, &change).await;
            let outcome = outcome.map_err(|error| unexpected(change.name(), &error))?;
            ensure!(
                matches!(outcome, TransitionOutcome::Applied { .. }),
                "the only {} there is was {}",
                change.name(),
                crate::subject::outcome_name(&outcome)
            );
        }
        let outcome = store.claim(&wish.payload(2).claim()?).await;
        let outcome = outcome.map_err(|error| unexpected("claim", &error))?;
        ensure!(
            matches!(outcome, ClaimOutcome::Held(_)),
            "a claim of a record that nobody is writing was {}",
            crate::subject::name_of(&outcome)
        );
    }
    Ok(())
}
