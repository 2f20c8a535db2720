//! Records in every state that a record can be in, got there through the store under test.

use idem_core::{Claim, Verdict};

use crate::bench::Bench;
use crate::failure::{Failure, Stop};
use crate::moves::{
    checkpoint, checkpoint_named, complete, fail_final, fail_retryable, renew_lapsed, resolve,
    restart, take_over, take_over_as,
};
use crate::track::Track;
use crate::wish::Wish;

/// A state of a record, as far as it makes a difference to what may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Absent,
    Live,
    Lapsed,
    LapsedUnderHold,
    LapsedAfterItsWindow,
    LapsedWithoutReclaims,
    Checkpointed,
    CheckpointedAndLapsed,
    Completed,
    CompletedExpired,
    FailedFinal,
    FailedFinalExpired,
    Retryable,
    RetryableExpired,
    Uncertain,
    UncertainExpired,
    UncertainUnderHold,
    UncertainWithoutReclaims,
    TakenOver,
    TakenOverAndCompleted,
    Restarted,
    ResolvedAsRetryable,
    ResolvedAsCompleted,
}

impl Stage {
    pub(crate) const ALL: [Self; 23] = [
        Self::Absent,
        Self::Live,
        Self::Lapsed,
        Self::LapsedUnderHold,
        Self::LapsedAfterItsWindow,
        Self::LapsedWithoutReclaims,
        Self::Checkpointed,
        Self::CheckpointedAndLapsed,
        Self::Completed,
        Self::CompletedExpired,
        Self::FailedFinal,
        Self::FailedFinalExpired,
        Self::Retryable,
        Self::RetryableExpired,
        Self::Uncertain,
        Self::UncertainExpired,
        Self::UncertainUnderHold,
        Self::UncertainWithoutReclaims,
        Self::TakenOver,
        Self::TakenOverAndCompleted,
        Self::Restarted,
        Self::ResolvedAsRetryable,
        Self::ResolvedAsCompleted,
    ];

    /// Finished and past its retention: a new request, whoever asks.
    pub(crate) fn is_expired(self) -> bool {
        matches!(
            self,
            Self::CompletedExpired | Self::FailedFinalExpired | Self::RetryableExpired
        )
    }

    /// Those in which the key is bound to its request.
    pub(crate) fn binding() -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(|stage| *stage != Self::Absent && !stage.is_expired())
    }

    fn wish(self, wish: Wish) -> Wish {
        match self {
            Self::Lapsed | Self::TakenOver | Self::TakenOverAndCompleted => wish.lapsed(),
            Self::LapsedUnderHold => wish.lapsed().hold(),
            Self::LapsedAfterItsWindow => wish.lapsed().window(idem_core::Span::ZERO),
            Self::LapsedWithoutReclaims | Self::UncertainWithoutReclaims => {
                wish.lapsed().max_reclaims(0)
            }
            Self::CompletedExpired
            | Self::FailedFinalExpired
            | Self::RetryableExpired
            | Self::UncertainExpired
            | Self::Restarted => wish.forgotten(),
            Self::UncertainUnderHold => wish.hold(),
            Self::ResolvedAsRetryable | Self::ResolvedAsCompleted => wish.lapsed().hold(),
            _ => wish,
        }
    }

    /// A new record in this state, or an id without one, and how it was claimed.
    pub(crate) async fn reach(self, bench: &Bench) -> Result<(Wish, Claim, Track), Stop> {
        self.reach_from(bench, bench.wish()).await
    }

    /// The same, for a certain request.
    pub(crate) async fn reach_from(
        self,
        bench: &Bench,
        wish: Wish,
    ) -> Result<(Wish, Claim, Track), Stop> {
        let wish = self.wish(wish);
        let claim = wish.claim()?;
        let mut track = bench.track(claim.id());
        if self != Self::Absent {
            track.claim(&claim).await?;
            bench.lapse(track.skew()).await?;
            self.walk(bench, &wish, &mut track)
                .await
                .map_err(|stop| stop.within(format!("on the way to {self:?}")))?;
            bench.lapse(track.skew()).await?;
        }
        Ok((wish, claim, track))
    }

    async fn walk(self, bench: &Bench, wish: &Wish, track: &mut Track) -> Result<(), Stop> {
        let owner = track.owner()?;
        match self {
            Self::Absent
            | Self::Live
            | Self::Lapsed
            | Self::LapsedUnderHold
            | Self::LapsedAfterItsWindow
            | Self::LapsedWithoutReclaims => {}
            Self::Checkpointed => track.apply(owner, &checkpoint(5)?).await?,
            Self::CheckpointedAndLapsed => {
                let change = checkpoint_named(5, "charged", idem_core::Span::ZERO)?;
                track.apply(owner, &change).await?;
            }
            Self::Completed | Self::CompletedExpired => track.apply(owner, &complete(1)).await?,
            Self::FailedFinal | Self::FailedFinalExpired => {
                track.apply(owner, &fail_final(2)).await?;
            }
            Self::Retryable | Self::RetryableExpired => {
                track.apply(owner, &fail_retryable(false)).await?;
            }
            Self::Uncertain
            | Self::UncertainExpired
            | Self::UncertainUnderHold
            | Self::UncertainWithoutReclaims => {
                track.apply(owner, &fail_retryable(true)).await?;
            }
            Self::TakenOver => {
                let change = checkpoint_named(3, "charging", idem_core::Span::ZERO)?;
                track.apply(owner, &change).await?;
                bench.lapse(track.skew()).await?;
                track.apply(track.unchanged()?, &take_over()).await?;
            }
            Self::TakenOverAndCompleted => {
                let change = take_over_as(bench.token(), idem_core::Span::ZERO);
                track.apply(track.unchanged()?, &change).await?;
                let owner = track.owner()?;
                track.apply(owner, &renew_lapsed()).await?;
                track.apply(owner, &complete(4)).await?;
            }
            Self::Restarted => {
                track.apply(owner, &checkpoint(3)?).await?;
                track.apply(owner, &complete(1)).await?;
                bench.lapse(track.skew()).await?;
                let next = wish.clone().payload(0x77).claim()?;
                track.apply(track.unchanged()?, &restart(&next)).await?;
            }
            Self::ResolvedAsRetryable => {
                let change = resolve(Verdict::Retryable);
                track.apply(track.unchanged()?, &change).await?;
            }
            Self::ResolvedAsCompleted => {
                let change = resolve(Verdict::Completed(crate::moves::response(6)));
                track.apply(track.unchanged()?, &change).await?;
            }
        }
        Ok(())
    }

    /// Does something with a record in each of these states, and says in which of them it went wrong.
    pub(crate) fn place(self, result: Result<(), Failure>) -> Result<(), Failure> {
        result.map_err(|failure| failure.within(format!("{self:?}")))
    }
}
