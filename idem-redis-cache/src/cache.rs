use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use idem_core::{
    Claim, ClaimOutcome, Counts, Expect, Filter, Inspect, KeyStore, RecordId, Snapshot, StoreError,
    Swept, Transition, TransitionOutcome,
};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::connection::Source;
use crate::entry::{Entry, Lifetime};
use crate::flights::{Flights, Heard, Part, Seat, Verdict};
use crate::link::{Asked, Link};
use crate::local::Local;
use crate::names::{Name, Names};
use crate::rule::{ended, learn, refuse, was_refused};
use crate::sighting::Sighting;
use crate::stats::{Counters, Event};
use crate::{CacheOptions, CacheStats, Namespace, SetupError};

/// A [`KeyStore`] in front of another one, that answers *busy* from Redis and leaves everything else to the store.
///
/// See the [crate's documentation](crate) for the rule, and for what can go wrong with Redis and what comes of it.
///
/// It needs a tokio runtime with its timer and its I/O enabled; outside of one, Redis is not asked. Any number of
/// processes may have one in front of the same store, with the same namespace.
///
/// ```
/// use idem_core::executor::Idempotency;
/// use idem_core::{MemoryKeyStore, SystemClock};
/// use idem_redis_cache::{Namespace, NegativeCache};
///
/// let store = MemoryKeyStore::new(SystemClock); // in a service: a database
/// let cache = NegativeCache::open(store, "redis://127.0.0.1/", Namespace::new("charges")?)?;
/// let idempotency = Idempotency::new(cache);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancellation
///
/// Dropping a call's future is as harmless as it is for the store: what was sent to Redis may happen or not, and an entry
/// that is not written, or not removed, ends by itself.
pub struct NegativeCache<S> {
    store: S,
    names: Names,
    cap: Lifetime,
    link: Arc<Link>,
    flights: Flights,
    local: Local,
    /// Whether the tier in this process is in front of Redis. It is behind it at any rate.
    local_first: bool,
    /// Claims that have waited for others long enough, and ask the store by themselves.
    alone: Semaphore,
    counters: Arc<Counters>,
}

/// How often a claim joins others of its key before it asks the store by itself.
const ROUNDS: u32 = 16;

/// How many claims at once may do so. A key whose attempts end all the time is no reason to send a crowd to the store.
const ALONE: usize = 16;

/// How many keys are remembered here for when Redis cannot be asked.
const RESERVE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

impl<S: KeyStore> NegativeCache<S> {
    /// A cache in front of `store`, with the default [`CacheOptions`]. It connects when it is used first, in the
    /// background; a server that is away is no error.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when the address is none.
    pub fn open(store: S, url: &str, namespace: Namespace) -> Result<Self, SetupError> {
        CacheOptions::new(namespace).open(store, url)
    }
}

impl<S> NegativeCache<S> {
    pub(crate) fn new(store: S, source: Source, options: CacheOptions, cap: Lifetime) -> Self {
        let names = Names::new(&options.prefix, options.namespace.clone());
        let counters = Arc::new(Counters::new(&options.namespace));
        let link = Link::new(source, &options, names.probe(), cap, Arc::clone(&counters));
        Self {
            store,
            names,
            cap,
            link: Arc::new(link),
            flights: Flights::new(),
            local: Local::new(options.local_tier.unwrap_or(RESERVE)),
            local_first: options.local_tier.is_some(),
            alone: Semaphore::new(ALONE),
            counters,
        }
    }

    /// The store behind the cache.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What the cache has done, and where it stands with its Redis.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.counters.read(self.link.breaker())
    }

    /// Waits until Redis can be asked, for at most so long, and says whether it can. Nobody has to: until there is a
    /// connection, claims go to the store.
    ///
    /// # Cancellation
    ///
    /// Dropping it does nothing; the connection is made all the same.
    pub async fn ready(&self, within: Duration) -> bool {
        self.link.ready(within).await
    }

    /// Says it if this process knows it without asking anybody.
    fn known_here(&self, name: &Name, claim: &Claim) -> Option<(Sighting, ClaimOutcome)> {
        let sighting = self.local.find(&name.digest)?;
        let refused = self.say(name, &sighting, claim, Instant::now())?;
        Some((sighting, refused))
    }

    /// What is known says to a claim that was made at `asked`. It may have waited since to hear it, as one may wait for a
    /// store's answer.
    fn say(
        &self,
        name: &Name,
        sighting: &Sighting,
        claim: &Claim,
        asked: Instant,
    ) -> Option<ClaimOutcome> {
        let left = sighting.left(asked);
        let refused = refuse(name, &sighting.entry, left, claim)?;
        self.counters.count(Event::SharedHit);
        Some(refused)
    }

    fn keep_here(&self, name: &Name, sighting: Sighting) {
        self.local.put(name.digest, sighting, Instant::now());
    }
}

impl<S: KeyStore> NegativeCache<S> {
    /// Asks Redis, and if that has nothing to say the store.
    async fn lead(
        &self,
        name: &Name,
        claim: &Claim,
        seat: Seat<'_>,
    ) -> Result<ClaimOutcome, StoreError> {
        let asked = Instant::now();
        let anchor = match self.link.look(name).await {
            Asked::Answered { anchor, found } => {
                if let Some((entry, left)) = found
                    && let Some(refused) = refuse(name, &entry, left, claim)
                {
                    self.counters.count(Event::Hit);
                    let sighting = Sighting::new(entry, asked, left);
                    seat.tell(Verdict::InProgress(sighting), || {
                        self.keep_here(name, sighting);
                    });
                    return Ok(refused);
                }
                self.counters.count(Event::Miss);
                Some(anchor)
            }
            // What was learnt less than the cap ago is as good as it would be in Redis. Without it every claim that does
            // not happen to be under way with another would go to the store.
            in_vain => {
                if let Some((sighting, refused)) = self.known_here(name, claim) {
                    seat.tell(Verdict::InProgress(sighting), || ());
                    return Ok(refused);
                }
                self.counters.count(match in_vain {
                    Asked::Unasked => Event::Bypassed,
                    _ => Event::Unanswered,
                });
                None
            }
        };

        let asked = Instant::now();
        let outcome = self.store.claim(claim).await;
        match &outcome {
            Ok(ClaimOutcome::Contended { retry_after }) => {
                let retry_after = *retry_after;
                seat.tell(Verdict::Contended { retry_after }, || ());
            }
            Err(error) if error.is_retryable() => seat.failed(),
            _ => match self.learn(name, &outcome) {
                None => {
                    seat.tell(Verdict::Other, || ());
                }
                Some((held, entry)) => {
                    let lifetime = entry.lifetime.as_duration();
                    let sighting = Sighting::new(entry, asked, lifetime);
                    seat.tell(Verdict::InProgress(sighting), || {
                        if was_refused(claim, held) {
                            self.keep_here(name, sighting);
                            if let Some(anchor) = anchor {
                                self.link.remember(name, entry, anchor);
                            }
                        }
                    });
                }
            },
        }
        outcome
    }

    /// Asks the store and nobody else.
    async fn ask(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.counters.count(Event::Bypassed);
        self.store.claim(claim).await
    }

    fn learn<'a>(
        &self,
        name: &Name,
        outcome: &'a Result<ClaimOutcome, StoreError>,
    ) -> Option<(&'a Snapshot, Entry)> {
        let (Ok(ClaimOutcome::Held(held)) | Ok(ClaimOutcome::Won(held))) = outcome else {
            return None;
        };
        Some((held, learn(name, held, self.cap)?))
    }
}

#[async_trait]
impl<S: KeyStore> KeyStore for NegativeCache<S> {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        if Handle::try_current().is_err() {
            return self.store.claim(claim).await;
        }
        let name = self.names.of(claim.id());
        if self.local_first
            && let Some((_, refused)) = self.known_here(&name, claim)
        {
            return Ok(refused);
        }
        // Whoever waited for what is void, or heard what was over when it asked, joins again.
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            let heard = match self.flights.join(&name.digest) {
                Part::Lead(seat) => return self.lead(&name, claim, seat).await,
                Part::Follow(follower) => follower.hear().await,
            };
            match heard {
                Heard::Turn(seat) => return self.lead(&name, claim, seat).await,
                Heard::Verdict(Verdict::InProgress(sighting)) => {
                    if let Some(refused) = self.say(&name, &sighting, claim, asked) {
                        return Ok(refused);
                    }
                    if !sighting.left(asked).is_zero() {
                        return self.ask(claim).await;
                    }
                }
                Heard::Verdict(Verdict::Contended { retry_after }) => {
                    self.counters.count(Event::SharedHit);
                    return Ok(ClaimOutcome::Contended { retry_after });
                }
                Heard::Verdict(Verdict::Failed) => {
                    self.counters.count(Event::SharedHit);
                    let doing =
                        "claiming a key, and it failed others of the same key; try again later";
                    return Err(StoreError::unavailable(doing).about(claim.id()));
                }
                Heard::Verdict(Verdict::Other) => return self.ask(claim).await,
                Heard::Void => {}
            }
        }
        let Ok(_seat) = self.alone.try_acquire() else {
            self.counters.count(Event::SharedHit);
            let doing = "claiming a key of which many are being claimed; try again later";
            return Err(StoreError::unavailable(doing).about(claim.id()));
        };
        self.ask(claim).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        let outcome = self.store.transition(id, expect, change).await?;
        if let Some(token) = ended(expect, change, &outcome) {
            let name = self.names.of(id);
            // What this process has learnt before is void before its next claim can ask.
            self.flights.void(&name.digest);
            self.local.remove(&name.digest, token);
            self.link.forget(&name, token);
        }
        Ok(outcome)
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }

    /// The cap, on top of the store's own.
    fn refusal_staleness(&self) -> Duration {
        self.cap
            .as_duration()
            .saturating_add(self.store.refusal_staleness())
    }
}

#[async_trait]
impl<S: Inspect> Inspect for NegativeCache<S> {
    async fn count(&self) -> Result<Counts, StoreError> {
        self.store.count().await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError> {
        self.store.list(filter, after, limit).await
    }
}

impl<S: fmt::Debug> fmt::Debug for NegativeCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NegativeCache")
            .field("store", &self.store)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
