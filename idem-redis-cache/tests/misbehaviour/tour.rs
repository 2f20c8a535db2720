//! Every kind of store behind a cache whose Redis has one trouble after the other: the suite, and handlers that are
//! counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::executor::{Answer, Idempotency, Outcome};
use idem_core::{KeyStore, Response};
use idem_redis_cache::{CacheOptions, Namespace, NegativeCache};
use idem_test_servers::{Direction, Fault, FaultProxy, Redis, unless_missing};
use idem_testkit::Unavailable;

use super::support::backends::{Backend, Memory, Postgres, Sqlite};
use super::support::{clock, request};
use super::{
    ANOTHER_TYPE, EACH_OTHERS, WITH_A_LATE_END, WITHOUT_AN_END, WRONG_BYTES, amid, pause, run_over,
};

/// What can become of a Redis.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Link(Fault),
    /// Everything is carried out, and nothing is heard of it.
    LostAnswers,
    Killed,
    Stopped,
    Flushed,
    ClientsPaused,
    /// Full, and it refuses to write.
    Full,
    /// Full, and it throws away what it has.
    Evicts,
    /// Made the replica of an empty server, which takes its data away and makes it read-only.
    Demoted,
    /// This script is run on what is there.
    Spoilt(&'static str),
}

const TROUBLES: [Trouble; 20] = [
    Trouble::Link(Fault::BlackHole),
    Trouble::Spoilt(ANOTHER_TYPE),
    Trouble::Link(Fault::Delay(Duration::from_secs(5))),
    Trouble::Flushed,
    Trouble::Link(Fault::Delay(Duration::from_millis(12))),
    Trouble::Killed,
    Trouble::Link(Fault::CutAfter(700)),
    Trouble::Spoilt(WRONG_BYTES),
    Trouble::Link(Fault::Refuse),
    Trouble::Full,
    Trouble::Link(Fault::Garbage),
    Trouble::Spoilt(EACH_OTHERS),
    Trouble::Link(Fault::HalfOpen),
    Trouble::Stopped,
    Trouble::LostAnswers,
    Trouble::Spoilt(WITHOUT_AN_END),
    Trouble::ClientsPaused,
    Trouble::Evicts,
    Trouble::Demoted,
    Trouble::Spoilt(WITH_A_LATE_END),
];

/// A Redis behind a link, and what is yet to come.
struct Tour {
    server: Redis,
    proxy: FaultProxy,
    /// Of which it is made a replica.
    other: Redis,
    /// How many troubles there were.
    made: Arc<AtomicUsize>,
}

impl Tour {
    fn start() -> Option<Self> {
        let other = unless_missing(Redis::start())?;
        let server = Redis::builder().option("repl-diskless-sync-delay", "0");
        let server = unless_missing(server.start())?;
        let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
        Some(Self {
            server,
            proxy,
            other,
            made: Arc::default(),
        })
    }

    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    /// Makes the next trouble, ends it, and leaves some time in which all is well.
    fn next(&mut self) {
        let made = self.made.fetch_add(1, Ordering::SeqCst);
        self.make(TROUBLES[made % TROUBLES.len()]);
        pause(90);
    }

    fn make(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Link(fault) => {
                // Another process may have taken the port while connections were refused. Then they still are.
                let _ = self.proxy.set(fault);
                pause(60);
                let _ = self.proxy.set(Fault::Pass);
            }
            Trouble::LostAnswers => {
                let _ = self.proxy.set_one_way(Direction::Answers, Fault::BlackHole);
                pause(60);
                let _ = self.proxy.set_one_way(Direction::Answers, Fault::Pass);
            }
            Trouble::Killed => {
                self.server.kill().unwrap();
                pause(50);
                self.server.restart().unwrap();
            }
            Trouble::Stopped => {
                self.server.pause().unwrap();
                pause(60);
                self.server.resume().unwrap();
            }
            Trouble::Flushed => self.again_and_again(&["FLUSHALL"]),
            Trouble::Spoilt(script) => self.again_and_again(&["EVAL", script, "0"]),
            Trouble::ClientsPaused => {
                self.tell(&["CLIENT", "PAUSE", "60", "ALL"]);
                pause(60);
            }
            Trouble::Full => self.with_no_memory("noeviction"),
            Trouble::Evicts => self.with_no_memory("allkeys-random"),
            Trouble::Demoted => {
                self.tell(&["REPLICAOF", "127.0.0.1", &self.other.port().to_string()]);
                pause(80);
                self.tell(&["REPLICAOF", "NO", "ONE"]);
            }
        }
    }

    fn with_no_memory(&self, policy: &str) {
        self.tell(&["CONFIG", "SET", "maxmemory-policy", policy]);
        self.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        pause(60);
        self.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    }

    fn again_and_again(&self, command: &[&str]) {
        for _ in 0..8 {
            self.tell(command);
            pause(3);
        }
    }

    /// A script may be refused for what it finds.
    fn tell(&self, command: &[&str]) {
        let _ = self.server.cli(command);
    }
}

/// The suite over a store of this kind, until there was every trouble at least once.
fn suite<B: Backend>() {
    let Some(mut tour) = Tour::start() else {
        return;
    };
    let made = Arc::clone(&tour.made);
    let url = tour.url();
    let (mut hits, mut troubles) = (0, 0);
    amid(
        || tour.next(),
        || {
            while made.load(Ordering::SeqCst) <= TROUBLES.len() {
                let seen = run_over::<B>(url.clone(), || pause(50));
                hits += seen.hits;
                troubles += seen.trouble();
            }
        },
    );
    // It is of no use unless Redis was used, and got in the way.
    assert!(hits > 0 && troubles > 0, "{hits} hits, {troubles} troubles");
}

/// How often the work of each key was done.
type Runs = Arc<Mutex<HashMap<String, u64>>>;

/// Two processes' caches before one store, and many copies of each request that are sent to both of them: each is done
/// once, and all are told the same.
async fn copies<B: Backend>(url: &str, made: &AtomicUsize) -> Result<(), Unavailable> {
    let clock = clock();
    let name = format!("copies-{}", std::process::id());
    let records = B::create(&name, &clock).await?;
    let mut processes = Vec::new();
    for _ in 0..2 {
        let store = B::open(&records, &clock).await?;
        let cache = CacheOptions::new(Namespace::new(name.as_str()).unwrap())
            .cap(Duration::from_millis(100))
            .command_timeout(Duration::from_millis(25))
            .connect_timeout(Duration::from_millis(100))
            .open(store, url)
            .map_err(Unavailable::new)?;
        processes.push(Idempotency::new(cache));
    }
    let runs = Runs::default();
    let mut round = 0;
    while made.load(Ordering::SeqCst) <= TROUBLES.len() {
        let mut senders = Vec::new();
        for number in 0..4 {
            let key = format!("k-{round}-{number}");
            for copy in 0..16 {
                let process = processes[copy % 2].clone();
                let (key, runs) = (key.clone(), Arc::clone(&runs));
                senders.push(tokio::spawn(async move {
                    let answer = send(&process, &key, &runs).await;
                    (key, answer)
                }));
            }
        }
        let mut answers = HashMap::new();
        for sender in senders {
            let (key, answer) = sender.await.unwrap();
            let first = answers.entry(key).or_insert_with(|| answer.clone());
            assert_eq!(*first, answer);
        }
        for key in answers.keys() {
            assert_eq!(runs.lock().unwrap()[key], 1, "{key}");
        }
        round += 1;
    }
    println!("{} keys", round * 4);
    let stats = processes.iter().map(|process| process.store().stats());
    let stats: Vec<_> = stats.collect();
    assert!(stats.iter().any(|stats| stats.hits > 0), "{stats:?}");
    assert!(stats.iter().any(|stats| stats.opened > 0), "{stats:?}");
    drop(processes);
    B::destroy(&records).await;
    Ok(())
}

/// Sends the request until there is an answer, as a client does.
async fn send<S: KeyStore + 'static>(
    process: &Idempotency<NegativeCache<S>>,
    key: &str,
    runs: &Runs,
) -> Response {
    loop {
        let work = |_attempt| async {
            let run = {
                let mut runs = runs.lock().unwrap();
                let run = runs.entry(key.to_owned()).or_default();
                *run += 1;
                *run
            };
            // Long enough for the others to be refused, by whomever.
            tokio::time::sleep(Duration::from_millis(40)).await;
            Outcome::Completed(Response::new(201).body(format!("{key} {run}")))
        };
        match process.execute(&request(key, "POST /x", 1), work).await {
            Ok(Answer::Fresh(response) | Answer::Replayed(response)) => return response,
            Ok(Answer::Busy { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            other => unreachable!("{other:?}"),
        }
    }
}

fn nobody_runs_twice<B: Backend>() {
    let Some(mut tour) = Tour::start() else {
        return;
    };
    let (url, made) = (tour.url(), Arc::clone(&tour.made));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let done = amid(
        || tour.next(),
        || runtime.block_on(copies::<B>(&url, &made)),
    );
    if let Err(unavailable) = done {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "{unavailable}"
        );
        println!("SKIPPED: {unavailable}");
    }
}

#[test]
fn the_suite_over_sqlite() {
    suite::<Sqlite>();
}

#[test]
fn the_suite_over_postgres() {
    suite::<Postgres>();
}

#[test]
fn the_suite_over_memory() {
    suite::<Memory>();
}

#[test]
fn copies_over_memory() {
    nobody_runs_twice::<Memory>();
}

#[test]
fn copies_over_sqlite() {
    nobody_runs_twice::<Sqlite>();
}

#[test]
fn copies_over_postgres() {
    nobody_runs_twice::<Postgres>();
}
