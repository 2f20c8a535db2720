use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls a future once, and says how that went.
///
/// Much of what has to be there while something is waited for (a heartbeat, a time limit) costs more than a
/// future that is ready at once.
pub(super) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}
