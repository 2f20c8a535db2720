use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// It was not done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Late;

/// How many parts a wait has. An answer needs three turns of the runtime to reach its caller: one for the connection to
/// send the question, one for it to read the answer, and one for the caller.
const BEATS: u32 = 5;

/// The finest that a runtime's timer tells apart.
const SHORTEST: Duration = Duration::from_millis(1);

/// Waits for `future`, for `limit` of the time in which this process was able to take notice.
///
/// The wait is made of beats, and one that was slept through counts as one. In a process that has ten thousand tasks to
/// poll, or whose thread was held up by one of them, the clock says nothing about the server: the answer may long have
/// been there. Counting by the clock alone such a process would take its own slowness for the server's, stop asking it,
/// and send the whole crowd to the database.
///
/// An idle process waits for `limit`, and not longer.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, Late> {
    let mut future = pin!(future);
    let beat = (limit / BEATS).max(SHORTEST);
    let mut left = limit;
    loop {
        let next = beat.min(left);
        if let Ok(output) = timeout(next, future.as_mut()).await {
            return Ok(output);
        }
        left -= next;
        if left.is_zero() {
            return Err(Late);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Instant;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn what_never_comes_is_late_after_the_limit() {
        for limit in [LIMIT, Duration::from_millis(1), Duration::from_millis(7)] {
            let started = Instant::now();
            assert_eq!(within(limit, pending::<()>()).await, Err(Late));
            assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
        }
    }

    #[tokio::test]
    async fn what_is_there_is_never_late() {
        assert_eq!(within(Duration::ZERO, ready(7)).await, Ok(7));
        assert_eq!(within(LIMIT, ready(7)).await, Ok(7));
    }

    /// The process is held up for ten times the limit, and the answer takes a few turns of the runtime after that.
    #[tokio::test]
    async fn time_in_which_the_process_was_held_up_does_not_count() {
        let (answer, answered) = oneshot::channel();
        let (heard, ()) = tokio::join!(within(LIMIT, answered), async {
            std::thread::sleep(LIMIT * 10);
            for _ in 0..3 {
                yield_now().await;
            }
            let _ = answer.send(7);
        });
        assert_eq!(heard, Ok(Ok(7)));
    }
}
