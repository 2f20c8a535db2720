use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that is polled where it stands, and goes on in a task of its own when it is dropped after its work
/// began.
///
/// A client that hangs up, or a time-out around the layer, drops what it waited for. The work must then go on
/// to its end and its outcome be stored; a request that has not got so far is simply forgotten. Nothing is spawned
/// for the many requests whose client stays.
pub(crate) struct Detached<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: Begun,
    /// Where to go on. Known from the first time that there is something to wait for.
    runtime: Option<Handle>,
}

/// Whether the work has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct Begun(Arc<AtomicBool>);

impl Begun {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Send + 'static> Detached<T> {
    /// A future that tells when its work begins.
    pub(crate) fn new<F>(future: impl FnOnce(Begun) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let begun = Begun::default();
        Self {
            future: Some(Box::pin(future(begun.clone()))),
            begun,
            runtime: None,
        }
    }
}

impl<T: Send + 'static> Future for Detached<T> {
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

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let (Some(future), Some(runtime)) = (self.future.take(), &self.runtime)
            && self.begun.is_set()
        {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}
