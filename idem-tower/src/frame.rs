use std::future::poll_fn;
use std::pin::Pin;

use http_body::{Body, Frame};

/// The next frame of a body.
pub(crate) async fn next_frame<B: Body>(
    mut body: Pin<&mut B>,
) -> Option<Result<Frame<B::Data>, B::Error>> {
    poll_fn(|context| body.as_mut().poll_frame(context)).await
}
