use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::machine::{Policy, Transition};

use super::backoff::Backoff;
use super::ownership::{Ownership, Sent, Written};
use super::poll_once::poll_once;

/// The heartbeat of one attempt: a task that renews its lease for as long as this value lives.
///
/// The task is started when there is something to wait for. Most of what a fast handler costs would otherwise
/// be a task that never does anything.
#[derive(Debug)]
pub(super) struct Keeper {
    ownership: Arc<Ownership>,
    heartbeat: Duration,
    /// When the last beat may be.
    ceiling: Instant,
    task: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn new(ownership: &Arc<Ownership>, policy: &Policy) -> Self {
        Self {
            ownership: Arc::clone(ownership),
            heartbeat: policy.heartbeat().as_duration(),
            ceiling: Instant::now() + policy.heartbeat_ceiling().as_duration(),
            task: None,
        }
    }

    /// Begins to renew, if that has not begun and is wanted.
    pub(super) fn start(&mut self) {
        if self.task.is_none() && !self.heartbeat.is_zero() {
            let ownership = Arc::clone(&self.ownership);
            self.task = Some(tokio::spawn(keep(ownership, self.heartbeat, self.ceiling)));
        }
    }

    /// Waits for `work`, and renews from the moment that it is not ready at once.
    pub(super) async fn during<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        match poll_once(work.as_mut()).await {
            Poll::Ready(output) => output,
            Poll::Pending => {
                self.start();
                work.await
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Renews until the lease is somebody else's or the ceiling is reached. A store that fails is asked again
/// sooner than the next beat, and for as long as it takes: as long as nobody took over, a renewal that comes
/// late still saves the work.
async fn keep(ownership: Arc<Ownership>, heartbeat: Duration, ceiling: Instant) {
    let renew = Transition::Renew {
        lease: ownership.lease.length(),
    };
    loop {
        sleep(heartbeat).await;
        let mut backoff = Backoff::new(heartbeat / 16, heartbeat);
        loop {
            // A beat later than the ceiling would let a hung handler keep its key for longer than was promised.
            if Instant::now() >= ceiling {
                return;
            }
            match ownership.send(&renew).await {
                Ok(Sent::Answered(Written::Lost(_))) => return,
                Ok(Sent::Answered(_)) => break,
                Ok(Sent::Contended { retry_after }) => sleep(retry_after).await,
                Err(_) => sleep(backoff.next()).await,
            }
        }
    }
}
