//! The conformance suite while Redis misbehaves: the same answers, whatever it does.
//!
//! Each test runs the whole suite over the store in memory, with a thread beside it that does one thing to Redis, or to
//! the way there, again and again. Nothing is asked of the cache but that nobody notices, except where the test is of no
//! use when the trouble did not reach it.
//!
//! [`tour`] is the same over every kind of store, with all those troubles in turn: the suite once, and a tour that goes on
//! until it is over. Everything of the cache's that a trouble can reach is exercised with each trouble by itself above,
//! where the whole suite takes seconds; over a database it takes most of a minute, and what is different there is that
//! calls take time, wait for each other and run on other threads. Twenty times the suite over each would add a quarter of
//! an hour and see no other code.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

#[path = "misbehaviour/tour.rs"]
mod tour;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use idem_core::{ManualClock, Span, async_trait};
use idem_redis_cache::{CacheOptions, CacheStats, Namespace, NegativeCache, redis};
use idem_test_servers::{Direction, Fault, FaultProxy, Redis, unless_missing};
use idem_testkit::{Harness, Missing, Suite, Unavailable};
use support::backends::{Backend, Memory};

/// A store behind a cache whose Redis is at this address.
struct Behind<B> {
    url: String,
    seen: Arc<Mutex<Seen>>,
    backend: PhantomData<fn() -> B>,
}

/// What the caches of all cases did, together.
#[derive(Debug, Default)]
struct Seen {
    hits: u64,
    written: u64,
    odd: u64,
    timeouts: u64,
    errors: u64,
    bypassed: u64,
    opened: u64,
}

impl Seen {
    fn add(&mut self, stats: CacheStats) {
        self.hits += stats.hits;
        self.written += stats.written;
        self.odd += stats.odd;
        self.timeouts += stats.timeouts;
        self.errors += stats.errors;
        self.bypassed += stats.bypassed;
        self.opened += stats.opened;
    }

    fn trouble(&self) -> u64 {
        self.timeouts + self.errors + self.bypassed + self.odd
    }
}

struct Place<B: Backend> {
    clock: Arc<ManualClock>,
    records: B::Data,
    namespace: Namespace,
    caches: Mutex<Vec<Arc<NegativeCache<B::Store>>>>,
}

#[async_trait]
impl<B: Backend> Harness for Behind<B> {
    type Data = Place<B>;
    type Store = Arc<NegativeCache<B::Store>>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let name = format!("trouble-{}-{number}", std::process::id());
        let clock = support::clock();
        Ok(Place {
            records: B::create(&name, &clock).await?,
            clock,
            namespace: Namespace::new(name).unwrap(),
            caches: Mutex::default(),
        })
    }

    async fn open(&self, place: &Self::Data) -> Result<Self::Store, Unavailable> {
        let store = B::open(&place.records, &place.clock).await?;
        let cache = CacheOptions::new(place.namespace.clone())
            .cap(Duration::from_millis(100))
            .command_timeout(Duration::from_millis(25))
            .connect_timeout(Duration::from_millis(100))
            .open(store, &self.url)
            .map_err(Unavailable::new)?;
        // Whether it is there or not.
        let _ = cache.ready(Duration::from_millis(50)).await;
        let cache = Arc::new(cache);
        place.caches.lock().unwrap().push(cache.clone());
        Ok(cache)
    }

    async fn destroy(&self, place: &Self::Data) {
        let caches = std::mem::take(&mut *place.caches.lock().unwrap());
        for cache in caches {
            self.seen.lock().unwrap().add(cache.stats());
        }
        B::destroy(&place.records).await;
    }

    fn contention_bound(&self) -> Duration {
        B::CONTENTION_BOUND
    }

    async fn advance(&self, place: &Self::Data, by: Span) -> Result<(), Missing> {
        if !B::HAS_A_CLOCK {
            return Err(Missing::new("the store goes by a clock of its own"));
        }
        place.clock.advance(by);
        Ok(())
    }
}

/// Runs the suite over the store in memory while `trouble` is made again and again.
fn run(url: String, trouble: impl FnMut() + Send) -> Seen {
    run_over::<Memory>(url, trouble)
}

/// Runs the suite over a store of this kind while `trouble` is made again and again.
fn run_over<B: Backend>(url: String, trouble: impl FnMut() + Send) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let report = amid(trouble, || {
        Suite::new().run(Behind::<B> {
            url,
            seen: Arc::clone(&seen),
            backend: PhantomData,
        })
    });
    assert!(report.is_conformant(), "{report}");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    println!("{seen:?}");
    seen
}

/// Does `work` in this thread while another one makes `trouble` again and again.
fn amid<T>(mut trouble: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                trouble();
            }
        });
        // Also when the work panics, or the thread would go on for ever.
        let _over = Over(&over);
        work()
    })
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn pause(millis: u64) {
    thread::sleep(Duration::from_millis(millis));
}

/// The suite with a link that is broken like this every other moment.
fn over_a_link_with(fault: Fault) {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let url = format!("redis://{}", proxy.address());
    let seen = run(url, || {
        // Another process may have taken the port while connections were refused. Then they still are.
        let _ = proxy.set(fault);
        pause(60);
        let _ = proxy.set(Fault::Pass);
        pause(90);
    });
    assert!(seen.trouble() > 0, "{seen:?}");
}

#[test]
fn a_black_hole() {
    over_a_link_with(Fault::BlackHole);
}

#[test]
fn answers_after_five_seconds() {
    over_a_link_with(Fault::Delay(Duration::from_secs(5)));
}

#[test]
fn answers_almost_too_late() {
    over_a_link_with(Fault::Delay(Duration::from_millis(12)));
}

#[test]
fn connections_that_are_cut() {
    over_a_link_with(Fault::CutAfter(700));
}

#[test]
fn connections_that_are_refused() {
    over_a_link_with(Fault::Refuse);
}

#[test]
fn garbage() {
    over_a_link_with(Fault::Garbage);
}

#[test]
fn a_half_open_link() {
    over_a_link_with(Fault::HalfOpen);
}

/// Everything is carried out, and nothing is heard of it.
#[test]
fn answers_that_are_lost() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let seen = run(format!("redis://{}", proxy.address()), || {
        let _ = proxy.set_one_way(Direction::Answers, Fault::BlackHole);
        pause(60);
        let _ = proxy.set_one_way(Direction::Answers, Fault::Pass);
        pause(90);
    });
    assert!(seen.trouble() > 0, "{seen:?}");
}

#[test]
fn a_server_that_is_killed() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let url = server.url();
    let seen = run(url, || {
        pause(100);
        server.kill().unwrap();
        pause(50);
        server.restart().unwrap();
    });
    assert!(seen.trouble() > 0, "{seen:?}");
}

#[test]
fn a_server_that_is_stopped() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let url = server.url();
    let seen = run(url, || {
        server.pause().unwrap();
        pause(60);
        server.resume().unwrap();
        pause(90);
    });
    assert!(seen.trouble() > 0, "{seen:?}");
}

/// One that is never there.
#[test]
fn no_server() {
    let seen = run("redis://127.0.0.1:1/".to_owned(), || pause(50));
    assert!(seen.bypassed > 0 && seen.hits == 0, "{seen:?}");
}

/// The suite while one command after the other is sent to the server.
fn beside(
    server: Option<Redis>,
    every: u64,
    command: impl Fn(&mut redis::Connection) + Send,
) -> Option<Seen> {
    let server = server?;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    Some(run(server.url(), move || {
        command(&mut connection);
        pause(every);
    }))
}

fn send(connection: &mut redis::Connection, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    // A server that refuses is one of the troubles.
    let _: redis::RedisResult<redis::Value> = command.query(connection);
}

fn script(connection: &mut redis::Connection, source: &str) {
    send(connection, &["EVAL", source, "0"]);
}

/// Every key becomes a list.
const ANOTHER_TYPE: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('DEL', key) redis.call('RPUSH', key, 'x') end";

/// Every entry lives for ever.
const WITHOUT_AN_END: &str =
    "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('PERSIST', key) end";

/// Or for much too long.
const WITH_A_LATE_END: &str =
    "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('PEXPIRE', key, 60000) end";

const WRONG_BYTES: &str = "for n, key in ipairs(redis.call('KEYS', '*')) do redis.pcall('SETRANGE', key, (n * 7) % 66, '!') end";

/// Every key holds what another one should.
const EACH_OTHERS: &str = "local keys = redis.call('KEYS', '*') for n, key in ipairs(keys) do redis.call('COPY', key, keys[n % #keys + 1], 'REPLACE') end";

#[test]
fn a_server_that_is_flushed() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 2, |connection| {
        send(connection, &["FLUSHALL"]);
        send(connection, &["SCRIPT", "FLUSH"]);
    }) else {
        return;
    };
    assert!(seen.written > 0, "{seen:?}");
}

#[test]
fn a_server_that_pauses_its_clients() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 120, |connection| {
        send(connection, &["CLIENT", "PAUSE", "60", "ALL"]);
    }) else {
        return;
    };
    assert!(seen.trouble() > 0, "{seen:?}");
}

#[test]
fn a_full_server_that_refuses_writes() {
    let server = Redis::builder().max_memory(1_000_000, "noeviction").start();
    let server = unless_missing(server);
    let Some(seen) = beside(server, 50, |connection| {
        // Full, and room again.
        for filler in 0..64 {
            send(
                connection,
                &["SETRANGE", &format!("filler:{filler}"), "100000", "x"],
            );
        }
        pause(60);
        script(
            connection,
            "for i = 0, 63 do redis.call('DEL', 'filler:' .. i) end",
        );
    }) else {
        return;
    };
    assert!(seen.trouble() > 0, "{seen:?}");
}

#[test]
fn a_full_server_that_evicts() {
    let server = Redis::builder()
        .max_memory(1_600_000, "allkeys-random")
        .start();
    let server = unless_missing(server);
    let Some(seen) = beside(server, 1, |connection| {
        for filler in 0..32 {
            send(
                connection,
                &["SETRANGE", &format!("filler:{filler}"), "60000", "x"],
            );
        }
    }) else {
        return;
    };
    assert!(seen.written > 0, "{seen:?}");
}

#[test]
fn keys_of_another_type() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 1, |connection| {
        script(connection, ANOTHER_TYPE);
    }) else {
        return;
    };
    assert!(seen.odd > 0, "{seen:?}");
}

/// Entries that live for ever, or for much too long.
#[test]
fn keys_without_an_end() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 1, |connection| {
        script(connection, WITHOUT_AN_END);
        pause(1);
        script(connection, WITH_A_LATE_END);
    }) else {
        return;
    };
    assert!(seen.written > 0, "{seen:?}");
}

#[test]
fn values_with_wrong_bytes() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 1, |connection| {
        script(connection, WRONG_BYTES);
    }) else {
        return;
    };
    assert!(seen.written > 0, "{seen:?}");
}

/// Every key holds what another one should.
#[test]
fn values_under_each_others_keys() {
    let server = unless_missing(Redis::start());
    let Some(seen) = beside(server, 1, |connection| {
        script(connection, EACH_OTHERS);
    }) else {
        return;
    };
    assert!(seen.written > 0, "{seen:?}");
}

#[test]
fn a_read_only_replica() {
    let Some(primary) = unless_missing(Redis::start()) else {
        return;
    };
    let Some(replica) = unless_missing(Redis::start_replica(&primary)) else {
        return;
    };
    let seen = run(replica.url(), || pause(50));
    assert!(seen.errors > 0 && seen.written == 0, "{seen:?}");
}

/// Demoted to the replica of an empty server, which takes its data away, and promoted again.
#[test]
fn a_failover_to_an_empty_replica() {
    let Some(other) = unless_missing(Redis::start()) else {
        return;
    };
    let port = other.port().to_string();
    let server = unless_missing(
        Redis::builder()
            .option("repl-diskless-sync-delay", "0")
            .start(),
    );
    let Some(seen) = beside(server, 150, |connection| {
        send(connection, &["REPLICAOF", "127.0.0.1", &port]);
        pause(80);
        send(connection, &["REPLICAOF", "NO", "ONE"]);
    }) else {
        return;
    };
    assert!(seen.trouble() > 0, "{seen:?}");
}
