//! A Redis that is not set up as it should be, or is none: claims go to the store, and the log says why, once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fmt::{Debug, Write as _};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::{ClaimOutcome, KeyStore as _};
use idem_redis_cache::{BreakerState, CacheOptions, Namespace, redis};
use idem_test_servers::{Redis, unless_missing};
use support::{Cache, Counting, claim, is_refused, options, until};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What was logged by this crate at WARN and INFO, while it is installed.
#[derive(Debug, Default, Clone)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    fn lines(&self) -> Vec<(Level, String)> {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("idem_redis_cache")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let mut lines = self.0.lock().unwrap();
        lines.push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Through this address Redis is never used, whatever is tried for a while: claims work as without a cache, and one line
/// says why.
async fn is_of_no_use(options: CacheOptions, url: &str, why: &str) {
    let log = Log::default();
    // In one thread the probes say it there as well.
    let _installed = tracing::subscriber::set_default(log.clone());
    let store = Counting::new();
    let cache = options.open(Arc::clone(&store), url).unwrap();
    let began = Instant::now();
    let mut number = 0;
    // Four probes at least, at growing intervals.
    until("some probes", async || {
        number += 1;
        let outcome = cache.claim(&claim(&format!("k-{number}"))).await;
        assert!(matches!(outcome, Ok(ClaimOutcome::Won(_))), "{outcome:?}");
        assert_ne!(cache.stats().breaker, BreakerState::Closed, "{why}");
        cache.stats().errors >= 3 && began.elapsed() > Duration::from_millis(300)
    })
    .await;
    let stats = cache.stats();
    assert_eq!(store.claims(), number);
    assert_eq!((stats.bypassed, stats.written), (number, 0), "{stats:?}");
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (level, line) = &lines[0];
    assert_eq!(*level, Level::WARN);
    assert!(line.contains(why), "{why:?} is not in {line}");
    assert!(line.contains("namespace=\"tests\""), "{line}");
    for secret in ["hunter2", "acct_1", "k-1", "POST"] {
        assert!(!line.contains(secret), "{line}");
    }
}

const RIGHTS: [&str; 7] = [
    "+eval",
    "+evalsha",
    "+time",
    "+getrange",
    "+pttl",
    "+set",
    "+del",
];

/// A user with these rights on these keys, and its address.
fn user(server: &Redis, keys: &str, rights: &[&str]) -> String {
    let mut command = vec!["ACL", "SETUSER", "idem", "reset", "on", ">hunter2", keys];
    command.push("-@all");
    command.extend(rights);
    server.cli(&command).unwrap();
    server.url().replace("redis://", "redis://idem:hunter2@")
}

/// Without any one of them, none of the others is used: an entry that can be written and not removed, or not read, is of
/// no use. With all of them it works.
#[tokio::test]
async fn a_user_without_one_of_the_rights() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    for missing in RIGHTS {
        let rights: Vec<_> = RIGHTS.into_iter().filter(|one| *one != missing).collect();
        let url = user(&server, "~idem:tests:*", &rights);
        let why = match missing {
            "+eval" | "+evalsha" => "permission",
            _ => "user executing the script",
        };
        println!("without {missing}");
        is_of_no_use(options(), &url, why).await;
    }
    let url = user(&server, "~idem:others:*", &RIGHTS);
    is_of_no_use(options(), &url, "ermission").await;
    let url = user(&server, "~idem:tests:*", &RIGHTS);
    let store = Counting::new();
    works(&options().open(Arc::clone(&store), &url).unwrap()).await;
}

/// A duplicate is refused by what Redis says.
async fn works(cache: &Cache) {
    assert!(cache.ready(Duration::from_secs(10)).await);
    let owner = claim("works");
    assert!(cache.claim(&owner).await.is_ok());
    until("a refusal by Redis", async || {
        is_refused(&cache.claim(&claim("works")).await, &owner) && cache.stats().hits > 0
    })
    .await;
    let stats = cache.stats();
    assert_eq!((stats.errors, stats.odd), (0, 0), "{stats:?}");
}

/// Another type than a string is no entry. What may not be read is something else, and is said to be.
#[tokio::test]
async fn what_may_not_be_read_is_an_error_of_each_script() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let rights = RIGHTS.into_iter().filter(|one| *one != "+getrange");
    let rights: Vec<_> = rights.collect();
    let url = user(&server, "~idem:tests:*", &rights);
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let scripts = [
        include_str!("../src/scripts/look.lua"),
        include_str!("../src/scripts/forget.lua"),
    ];
    for script in scripts {
        let mut command = redis::cmd("EVAL");
        command
            .arg(script)
            .arg(1)
            .arg("idem:tests:x")
            .arg("7")
            .arg(66);
        let answer: redis::RedisResult<redis::Value> = command.query_async(&mut connection).await;
        assert!(answer.is_err(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_password_that_is_wrong_or_missing() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    server
        .cli(&["CONFIG", "SET", "requirepass", "secret"])
        .unwrap();
    is_of_no_use(options(), &server.url(), "uthentication").await;
    let url = server.url().replace("redis://", "redis://:hunter2@");
    is_of_no_use(options(), &url, "uthentication").await;
}

#[tokio::test]
async fn an_address_that_leads_nowhere() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    is_of_no_use(options(), "redis://127.0.0.1:1/", "refused").await;
    is_of_no_use(options(), "unix:///nowhere/redis.sock", "No such file").await;
    is_of_no_use(options(), &format!("{}/99", server.url()), "database").await;
}

/// The server has the plain text on a port where the address says TLS, and the other way round.
#[tokio::test]
async fn a_port_of_the_other_kind() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let short = || options().connect_timeout(Duration::from_millis(50));
    let Some(plain) = unless_missing(Redis::start()) else {
        return;
    };
    let url = plain.url().replace("redis://", "rediss://");
    is_of_no_use(short(), &url, "").await;
    let Some(tls) = unless_missing(Redis::builder().tls().start()) else {
        return;
    };
    // Of an authority that nobody trusts.
    is_of_no_use(options(), &tls.url(), "certificate").await;
    let url = tls.url().replace("rediss://", "redis://");
    is_of_no_use(short(), &url, "").await;
}

/// Something that answers, and is no Redis.
#[tokio::test]
async fn a_server_of_another_kind() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    is_of_no_use(options(), &url, "").await;
}

/// It is said once that Redis is of no use, and once that it is back.
#[tokio::test]
async fn the_log_has_a_line_when_it_goes_and_one_when_it_comes_back() {
    let Some(mut server) = unless_missing(Redis::start()) else {
        return;
    };
    let log = Log::default();
    let _installed = tracing::subscriber::set_default(log.clone());
    let store = Counting::new();
    let cache = support::ready(&store, &server.url()).await;
    assert_eq!(log.lines(), [], "all is well");
    server.kill().unwrap();
    until("some probes", async || {
        let _ = cache.claim(&claim("k-1")).await;
        cache.stats().errors >= 4
    })
    .await;
    // The connection ended, and then there was none to be had.
    let lines = log.lines();
    assert!((1..=2).contains(&lines.len()), "{lines:?}");
    assert!(lines.iter().all(|(level, _)| *level == Level::WARN));
    server.restart().unwrap();
    assert!(cache.ready(Duration::from_secs(20)).await);
    let after = log.lines();
    assert_eq!(after.len(), lines.len() + 1, "{after:?}");
    assert_eq!(after[lines.len()].0, Level::INFO);
}

/// Nothing of RESP 3 is needed, and nothing is in its way; nor is a database of another number.
#[tokio::test]
async fn resp_3_and_another_database() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    for address in ["?protocol=resp3", "/7", "/7?protocol=resp3"] {
        let store = Counting::new();
        let namespace = Namespace::new("tests").unwrap();
        let options = CacheOptions::new(namespace).command_timeout(Duration::from_secs(5));
        let url = format!("{}{address}", server.url());
        let cache = options.cap(support::CAP).open(store, &url).unwrap();
        works(&cache).await;
        server.cli(&["FLUSHALL"]).unwrap();
    }
}

/// The server's clock, as the script sees it, is not what it was when Redis was asked: set back, an entry would live for
/// too long, and set forward, or after a long way, it is over.
#[tokio::test]
async fn a_clock_that_was_set_on_the_way_to_redis() {
    let Some(server) = unless_missing(Redis::start()) else {
        return;
    };
    let script = include_str!("../src/scripts/remember.lua");
    let now = || {
        let time = server.cli(&["TIME"]).unwrap();
        let mut parts = time.lines().map(|part| part.parse::<i64>().unwrap());
        parts.next().unwrap() * 1000 + parts.next().unwrap() / 1000
    };
    let remember = |end: i64, lifetime: i64| {
        let (end, lifetime) = (end.to_string(), lifetime.to_string());
        let command = ["EVAL", script, "1", "entry", "bytes", &end, &lifetime];
        server.cli(&command).unwrap()
    };
    assert_eq!(
        remember(now() + 3_600_000, 60_000),
        "0",
        "set back by an hour"
    );
    assert_eq!(remember(now(), 60_000), "0", "over just now");
    assert_eq!(remember(now() - 3_600_000, 60_000), "0", "set forward");
    assert_eq!(server.cli(&["EXISTS", "entry"]).unwrap(), "0");
    assert_eq!(remember(now() + 59_000, 60_000), "1");
    let left: i64 = server.cli(&["PTTL", "entry"]).unwrap().parse().unwrap();
    assert!((1..=59_000).contains(&left), "{left}");
}
