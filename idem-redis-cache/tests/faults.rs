//! What a Redis that is slow, away, or comes back costs, and what it does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_core::{ClaimOutcome, KeyStore as _};
use idem_redis_cache::{BreakerState, CacheOptions, Namespace};
use idem_test_servers::{Direction, Fault, FaultProxy, Redis, unless_missing};
use support::{Cache, Counting, claim, finish, is_refused, keys, options, until};

/// A server, and a link to it that can be broken.
fn behind_a_proxy() -> Option<(Redis, FaultProxy, String)> {
    let server = unless_missing(Redis::start())?;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let url = format!("redis://{}", proxy.address());
    Some((server, proxy, url))
}

async fn connected(options: CacheOptions, store: &Arc<Counting>, url: &str) -> Cache {
    let cache = options.open(Arc::clone(store), url).unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    cache
}

fn impatient() -> CacheOptions {
    CacheOptions::new(Namespace::new("tests").unwrap())
        .cap(Duration::from_secs(30))
        .connect_timeout(Duration::from_millis(200))
        .command_timeout(Duration::from_millis(100))
}

/// An entry is counted from when the store was asked. One that is held up on its way is not written late, or claims would
/// be refused long after the work was done.
#[tokio::test]
async fn an_entry_that_arrives_late_is_not_written() {
    let Some((server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    let store = Counting::new();
    let cap = Duration::from_millis(300);
    let cache = connected(options().cap(cap), &store, &url).await;
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    store.close_the_gate();
    let cache = Arc::new(cache);
    let duplicate = tokio::spawn({
        let cache = Arc::clone(&cache);
        async move { cache.claim(&claim("k-1")).await }
    });
    // It has looked, and is at the store. From here on nothing reaches Redis for a while.
    until("the duplicate", async || {
        store.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1
    })
    .await;
    proxy
        .set_one_way(Direction::Requests, Fault::HalfOpen)
        .unwrap();
    store.open_the_gate();
    assert!(matches!(
        duplicate.await.unwrap(),
        Ok(ClaimOutcome::Held(_))
    ));
    // Done, by a process whose word does not reach Redis either.
    finish(&store, &owner).await;
    tokio::time::sleep(cap + Duration::from_millis(50)).await;
    proxy.set(Fault::Pass).unwrap();
    until("the late entry", async || cache.stats().dropped == 1).await;
    assert_eq!(cache.stats().written, 0);
    assert_eq!(keys(&server), [""; 0]);
    let outcome = cache.claim(&claim("k-1")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
}

/// A claim waits for one timeout at most, three of them are enough, and then nobody waits any more.
#[tokio::test]
async fn a_black_hole_costs_three_timeouts() {
    let Some((_server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    let store = Counting::new();
    let cache = connected(impatient(), &store, &url).await;
    proxy.set(Fault::BlackHole).unwrap();
    for number in 0..20 {
        let started = Instant::now();
        let outcome = cache.claim(&claim(&format!("k-{number}"))).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
        assert!(started.elapsed() < Duration::from_secs(2));
    }
    let stats = cache.stats();
    assert_eq!((stats.timeouts, stats.opened), (3, 1), "{stats:?}");
    assert_ne!(stats.breaker, BreakerState::Closed);
    // Of those that did not wait, none was sent.
    assert_eq!(stats.bypassed, 17, "{stats:?}");
}

/// While it is away one probe at a time is made, and its pauses grow; when it is back, it is used again. What the store
/// has said is good for as long as it would have been in Redis, so it is not asked for every copy.
#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let Some((_server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    let store = Counting::new();
    let cache = connected(impatient(), &store, &url).await;
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    proxy.set(Fault::Refuse).unwrap();
    until("the breaker", async || {
        let _ = cache.claim(&claim("k-1")).await;
        cache.stats().breaker != BreakerState::Closed
    })
    .await;
    // A second of claims, one after the other: few of them lead to a probe.
    let started = Instant::now();
    let errors = cache.stats().errors;
    let asked = store.claims();
    while started.elapsed() < Duration::from_secs(1) {
        assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
        tokio::task::yield_now().await;
    }
    let probes = cache.stats().errors - errors;
    assert!((1..=8).contains(&probes), "{probes} probes");
    assert_eq!((store.claims(), cache.stats().hits), (asked, 0));
    // Of others nothing is known, and the store is asked.
    let outcome = cache.claim(&claim("k-2")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    let neighbour = cache.claim(&claim("k-2")).await;
    assert!(
        matches!(neighbour, Ok(ClaimOutcome::Held(_))),
        "{neighbour:?}"
    );
    proxy.set(Fault::Pass).unwrap();
    until("the connection", async || {
        cache.ready(Duration::from_secs(1)).await
    })
    .await;
    // What is known here is behind Redis, which knows nothing of it yet.
    let outcome = cache.claim(&claim("k-1")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
    until("a refusal by Redis", async || {
        is_refused(&cache.claim(&claim("k-1")).await, &owner) && cache.stats().hits > 0
    })
    .await;
    assert_eq!(cache.stats().breaker, BreakerState::Closed);
}

/// What is known in this process ends with its attempt, whether Redis hears of that or not, and after the cap at any rate.
#[tokio::test]
async fn what_is_known_here_ends_while_redis_is_away() {
    let store = Counting::new();
    let cap = Duration::from_millis(300);
    let cache = options().cap(cap);
    let cache = cache
        .open(Arc::clone(&store), "redis://127.0.0.1:1/")
        .unwrap();
    for key in ["finished-here", "finished-elsewhere"] {
        let owner = claim(key);
        assert!(cache.claim(&owner).await.is_ok());
        let asked = Instant::now();
        let outcome = cache.claim(&claim(key)).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
        // It may be over on a machine that is short of time.
        let outcome = cache.claim(&claim(key)).await;
        assert!(is_refused(&outcome, &owner) || asked.elapsed() >= cap);
        if key == "finished-here" {
            finish(&cache, &owner).await;
        } else {
            finish(&store, &owner).await;
            tokio::time::sleep(cap).await;
        }
        let outcome = cache.claim(&claim(key)).await;
        assert!(
            matches!(&outcome, Ok(ClaimOutcome::Held(held)) if held.record.state.response().is_some()),
            "{outcome:?}"
        );
    }
    let stats = cache.stats();
    assert_eq!(stats.hits, 0, "{stats:?}");
}

/// Many processes' worth of claims when it comes back: one connection, and not one for each claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_is_no_stampede() {
    let Some((_server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    proxy.set(Fault::Refuse).unwrap();
    let store = Counting::new();
    let cache = Arc::new(impatient().open(Arc::clone(&store), &url).unwrap());
    let _ = cache.claim(&claim("first")).await;
    proxy.set(Fault::Pass).unwrap();
    let before = proxy.accepted();
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move {
                for round in 0..20 {
                    let outcome = cache.claim(&claim(&format!("k-{number}-{round}"))).await;
                    assert!(outcome.is_ok(), "{outcome:?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    until("the connection", async || {
        cache.ready(Duration::from_secs(1)).await
    })
    .await;
    let made = proxy.accepted() - before;
    // One, and a few more where the machine was too slow for the timeouts.
    assert!((1..=10).contains(&made), "{made} connections");
}

/// Too much under way is not waited for, and not queued.
#[tokio::test]
async fn there_is_no_queue() {
    let Some((_server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    let store = Counting::new();
    let few = std::num::NonZeroUsize::new(4).unwrap();
    let cache = Arc::new(connected(options().in_flight(few), &store, &url).await);
    proxy.set(Fault::HalfOpen).unwrap();
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move { cache.claim(&claim(&format!("waiting-{number}"))).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    for number in 0..50 {
        let outcome = cache.claim(&claim(&format!("k-{number}"))).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    }
    assert_eq!(cache.stats().bypassed, 50);
    proxy.set(Fault::Pass).unwrap();
    for one in waiting {
        assert!(matches!(one.await.unwrap(), Ok(ClaimOutcome::Won(_))));
    }
    // And in the background: four removals that hang, and the others are dropped.
    let owners: Vec<_> = (0..20)
        .map(|number| claim(&format!("owner-{number}")))
        .collect();
    for owner in &owners {
        assert!(store.claim(owner).await.is_ok());
    }
    proxy.set(Fault::HalfOpen).unwrap();
    for owner in &owners {
        finish(&*cache, owner).await;
    }
    assert_eq!(cache.stats().dropped, 16);
    proxy.set(Fault::Pass).unwrap();
}

/// A finish does not wait for Redis, however slow that is.
#[tokio::test]
async fn a_finish_does_not_wait_for_redis() {
    let Some((_server, proxy, url)) = behind_a_proxy() else {
        return;
    };
    let store = Counting::new();
    let cache = connected(options(), &store, &url).await;
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    proxy.set(Fault::Delay(Duration::from_secs(3))).unwrap();
    let started = Instant::now();
    finish(&cache, &owner).await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    proxy.set(Fault::Pass).unwrap();
}

/// Killed with -9 and started anew, with nothing in it and no scripts.
#[tokio::test]
async fn a_restart_costs_nothing_but_the_entries() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = connected(impatient(), &store, &server.url()).await;
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    for _ in 0..3 {
        let hits = cache.stats().hits;
        until("a refusal by Redis", async || {
            is_refused(&cache.claim(&claim("k-1")).await, &owner) && cache.stats().hits > hits
        })
        .await;
        server.kill().unwrap();
        assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
        // A process that does not know it asks the store.
        let other = impatient().open(Arc::clone(&store), &server.url()).unwrap();
        let outcome = other.claim(&claim("k-1")).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
        server.restart().unwrap();
    }
}

/// A thread that is held up by one of its tasks for longer than a claim waits for Redis. The answer is on its way or
/// there, and nobody has looked; that is not Redis's fault, and the store is spared.
#[tokio::test]
async fn a_process_that_is_held_up_does_not_blame_redis() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let timeout = Duration::from_millis(100);
    let options = options().command_timeout(timeout);
    let cache = connected(options, &store, &server.url()).await;
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    assert!(cache.claim(&claim("k-1")).await.is_ok());
    until("an entry", async || cache.stats().written == 1).await;
    let asked = store.claims();
    for _ in 0..5 {
        let duplicate = claim("k-1");
        let (outcome, ()) = tokio::join!(cache.claim(&duplicate), async {
            std::thread::sleep(timeout * 3);
        });
        assert!(is_refused(&outcome, &owner), "{outcome:?}");
    }
    let stats = cache.stats();
    assert_eq!((store.claims(), stats.hits), (asked, 5), "{stats:?}");
    assert_eq!((stats.timeouts, stats.opened), (0, 0), "{stats:?}");
}
