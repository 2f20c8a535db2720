//! Crowds of copies of one request, with the options that a service has by default: hardly any of them reaches the store,
//! whatever Redis, the store and this machine are up to.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore as _, OwnerToken, StoreError, StoreErrorKind,
    TransitionOutcome,
};
use idem_redis_cache::{BreakerState, CacheStats, Namespace, NegativeCache};
use idem_test_servers::{Fault, FaultProxy, Redis, unless_missing};
use support::{Cache, Counting, Instead, claim, is_refused, until};
use tokio::task::JoinHandle;

const CROWD: u64 = 10_000;

fn by_default(store: &Arc<Counting>, url: &str) -> Arc<Cache> {
    let namespace = Namespace::new("tests").unwrap();
    Arc::new(NegativeCache::open(Arc::clone(store), url, namespace).unwrap())
}

async fn connected(store: &Arc<Counting>, url: &str) -> Arc<Cache> {
    let cache = by_default(store, url);
    assert!(cache.ready(Duration::from_secs(10)).await);
    cache
}

/// An owner, who has the key in progress.
async fn owner(cache: &Cache) -> Claim {
    let owner = claim("k-1");
    let outcome = cache.claim(&owner).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    owner
}

type Crowd = Vec<JoinHandle<Result<ClaimOutcome, StoreError>>>;

fn crowd(cache: &Arc<Cache>, size: u64) -> Crowd {
    (0..size)
        .map(|_| {
            let cache = Arc::clone(cache);
            tokio::spawn(async move { cache.claim(&claim("k-1")).await })
        })
        .collect()
}

/// The same, all of whom wait for the first one's answer, in a runtime of one thread.
async fn crowd_that_waits(cache: &Arc<Cache>, size: u64) -> Crowd {
    let begun = Arc::new(AtomicU64::new(0));
    let crowd = (0..size)
        .map(|_| {
            let (cache, begun) = (Arc::clone(cache), Arc::clone(&begun));
            tokio::spawn(async move {
                // And joins the others before anybody else has a turn.
                begun.fetch_add(1, Ordering::SeqCst);
                cache.claim(&claim("k-1")).await
            })
        })
        .collect();
    until("the crowd", async || begun.load(Ordering::SeqCst) == size).await;
    crowd
}

/// Every one of them was told that the owner has the key in progress, by whomever.
async fn are_told(crowd: Crowd, owner: &Claim) {
    for one in crowd {
        let outcome = one.await.unwrap();
        match &outcome {
            Ok(ClaimOutcome::Held(held)) => assert_eq!(held.record.token, owner.token()),
            _ => assert!(is_refused(&outcome, owner), "{outcome:?}"),
        }
    }
}

/// Sends so many copies at once, and one in a hundred of them may reach the store.
async fn storm(cache: &Arc<Cache>, store: &Counting, owner: &Claim) -> CacheStats {
    let before = store.claims();
    are_told(crowd(cache, CROWD), owner).await;
    let (asked, stats) = (store.claims() - before, cache.stats());
    println!("{asked} of {CROWD} reached the store; {stats:?}");
    assert!(
        asked <= CROWD / 100,
        "{asked} of {CROWD} reached the store; {stats:?}"
    );
    // Every claim is accounted for, the owner's among them.
    let asked_the_store = stats.misses + stats.unanswered + stats.bypassed;
    assert_eq!(asked_the_store, store.claims(), "{stats:?}");
    assert_eq!(
        asked_the_store + stats.hits + stats.shared_hits,
        CROWD + 1,
        "{stats:?}"
    );
    stats
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_is_well() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = connected(&store, &server.url()).await;
    let owner = owner(&cache).await;
    storm(&cache, &store, &owner).await;
}

/// In one thread, where the connection has its turn after ten thousand others have had theirs.
#[tokio::test]
async fn in_one_thread() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = connected(&store, &server.url()).await;
    let owner = owner(&cache).await;
    storm(&cache, &store, &owner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_redis() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    let owner = owner(&cache).await;
    let stats = storm(&cache, &store, &owner).await;
    assert_ne!(stats.breaker, BreakerState::Closed);
}

/// It was there, and does not answer any more: timeouts at first, and then it is not asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_stuck() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let store = Counting::new();
    let cache = connected(&store, &format!("redis://{}", proxy.address())).await;
    let owner = owner(&cache).await;
    proxy.set(Fault::BlackHole).unwrap();
    let stats = storm(&cache, &store, &owner).await;
    assert!(stats.timeouts > 0, "{stats:?}");
}

/// The store hangs for seconds, as one does whose row is locked. It is not sent the crowd because of that.
#[tokio::test]
async fn while_the_store_is_stuck() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    let owner = owner(&cache).await;
    store.close_the_gate();
    let crowd = crowd_that_waits(&cache, CROWD).await;
    // The first one, and two that took its place.
    until("three at the store", async || {
        store.waiting.load(Ordering::SeqCst) >= 3
    })
    .await;
    let asked = store.claims();
    assert!(asked <= CROWD / 100, "{asked} are stuck with it");
    store.open_the_gate();
    are_told(crowd, &owner).await;
    let asked = store.claims();
    assert!(asked <= CROWD / 100, "{asked} of {CROWD} reached the store");
}

/// It fails whoever asks. Some find out for all, and nobody is told anything else than that nothing was done.
#[tokio::test]
async fn while_the_store_fails() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    store.close_the_gate();
    *store.instead.lock().unwrap() = Some(Instead::Unavailable);
    let crowd = crowd_that_waits(&cache, CROWD).await;
    store.open_the_gate();
    for one in crowd {
        let error = one.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(!error.to_string().contains("k-1"), "{error}");
    }
    // Three, and some more where gathering them took seconds.
    let asked = store.claims();
    assert!((3..=20).contains(&asked), "{asked} of {CROWD} reached it");
    // When it is back, it is used.
    *store.instead.lock().unwrap() = None;
    owner(&cache).await;
}

/// One failure is not everybody's.
#[tokio::test]
async fn when_the_store_has_failed_once() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    let owner = owner(&cache).await;
    store.close_the_gate();
    *store.instead.lock().unwrap() = Some(Instead::Unavailable);
    let unlucky = crowd(&cache, 1).remove(0);
    until("the first", async || {
        store.waiting.load(Ordering::SeqCst) == 1
    })
    .await;
    *store.instead.lock().unwrap() = None;
    let others = crowd_that_waits(&cache, CROWD).await;
    let before = store.claims();
    store.open_the_gate();
    assert!(unlucky.await.unwrap().is_err());
    are_told(others, &owner).await;
    let asked = store.claims() - before;
    assert!(asked <= CROWD / 100, "{asked} of {CROWD} reached the store");
}

/// Somebody's transaction has the row. That is so for all who ask meanwhile, and each would have waited to hear it.
#[tokio::test]
async fn while_the_row_is_locked() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    store.close_the_gate();
    *store.instead.lock().unwrap() = Some(Instead::Contended);
    let crowd = crowd_that_waits(&cache, 100).await;
    store.open_the_gate();
    for one in crowd {
        let outcome = one.await.unwrap();
        let Ok(ClaimOutcome::Contended { retry_after }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(retry_after, Duration::from_millis(7));
    }
    assert_eq!(store.claims(), 1);
}

/// Claims that were told sixteen times that what they waited for is void, because the record changes all the time. Some of
/// them ask the store by themselves, and no more than that.
#[tokio::test]
async fn while_everything_changes_all_the_time() {
    let store = Counting::new();
    let cache = by_default(&store, "redis://127.0.0.1:1/");
    let owner = owner(&cache).await;
    store.close_the_gate();
    let waiting = || store.waiting.load(Ordering::SeqCst);
    let crowd = crowd_that_waits(&cache, 100).await;
    for round in 1..=16 {
        until("the next one", async || waiting() >= round).await;
        // Somebody whose attempt is over says so again.
        let stranger = Expect::Owner(OwnerToken::from_bytes([0xee; 16]));
        let change = support::complete();
        let lost = cache.transition(owner.id(), stranger, &change).await;
        assert!(matches!(lost, Ok(TransitionOutcome::Lost(_))), "{lost:?}");
    }
    until("some by themselves", async || waiting() >= 32).await;
    store.open_the_gate();
    let (mut told, mut turned_away) = (0, 0);
    for one in crowd {
        match one.await.unwrap() {
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable);
                turned_away += 1;
            }
            outcome => {
                let is_held = matches!(&outcome, Ok(ClaimOutcome::Held(held)) if held.record.token == owner.token());
                assert!(is_held || is_refused(&outcome, &owner), "{outcome:?}");
                told += 1;
            }
        }
    }
    // Sixteen in turn and sixteen by themselves, and some more where that took seconds.
    let asked = store.claims() - 1;
    assert!(
        (32..=50).contains(&asked),
        "{asked} of 100 reached the store"
    );
    assert!(told >= 32 && turned_away > 0, "{told}, {turned_away}");
}
