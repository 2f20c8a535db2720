use std::future::poll_fn;
use std::pin::Pin;

use http_body::{Body, Frame};
use tokio::task::coop::consume_budget;

/// The next frame of a body.
///
/// A body whose frames are always ready yields to others now and then, and so to whatever limits its time.
pub(crate) async fn next_frame<B: Body>(
    mut body: Pin<&mut B>,
) -> Option<Result<Frame<B::Data>, B::Error>> {
    consume_budget().await;
    poll_fn(|context| body.as_mut().poll_frame(context)).await
}
