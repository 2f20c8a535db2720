//! What the layer answers over real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod bodies;
mod common;
mod dispositions;
mod extractor;
mod hang_up;
mod nesting;
mod options;
mod plain;
mod protocols;
mod requests;
mod responses;
mod shutdown;
mod wild;
