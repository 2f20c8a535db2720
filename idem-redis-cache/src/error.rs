use std::time::Duration;

use redis::RedisError;
use thiserror::Error;

/// A cache cannot be set up as it was asked to. Nothing of Redis itself: a server that is away is no error, it costs
/// speed only.
///
/// It holds no URL, since there may be a password in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address is none that the `redis` crate takes, or needs a feature of it that is not enabled.
    #[error(
        "the address of the Redis server cannot be used; for `rediss://` enable a `tls-…` feature"
    )]
    Address(#[source] RedisError),
    /// The key prefix is too long, or holds something that it must not.
    #[error("a key prefix is at most {max} printable ASCII characters, without spaces and braces")]
    Prefix {
        /// The longest prefix.
        max: usize,
    },
    /// The cap is shorter than a millisecond or longer than a minute.
    #[error(
        "entries may live for at most {given:?}, which is not between a millisecond and a minute"
    )]
    Cap {
        /// The cap that was asked for.
        given: Duration,
    },
    /// A timeout is zero or longer than ten seconds.
    #[error("a timeout of {given:?} is not between a millisecond and ten seconds")]
    Timeout {
        /// The timeout that was asked for.
        given: Duration,
    },
}
