use std::time::{Duration, Instant};

/// How long to sleep between two looks at a lock: a twentieth of a millisecond at first, two at most.
///
/// The lock is free for an instant between two commits of a busy process, and whoever looks seldom misses it
/// every time. Two milliseconds are about a commit, and cost nothing.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    started: Instant,
}

const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

impl Backoff {
    pub(crate) fn sleep(&mut self) {
        // Processes that were refused at the same moment come back at different ones. The clock's last digits
        // are as good as dice for that.
        std::thread::sleep(self.turn(self.started.elapsed().subsec_nanos()));
    }

    /// How long it is this time: between half of what it may be and nearly all of it.
    fn turn(&mut self, dice: u32) -> Duration {
        let most = self.next;
        self.next = (most * 2).min(LONGEST);
        most / 2 + most * (dice % 64) / 128
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: FIRST,
            started: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_between_half_and_the_whole_of_one_that_doubles_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let turns: Vec<_> = [0, 63, 64, 127, 0, 63, 0, 63 + (1 << 20)]
            .map(|dice| backoff.turn(dice).as_nanos())
            .into();
        let most = [50, 100, 200, 400, 800, 1600, 2000, 2000].map(|micros| micros * 1000);
        let least = |at: usize| most[at] / 2;
        let nearly = |at: usize| most[at] / 2 + most[at] * 63 / 128;
        let expected = [
            least(0),
            nearly(1),
            least(2),
            nearly(3),
            least(4),
            nearly(5),
            least(6),
            nearly(7),
        ];
        assert_eq!(turns, expected);
    }

    #[test]
    fn it_sleeps_for_a_turn() {
        let mut backoff = Backoff::default();
        let started = Instant::now();
        for _ in 0..8 {
            backoff.sleep();
        }
        assert!(started.elapsed() >= Duration::from_micros(3500));
    }
}
