//! Every transition, on a record in every state, under every expectation: exactly what the model says.

use idem_core::{Expect, Response, Revision, Transition, Verdict};

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure};
use crate::moves::{
    checkpoint, checkpoint_named, complete, fail_final, fail_retryable, fresh_token, renew,
    renew_lapsed, resolve, restart, right, take_over, take_over_as, verdicts,
};
use crate::stage::Stage;
use crate::track::{Sent, Track};

pub(crate) async fn transition_renew(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| Ok(vec![renew(), renew_lapsed()])).await
}

pub(crate) async fn transition_checkpoint(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| {
        Ok(vec![
            checkpoint(0)?,
            checkpoint(4)?,
            checkpoint(5)?,
            checkpoint_named(5, "something else", idem_core::Span::ZERO)?,
            checkpoint(6)?,
            checkpoint(u32::MAX)?,
        ])
    })
    .await
}

pub(crate) async fn transition_complete(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| {
        Ok(vec![
            complete(1),
            Transition::Complete(Response::new(204)),
            Transition::Complete(Response::new(200).without_body()),
        ])
    })
    .await
}

pub(crate) async fn transition_fail_final(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| Ok(vec![fail_final(2), fail_final(3)])).await
}

pub(crate) async fn transition_fail_retryable(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| {
        Ok(vec![fail_retryable(false), fail_retryable(true)])
    })
    .await
}

pub(crate) async fn transition_release(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| Ok(vec![Transition::Release])).await
}

pub(crate) async fn transition_take_over(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| {
        Ok(vec![
            take_over(),
            take_over_as(fresh_token(), idem_core::Span::ZERO),
        ])
    })
    .await
}

pub(crate) async fn transition_restart(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |track| {
        let id = track.id();
        let wish = crate::wish::Wish::new(id.scope().as_str(), id.key().as_str());
        let plain = wish.clone().claim()?;
        let strange = wish
            .operation("DELETE /v2/everything")
            .payload(0xee)
            .lapsed()
            .forgotten()
            .window(idem_core::Span::from_secs(7))
            .max_reclaims(u32::MAX)
            .hold();
        Ok(vec![restart(&plain), restart(&strange.claim()?)])
    })
    .await
}

pub(crate) async fn transition_resolve(bench: &mut Bench) -> CaseResult {
    everywhere(bench, |_| {
        let mut all: Vec<Transition> = verdicts().map(resolve).into();
        all.push(resolve(Verdict::Completed(
            Response::new(200).without_body(),
        )));
        Ok(all)
    })
    .await
}

/// Sends each of these transitions to a record of its own in each state: first under every expectation that is
/// wrong, which changes nothing, then under the right one, and then once more, as if its answer had been lost.
async fn everywhere(
    bench: &Bench,
    changes: fn(&Track) -> Result<Vec<Transition>, Failure>,
) -> CaseResult {
    for stage in Stage::ALL {
        let count = changes(&bench.track(&bench.wish().id()?))?.len();
        for index in 0..count {
            let (_, _, mut track) = stage.reach(bench).await?;
            let change = changes(&track)?.swap_remove(index);
            stage.place(send_everyhow(&mut track, &change).await)?;
        }
    }
    Ok(())
}

async fn send_everyhow(track: &mut Track, change: &Transition) -> Result<(), Failure> {
    for (why, expect) in wrong_expectations(track, change) {
        let sent = track.send(expect, change).await;
        let sent = sent.map_err(|failure| failure.within(format!("{why}, {}", change.name())))?;
        ensure_not_applied(sent, why, change)?;
    }
    let expect = match track.model() {
        Some(record) => right(record, change),
        None => match change {
            Transition::TakeOver { .. } | Transition::Restart(_) | Transition::Resolve { .. } => {
                Expect::Unchanged {
                    token: fresh_token(),
                    revision: Revision::FIRST,
                }
            }
            _ => Expect::Owner(fresh_token()),
        },
    };
    track.send(expect, change).await?;
    // Sent again: applied at most once, unless it is a renewal.
    let sent = track.send(expect, change).await?;
    if !matches!(change, Transition::Renew { .. }) {
        ensure_not_applied(sent, "sent for the second time", change)?;
    }
    Ok(())
}

fn ensure_not_applied(sent: Sent, why: &str, change: &Transition) -> Result<(), Failure> {
    ensure!(
        sent != Sent::Applied,
        "{} was Applied, although it was {why}",
        change.name()
    );
    Ok(())
}

fn wrong_expectations(track: &Track, change: &Transition) -> Vec<(&'static str, Expect)> {
    let Some(record) = track.model() else {
        return Vec::new();
    };
    let (token, revision) = (record.token, record.revision);
    let owner = |token| Expect::Owner(token);
    let unchanged = |token, revision| Expect::Unchanged { token, revision };
    let before = Revision::new(revision.as_u64().saturating_sub(1));
    match right(record, change) {
        Expect::Owner(_) => vec![
            (
                "sent by somebody who is not the owner",
                owner(fresh_token()),
            ),
            (
                "sent under the expectation of others",
                unchanged(token, revision),
            ),
        ],
        Expect::Unchanged { .. } => vec![
            (
                "sent with another token",
                unchanged(fresh_token(), revision),
            ),
            (
                "sent with a revision from the past",
                unchanged(token, before),
            ),
            (
                "sent with a revision from the future",
                unchanged(token, revision.next()),
            ),
            ("sent under the owner's expectation", owner(token)),
        ],
    }
}

/// What a store does not find, it does not write: nothing comes into being by a transition.
pub(crate) async fn transition_creates_nothing(bench: &mut Bench) -> CaseResult {
    let claim = bench.wish().claim()?;
    let mut track = bench.track(claim.id());
    let mut all = crate::moves::owner_moves()?;
    all.extend(crate::moves::other_moves(&claim));
    for change in all {
        let expect = match &change {
            Transition::TakeOver { .. } | Transition::Restart(_) | Transition::Resolve { .. } => {
                Expect::Unchanged {
                    token: claim.token(),
                    revision: Revision::FIRST,
                }
            }
            _ => Expect::Owner(claim.token()),
        };
        let sent = track.send(expect, &change).await?;
        if sent == Sent::Applied {
            return Err(Stop::from(crate::failure::failure!(
                "{} was Applied to nothing",
                change.name()
            )));
        }
    }
    track.claim(&claim).await?;
    Ok(())
}
