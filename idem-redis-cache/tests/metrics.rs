//! What the `metrics` facade is told: every name of the documented table, with its type, unit and labels, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{ClaimOutcome, KeyStore as _};
use idem_redis_cache::{BreakerState, CacheStats};
use idem_test_servers::{Redis, unless_missing};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use support::{Counting, cache, claim, finish, is_refused, keys, until};

/// Everything that was told, by type, name and labels.
#[derive(Debug, Default, Clone)]
struct Told {
    described: Arc<Mutex<BTreeMap<String, Description>>>,
    numbers: Arc<Mutex<BTreeMap<Series, f64>>>,
}

/// A type and a unit.
type Description = (&'static str, Option<Unit>);

/// A type, a name, and labels in order.
type Series = (&'static str, String, Vec<(String, String)>);

/// One number of those.
struct Number(Told, Series);

impl CounterFn for Number {
    fn increment(&self, value: u64) {
        let mut numbers = self.0.numbers.lock().unwrap();
        *numbers.entry(self.1.clone()).or_default() += value as f64;
    }

    fn absolute(&self, value: u64) {
        unreachable!("{:?} was set to {value}", self.1);
    }
}

impl GaugeFn for Number {
    fn increment(&self, value: f64) {
        unreachable!("{:?} was incremented by {value}", self.1);
    }

    fn decrement(&self, value: f64) {
        unreachable!("{:?} was decremented by {value}", self.1);
    }

    fn set(&self, value: f64) {
        self.0.numbers.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl Told {
    fn number(&self, kind: &'static str, key: &Key) -> Arc<Number> {
        let label = |label: &metrics::Label| (label.key().to_owned(), label.value().to_owned());
        let mut labels: Vec<_> = key.labels().map(label).collect();
        labels.sort();
        let series = (kind, key.name().to_owned(), labels);
        Arc::new(Number(self.clone(), series))
    }

    fn describe(&self, kind: &'static str, key: &KeyName, unit: Option<Unit>) {
        let mut described = self.described.lock().unwrap();
        described.insert(key.as_str().to_owned(), (kind, unit));
    }

    fn get(&self, name: &str, label: Option<(&str, &str)>) -> f64 {
        let mut labels = vec![("namespace".to_owned(), "tests".to_owned())];
        labels.extend(label.map(|(key, value)| (key.to_owned(), value.to_owned())));
        labels.sort();
        let numbers = self.numbers.lock().unwrap();
        let mut found = numbers
            .iter()
            .filter(|((_, this, those), _)| this == name && *those == labels);
        let number = found.next().map(|(_, number)| *number).unwrap_or_default();
        assert!(found.next().is_none(), "{name} has two types");
        number
    }
}

impl Recorder for Told {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe("counter", &key, unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe("gauge", &key, unit);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        unreachable!("a histogram: {key:?}");
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number("counter", key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number("gauge", key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        unreachable!("a histogram: {key:?}");
    }
}

/// The rows of the table in the crate's documentation: type, name, and the names of the labels.
fn documented() -> BTreeSet<(String, String, Vec<String>)> {
    let rows = include_str!("../src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `idem_"));
    let table: BTreeSet<_> = rows
        .map(|row| {
            let mut columns = row.split('|').map(|column| column.trim().replace('`', ""));
            let name = format!("idem_{}", columns.next().unwrap());
            let kind = columns.next().unwrap();
            let labels = columns.nth(1).unwrap();
            let mut labels: Vec<_> = labels.split_whitespace().map(str::to_owned).collect();
            labels.push("namespace".to_owned());
            labels.sort();
            (kind, name, labels)
        })
        .collect();
    assert!(!table.is_empty());
    table
}

#[test]
fn every_documented_name_is_told_and_no_other() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let told = Told::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // In one thread everything is told to this recorder, what happens in the background as well.
    let stats = metrics::with_local_recorder(&told, || {
        runtime.block_on(everything_that_is_counted(&mut server, &told))
    });

    let numbers = told.numbers.lock().unwrap().clone();
    let series: BTreeSet<_> = numbers
        .keys()
        .map(|(kind, name, labels)| {
            let labels: Vec<_> = labels.iter().map(|(key, _)| key.clone()).collect();
            ((*kind).to_owned(), name.clone(), labels)
        })
        .collect();
    assert_eq!(series, documented());
    let described = told.described.lock().unwrap().clone();
    let of_the_table: BTreeSet<_> = documented()
        .into_iter()
        .map(|(kind, name, _)| (name, kind))
        .collect();
    let those: BTreeSet<_> = described
        .iter()
        .map(|(name, (kind, unit))| {
            assert_eq!(*unit, Some(Unit::Count), "{name}");
            (name.clone(), (*kind).to_owned())
        })
        .collect();
    assert_eq!(those, of_the_table);

    // And it is the same as the stats say, label by label.
    let claims = |answer| told.get(idem_redis_cache::CLAIMS_TOTAL, Some(("answer", answer)));
    let errors = |kind| told.get(idem_redis_cache::ERRORS_TOTAL, Some(("kind", kind)));
    let entries = |event| told.get(idem_redis_cache::ENTRIES_TOTAL, Some(("event", event)));
    let openings = told.get(idem_redis_cache::BREAKER_OPENINGS_TOTAL, None);
    let odd = told.get(idem_redis_cache::ODD_TOTAL, None);
    let pairs = [
        ("hit", claims("hit"), stats.hits),
        ("shared_hit", claims("shared_hit"), stats.shared_hits),
        ("miss", claims("miss"), stats.misses),
        ("unanswered", claims("unanswered"), stats.unanswered),
        ("bypassed", claims("bypassed"), stats.bypassed),
        ("odd", odd, stats.odd),
        ("timeout", errors("timeout"), stats.timeouts),
        ("failure", errors("failure"), stats.errors),
        ("written", entries("written"), stats.written),
        ("removed", entries("removed"), stats.removed),
        ("dropped", entries("dropped"), stats.dropped),
        ("openings", openings, stats.opened),
    ];
    for (what, told, counted) in pairs {
        assert_eq!(told, counted as f64, "{what}: {numbers:?}");
        assert!(counted > 0, "{what} never happened");
    }
    for (_, name, labels) in numbers.keys() {
        for (_, value) in labels {
            let secret = ["acct_1", "k-1", "127.0.0.1"]
                .iter()
                .any(|secret| value.contains(secret));
            assert!(!secret, "{name} tells {value}");
        }
    }
}

/// Has everything happen at least once.
async fn everything_that_is_counted(server: &mut Redis, told: &Told) -> CacheStats {
    let state = || told.get(idem_redis_cache::BREAKER_STATE, None);
    let store = Counting::new();
    let cache = support::options()
        .command_timeout(Duration::from_millis(100))
        .open(Arc::clone(&store), &server.url())
        .unwrap();
    assert_eq!(state(), 2.0, "open");
    // It begins to probe.
    let bypassed = cache.claim(&claim("bypassed")).await;
    assert!(matches!(bypassed, Ok(ClaimOutcome::Won(_))));
    assert_eq!(state(), 1.0, "half open");
    assert!(cache.ready(Duration::from_secs(10)).await);
    assert_eq!(state(), 0.0, "closed");

    // A miss, and an entry that is written, hit, spoilt, written again and removed.
    let owner = claim("k-1");
    assert!(cache.claim(&owner).await.is_ok());
    assert!(cache.claim(&claim("k-1")).await.is_ok());
    until("an entry", async || cache.stats().written == 1).await;
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    server
        .cli(&["SET", &keys(server)[0], "odd", "PX", "20000"])
        .unwrap();
    assert!(cache.claim(&claim("k-1")).await.is_ok());
    until("another", async || cache.stats().written == 2).await;

    // While Redis is stuck: what is known is said here, anything else asks in vain, until it is not asked any more.
    server.pause().unwrap();
    assert!(is_refused(&cache.claim(&claim("k-1")).await, &owner));
    for number in 0..3 {
        let outcome = cache.claim(&claim(&format!("unanswered-{number}"))).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
    }
    until("the breaker", async || {
        cache.stats().breaker != BreakerState::Closed
    })
    .await;
    finish(&cache, &claim_of(&cache, "dropped").await).await;
    server.resume().unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    finish(&cache, &owner).await;
    until("a removal", async || cache.stats().removed == 1).await;
    // And while it is gone its connection fails.
    server.kill().unwrap();
    until("a failure", async || {
        let _ = cache.claim(&claim("k-2")).await;
        cache.stats().errors > 0
    })
    .await;
    let stats = cache.stats();
    assert_eq!(store.waiting.load(Ordering::SeqCst), 0);
    drop(cache);
    stats
}

async fn claim_of(cache: &support::Cache, key: &str) -> idem_core::Claim {
    let owner = claim(key);
    assert!(cache.claim(&owner).await.is_ok());
    owner
}

/// A recorder is not needed, and may come later.
#[test]
fn a_recorder_that_comes_later_is_told_what_happens_then() {
    let store = Counting::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let cache = cache(&store, "redis://127.0.0.1:1/");
    runtime.block_on(async { assert!(cache.claim(&claim("k-1")).await.is_ok()) });
    let told = Told::default();
    metrics::with_local_recorder(&told, || {
        runtime.block_on(async { assert!(cache.claim(&claim("k-2")).await.is_ok()) });
    });
    let bypassed = Some(("answer", "bypassed"));
    assert_eq!(told.get(idem_redis_cache::CLAIMS_TOTAL, bypassed), 1.0);
}
