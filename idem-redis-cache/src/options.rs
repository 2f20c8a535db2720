use std::num::NonZeroUsize;
use std::time::Duration;

use idem_core::KeyStore;
use redis::Client;
use redis::aio::ConnectionLike;

use crate::connection::Source;
use crate::entry::Lifetime;
use crate::{Namespace, NegativeCache, SetupError};

/// How a [`NegativeCache`] remembers, and how long it waits for Redis.
///
/// ```
/// use std::time::Duration;
/// use idem_core::{MemoryKeyStore, SystemClock};
/// use idem_redis_cache::{CacheOptions, Namespace};
///
/// let store = MemoryKeyStore::new(SystemClock);
/// let cache = CacheOptions::new(Namespace::new("charges")?)
///     .cap(Duration::from_millis(500))
///     .prefix("shop:idem:")
///     .open(store, "redis://127.0.0.1/")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct CacheOptions {
    pub(crate) namespace: Namespace,
    pub(crate) prefix: String,
    pub(crate) cap: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) in_flight: NonZeroUsize,
    pub(crate) local_tier: Option<NonZeroUsize>,
}

/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 64;

impl CacheOptions {
    /// The options that [`NegativeCache::open`] uses.
    pub fn new(namespace: Namespace) -> Self {
        Self {
            namespace,
            prefix: "idem:".to_owned(),
            cap: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(250),
            command_timeout: Duration::from_millis(50),
            in_flight: NonZeroUsize::MIN.saturating_add(1023),
            local_tier: None,
        }
    }

    /// How long an entry lives at most, and so how long a refusal can be out of date: between a millisecond and a
    /// minute, whole milliseconds, one second by default.
    ///
    /// While a key is in progress the store is asked about it once in so long, by each process, whether Redis is there or
    /// not.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// What all keys in Redis begin with: `idem:` by default. At most 64 printable ASCII characters, without spaces and
    /// braces. It may be empty.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long connecting may take: up to ten seconds, 250 milliseconds by default. No caller ever waits for it.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a claim waits for Redis before it goes to the store: up to ten seconds, 50 milliseconds by default. Three
    /// claims that waited in vain are enough for Redis not to be asked for a while.
    ///
    /// Time in which this process was held up is not counted: a wait has five parts, and one that the runtime slept
    /// through, because a task blocked its thread or thousands of others came first, counts as one. So a process that is
    /// overrun does not take its own slowness for Redis's.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// How many commands may be under way at once: 1024 by default, and as many in the background. Claims beyond that go
    /// to the store, and entries beyond that are not written. Nothing waits in line.
    pub fn in_flight(mut self, commands: NonZeroUsize) -> Self {
        self.in_flight = commands;
        self
    }

    /// Switches on a tier in this process, in front of Redis, that remembers up to so many keys. It is off by default.
    ///
    /// Without it a process says by itself what it knows only when Redis cannot be asked. It saves the round trip to Redis
    /// where one process gets many duplicates. A refusal from it is no more out of date
    /// than one from Redis, but it is so for longer: what another process finished is noticed only when the entry ends.
    pub fn local_tier(mut self, keys: NonZeroUsize) -> Self {
        self.local_tier = Some(keys);
        self
    }

    /// A cache in front of `store`, at this address: `redis://[user][:password@]host[:port][/database]`, `rediss://` for
    /// TLS, `unix://path`, as the `redis` crate takes it.
    ///
    /// It connects when it is used first, in the background; it does no I/O here, and a server that is away is no error.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when the address or an option is none that can be used.
    pub fn open<S: KeyStore>(self, store: S, url: &str) -> Result<NegativeCache<S>, SetupError> {
        let client = Client::open(url).map_err(SetupError::Address)?;
        self.open_client(store, client)
    }

    /// A cache in front of `store` that connects through this client, as [`open`](Self::open) does: for settings that an
    /// address does not have, such as certificates.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when an option is none that can be used.
    pub fn open_client<S: KeyStore>(
        self,
        store: S,
        client: Client,
    ) -> Result<NegativeCache<S>, SetupError> {
        let cap = self.checked()?;
        let source = Source::ours(client, &self);
        Ok(NegativeCache::new(store, source, self, cap))
    }

    /// A cache in front of `store` that uses the program's own connection: a multiplexed one, a connection manager, a
    /// cluster's. Whoever made it sees to it that it comes back when it was lost.
    ///
    /// In a cluster each key has a slot of its own. Reads must go to primaries: one from a replica that lags behind costs
    /// freshness that nobody declared.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when an option is none that can be used.
    pub fn over<S, C>(self, store: S, connection: C) -> Result<NegativeCache<S>, SetupError>
    where
        S: KeyStore,
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let cap = self.checked()?;
        Ok(NegativeCache::new(
            store,
            Source::theirs(connection),
            self,
            cap,
        ))
    }

    fn checked(&self) -> Result<Lifetime, SetupError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if self.prefix.len() > MAX_PREFIX || !self.prefix.bytes().all(plain) {
            return Err(SetupError::Prefix { max: MAX_PREFIX });
        }
        for timeout in [self.connect_timeout, self.command_timeout] {
            if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(10) {
                return Err(SetupError::Timeout { given: timeout });
            }
        }
        Lifetime::new(self.cap)
            .filter(|cap| cap.as_duration() <= Duration::from_secs(60))
            .ok_or(SetupError::Cap { given: self.cap })
    }
}

#[cfg(test)]
mod tests {
    use idem_core::{MemoryKeyStore, SystemClock};

    use super::*;

    fn open(options: CacheOptions, url: &str) -> Result<(), SetupError> {
        options
            .open(MemoryKeyStore::new(SystemClock), url)
            .map(drop)
    }

    fn options() -> CacheOptions {
        CacheOptions::new(Namespace::new("tests").unwrap())
    }

    const URL: &str = "redis://127.0.0.1/";

    #[test]
    fn options_are_checked_when_a_cache_is_made() {
        assert!(open(options(), URL).is_ok());
        for prefix in ["a b", "{a}", "a\n", "ä", &"a".repeat(65)] {
            let error = open(options().prefix(prefix), URL).unwrap_err();
            assert!(matches!(error, SetupError::Prefix { .. }), "{prefix:?}");
        }
        assert!(open(options().prefix(""), URL).is_ok());
        for cap in [
            Duration::ZERO,
            Duration::from_micros(900),
            Duration::from_secs(61),
        ] {
            let error = open(options().cap(cap), URL).unwrap_err();
            assert!(matches!(error, SetupError::Cap { .. }), "{cap:?}");
        }
        for timeout in [Duration::ZERO, Duration::from_secs(11)] {
            let error = open(options().command_timeout(timeout), URL).unwrap_err();
            assert!(matches!(error, SetupError::Timeout { .. }));
            let error = open(options().connect_timeout(timeout), URL).unwrap_err();
            assert!(matches!(error, SetupError::Timeout { .. }));
        }
    }

    #[test]
    fn a_bad_address_is_refused_without_its_password() {
        for url in [
            "",
            "http://x",
            "redis://user:hunter2@",
            "redis://:hunter2@h:99999/",
        ] {
            let error = open(options(), url).unwrap_err();
            assert!(matches!(error, SetupError::Address(_)), "{url:?}");
            let mut text = format!("{error} {error:?}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text.push_str(&format!(" {cause} {cause:?}"));
                source = cause.source();
            }
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
