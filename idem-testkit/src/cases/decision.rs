//! The decision table, row by row, on what the store says that it holds.

use idem_core::{
    Claim, ClaimOutcome, Decision, Fingerprint, Fingerprints, Profile, Request, Scheme, Snapshot,
    Transition, decide,
};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure, failure};
use crate::moves::{complete, decision, restart};
use crate::stage::Stage;
use crate::track::Track;
use crate::wish::Wish;

/// Another sender's request, after the record got where it is.
async fn ask(track: &mut Track, wish: &Wish) -> Result<(Claim, Snapshot), Failure> {
    let claim = wish.claim()?;
    match track.claim(&claim).await? {
        ClaimOutcome::Held(held) => Ok((claim, held)),
        _ => Err(Failure::new("a claim of an id that has a record was Won")),
    }
}

async fn decided(
    bench: &Bench,
    stage: Stage,
    change: fn(Wish) -> Wish,
    expected: &str,
) -> Result<(Claim, Snapshot, Track), Stop> {
    let (wish, _, mut track) = stage.reach(bench).await?;
    // A restarted record is bound to what restarted it.
    let wish = match stage {
        Stage::Restarted => wish.payload(0x77),
        _ => wish,
    };
    let (claim, held) = ask(&mut track, &change(wish)).await?;
    let found = decision(&claim, Some(&held));
    ensure!(
        found == expected,
        "{stage:?}: the decision must be {expected}, and is {found}"
    );
    Ok((claim, held, track))
}

fn same(wish: Wish) -> Wish {
    wish
}

fn other_operation(wish: Wish) -> Wish {
    wish.operation("POST /v1/withdrawals").payload(0xaa)
}

fn other_payload(wish: Wish) -> Wish {
    wish.payload(0xaa)
}

/// Carries out what was decided.
async fn carry_out(claim: &Claim, held: &Snapshot, track: &mut Track) -> Result<(), Failure> {
    match decide(claim, Some(held)) {
        Decision::Restart(swap) | Decision::TakeOver(swap) => {
            track.apply(swap.expect, &swap.change).await?;
        }
        _ => return Err(Failure::new("there is nothing to carry out")),
    }
    ensure!(
        track.record()?.token == claim.token(),
        "the record is not that of the claim that got it"
    );
    let owner = track.owner()?;
    track.apply(owner, &complete(8)).await
}

pub(crate) async fn decision_restart_of_an_expired_record(bench: &mut Bench) -> CaseResult {
    for stage in Stage::ALL.into_iter().filter(|stage| stage.is_expired()) {
        for change in [same, other_operation, other_payload] {
            let (claim, held, mut track) = decided(bench, stage, change, "Restart").await?;
            carry_out(&claim, &held, &mut track).await?;
        }
    }
    Ok(())
}

pub(crate) async fn decision_resume_of_its_own_claim(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Live, Stage::Lapsed, Stage::Checkpointed] {
        let (_, claim, mut track) = stage.reach(bench).await?;
        let ClaimOutcome::Held(held) = track.claim(&claim).await? else {
            return Err(Failure::new("a claim that was sent twice was Won twice").into());
        };
        let found = decision(&claim, Some(&held));
        ensure!(
            found == "Resume",
            "{stage:?}: a claim sent again must find its own record (Resume), and finds {found}"
        );
    }
    Ok(())
}

pub(crate) async fn decision_mismatch_of_the_operation(bench: &mut Bench) -> CaseResult {
    for stage in Stage::binding() {
        decided(bench, stage, other_operation, "Mismatch(Operation)").await?;
    }
    Ok(())
}

pub(crate) async fn decision_mismatch_of_the_payload(bench: &mut Bench) -> CaseResult {
    for stage in Stage::binding() {
        decided(bench, stage, other_payload, "Mismatch(Payload)").await?;
    }
    Ok(())
}

/// A record under a scheme that the caller does not declare; and then under one that it does, if only to read.
pub(crate) async fn decision_incomparable_schemes(bench: &mut Bench) -> CaseResult {
    let schemes = [
        Scheme::new(1, Profile::new(2)),
        Scheme::new(2, Profile::new(1)),
        Scheme::new(u16::MAX, Profile::new(u16::MAX)),
        Scheme::new(0, Profile::new(0)),
        Scheme::new(0x0102, Profile::new(0x0304)),
    ];
    for scheme in schemes {
        for stage in [
            Stage::Live,
            Stage::Lapsed,
            Stage::Completed,
            Stage::Retryable,
        ] {
            let stored = Fingerprint::from_parts(scheme, [0x33; 32]);
            let wish = bench.wish().fingerprint(stored);
            let (wish, _, mut track) = stage.reach_from(bench, wish).await?;
            let (claim, held) = ask(&mut track, &wish.clone().payload(1)).await?;
            let found = decision(&claim, Some(&held));
            ensure!(
                found == "Incomparable",
                "a fingerprint under scheme {scheme} must be Incomparable, and is {found}"
            );
            let written = Fingerprint::from_parts(crate::wish::scheme(), [1; 32]);
            let both = Fingerprints::new(written).and_reads(stored);
            let request = Request::new(claim.id().clone(), claim.operation().clone(), both);
            let reader = Claim::new(
                request,
                &idem_core::Policy::default(),
                claim.origin(),
                bench.token(),
            );
            let found = decision(&reader, Some(&held));
            ensure!(
                found != "Incomparable" && !found.starts_with("Mismatch"),
                "a fingerprint under a scheme that is declared for reading is {found}"
            );
        }
    }
    Ok(())
}

pub(crate) async fn decision_replay_of_what_was_done(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::Completed,
        Stage::TakenOverAndCompleted,
        Stage::ResolvedAsCompleted,
    ] {
        replayed(bench, stage).await?;
    }
    Ok(())
}

pub(crate) async fn decision_replay_of_a_final_failure(bench: &mut Bench) -> CaseResult {
    replayed(bench, Stage::FailedFinal).await
}

/// The answer is that which was stored, as often as it is asked for.
async fn replayed(bench: &Bench, stage: Stage) -> CaseResult {
    let (wish, _, mut track) = stage.reach(bench).await?;
    for _ in 0..3 {
        let (claim, held) = ask(&mut track, &wish).await?;
        let stored = track.record()?.state.response().cloned();
        match decide(&claim, Some(&held)) {
            Decision::Replay(response) if Some(&response) == stored.as_ref() => {}
            _ => {
                return Err(failure!("{stage:?}: the stored answer must be replayed").into());
            }
        }
    }
    Ok(())
}

pub(crate) async fn decision_retry_of_a_failure(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::Retryable,
        Stage::Uncertain,
        // Its retention is over, but its outcome is not known: it is no new request.
        Stage::UncertainExpired,
    ] {
        let (claim, held, mut track) = decided(bench, stage, same, "TakeOver").await?;
        carry_out(&claim, &held, &mut track).await?;
    }
    Ok(())
}

pub(crate) async fn decision_unknown_after_a_failure(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::UncertainUnderHold,
        Stage::UncertainWithoutReclaims,
        Stage::ResolvedAsRetryable,
    ] {
        unknown(bench, stage).await?;
    }
    Ok(())
}

pub(crate) async fn decision_busy_within_the_lease(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::Live,
        Stage::Checkpointed,
        Stage::TakenOver,
        Stage::Restarted,
    ] {
        let (_, held, mut track) = decided(bench, stage, same, "Busy").await?;
        let expect = idem_core::Expect::unchanged(&held.record);
        track.refuse(expect, &crate::moves::take_over()).await?;
    }
    Ok(())
}

pub(crate) async fn decision_take_over_after_the_lease(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::Lapsed, Stage::CheckpointedAndLapsed] {
        let (claim, held, mut track) = decided(bench, stage, same, "TakeOver").await?;
        carry_out(&claim, &held, &mut track).await?;
    }
    Ok(())
}

pub(crate) async fn decision_unknown_after_the_lease(bench: &mut Bench) -> CaseResult {
    for stage in [
        Stage::LapsedUnderHold,
        Stage::LapsedAfterItsWindow,
        Stage::LapsedWithoutReclaims,
    ] {
        unknown(bench, stage).await?;
    }
    Ok(())
}

/// Nobody may run it, whatever he believes; the owner that is late may still finish it.
async fn unknown(bench: &Bench, stage: Stage) -> CaseResult {
    let (claim, held, mut track) = decided(bench, stage, same, "OutcomeUnknown").await?;
    let expect = idem_core::Expect::unchanged(&held.record);
    for change in [crate::moves::take_over(), restart(&claim)] {
        stage.place(track.refuse(expect, &change).await)?;
    }
    let swept = bench.store().sweep_all(10).await?;
    ensure!(
        swept == 0,
        "{stage:?}: a record whose outcome nobody knows was swept"
    );
    track.check().await?;
    if track.record()?.status() == idem_core::Status::InProgress {
        let owner = track.owner()?;
        track.apply(owner, &complete(3)).await?;
    } else {
        let owner = track.owner()?;
        let sent = track.send(owner, &Transition::Release).await?;
        ensure!(
            sent != crate::track::Sent::Applied,
            "{stage:?}: what is not in progress was released"
        );
    }
    Ok(())
}
