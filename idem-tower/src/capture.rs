//! Reading a response's body, as far as it is to be kept.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body::Body;
use tokio::time::timeout;

use super::frame::next_frame;
use super::response_body::Begun;

/// The body of a response that is kept, or that could not be.
pub(crate) enum Captured<B: Body> {
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// It is too large, or a stream, or it broke off: it goes to the client as it comes, and is not kept.
    Begun(Begun<B>),
}

/// Reads a body until it ends, is over the limit, or has taken too long.
pub(crate) async fn capture<B>(
    body: B,
    is_stream: bool,
    limit: usize,
    time: Duration,
) -> Captured<B>
where
    B: Body<Data = Bytes>,
{
    let is_too_large = body.size_hint().lower() > limit as u64;
    let mut begun = Begun {
        read: VecDeque::new(),
        error: None,
        rest: Some(Box::pin(body)),
    };
    if is_stream || is_too_large {
        return Captured::Begun(begun);
    }
    // One limit around all of it, and not one for each frame: that would never be looked at for a body which is always ready.
    match timeout(time.min(LONGEST), read_whole(&mut begun, limit)).await {
        Ok(Some((length, trailers))) => Captured::Whole {
            data: joined(begun.read, length),
            trailers,
        },
        Ok(None) | Err(_) => Captured::Begun(begun),
    }
}

/// Reads on to the end, and says how long it is and what its trailers are. `None` if it is over the limit or breaks off.
///
/// # Cancellation
///
/// What was read by then is there.
async fn read_whole<B>(begun: &mut Begun<B>, limit: usize) -> Option<(usize, Option<HeaderMap>)>
where
    B: Body<Data = Bytes>,
{
    let rest = begun.rest.as_mut()?;
    let mut length = 0;
    let mut trailers: Option<HeaderMap> = None;
    while !rest.is_end_stream() {
        let frame = match next_frame(rest.as_mut()).await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                begun.error = Some(error);
                return None;
            }
            None => break,
        };
        match frame.into_data() {
            Ok(piece) if piece.is_empty() => {}
            Ok(piece) => {
                length += piece.len();
                begun.read.push_back(piece);
                if length > limit {
                    return None;
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    Some((length, trailers))
}

/// More than this is for ever, and would not fit the clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether a response says by its type that it goes on.
pub(crate) fn is_event_stream<B>(response: &Response<B>) -> bool {
    let Some(content_type) = response.headers().get(CONTENT_TYPE) else {
        return false;
    };
    let media_type = content_type.as_bytes().split(|byte| *byte == b';').next();
    media_type.is_some_and(|media_type| {
        media_type
            .trim_ascii()
            .eq_ignore_ascii_case(b"text/event-stream")
    })
}

fn joined(mut pieces: VecDeque<Bytes>, length: usize) -> Bytes {
    if pieces.len() <= 1 {
        return pieces.pop_front().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(length);
    for piece in pieces {
        all.extend_from_slice(&piece);
    }
    all.freeze()
}
