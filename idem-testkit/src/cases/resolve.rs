//! Verdicts of operators and reconcilers.

use idem_core::{Expect, Note, Transition, Verdict};

use crate::bench::Bench;
use crate::failure::{CaseResult, ensure};
use crate::moves::{complete, decision, resolve, response, take_over, verdicts};
use crate::stage::Stage;

/// Every verdict, wherever the outcome is unknown, with a note that comes back exactly.
pub(crate) async fn resolve_what_is_unknown(bench: &mut Bench) -> CaseResult {
    let notes = [
        "".to_owned(),
        "\u{1f980} checked by hand: 'no charge' \\ \"%_\" \n\t\u{301}".to_owned(),
        "n".repeat(Note::MAX_BYTES),
    ];
    for stage in [
        Stage::Lapsed,
        Stage::LapsedUnderHold,
        Stage::LapsedAfterItsWindow,
        Stage::CheckpointedAndLapsed,
        Stage::UncertainUnderHold,
        Stage::UncertainWithoutReclaims,
        Stage::ResolvedAsRetryable,
    ] {
        for (verdict, note) in verdicts().into_iter().zip(notes.iter().cycle()) {
            let (_, _, mut track) = stage.reach(bench).await?;
            let change = Transition::Resolve {
                verdict,
                token: bench.token(),
                note: Note::new(note),
            };
            track.apply(track.unchanged()?, &change).await?;
        }
    }
    Ok(())
}

/// Found not to have been done: the retry runs under the same origin, so with the same key at the provider, and
/// the owner that was asleep is shut out.
pub(crate) async fn resolve_as_retryable_keeps_the_origin(bench: &mut Bench) -> CaseResult {
    let (wish, claim, mut track) = Stage::CheckpointedAndLapsed.reach(bench).await?;
    let change = resolve(Verdict::Retryable);
    track.apply(track.unchanged()?, &change).await?;
    track
        .refuse(Expect::Owner(claim.token()), &complete(1))
        .await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let record = track.record()?;
    ensure!(
        record.origin == claim.origin() && record.recovery.is_some() && record.uncertain,
        "a retryable verdict must keep origin, recovery point and doubt"
    );
    track
        .refuse(Expect::Owner(claim.token()), &complete(1))
        .await?;
    let held = bench.store().find(&wish.payload(0x0f).claim()?).await?;
    ensure!(
        held.record.fingerprint == *claim.fingerprint(),
        "a retryable verdict must leave the key bound to its payload"
    );
    Ok(())
}

/// Found to be free: the next request is a first one.
pub(crate) async fn resolve_as_released_frees_the_key(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::LapsedUnderHold.reach(bench).await?;
    let change = resolve(Verdict::Released);
    track.apply(track.unchanged()?, &change).await?;
    let next = wish.payload(0x0f).claim()?;
    track.claim(&next).await?;
    Ok(())
}

/// Two operators, one record: the second one's picture of it is out of date.
pub(crate) async fn resolve_twice(bench: &mut Bench) -> CaseResult {
    for stage in [Stage::LapsedUnderHold, Stage::UncertainUnderHold] {
        let (wish, _, mut track) = stage.reach(bench).await?;
        let shown = track.unchanged()?;
        let first = resolve(Verdict::Retryable);
        track.apply(shown, &first).await?;
        let second = resolve(Verdict::Completed(response(3)));
        track.refuse(shown, &second).await?;
        // Looked at again, it can be settled.
        track.apply(track.unchanged()?, &second).await?;
        let held = bench.store().find(&wish.claim()?).await?;
        ensure!(
            decision(&wish.claim()?, Some(&held)) == "Replay",
            "the answer of a verdict must be replayed"
        );
    }
    Ok(())
}
