//! Reading a request's body before anything is claimed.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use tokio::time::timeout;

use super::frame::next_frame;
use super::{Problem, ProblemKind};

/// A body that is here.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Reads a body of at most so many bytes within so much time.
///
/// # Errors
///
/// The problem to answer with.
pub(crate) async fn read<B>(body: B, limit: usize, time: Duration) -> Result<Received, Problem>
where
    B: Body<Data = Bytes>,
{
    // A body that says that it is too large is not waited for.
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::body_too_large(limit));
    }
    match timeout(time, read_whole(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(ProblemKind::BodyTooSlow)),
    }
}

async fn read_whole<B>(body: B, limit: usize) -> Result<Received, Problem>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let mut data = Gathered::default();
    let mut trailers: Option<HeaderMap> = None;
    while let Some(frame) = next_frame(body.as_mut()).await {
        let Ok(frame) = frame else {
            return Err(Problem::new(ProblemKind::BodyUnreadable));
        };
        match frame.into_data() {
            Ok(piece) if data.len().saturating_add(piece.len()) > limit => {
                return Err(Problem::body_too_large(limit));
            }
            Ok(piece) => data.push(piece),
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    let data = data.into_bytes();
    Ok(Received { data, trailers })
}

/// Pieces that become one. A single one is not copied.
#[derive(Debug, Default)]
struct Gathered {
    first: Bytes,
    all: BytesMut,
}

impl Gathered {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.reserve(self.first.len() + piece.len());
            self.all.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.all.extend_from_slice(&piece);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        }
    }
}
