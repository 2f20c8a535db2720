use std::time::Duration;

use thiserror::Error;

use super::{Horizon, Parked, Verdict};

/// How often, for how long, and how soon a request is sent again.
///
/// Pauses grow exponentially, and each is drawn from the whole of its range ("full jitter"), so that clients which failed
/// together do not come back together.
///
/// It has no default, since nobody can choose a [`Horizon`] but whoever knows the server.
///
/// | setting | default |
/// |---|---|
/// | first pause | up to 500 ms |
/// | longest pause | up to 30 s |
/// | attempts | 10 |
/// | deadline | 5 minutes after the first attempt; no attempt begins later |
///
/// ```
/// use std::time::Duration;
/// use idem_client::{Horizon, RetryPolicy};
///
/// let horizon = Horizon::within(Duration::from_secs(20 * 3600), Duration::from_secs(24 * 3600))?;
/// let policy = RetryPolicy::until(horizon)
///     .pauses(Duration::from_millis(100), Duration::from_secs(5))?
///     .attempts(4)
///     .deadline(Duration::from_secs(30));
/// # let _ = policy;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct RetryPolicy {
    horizon: Horizon,
    first_pause: Duration,
    longest_pause: Duration,
    attempts: u32,
    deadline: Duration,
}

/// How far an operation has come when the next step is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// How many attempts were made in this run, the last one included.
    pub attempts: u32,
    /// How long ago this run of attempts began. The deadline counts from there.
    pub elapsed: Duration,
    /// How long ago the very first attempt began, in whatever run that was: the process may have died meanwhile. The
    /// horizon counts from there.
    pub age: Duration,
    /// A random number from 0 up to and without 1, drawn for this pause. What is no such number counts as 1.
    pub random: f64,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// It is over: the last answer is the answer.
    Finish,
    /// Send the same request again after this pause.
    SendAfter(Duration),
    /// It was sent as often, or for as long, as this run may. It stays pending, and a later run may go on.
    GiveUp,
    /// Nothing is sent by itself any more. Somebody has to look.
    Park(Parked),
}

impl RetryPolicy {
    /// A policy by which nothing is sent past this horizon.
    pub fn until(horizon: Horizon) -> Self {
        Self {
            horizon,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            attempts: 10,
            deadline: Duration::from_secs(300),
        }
    }

    /// How long the first pause can be, and how long any can.
    ///
    /// # Errors
    ///
    /// [`InvalidRetryPolicy`] when the first is zero, or longer than the longest.
    pub fn pauses(
        mut self,
        first: Duration,
        longest: Duration,
    ) -> Result<Self, InvalidRetryPolicy> {
        if first.is_zero() {
            return Err(InvalidRetryPolicy::NoPause);
        }
        if first > longest {
            return Err(InvalidRetryPolicy::FirstIsLonger { first, longest });
        }
        (self.first_pause, self.longest_pause) = (first, longest);
        Ok(self)
    }

    /// The same policy with a shorter horizon: that of an operation which began under another policy. A longer one changes
    /// nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use idem_client::{Horizon, RetryPolicy};
    ///
    /// let [hour, day] = [3600, 24 * 3600].map(Duration::from_secs);
    /// let policy = RetryPolicy::until(Horizon::within(hour, day)?);
    /// assert_eq!(policy.no_later_than(Horizon::within(day, day)?).horizon().as_duration(), hour);
    /// # Ok::<(), idem_client::InvalidHorizon>(())
    /// ```
    pub fn no_later_than(mut self, horizon: Horizon) -> Self {
        if horizon.as_duration() < self.horizon.as_duration() {
            self.horizon = horizon;
        }
        self
    }

    /// Its horizon.
    #[must_use]
    pub fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// How many attempts are made at most. None is one.
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most;
        self
    }

    /// How long after the first attempt began another one may begin.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What follows from what an attempt came to.
    ///
    /// A `Retry-After` makes a pause longer, never shorter, and never longer than what is left until the deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use idem_client::{Horizon, Next, Progress, RetryPolicy, Verdict};
    ///
    /// let day = Duration::from_secs(24 * 3600);
    /// let policy = RetryPolicy::until(Horizon::within(day, day)?).deadline(Duration::from_secs(60));
    /// let busy = Verdict::Again { no_sooner: Some(Duration::from_secs(3600)) };
    /// let elapsed = Duration::from_secs(20);
    /// let progress = Progress { attempts: 1, elapsed, age: elapsed, random: 0.0 };
    /// assert_eq!(policy.next(&busy, progress), Next::SendAfter(Duration::from_secs(40)));
    /// # Ok::<(), idem_client::InvalidHorizon>(())
    /// ```
    #[must_use]
    pub fn next(&self, verdict: &Verdict, progress: Progress) -> Next {
        let no_sooner = match verdict {
            Verdict::Final => return Next::Finish,
            Verdict::Park(why) => return Next::Park(*why),
            Verdict::Once => return Next::GiveUp,
            Verdict::Again { no_sooner } => no_sooner.unwrap_or_default(),
        };
        // Before the bounds of this run, since a later run cannot help it either.
        if self.horizon.is_past(progress.age) {
            return Next::Park(Parked::PastHorizon);
        }
        let left = self.deadline.saturating_sub(progress.elapsed);
        if progress.attempts >= self.attempts || left.is_zero() {
            return Next::GiveUp;
        }
        let pause = self.pause(progress.attempts, progress.random);
        self.send_after(pause.max(no_sooner).min(left), progress.age)
    }

    /// Whether an operation of an earlier run, whose first attempt began so long ago, may still be sent.
    ///
    /// ```
    /// use std::time::Duration;
    /// use idem_client::{Horizon, Next, Parked, RetryPolicy};
    ///
    /// let day = Duration::from_secs(24 * 3600);
    /// let policy = RetryPolicy::until(Horizon::within(day, day)?);
    /// assert_eq!(policy.resume(day / 2), Next::SendAfter(Duration::ZERO));
    /// assert_eq!(policy.resume(2 * day), Next::Park(Parked::PastHorizon));
    /// # Ok::<(), idem_client::InvalidHorizon>(())
    /// ```
    #[must_use]
    pub fn resume(&self, age: Duration) -> Next {
        self.send_after(Duration::ZERO, age)
    }

    fn send_after(&self, pause: Duration, age: Duration) -> Next {
        if self.horizon.is_past(age.saturating_add(pause)) {
            return Next::Park(Parked::PastHorizon);
        }
        Next::SendAfter(pause)
    }

    fn pause(&self, attempts: u32, random: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let range = self
            .first_pause
            .saturating_mul(1 << doublings)
            .min(self.longest_pause);
        let part = if (0.0..1.0).contains(&random) {
            random
        } else {
            1.0
        };
        range.mul_f64(part).min(range)
    }
}

/// Why a [`RetryPolicy`] cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRetryPolicy {
    /// There would be no pause at all.
    #[error("a first pause of nothing would hammer a server that is down: choose a longer one")]
    NoPause,
    /// The first pause would be longer than the longest.
    #[error("the first pause of {first:?} is longer than the longest of {longest:?}")]
    FirstIsLonger {
        /// The first.
        first: Duration,
        /// The longest.
        longest: Duration,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGAIN: Verdict = Verdict::Again { no_sooner: None };

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn policy() -> RetryPolicy {
        RetryPolicy::until(Horizon::within(DAY, DAY).unwrap())
    }

    fn after(attempts: u32, elapsed: Duration, random: f64) -> Progress {
        Progress {
            attempts,
            elapsed,
            age: elapsed,
            random,
        }
    }

    #[test]
    fn pauses_grow_to_the_longest_and_are_drawn_from_the_whole_range() {
        let policy = policy();
        let pause =
            |attempts, random| match policy.next(&AGAIN, after(attempts, Duration::ZERO, random)) {
                Next::SendAfter(pause) => pause.as_millis(),
                other => panic!("{other:?}"),
            };
        assert_eq!(
            [1, 2, 3, 6, 7, 8, 9].map(|n| pause(n, 0.5)),
            [250, 500, 1000, 8000, 15000, 15000, 15000]
        );
        assert_eq!(pause(3, 0.0), 0);
        assert_eq!(
            [f64::NAN, -1.0, 7.0].map(|random| pause(1, random)),
            [500; 3]
        );
    }

    #[test]
    fn attempts_and_time_come_to_an_end() {
        let policy = policy().attempts(3).deadline(Duration::from_secs(10));
        let next = |attempts, seconds| {
            policy.next(&AGAIN, after(attempts, Duration::from_secs(seconds), 0.0))
        };
        assert_eq!(next(2, 9), Next::SendAfter(Duration::ZERO));
        assert_eq!(next(3, 9), Next::GiveUp);
        assert_eq!(next(1, 10), Next::GiveUp);
    }

    #[test]
    fn nothing_is_sent_past_the_horizon_not_even_after_a_pause() {
        let hour = Duration::from_secs(3600);
        let policy = RetryPolicy::until(Horizon::within(hour, DAY).unwrap());
        let of = |age, wait| {
            let no_sooner = Some(Duration::from_secs(wait));
            let progress = Progress {
                age,
                ..after(1, Duration::ZERO, 0.0)
            };
            policy.next(&Verdict::Again { no_sooner }, progress)
        };
        let past = Next::Park(Parked::PastHorizon);
        assert_eq!(of(hour, 0), past);
        assert_eq!(of(hour - Duration::from_secs(10), 10), past);
        assert_eq!(
            of(hour - Duration::from_secs(10), 9),
            Next::SendAfter(Duration::from_secs(9))
        );
        assert_eq!(policy.resume(hour), past);
        assert_eq!(
            policy.resume(hour - Duration::from_nanos(1)),
            Next::SendAfter(Duration::ZERO)
        );
        assert!(Horizon::within(2 * DAY, DAY).is_err());
    }

    #[test]
    fn what_is_past_the_horizon_is_parked_even_when_the_run_is_over() {
        let policy = policy().attempts(1);
        let progress = Progress {
            age: DAY,
            ..after(1, Duration::ZERO, 0.0)
        };
        assert_eq!(
            policy.next(&AGAIN, progress),
            Next::Park(Parked::PastHorizon)
        );
    }

    #[test]
    fn what_has_no_key_is_not_sent_again_however_much_is_left() {
        let progress = after(1, Duration::ZERO, 0.0);
        assert_eq!(policy().next(&Verdict::Once, progress), Next::GiveUp);
    }

    #[test]
    fn what_is_final_is_over_however_much_is_left() {
        let policy = policy();
        let progress = after(1, Duration::ZERO, 0.0);
        assert_eq!(policy.next(&Verdict::Final, progress), Next::Finish);
        let parked = Verdict::Park(Parked::OutcomeUnknown);
        assert_eq!(
            policy.next(&parked, progress),
            Next::Park(Parked::OutcomeUnknown)
        );
    }

    #[test]
    fn a_policy_that_would_hammer_is_none() {
        let policy = policy();
        assert!(
            policy
                .pauses(Duration::ZERO, Duration::from_secs(1))
                .is_err()
        );
        assert!(
            policy
                .pauses(Duration::from_secs(2), Duration::from_secs(1))
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_attempt_begins_after_the_deadline_or_before_the_server_allows(
            attempts in 0_u32..,
            elapsed in 0_u64..600_000,
            wait in proptest::option::of(0_u64..),
            random in 0.0_f64..1.0,
        ) {
            let policy = policy();
            let elapsed = Duration::from_millis(elapsed);
            let no_sooner = wait.map(Duration::from_secs);
            match policy.next(&Verdict::Again { no_sooner }, after(attempts, elapsed, random)) {
                Next::SendAfter(pause) => {
                    let deadline = Duration::from_secs(300);
                    prop_assert!(elapsed + pause <= deadline);
                    let earliest = no_sooner.unwrap_or_default().min(deadline - elapsed);
                    prop_assert!(pause >= earliest);
                    prop_assert!(attempts < 10);
                }
                next => {
                    prop_assert_eq!(next, Next::GiveUp);
                    prop_assert!(attempts >= 10 || elapsed >= Duration::from_secs(300));
                }
            }
        }
    }
}
