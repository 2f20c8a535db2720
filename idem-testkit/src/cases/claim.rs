//! Claims: one atomic step, one winner.

use std::sync::Arc;

use idem_core::{Claim, ClaimOutcome, Span, Transition};
use tokio::sync::Barrier;

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure, failure};
use crate::moves::{complete, decision, renew, restart};
use crate::subject::Subject;

/// How often a race is run. Two winners one time in fifty must not get away.
const ROUNDS: u32 = 12;

pub(crate) async fn claim_writes_the_first_record(bench: &mut Bench) -> CaseResult {
    for wish in [bench.wish(), bench.wish().lapsed(), bench.wish().hold()] {
        let claim = wish.claim()?;
        let mut track = bench.track(claim.id());
        ensure!(
            decision(&claim, track.check().await?.as_ref()) == "Claim",
            "an id without a record must be there for the claiming"
        );
        track.claim(&claim).await?;
    }
    Ok(())
}

pub(crate) async fn claim_refused_leaves_the_record_alone(bench: &mut Bench) -> CaseResult {
    let wish = bench.wish();
    let mut track = bench.track(&wish.id()?);
    track.claim(&wish.claim()?).await?;
    // The second and the third, with another operation, another payload and other terms.
    track.claim(&wish.claim()?).await?;
    let other = wish.clone().operation("POST /v1/refunds").payload(9);
    track
        .claim(&other.lapsed().forgotten().hold().claim()?)
        .await?;
    // The owner of before is the owner still.
    let owner = track.owner()?;
    track.apply(owner, &renew()).await?;
    track.apply(owner, &complete(1)).await?;
    track.claim(&wish.claim()?).await?;
    Ok(())
}

pub(crate) async fn claim_race_of_2(bench: &mut Bench) -> CaseResult {
    race(bench, 2, ROUNDS * 2).await
}

pub(crate) async fn claim_race_of_8(bench: &mut Bench) -> CaseResult {
    race(bench, 8, ROUNDS).await
}

pub(crate) async fn claim_race_of_64(bench: &mut Bench) -> CaseResult {
    race(bench, 64, 3).await
}

async fn race(bench: &Bench, contenders: usize, rounds: u32) -> CaseResult {
    let subjects = vec![bench.store().clone(); contenders];
    for _ in 0..rounds {
        one_race(bench, &subjects).await?;
    }
    Ok(())
}

/// One race for one new id: exactly one wins, and everybody else is shown the winner's record.
async fn one_race(bench: &Bench, subjects: &[Subject]) -> CaseResult {
    let wish = bench.wish();
    let claims = subjects
        .iter()
        .enumerate()
        .map(|(number, subject)| {
            let payload = u8::try_from(number % 251).unwrap_or_default();
            Ok((subject.clone(), wish.clone().payload(payload).claim()?))
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let calls = claims
        .clone()
        .into_iter()
        .map(|(subject, claim)| async move { subject.claim(&claim).await });
    let outcomes = bench.at_once(calls).await?;
    let claims: Vec<Claim> = claims.into_iter().map(|(_, claim)| claim).collect();
    one_winner(bench, &claims, &outcomes).await
}

async fn one_winner(bench: &Bench, claims: &[Claim], outcomes: &[ClaimOutcome]) -> CaseResult {
    let winners: Vec<usize> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, outcome)| matches!(outcome, ClaimOutcome::Won(_)))
        .map(|(index, _)| index)
        .collect();
    ensure!(
        winners.len() == 1,
        "of {} claims of one id at once, {} were Won; it must be exactly one",
        outcomes.len(),
        winners.len()
    );
    let winner = &claims[winners[0]];
    let held = bench.store().held(winner.id()).await?.record;
    let first = winner.first_record(held.created_at);
    ensure!(
        *held == first,
        "after a race, the record is not what the winner's claim writes"
    );
    for (claim, outcome) in claims.iter().zip(outcomes) {
        let (ClaimOutcome::Won(snapshot) | ClaimOutcome::Held(snapshot)) = outcome else {
            continue;
        };
        ensure!(
            *snapshot.record == first,
            "a claim that raced was shown a record that is not the winner's"
        );
        let expected = match claim {
            _ if claim.token() == winner.token() => "Resume",
            _ if claim.fingerprint() != winner.fingerprint() => "Mismatch(Payload)",
            _ => "Busy",
        };
        let found = decision(claim, Some(snapshot));
        ensure!(
            found == expected,
            "a claim that raced must find {expected}, and finds {found}"
        );
    }
    Ok(())
}

pub(crate) async fn claim_race_for_many_ids(bench: &mut Bench) -> CaseResult {
    const IDS: usize = 256;
    let wishes: Vec<_> = (0..IDS).map(|_| bench.wish()).collect();
    let together = Arc::new(Barrier::new(3));
    let contender = || {
        let (subject, wishes) = (bench.store().clone(), wishes.clone());
        let together = Arc::clone(&together);
        async move {
            let mut won = Vec::new();
            let mut failed = None;
            for wish in wishes {
                let claim = wish.claim()?;
                together.wait().await;
                match subject.claim(&claim).await {
                    Ok(ClaimOutcome::Won(_)) => won.push(wish.key),
                    Ok(_) => {}
                    // The others still count on this one to come to the next barrier.
                    Err(failure) => failed = Some(failure),
                }
            }
            failed.map_or(Ok(won), Err)
        }
    };
    let won = bench
        .at_once([contender(), contender(), contender()])
        .await?;
    let mut won: Vec<String> = won.into_iter().flatten().collect();
    let total = won.len();
    won.sort();
    won.dedup();
    ensure!(
        total == won.len(),
        "{} of {IDS} ids were Won twice",
        total - won.len()
    );
    ensure!(
        total == IDS,
        "{} of {IDS} ids were Won by nobody",
        IDS - total
    );
    Ok(())
}

pub(crate) async fn claim_race_of_instances(bench: &mut Bench) -> CaseResult {
    let mut subjects = vec![bench.store().clone()];
    for _ in 0..3 {
        subjects.push(bench.another_instance().await?);
    }
    subjects.extend(subjects.clone());
    for _ in 0..ROUNDS {
        one_race(bench, &subjects).await?;
    }
    Ok(())
}

/// A claim never wins over a record, however expired it is; the restart is a swap, and one wins it.
pub(crate) async fn claim_race_for_an_expired_record(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let wish = bench.wish().forgotten();
        let mut track = bench.track(&wish.id()?);
        track.claim(&wish.claim()?).await?;
        let owner = track.owner()?;
        track.apply(owner, &complete(1)).await?;
        bench.lapse(track.skew()).await?;
        let calls = (0..6).map(|_| {
            let (subject, wish) = (bench.store().clone(), wish.clone());
            async move {
                let claim = wish.lease(Span::MAX).claim()?;
                let held = subject.find(&claim).await?;
                if decision(&claim, Some(&held)) != "Restart" {
                    return Ok(None);
                }
                let expect = idem_core::Expect::unchanged(&held.record);
                let outcome = subject
                    .transition(claim.id(), expect, &restart(&claim))
                    .await?;
                Ok(
                    matches!(outcome, idem_core::TransitionOutcome::Applied { .. })
                        .then(|| claim.token()),
                )
            }
        });
        let won: Vec<_> = bench.at_once(calls).await?.into_iter().flatten().collect();
        ensure!(
            won.len() == 1,
            "of six restarts of one expired record at once, {} were applied",
            won.len()
        );
        let held = bench.store().held(&wish.id()?).await?;
        ensure!(
            held.record.token == won[0],
            "the record is not that of the restart that was applied"
        );
    }
    Ok(())
}

/// Claims race with the release of the record that keeps them out.
pub(crate) async fn claim_race_with_a_release(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let wish = bench.wish();
        let first = wish.claim()?;
        let mut track = bench.track(first.id());
        track.claim(&first).await?;
        let owner = track.owner()?;
        let release = {
            let (subject, id) = (bench.store().clone(), first.id().clone());
            async move {
                subject.apply(&id, owner, &Transition::Release).await?;
                Ok(None)
            }
        };
        let claims = (0..4)
            .map(|_| wish.claim())
            .collect::<Result<Vec<_>, _>>()?;
        let contenders = claims.into_iter().map(|claim| {
            let subject = bench.store().clone();
            async move { Ok(Some((claim.token(), subject.claim(&claim).await?))) }
        });
        type Call = std::pin::Pin<
            Box<
                dyn Future<Output = Result<Option<(idem_core::OwnerToken, ClaimOutcome)>, Failure>>
                    + Send,
            >,
        >;
        let mut calls: Vec<Call> = vec![Box::pin(release)];
        for contender in contenders {
            calls.push(Box::pin(contender));
        }
        let outcomes = bench.at_once(calls).await?;
        let mut winner = None;
        for (token, outcome) in outcomes.iter().flatten() {
            if let ClaimOutcome::Won(_) = outcome {
                ensure!(
                    winner.is_none(),
                    "two claims won the id that one release had freed"
                );
                winner = Some(*token);
            }
        }
        for (_, outcome) in outcomes.iter().flatten() {
            if let ClaimOutcome::Held(held) = outcome {
                let known = held.record.token == first.token() || Some(held.record.token) == winner;
                ensure!(
                    known,
                    "a claim was shown a record that is neither the released one nor the winner's"
                );
            }
        }
        let left = bench.store().load(first.id()).await?;
        ensure!(
            left.map(|left| left.record.token) == winner,
            "after a release and a race, the record is not that of the claim that was Won"
        );
        // Freed once more, the id can be claimed as if it had never been.
        let next = wish.claim()?;
        if let Some(token) = winner {
            bench
                .store()
                .apply(
                    next.id(),
                    idem_core::Expect::Owner(token),
                    &Transition::Release,
                )
                .await?;
        }
        let won = bench.store().win(&next).await?;
        ensure!(
            *won.record == next.first_record(won.record.created_at),
            "a released id must be claimed as if it had never been used"
        );
    }
    Ok(())
}

/// A record purged between a conflict and the read that follows is no dead end.
pub(crate) async fn claim_race_with_a_sweep(bench: &mut Bench) -> CaseResult {
    for _ in 0..ROUNDS {
        let wish = bench.wish().forgotten();
        let mut track = bench.track(&wish.id()?);
        track.claim(&wish.claim()?).await?;
        let owner = track.owner()?;
        track.apply(owner, &complete(1)).await?;
        bench.lapse(track.skew()).await?;
        let claims = (0..3)
            .map(|_| wish.claim())
            .collect::<Result<Vec<_>, Failure>>()?;
        type Call = std::pin::Pin<Box<dyn Future<Output = Result<usize, Failure>> + Send>>;
        let mut calls: Vec<Call> = claims
            .into_iter()
            .map(|claim| {
                let subject = bench.store().clone();
                Box::pin(async move {
                    let won = matches!(subject.claim(&claim).await?, ClaimOutcome::Won(_));
                    Ok(usize::from(won))
                }) as Call
            })
            .collect();
        let sweeper = bench.store().clone();
        calls.push(Box::pin(async move {
            sweeper.sweep(10).await?;
            Ok(0)
        }));
        let winners: usize = bench.at_once(calls).await?.into_iter().sum();
        let held = bench.store().load(&wish.id()?).await?;
        match (winners, held) {
            (0, None) => {}
            (0, Some(held)) if held.record.state.response().is_some() => {}
            (1, Some(held)) if held.record.state.response().is_none() => {}
            (winners, held) => {
                let is = if held.is_some() { "a" } else { "no" };
                return Err(Stop::from(failure!(
                    "after claims raced with a sweep, {winners} were Won and there is {is} record"
                )));
            }
        }
        bench.store().sweep_all(10).await?;
    }
    Ok(())
}
