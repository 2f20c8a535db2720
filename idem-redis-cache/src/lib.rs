//! Redis as a negative cache in front of any store of idempotency keys: it can say *busy*, and nothing else.
//!
//! When a request takes long, its clients send it again, and again. Each of those asks the database, to hear each time
//! that the first one is still at work. With a [`NegativeCache`] in front, one of them asks the database about once a
//! second, and the others are answered by Redis. Everything else is as if Redis were not there.
//!
//! ```
//! use idem_core::executor::Idempotency;
//! use idem_core::{MemoryKeyStore, SystemClock};
//! use idem_redis_cache::{Namespace, NegativeCache};
//!
//! let store = MemoryKeyStore::new(SystemClock); // in a service: a database
//! let cache = NegativeCache::open(store, "redis://127.0.0.1/", Namespace::new("charges")?)?;
//! let idempotency = Idempotency::new(cache);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The rule
//!
//! 1. **The store is the record.** Redis never grants a claim and never holds a response. If all that it holds is lost,
//!    altered or made up, nobody runs anything twice and nobody gets an answer that was not given.
//! 2. **It remembers refusals.** A claim that the store refuses, because somebody has the key in progress, leaves an
//!    entry: whose attempt that is, and a hash of the request. The owner leaves none.
//! 3. **It refuses the same request, and nothing else.** Another operation, another payload, a payload that cannot be
//!    compared and the owner's own claim are a miss, and the store is asked. A stale *busy* costs a delay; a stale
//!    *mismatch* would make a client give up.
//! 4. **An entry ends** after the [cap](CacheOptions::cap), one second unless said otherwise, or with the lease, whichever
//!    comes first, counted from **before the store was asked**, by Redis's own clock.
//! 5. **Whoever ends an attempt removes its entry**, after the store has answered, in the background: one script that
//!    compares the token and deletes. It is a kindness; rule 4 is what counts.
//! 6. **`load`, and so everybody who waits for an attempt, goes to the store.** So do sweeps and operators.
//! 7. **Anything odd is a miss**: another format, another type, a wrong byte, an entry of another record, one without
//!    an end or with a later one than it was given.
//!
//! # What can happen, in whatever order
//!
//! A claim *looks* in Redis, *asks* the store, and *writes* an entry; an owner *finishes* in the store and *removes* the
//! entry. Writes and removals travel by themselves. They may arrive in any order, late, or never, and Redis may lose
//! everything at any time. What a client can see of that:
//!
//! 1. **The entry is lost, evicted, flushed, never written, or left behind by a failover**: the next claim asks the
//!    store. It costs a statement.
//! 2. **Finish, then claim, then removal**: the claim is refused although the work is done. The client tries again, as it
//!    was about to. It can last until the entry ends: less than the cap after the finish. So an answer is replayed, and an
//!    attempt that failed and may be repeated is repeated, later by less than the cap, and never otherwise.
//! 3. **The removal never arrives**, for the owner's process died after the finish, or Redis was away: as 2.
//! 4. **Look, ask, finish, removal, and only then the write**: the entry arrives when it is no longer true, and nobody
//!    will remove it. Its end was fixed by the time that the *look* brought back from Redis, so it still ends less than the
//!    cap after the store said that it was true. A write that arrives after that end is not made. Without this a write
//!    that hangs in a link for five seconds would refuse a finished request six seconds later.
//! 5. **Finish, then the removal of another attempt's entry**: cannot be; a removal compares the token. A late owner
//!    takes away its own entry, and its successor's stays.
//! 6. **The lease runs out, and somebody takes over**: the entry of before has ended, since it does not outlive the lease
//!    that was seen. If the lease was renewed meanwhile the entry is still true.
//! 7. **Release, and another request claims the key**: the entry of before may refuse copies of the *earlier* request
//!    until it ends, as 2. It says nothing to the new request.
//! 8. **Takeover by a new attempt of the same request**: the entry of the old attempt may still refuse for its lifetime.
//!    That the request is in progress is even true.
//! 9. **A write of an old attempt replaces the entry of a new one**: as 8, and the new owner's removal leaves it alone
//!    until it ends.
//! 10. **A claim sent again, whose answer was lost, meets an entry of its own token**: a miss; the store resumes it.
//! 11. **The owner dies**: nobody removes its entry, which ends with the lease that was seen at the latest. So a client is
//!     refused no longer than the store would refuse it.
//! 12. **Redis cannot be asked, and another process finishes**: what the store told this process is
//!     [said here](#many-at-once) until the entry would have ended, by this process's own clock, from before the store was
//!     asked. As 3.
//! 13. **In one process** the end of an attempt makes void what its other claims have just learnt, and its removal is in
//!     line before its next look. There a client that has its answer and asks again is not refused, as long as Redis
//!     is well.
//!
//! So a refusal is out of date by less than the cap, which is what [`refusal_staleness`] declares. A test goes through every
//! interleaving of these steps in a small world, with the real record and the real rule, and another one shows that it
//! notices when any part of the rule is broken.
//!
//! **Redis's clock** enters as differences of two readings of one server, with one exception: if it is set back while an
//! entry lives, the entry lives on by as much. Such an entry has more life left than it was given, and is a miss; only
//! one that nobody looked at in the meantime can refuse, for its lifetime.
//!
//! # Many at once
//!
//! Ten thousand copies that arrive in the same moment all find nothing in Redis. So claims of one key that are under way in
//! one process ask once: one looks and asks, and the others hear what it was told, under the same rule.
//!
//! - If the one in front is dropped, one of the others asks, and if it is stuck for a second, one of them asks as well; the
//!   first answer is everybody's. They wait no longer than the store takes.
//! - If the store fails the one in front, another one asks; three failures are taken for everybody's, and whoever waited is
//!   told that the store is [unavailable](idem_core::StoreErrorKind::Unavailable), with nothing done.
//! - If an attempt at the key ends meanwhile, they ask afresh. After sixteen times a claim asks the store by itself, and
//!   where sixteen do so already, it is told the same.
//! - If the store says that somebody is writing the record, that is
//!   [so for all](idem_core::ClaimOutcome::Contended) who asked meanwhile.
//! - If Redis cannot be asked or does not answer, what the store said goes on to be said in this process until the entry
//!   would have ended. So a crowd that comes while Redis is away reaches the store about once per key, process and cap,
//!   and not once per copy. Up to 4096 keys are remembered for this, or as many as the
//!   [local tier](CacheOptions::local_tier) has.
//! - A crowd keeps its own process busy. Time in which the process did not come to look for Redis's answer is
//!   [not counted](CacheOptions::command_timeout) against Redis.
//!
//! # When Redis is slow or away
//!
//! It costs speed only, and little of it. A claim makes one round trip to Redis at most, and waits for it 50 milliseconds at
//! most ([`CacheOptions::command_timeout`]); writes and removals are made in the background. After three timeouts, or one
//! lost connection or refusal, Redis is not asked any more, and a claim costs a lock more than without a cache.
//! Every now and then, at growing and spread intervals from a tenth of a second to five, one probe connects anew in the
//! background and tries all that will be asked for; a read-only replica, a full server, or a user without one of the
//! rights below does not pass. Nothing waits in line: what is one too many is not asked, not written, not removed.
//!
//! # What can be watched
//!
//! [`NegativeCache::stats`] says how it goes. A Redis that is of no use is a [`tracing`] event at level WARN with the
//! `namespace` and Redis's own `reason`: once, and not at every probe; when it works again there is one at INFO. With the
//! feature `metrics` the [`metrics`](https://docs.rs/metrics) facade is told the same as the stats. Every name has the
//! label `namespace`. Keys, tenants and addresses are in none of it.
//!
//! | name | type | unit | labels | |
//! |---|---|---|---|---|
//! | `idem_cache_claims_total` | counter | claims | `answer` | `hit`: refused by what Redis said. `shared_hit`: answered by what this process had just learnt. `miss`: Redis had nothing, the store was asked. `unanswered`: Redis was asked in vain, and then the store. `bypassed`: the store was asked and Redis was not |
//! | `idem_cache_odd_total` | counter | entries | | entries found that could not be read: of another type or format, or without an end |
//! | `idem_cache_errors_total` | counter | commands | `kind` | `timeout`: not answered in time. `failure`: failed in another way, and probes that did not come through |
//! | `idem_cache_entries_total` | counter | entries | `event` | `written`, `removed`, and `dropped`: not written or not removed, because of too much under way or Redis away |
//! | `idem_cache_breaker_openings_total` | counter | openings | | how often Redis was given up for a while |
//! | `idem_cache_breaker_state` | gauge | | | 0 closed (Redis is asked), 1 half open (a probe is under way), 2 open |
//!
//! # What it needs
//!
//! - Redis 6 or later, or Valkey. The scripts call nothing that is younger than Redis 2.6, and write after they have read
//!   the clock, which takes Redis 5; users with rights take Redis 6. RESP 2 or 3. A primary: one with replicas, or one of Sentinel's, or a cluster's, through
//!   [`CacheOptions::over`]. Each entry is one key with a slot of its own. No persistence, no durability, and any
//!   `maxmemory-policy` that evicts.
//! - A [`Namespace`] for each store. Two stores in one namespace would refuse each other's keys, again and again.
//! - These rights: `~idem:<namespace>:* +eval +evalsha +time +getrange +pttl +set +del`. A user and a password go into the
//!   address.
//! - `rediss://` needs the feature `tls-rustls`, `tls-rustls-webpki-roots` or `tls-native`. With the first two the program
//!   chooses its cryptography once, at its start: `rustls::crypto::ring::default_provider().install_default()`, for one.
//!
//! Keys are `idem:<namespace>:<hash>`, values are hashes and random numbers; no tenant's name and no payload is in either.
//! Whoever may write to Redis can keep a key busy, and nothing worse; so keep Redis to yourself all the same.
//!
//! # Features
//!
//! `tls-rustls`, `tls-rustls-webpki-roots`, `tls-native`, `cluster`, `sentinel` and `connection-manager` switch on those of the
//! [`redis`] crate, and `metrics` counts with the `metrics` facade. None is on by default.
//!
//! [`refusal_staleness`]: idem_core::KeyStore::refusal_staleness

mod breaker;
mod cache;
mod connection;
mod entry;
mod error;
mod flights;
mod link;
mod local;
#[cfg(feature = "metrics")]
mod meter;
mod names;
mod namespace;
mod options;
#[cfg(test)]
mod ordering;
mod patience;
mod rule;
mod script;
mod sighting;
mod stats;

pub use breaker::BreakerState;
pub use cache::NegativeCache;
pub use error::SetupError;
#[cfg(feature = "metrics")]
pub use meter::{
    BREAKER_OPENINGS_TOTAL, BREAKER_STATE, CLAIMS_TOTAL, ENTRIES_TOTAL, ERRORS_TOTAL, ODD_TOTAL,
};
pub use namespace::{InvalidNamespace, Namespace};
pub use options::CacheOptions;
/// Its connections go into [`CacheOptions::over`].
pub use redis;
pub use stats::CacheStats;
