use std::time::Duration;

/// Whether Redis is asked at all. A pure machine: it is told what happened and what time it is.
///
/// Time is that since some moment of the caller's, and does not go back.
///
/// ```text
///            too many timeouts, or one thing that is certain
///   Closed ───────────────────────────────────────────────────> Open
///      ▲                                                        │  ▲
///      │ the probe came through          the pause is over, and │  │ the probe failed
///      └──────────────────────────── HalfOpen <────somebody asks┘──┘
/// ```
///
/// - **One probe.** While it is open nobody's request goes to Redis, and when the pause is over one probe does. A probe
///   that is never heard of again is given up after a while, and another one may start.
/// - **No reports from the past.** Every opening begins an epoch. What was sent in an earlier one says nothing any more,
///   neither good nor bad.
/// - **It learns slowly that all is well.** Pauses grow with every opening, and begin anew only after some commands in
///   a row: a server that answers probes and fails at work is left alone for longer and longer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Breaker {
    state: State,
    epoch: Epoch,
    /// How often it was opened since it was last certain that all is well.
    openings: u32,
}

/// What a permit was given in. Commands are reported under the one that they were sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

/// Where a [`NegativeCache`](crate::NegativeCache) stands with its Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Redis is asked.
    Closed,
    /// Redis is not asked, until a pause is over. So it is at first, before there is a connection.
    Open,
    /// Redis is not asked, except by one probe that is under way in the background.
    HalfOpen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Closed {
        /// Each timeout adds [`COST`], each answer takes one away.
        suspicion: u32,
        /// How many answers there were since it was closed.
        answers: u32,
    },
    Open {
        until: Duration,
    },
    HalfOpen {
        give_up: Duration,
    },
}

/// A server that fails every third time is suspected in the end.
const COST: u32 = 3;

/// Three timeouts with no answer between them.
const TOLERANCE: u32 = 3 * COST;

/// How many answers show that all is well.
const PROOF: u32 = 32;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Breaker {
    /// Open, with its pause over: the first who asks starts a probe.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Open {
                until: Duration::ZERO,
            },
            epoch: Epoch(0),
            openings: 0,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether a command may be sent, and under what it is to be reported.
    pub(crate) fn admit(&self) -> Option<Epoch> {
        matches!(self.state, State::Closed { .. }).then_some(self.epoch)
    }

    /// Whether a probe is due. If so it is this caller's to make, and nobody else's until `patience` is over.
    pub(crate) fn probe(&mut self, now: Duration, patience: Duration) -> Option<Epoch> {
        let due = match self.state {
            State::Closed { .. } => false,
            State::Open { until } => until <= now,
            State::HalfOpen { give_up } => give_up <= now,
        };
        due.then(|| {
            self.epoch.0 += 1;
            self.state = State::HalfOpen {
                give_up: now.saturating_add(patience),
            };
            self.epoch
        })
    }

    /// A command was answered, or the probe came through. Says whether that counts: then what the probe found is to be
    /// used.
    pub(crate) fn answered(&mut self, epoch: Epoch) -> bool {
        if epoch != self.epoch {
            return false;
        }
        match &mut self.state {
            State::Open { .. } => return false,
            State::HalfOpen { .. } => {
                self.state = State::Closed {
                    suspicion: 0,
                    answers: 0,
                }
            }
            State::Closed { suspicion, answers } => {
                *suspicion = suspicion.saturating_sub(1);
                *answers = answers.saturating_add(1);
                if *answers >= PROOF {
                    self.openings = 0;
                }
            }
        }
        true
    }

    /// A command was not answered in time. Says whether it is open now because of that.
    pub(crate) fn timed_out(&mut self, epoch: Epoch, now: Duration, spread: u8) -> bool {
        if let State::Closed { suspicion, .. } = &mut self.state
            && epoch == self.epoch
            && *suspicion + COST < TOLERANCE
        {
            *suspicion += COST;
            return false;
        }
        self.broke(epoch, now, spread)
    }

    /// The connection is lost, the server refuses to work, or the probe failed. Says whether it is open now because of
    /// that.
    ///
    /// `spread` is a random number, so that the processes of a service do not come back in step.
    pub(crate) fn broke(&mut self, epoch: Epoch, now: Duration, spread: u8) -> bool {
        if epoch != self.epoch || matches!(self.state, State::Open { .. }) {
            return false;
        }
        let doublings = self.openings.min(16);
        let longest = FIRST_PAUSE
            .saturating_mul(1 << doublings)
            .min(LONGEST_PAUSE);
        let pause = longest / 2 + longest / 2 * u32::from(spread) / u32::from(u8::MAX);
        self.openings = self.openings.saturating_add(1);
        self.state = State::Open {
            until: now.saturating_add(pause),
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(400);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn closed() -> (Breaker, Epoch) {
        let mut breaker = Breaker::new();
        let epoch = breaker.probe(at(0), PATIENCE).unwrap();
        assert!(breaker.answered(epoch));
        (breaker, epoch)
    }

    #[test]
    fn it_begins_open_and_the_first_who_asks_probes() {
        let mut breaker = Breaker::new();
        assert_eq!(breaker.state(), BreakerState::Open);
        assert_eq!(breaker.admit(), None);
        let epoch = breaker.probe(at(0), PATIENCE).unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.admit(), None);
        assert_eq!(breaker.probe(at(1), PATIENCE), None, "one probe");
        assert!(breaker.answered(epoch));
        assert_eq!(breaker.admit(), Some(epoch));
    }

    #[test]
    fn three_timeouts_in_a_row_open_it() {
        let (mut breaker, epoch) = closed();
        assert!(!breaker.timed_out(epoch, at(1), 0));
        assert!(!breaker.timed_out(epoch, at(2), 0));
        assert!(breaker.timed_out(epoch, at(3), 0));
        assert_eq!(breaker.state(), BreakerState::Open);
        // Those that were under way at the same time say nothing new.
        assert!(!breaker.timed_out(epoch, at(4), 0));
        assert!(!breaker.answered(epoch));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn one_lost_connection_opens_it() {
        let (mut breaker, epoch) = closed();
        assert!(breaker.broke(epoch, at(1), 0));
        assert_eq!(breaker.admit(), None);
        assert_eq!(breaker.probe(at(50), PATIENCE), None, "the pause");
        assert!(breaker.probe(at(51), PATIENCE).is_some());
    }

    #[test]
    fn now_and_then_a_timeout_is_no_reason_and_every_other_time_is_one() {
        let (mut breaker, epoch) = closed();
        for round in 0..1000 {
            assert!(!breaker.timed_out(epoch, at(round), 0));
            for _ in 0..5 {
                breaker.answered(epoch);
            }
        }
        let (mut breaker, epoch) = closed();
        let opened = (0..20).any(|round| {
            breaker.answered(epoch);
            breaker.timed_out(epoch, at(round), 0)
        });
        assert!(opened);
    }

    #[test]
    fn pauses_grow_up_to_a_limit_and_are_spread() {
        let pause = |openings: u32, spread: u8| {
            let (mut breaker, epoch) = closed();
            breaker.openings = openings;
            breaker.broke(epoch, at(0), spread);
            match breaker.state {
                State::Open { until } => until,
                _ => panic!("it is not open"),
            }
        };
        assert_eq!(pause(0, 0), at(50));
        assert_eq!(pause(0, 255), at(100));
        assert_eq!(pause(1, 255), at(200));
        assert_eq!(pause(5, 255), at(3200));
        assert_eq!(pause(6, 255), at(5000));
        assert_eq!(pause(u32::MAX, 255), at(5000));
        assert_eq!(pause(u32::MAX, 0), at(2500));
    }

    #[test]
    fn only_work_that_goes_well_makes_pauses_short_again() {
        let (mut breaker, epoch) = closed();
        breaker.openings = 4;
        for _ in 0..PROOF - 1 {
            breaker.answered(epoch);
        }
        assert_eq!(breaker.openings, 4);
        breaker.answered(epoch);
        assert_eq!(breaker.openings, 0);
    }

    /// What can happen to a breaker.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Probe,
        Answered(usize),
        TimedOut(usize),
        Broke(usize),
        Tick,
    }

    /// A breaker, the time, and every epoch that anybody was given and has not reported yet.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        breaker: Breaker,
        now: Duration,
        given: Vec<(Epoch, bool)>,
        probes: Vec<(Epoch, Duration)>,
    }

    /// Every sequence of events up to a depth, and what must hold after each.
    #[test]
    fn whatever_happens_in_whatever_order() {
        let mut seen = HashSet::new();
        let start = World {
            breaker: Breaker::new(),
            now: at(0),
            given: Vec::new(),
            probes: Vec::new(),
        };
        let mut frontier = vec![start];
        for _ in 0..14 {
            let mut next = Vec::new();
            for world in frontier {
                let reports = 0..world.given.len();
                let events = [Event::Probe, Event::Tick]
                    .into_iter()
                    .chain(reports.clone().map(Event::Answered))
                    .chain(reports.clone().map(Event::TimedOut))
                    .chain(reports.map(Event::Broke));
                for event in events {
                    let after = step(world.clone(), event);
                    if seen.insert(after.clone()) {
                        next.push(after);
                    }
                }
            }
            frontier = next;
        }
        assert!(seen.len() > 10_000, "only {} worlds", seen.len());
    }

    fn step(mut world: World, event: Event) -> World {
        let before = world.breaker.clone();
        match event {
            Event::Tick => world.now += at(60),
            Event::Probe => {
                if let Some(epoch) = world.breaker.probe(world.now, PATIENCE) {
                    assert_ne!(before.state(), BreakerState::Closed);
                    assert!(epoch > before.epoch, "an epoch was given twice");
                    if let State::Open { until } = before.state {
                        assert!(until <= world.now, "a probe within the pause");
                    }
                    // Another probe only when the one before was given up.
                    let last = world.probes.last();
                    assert!(
                        before.state() == BreakerState::Open
                            || last.is_none_or(|(_, since)| *since + PATIENCE <= world.now),
                        "two probes at once"
                    );
                    world.probes.push((epoch, world.now));
                    world.given.push((epoch, true));
                }
            }
            Event::Answered(which) => {
                let (epoch, probe) = world.given.remove(which);
                let counts = world.breaker.answered(epoch);
                assert_eq!(
                    counts,
                    epoch == before.epoch && before.state() != BreakerState::Open
                );
                if before.state() != BreakerState::Closed && counts {
                    assert!(probe, "something else than a probe closed it");
                }
                if !counts {
                    assert_eq!(world.breaker, before, "a report from the past counted");
                }
            }
            Event::TimedOut(which) | Event::Broke(which) => {
                let (epoch, _) = world.given.remove(which);
                let opened = match event {
                    Event::Broke(_) => world.breaker.broke(epoch, world.now, 128),
                    _ => world.breaker.timed_out(epoch, world.now, 128),
                };
                if epoch != before.epoch || before.state() == BreakerState::Open {
                    assert_eq!(world.breaker, before, "a report from the past counted");
                } else if matches!(event, Event::Broke(_))
                    || before.state() == BreakerState::HalfOpen
                {
                    assert!(opened);
                }
                if let State::Open { until } = world.breaker.state
                    && opened
                {
                    assert!(until > world.now, "an opening without a pause");
                    assert!(until <= world.now + LONGEST_PAUSE);
                }
            }
        }
        // One command is under way at any time, besides the reports that are still to come.
        if let Some(epoch) = world.breaker.admit()
            && world.given.len() < 3
        {
            world.given.push((epoch, false));
        }
        assert_eq!(
            world.breaker.admit().is_some(),
            world.breaker.state() == BreakerState::Closed
        );
        // Whatever happened, it can always come back: the pause ends, and a probe is let through.
        let mut later = world.breaker.clone();
        if later.state() != BreakerState::Closed {
            let epoch = later
                .probe(world.now + LONGEST_PAUSE + PATIENCE, PATIENCE)
                .unwrap();
            assert!(later.answered(epoch));
            assert_eq!(later.state(), BreakerState::Closed);
        }
        world
    }
}
