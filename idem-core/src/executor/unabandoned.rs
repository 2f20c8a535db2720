use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future that is polled where it stands, and goes on in the background when it is dropped half-way.
///
/// A write that was sent cannot be called back. When its caller goes, somebody still has to take the answer
/// and do what follows from it: release the key that was just won, or store the outcome of work that was done.
pub(super) struct Unabandoned<T: Send + 'static> {
    future: Option<Boxed<T>>,
    /// What becomes of an output that nobody waits for any more.
    leftover: Option<Box<dyn FnOnce(T) -> Boxed<()> + Send>>,
    caller: Caller,
    /// Where to go on. Known from the first time that there is something to wait for.
    runtime: Option<Handle>,
}

/// Whether the caller still waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    gone: Arc<AtomicBool>,
}

impl Caller {
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl<T: Send + 'static> Unabandoned<T> {
    pub(super) fn new<F, G>(
        future: impl FnOnce(Caller) -> F,
        leftover: impl FnOnce(T) -> G + Send + 'static,
    ) -> Self
    where
        F: Future<Output = T> + Send + 'static,
        G: Future<Output = ()> + Send + 'static,
    {
        let caller = Caller::default();
        Self {
            future: Some(Box::pin(future(caller.clone()))),
            leftover: Some(Box::new(|output| Box::pin(leftover(output)))),
            caller,
            runtime: None,
        }
    }
}

impl<T: Send + 'static> Future for Unabandoned<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else {
            // Polled again after its end, which no caller may do; it stays pending as a fused future does.
            return Poll::Pending;
        };
        let poll = future.as_mut().poll(context);
        if poll.is_ready() {
            self.future = None;
        } else if self.runtime.is_none() {
            self.runtime = Some(Handle::current());
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Unabandoned<T> {
    fn drop(&mut self) {
        let parts = (
            self.future.take(),
            self.leftover.take(),
            self.runtime.take(),
        );
        // Without a runtime it was never polled, so nothing was sent.
        if let (Some(future), Some(leftover), Some(runtime)) = parts {
            self.caller.gone.store(true, Ordering::Relaxed);
            runtime.spawn(async move { leftover(future.await).await });
        }
    }
}
