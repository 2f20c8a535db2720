//! Checkpoints: in order, exact, and never without a trace.

use idem_core::{RecoveryPoint, Span, Transition};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, ensure, failure};
use crate::moves::{checkpoint, checkpoint_named, complete, restart, take_over};
use crate::stage::Stage;
use crate::track::Sent;

/// A delayed checkpoint, from a call that was dropped, lands after a newer one.
pub(crate) async fn checkpoint_delayed(bench: &mut Bench) -> CaseResult {
    let (_, _, mut track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    for sequence in [2, 7, 8] {
        track.apply(owner, &checkpoint(sequence)?).await?;
    }
    for late in [0, 1, 2, 7] {
        track.refuse(owner, &checkpoint(late)?).await?;
    }
    // The same number, another content: two checkpoints were given one number, and the first one stays.
    let other = checkpoint_named(8, "another", Span::MAX)?;
    track.refuse(owner, &other).await?;
    let sent = track.send(owner, &checkpoint(8)?).await?;
    ensure!(
        sent == Sent::AlreadyApplied,
        "the checkpoint that is stored, sent again, was {sent:?}"
    );
    track.apply(owner, &checkpoint(9)?).await?;
    Ok(())
}

/// Numbers begin anew with every attempt, and the old attempt's are older whatever they are.
pub(crate) async fn checkpoint_of_the_next_attempt(bench: &mut Bench) -> CaseResult {
    let (_, _, mut track) = Stage::Lapsed.reach(bench).await?;
    let first = track.owner()?;
    for sequence in [1, 2, 3] {
        let change = checkpoint_named(sequence, "first attempt", Span::ZERO)?;
        track.apply(first, &change).await?;
    }
    bench.lapse(track.skew()).await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let recovery = track.record()?.recovery.clone();
    ensure!(
        recovery.is_some_and(|recovery| recovery.sequence == 3),
        "a takeover must keep the recovery point"
    );
    let second = track.owner()?;
    track.apply(second, &checkpoint(1)?).await?;
    track.refuse(first, &checkpoint(4)?).await?;
    track.apply(second, &checkpoint(2)?).await?;
    Ok(())
}

/// A record that was checkpointed is no longer certain to have had no effect, whatever becomes of it.
pub(crate) async fn checkpoint_makes_uncertain(bench: &mut Bench) -> CaseResult {
    for change in [
        Transition::Release,
        crate::moves::fail_retryable(false),
        complete(1),
    ] {
        let (_, _, mut track) = Stage::Checkpointed.reach(bench).await?;
        let owner = track.owner()?;
        track.apply(owner, &change).await?;
        let record = track.record()?;
        ensure!(
            record.uncertain && record.recovery.is_some(),
            "{} must leave a checkpointed record uncertain, with its recovery point",
            change.name()
        );
    }
    // A release of one is a retryable failure: the key stays bound to its payload.
    let (wish, _, mut track) = Stage::Checkpointed.reach(bench).await?;
    let owner = track.owner()?;
    track.apply(owner, &Transition::Release).await?;
    let held = bench
        .store()
        .find(&wish.clone().payload(9).claim()?)
        .await?;
    ensure!(
        held.record.status() == idem_core::Status::FailedRetryable,
        "the release of an uncertain record must leave a retryable failure"
    );
    Ok(())
}

pub(crate) async fn checkpoint_keeps_its_data(bench: &mut Bench) -> CaseResult {
    let every: Vec<u8> = (0..=u8::MAX).collect();
    let large = every.repeat(RecoveryPoint::MAX_DATA_BYTES / every.len());
    let data: [Option<Vec<u8>>; 7] = [
        None,
        Some(Vec::new()),
        Some(vec![0]),
        Some(b"{ \"b\" : 1.0 , \"a\" : 10e-1 }\n".to_vec()),
        Some(vec![0xff, 0xfe, 0x00, 0xc3, 0x28]),
        Some(every),
        Some(large),
    ];
    let longest = "\u{1f980}".repeat(RecoveryPoint::MAX_NAME_BYTES / 4);
    let names = [" ", "charged", "CHARGED", "a\u{301}'\"\\%_", &longest];
    let mut points = Vec::new();
    for name in names {
        points.push(point(name, data[3].clone())?);
    }
    for data in &data {
        points.push(point("charged", data.clone())?);
    }
    let (_, _, mut track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    for (sequence, point) in (0..).zip(points) {
        let change = Transition::Checkpoint {
            point,
            sequence,
            lease: Span::MAX,
        };
        track.apply(owner, &change).await?;
    }
    track.apply(owner, &complete(1)).await?;
    Ok(())
}

fn point(name: &str, data: Option<Vec<u8>>) -> Result<RecoveryPoint, Failure> {
    let point = crate::moves::point(name)?;
    match data {
        None => Ok(point),
        Some(data) => point
            .with_data(data)
            .map_err(|error| failure!("the suite made bad recovery data: {error}")),
    }
}

/// A key that begins anew sees nothing of the operation before.
pub(crate) async fn checkpoint_is_forgotten_by_a_restart(bench: &mut Bench) -> CaseResult {
    let (wish, _, mut track) = Stage::Checkpointed
        .reach_from(bench, bench.wish().forgotten())
        .await?;
    let owner = track.owner()?;
    track.apply(owner, &complete(1)).await?;
    bench.lapse(track.skew()).await?;
    let next = wish.lapsed().claim()?;
    track.apply(track.unchanged()?, &restart(&next)).await?;
    let record = track.record()?;
    ensure!(
        record.recovery.is_none() && !record.uncertain && record.reclaims == 0,
        "a restart must begin without recovery point, doubt and reclaims"
    );
    // And it recovers like any first use.
    bench.lapse(track.skew()).await?;
    track.apply(track.unchanged()?, &take_over()).await?;
    let owner = track.owner()?;
    track.apply(owner, &checkpoint(0)?).await?;
    Ok(())
}
