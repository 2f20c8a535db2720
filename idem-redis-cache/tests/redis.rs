//! The cache on a real Redis that does what it should.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_core::{ClaimOutcome, Expect, KeyStore as _, OwnerToken, Span, Transition};
use idem_redis_cache::{BreakerState, CacheOptions, Namespace, redis};
use idem_test_servers::{Redis, unless_missing};
use support::{
    Counting, cache, claim, claim_for, finish, is_refused, keys, options, ready, request, until,
};

type Connection = redis::aio::MultiplexedConnection;

async fn raw(server: &Redis) -> Connection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// An owner who has the key, and a duplicate who was refused by the store and has left an entry.
async fn in_progress(cache: &support::Cache, key: &str) -> idem_core::Claim {
    let owner = claim(key);
    let won = cache.claim(&owner).await;
    assert!(matches!(won, Ok(ClaimOutcome::Won(_))), "{won:?}");
    let written = cache.stats().written;
    let held = cache.claim(&claim(key)).await;
    assert!(matches!(held, Ok(ClaimOutcome::Held(_))), "{held:?}");
    until("an entry", async || cache.stats().written > written).await;
    owner
}

#[tokio::test]
async fn a_duplicate_of_what_is_in_progress_is_refused_without_the_store() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    let before = store.claims();
    for _ in 0..20 {
        let outcome = cache.claim(&claim("k-1")).await.unwrap();
        let ClaimOutcome::Refused { token, remaining } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(token, owner.token());
        // Of the lease, not of the entry.
        assert!(remaining > Span::from_secs(88), "{remaining:?}");
        assert!(remaining <= Span::from_secs(90), "{remaining:?}");
    }
    assert_eq!(store.claims(), before);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.written), (20, 1), "{stats:?}");
    assert_eq!(stats.breaker, BreakerState::Closed);
    assert_eq!((stats.errors, stats.timeouts, stats.odd), (0, 0, 0));
}

#[tokio::test]
async fn everything_but_the_same_request_goes_to_the_store() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    let lease = Duration::from_secs(90);
    let others = [
        owner.clone(),
        claim_for(request("k-1", "POST /y", 1), lease),
        claim_for(request("k-1", "POST /x", 2), lease),
    ];
    for other in others {
        let outcome = cache.claim(&other).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
    }
    let outcome = cache.claim(&claim("k-2")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    // And none of them has touched the entry.
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    // Reading and sweeping know nothing of it.
    assert!(cache.load(owner.id()).await.unwrap().is_some());
}

#[tokio::test]
async fn the_end_of_an_attempt_removes_its_entry_and_no_other() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    let neighbour = in_progress(&cache, "k-2").await;
    assert_eq!(keys(&server).len(), 2);
    // A stranger ends nothing.
    let stranger = Expect::Owner(OwnerToken::from_bytes([0xee; 16]));
    let outcome = cache
        .transition(owner.id(), stranger, &support::complete())
        .await;
    assert!(outcome.is_ok());
    // A renewal is no end.
    let lease = Span::from_secs(90);
    let renewed = cache
        .transition(
            owner.id(),
            Expect::Owner(owner.token()),
            &Transition::Renew { lease },
        )
        .await;
    assert!(renewed.is_ok());
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));

    finish(&cache, &owner).await;
    until("a removal", async || cache.stats().removed == 1).await;
    let held = cache.claim(&claim("k-1")).await;
    assert!(matches!(held, Ok(ClaimOutcome::Held(_))), "{held:?}");
    assert!(is_refused(&cache.claim(&claim("k-2")).await, &neighbour));
    assert_eq!(keys(&server).len(), 1);
}

/// In one process a client that has its answer and asks again sees no refusal: the removal went out before it asked.
#[tokio::test]
async fn what_a_process_finished_it_does_not_refuse_any_more() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    for number in 0..200 {
        let key = format!("k-{number}");
        let owner = in_progress(&cache, &key).await;
        finish(&cache, &owner).await;
        let outcome = cache.claim(&claim(&key)).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_entry_that_nobody_removes_ends_within_the_cap() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    const CAP: Duration = Duration::from_millis(600);
    let cache = options()
        .cap(CAP)
        .open(Arc::clone(&store), &server.url())
        .unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    let asked = Instant::now();
    let owner = in_progress(&cache, "k-1").await;
    // Finished behind the cache's back: by a process without one, or one that died before it could say so.
    finish(&store, &owner).await;
    let mut last_refusal = None;
    loop {
        let started = Instant::now();
        match cache.claim(&claim("k-1")).await.unwrap() {
            ClaimOutcome::Refused { .. } => last_refusal = Some(started),
            ClaimOutcome::Held(held) if held.record.state.response().is_some() => break,
            other => panic!("{other:?}"),
        }
    }
    // On a machine that is short of time it may have ended before anybody asked.
    let last = last_refusal.map_or(Duration::ZERO, |last| last - asked);
    assert!(last < CAP + Duration::from_millis(200), "{last:?}");
    assert_eq!(cache.refusal_staleness(), CAP);
}

#[tokio::test]
async fn an_entry_does_not_outlive_the_lease() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = options()
        .cap(Duration::from_secs(60))
        .open(store, &server.url())
        .unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    let owner = claim_for(request("k-1", "POST /x", 1), Duration::from_secs(20));
    assert!(cache.claim(&owner).await.is_ok());
    assert!(cache.claim(&claim("k-1")).await.is_ok());
    until("an entry", async || cache.stats().written == 1).await;
    let left: i64 = redis::cmd("PTTL")
        .arg(&keys(&server)[0])
        .query_async(&mut raw(&server).await)
        .await
        .unwrap();
    assert!((1..=20_000).contains(&left), "{left} ms");
    // And one whose lease is over is not remembered at all.
    let owner = claim_for(request("k-2", "POST /x", 1), Duration::ZERO);
    assert!(cache.claim(&owner).await.is_ok());
    assert!(cache.claim(&claim("k-2")).await.is_ok());
    assert_eq!(cache.stats().written, 1);
    assert_eq!(cache.stats().dropped, 0);
}

#[tokio::test]
async fn keys_and_values_hold_hashes_and_no_names() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = options()
        .prefix("shop:")
        .open(store, &server.url())
        .unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    in_progress(&cache, "order-9912").await;
    let keys = keys(&server);
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys[0].starts_with("shop:tests:"), "{keys:?}");
    let value: Vec<u8> = redis::cmd("GET")
        .arg(&keys[0])
        .query_async(&mut raw(&server).await)
        .await
        .unwrap();
    let value = String::from_utf8_lossy(&value);
    for name in ["acct_1", "order-9912", "POST"] {
        assert!(!keys[0].contains(name) && !value.contains(name));
    }
}

#[tokio::test]
async fn two_namespaces_have_nothing_in_common() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let (one, two) = (Counting::new(), Counting::new());
    let cache = ready(&one, &server.url()).await;
    let other = CacheOptions::new(Namespace::new("others").unwrap())
        .open(two, &server.url())
        .unwrap();
    assert!(other.ready(Duration::from_secs(10)).await);
    in_progress(&cache, "k-1").await;
    let outcome = other.claim(&claim("k-1")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
}

/// A process that promises less does not refuse by what one that promises more has left.
#[tokio::test]
async fn an_entry_of_a_process_with_a_longer_cap_is_not_trusted() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let long = options()
        .cap(Duration::from_secs(60))
        .open(Arc::clone(&store), &server.url())
        .unwrap();
    assert!(long.ready(Duration::from_secs(10)).await);
    let owner = in_progress(&long, "k-1").await;
    assert!(is_refused(&long.claim(&claim("k-1")).await, &owner));
    let short = ready(&store, &server.url()).await;
    let outcome = short.claim(&claim("k-1")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
    assert_eq!(short.stats().odd, 1);
}

/// Whatever somebody else has put there, the store is asked, and the entry is written afresh.
#[tokio::test]
async fn anything_odd_is_a_miss() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    let key = keys(&server).remove(0);
    let good: Vec<u8> = redis::cmd("GET")
        .arg(&key)
        .query_async(&mut raw(&server).await)
        .await
        .unwrap();
    let mut longer = good.clone();
    longer.push(b'!');
    let mut newer = good.clone();
    newer[0] = 2;
    let set = |value: &[u8]| {
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(value).arg("PX").arg(20_000);
        command
    };
    let mut persistent = redis::cmd("SET");
    persistent.arg(&key).arg(&good);
    // The server's clock was set back by a minute.
    let mut immortal = redis::cmd("SET");
    immortal.arg(&key).arg(&good).arg("PX").arg(60_000);
    let spoils = [
        ("text", vec![set(b"in progress")]),
        ("nothing", vec![set(b"")]),
        ("cut short", vec![set(&good[..good.len() - 1])]),
        ("too long", vec![set(&longer)]),
        ("ten megabytes", vec![set(&vec![1; 10_000_000])]),
        ("another version", vec![set(&newer)]),
        ("no end", vec![persistent]),
        ("a later end", vec![immortal]),
        ("a list", vec![redis::cmd("DEL"), list(&key)]),
        ("a hash", vec![redis::cmd("DEL"), hash(&key)]),
    ];
    for (what, commands) in spoils {
        let mut connection = raw(&server).await;
        for mut command in commands {
            if command.args_iter().count() == 1 {
                command.arg(&key);
            }
            let _: redis::Value = command.query_async(&mut connection).await.unwrap();
        }
        let (claims, written) = (store.claims(), cache.stats().written);
        let outcome = cache.claim(&claim("k-1")).await;
        assert!(
            matches!(outcome, Ok(ClaimOutcome::Held(_))),
            "{what}: {outcome:?}"
        );
        assert_eq!(store.claims(), claims + 1, "{what}");
        until(what, async || cache.stats().written == written + 1).await;
        assert!(
            is_refused(&cache.claim(&claim("k-1")).await, &owner),
            "{what}"
        );
    }
    let stats = cache.stats();
    assert_eq!(
        (stats.errors, stats.timeouts, stats.opened),
        (0, 0, 0),
        "{stats:?}"
    );
    // Removing meets the wrong type as well.
    let mut connection = raw(&server).await;
    let _: redis::Value = redis::cmd("DEL")
        .arg(&key)
        .query_async(&mut connection)
        .await
        .unwrap();
    let _: redis::Value = list(&key).query_async(&mut connection).await.unwrap();
    finish(&cache, &owner).await;
    let held = cache.claim(&claim("k-1")).await;
    assert!(matches!(held, Ok(ClaimOutcome::Held(_))));
    assert_eq!(cache.stats().errors, 0);
    assert_eq!(keys(&server), [key], "what is not ours is not removed");
}

fn list(key: &str) -> redis::Cmd {
    let mut command = redis::cmd("RPUSH");
    command.arg(key).arg("x");
    command
}

fn hash(key: &str) -> redis::Cmd {
    let mut command = redis::cmd("HSET");
    command.arg(key).arg("x").arg("y");
    command
}

/// An entry under another record's key: a backup that was renamed, a reply that went astray.
#[tokio::test]
async fn an_entry_that_was_copied_says_nothing() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    in_progress(&cache, "k-1").await;
    let from = keys(&server).remove(0);
    in_progress(&cache, "k-2").await;
    let to = keys(&server).into_iter().find(|key| *key != from).unwrap();
    server.cli(&["COPY", &from, &to, "REPLACE"]).unwrap();
    let outcome = cache.claim(&claim("k-2")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Held(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_learns_them_again() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    // One round trip is all that a claim makes, so this one goes without Redis: by what this process knows, or to the
    // store.
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    assert_eq!((cache.stats().hits, cache.stats().shared_hits), (0, 1));
    until("the script", async || {
        is_refused(&cache.claim(&claim("k-1")).await, &owner) && cache.stats().hits > 0
    })
    .await;
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    let outcome = cache.claim(&claim("k-2")).await;
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    assert_eq!(cache.stats().unanswered, 1);
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    finish(&cache, &owner).await;
    until("a removal", async || cache.stats().removed == 1).await;
    let stats = cache.stats();
    assert_eq!((stats.errors, stats.opened), (0, 0), "{stats:?}");
}

/// The hashes in the source are those that Redis makes of the texts.
#[tokio::test]
async fn scripts_are_named_by_their_own_hashes() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = ready(&store, &server.url()).await;
    let owner = in_progress(&cache, "k-1").await;
    finish(&cache, &owner).await;
    until("a removal", async || cache.stats().removed == 1).await;
    // The probe sent all three in full; afterwards they were known by their hashes.
    let commands = server.cli(&["INFO", "commandstats"]).unwrap();
    assert!(commands.contains("cmdstat_eval:calls=3,"), "{commands}");
    let failed = server.cli(&["INFO", "errorstats"]).unwrap();
    assert!(!failed.contains("NOSCRIPT"), "{failed}");
}

/// Of many first claims at once one wins, and the others hear of it without asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_claims_at_once_have_one_winner() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = Arc::new(ready(&store, &server.url()).await);
    for round in 0..50 {
        let key = format!("k-{round}");
        let claims: Vec<_> = (0..16)
            .map(|_| {
                let (cache, claim) = (Arc::clone(&cache), claim(&key));
                tokio::spawn(async move { cache.claim(&claim).await.unwrap() })
            })
            .collect();
        let mut won = 0;
        for one in claims {
            won += u32::from(matches!(one.await.unwrap(), ClaimOutcome::Won(_)));
        }
        assert_eq!(won, 1);
    }
}

/// A claim that is dropped while others wait for it does not keep them waiting.
#[tokio::test]
async fn a_claim_that_is_dropped_keeps_nobody_waiting() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = Arc::new(ready(&store, &server.url()).await);
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    store.close_the_gate();
    let spawn = || {
        let cache = Arc::clone(&cache);
        tokio::spawn(async move { cache.claim(&claim("k-1")).await })
    };
    let first = spawn();
    until("the first one", async || {
        store.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1
    })
    .await;
    let others: Vec<_> = (0..8).map(|_| spawn()).collect();
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    store.open_the_gate();
    for other in others {
        assert!(other.await.unwrap().is_ok());
    }
}

/// Somebody learns that a key is in progress, is slow to say so, and meanwhile it is finished by this process.
#[tokio::test]
async fn what_was_learnt_before_the_end_is_not_written_after_it() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = Arc::new(ready(&store, &server.url()).await);
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    store.close_the_gate();
    let slow = tokio::spawn({
        let cache = Arc::clone(&cache);
        async move { cache.claim(&claim("k-1")).await }
    });
    until("the slow one", async || {
        store.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1
    })
    .await;
    finish(&*cache, &owner).await;
    store.open_the_gate();
    assert!(matches!(slow.await.unwrap(), Ok(ClaimOutcome::Held(_))));
    assert_eq!(cache.stats().written, 0);
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn the_local_tier_needs_no_round_trip() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let cache = options()
        .local_tier(NonZeroUsize::new(100).unwrap())
        .open(Arc::clone(&store), &server.url())
        .unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    let owner = in_progress(&cache, "k-1").await;
    server.kill().unwrap();
    let before = store.claims();
    for _ in 0..20 {
        assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    }
    assert!(!is_refused(&cache.claim(&owner).await, &owner));
    assert_eq!(store.claims(), before + 1);
    assert_eq!(cache.stats().shared_hits, 20);
    finish(&cache, &owner).await;
    let held = cache.claim(&claim("k-1")).await;
    assert!(matches!(held, Ok(ClaimOutcome::Held(_))), "{held:?}");
}

#[tokio::test]
async fn a_caller_may_bring_its_own_connection() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let store = Counting::new();
    let connection = raw(&server).await;
    let cache = options().over(store, connection).unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    let owner = in_progress(&cache, "k-1").await;
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
}

/// Access rules that allow no more than the cache needs, with a user and a password in the address.
#[tokio::test]
async fn few_rights_are_enough() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    server
        .cli(&[
            "ACL",
            "SETUSER",
            "idem",
            "on",
            ">secret",
            "resetkeys",
            "~idem:tests:*",
            "-@all",
            "+eval",
            "+evalsha",
            "+time",
            "+getrange",
            "+pttl",
            "+set",
            "+del",
        ])
        .unwrap();
    let url = server.url().replace("redis://", "redis://idem:secret@");
    let store = Counting::new();
    let cache = ready(&store, &url).await;
    let owner = in_progress(&cache, "k-1").await;
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    assert!(!format!("{cache:?}").contains("secret"));
    // Somebody who may not do it costs the store nothing but the cache.
    let url = server.url().replace("redis://", "redis://idem:wrong@");
    let shut_out = support::cache(&store, &url);
    assert!(!shut_out.ready(Duration::from_millis(300)).await);
    assert!(shut_out.claim(&claim("k-1")).await.is_ok());
}

/// Without a runtime there is no Redis, nobody waits for anybody, and there is no panic.
#[test]
fn without_a_runtime_the_store_is_asked() {
    let store = Counting::new();
    let cache = cache(&store, "redis://127.0.0.1:1/");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let first = claim("k-1");
    let mut won = std::pin::pin!(cache.claim(&first));
    let std::task::Poll::Ready(outcome) = won.as_mut().poll(&mut context) else {
        panic!("the store in memory answers at once");
    };
    assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))));
    store.close_the_gate();
    let (second, third) = (claim("k-1"), claim("k-1"));
    let mut second = std::pin::pin!(cache.claim(&second));
    let mut third = std::pin::pin!(cache.claim(&third));
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert!(third.as_mut().poll(&mut context).is_pending());
    assert_eq!(store.claims(), 3);
}
