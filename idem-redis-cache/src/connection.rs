use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};

use crate::options::CacheOptions;

/// A connection that many callers use at once.
#[async_trait]
pub(crate) trait Connection: Send + Sync {
    async fn query(&self, command: &Cmd) -> RedisResult<Value>;
}

/// Any multiplexed connection of the `redis` crate's.
struct Shared<C>(C);

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Connection for Shared<C> {
    async fn query(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.0.clone();
        connection
            .req_packed_command(command)
            .await?
            .extract_error()
    }
}

/// Where connections come from.
pub(crate) enum Source {
    /// They are ours: made when one is needed, and thrown away when they fail.
    Ours {
        client: Client,
        config: AsyncConnectionConfig,
    },
    /// It is the caller's, who sees to it that it comes back.
    Theirs(Arc<dyn Connection>),
}

impl Source {
    pub(crate) fn ours(client: Client, options: &CacheOptions) -> Self {
        // Both have timeouts already: ones that cover the caller's own connections as well, and that do not count the
        // time in which this process was held up.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(options.in_flight.get().min(1024));
        Self::Ours { client, config }
    }

    pub(crate) fn theirs<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::Theirs(Arc::new(Shared(connection)))
    }

    pub(crate) async fn connect(&self) -> RedisResult<Arc<dyn Connection>> {
        match self {
            Self::Ours { client, config } => {
                let connection = client
                    .get_multiplexed_async_connection_with_config(config)
                    .await?;
                Ok(Arc::new(Shared(connection)))
            }
            Self::Theirs(connection) => Ok(Arc::clone(connection)),
        }
    }
}

impl fmt::Debug for Source {
    /// Without the address, since there may be a password in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours { .. } => "Ours",
            Self::Theirs(_) => "Theirs",
        })
    }
}
