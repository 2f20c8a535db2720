use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::time::Span;

/// What an owner knows about its own lease without asking anybody.
///
/// The timer starts before a claim or a renewal is *sent*, so it is over no later than the lease in the store,
/// whatever the clocks show and however long the answer took. An owner that is cut off from its store, but not
/// from its provider, learns from it when to stop.
#[derive(Debug)]
pub(super) struct Lease {
    length: Span,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    ends: Instant,
    taken: bool,
}

impl Lease {
    /// A lease that is over at `ends`, and is so long whenever it is renewed.
    pub(super) fn new(length: Span, ends: Instant) -> Self {
        let state = State { ends, taken: false };
        Self {
            length,
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(super) fn length(&self) -> Span {
        self.length
    }

    /// A renewal that was sent then has been applied.
    pub(super) fn renewed(&self, sent: Instant) {
        let mut state = self.lock();
        state.ends = state.ends.max(sent + self.length.as_duration());
        drop(state);
        self.changed.notify_waiters();
    }

    /// A write was refused: the record is somebody else's, for good.
    pub(super) fn taken(&self) {
        self.lock().taken = true;
        self.changed.notify_waiters();
    }

    pub(super) fn is_lost(&self) -> bool {
        let state = self.lock();
        state.taken || state.ends <= Instant::now()
    }

    /// Resolves when the lease is lost, by either way.
    pub(super) async fn lost(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read, so that no change falls between the two.
            changed.as_mut().enable();
            let ends = {
                let state = self.lock();
                if state.taken || state.ends <= Instant::now() {
                    return;
                }
                state.ends
            };
            tokio::select! {
                () = sleep_until(ends) => {}
                () = changed => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
