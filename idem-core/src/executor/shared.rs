use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::store::KeyStore;

use super::waiters::Waiters;

/// What all clones of one [`Idempotency`](super::Idempotency) share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn KeyStore>,
    pub(super) waiters: Arc<Waiters>,
    in_flight: AtomicUsize,
    idle: Notify,
}

impl Shared {
    pub(super) fn new(store: Arc<dyn KeyStore>, waiters: Arc<Waiters>) -> Self {
        Self {
            store,
            waiters,
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
        }
    }

    /// Enters a piece of work.
    pub(super) fn enter(self: &Arc<Self>) -> Underway {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Underway(Arc::clone(self))
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(super) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the count is read, so that the last one to leave is not missed.
            idle.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// A piece of work that is under way for as long as this value lives: a claim, an attempt, an outcome that is
/// being stored, here or in the background. It is handed from one to the next, so there is no moment between
/// them in which nothing seems to be under way.
#[derive(Debug)]
pub(super) struct Underway(Arc<Shared>);

impl Underway {
    /// Another piece of work beside this one.
    pub(super) fn beside(&self) -> Self {
        self.0.enter()
    }
}

impl Deref for Underway {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
