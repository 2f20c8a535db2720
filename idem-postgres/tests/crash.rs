//! A server that is killed again and again under load, and comes back with the same data.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::executor::{Answer, Idempotency, Outcome};
use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore as _, OwnerToken, Policy, Response, Status, StoreError,
    StoreErrorKind, TransitionOutcome, async_trait,
};
use idem_postgres::{PgKeyStore, PgOptions};
use idem_test_servers::{Postgres, Version, unless_missing};
use idem_testkit::{CaseVerdict, Harness, Missing, Suite, Unavailable};
use sqlx::postgres::PgPoolOptions;
use tools::{answer, claim, complete, id, owner, request};

const KILLS: usize = 20;

/// A call that has neither an answer nor an error by then has been forgotten.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server was told, and has acknowledged.
#[derive(Default)]
struct Ledger {
    /// By raw claims: who won.
    won: BTreeMap<String, OwnerToken>,
    /// By raw claims and by the executor: what was answered.
    answered: BTreeMap<String, Response>,
    /// How often work was done.
    effects: BTreeMap<String, u32>,
    errors: BTreeMap<&'static str, usize>,
}

#[derive(Clone)]
struct Load {
    store: PgKeyStore,
    ledger: Arc<Mutex<Ledger>>,
    over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::SeqCst)
    }

    /// Every fault says whether something may have been done.
    fn is_typed(&self, error: &StoreError) {
        let kind = match error.kind() {
            StoreErrorKind::Unavailable => "unavailable",
            StoreErrorKind::Ambiguous => "ambiguous",
            _ => panic!("{error:?}"),
        };
        *self.ledger.lock().unwrap().errors.entry(kind).or_default() += 1;
    }

    /// Two senders of one operation, each of which asks until it has an answer.
    async fn operations(self, worker: usize) {
        let policy = Policy::builder()
            .lease(Duration::from_secs(1))
            .heartbeat(Duration::from_millis(200))
            .store_timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        let idempotency = Idempotency::new(self.store.clone()).with_policy(policy);
        let mut number = 0;
        while self.goes_on() {
            let key = format!("operation-{worker}-{number}");
            number += 1;
            let senders = [
                self.clone()
                    .until_answered(idempotency.clone(), key.clone()),
                self.clone()
                    .until_answered(idempotency.clone(), key.clone()),
            ]
            .map(tokio::spawn);
            let mut answers = Vec::new();
            for sender in senders {
                answers.push(sender.await.unwrap());
            }
            assert_eq!(answers[0], answers[1], "{key}");
            let mut ledger = self.ledger.lock().unwrap();
            ledger.answered.insert(key, answers.remove(0));
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn until_answered(self, idempotency: Idempotency<PgKeyStore>, key: String) -> Response {
        let until = Instant::now() + PATIENCE;
        let request = request(&key);
        loop {
            assert!(Instant::now() < until, "{key} had no answer");
            let work = async |_| {
                let mut ledger = self.ledger.lock().unwrap();
                let effects = ledger.effects.entry(key.clone()).or_default();
                *effects += 1;
                // Each time the work is done it says something else, so two stored answers would be seen.
                Ok::<_, Infallible>(Outcome::Completed(answer(&format!("{key} {effects}"))))
            };
            let asked = tokio::time::timeout(PATIENCE, idempotency.execute(&request, work));
            let Ok(answered) = asked.await else {
                panic!("{key} had neither an answer nor an error");
            };
            match answered {
                Ok(Answer::Fresh(answer) | Answer::Replayed(answer)) => return answer,
                Ok(Answer::Busy { .. } | Answer::NotYetStored) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(other) => panic!("{key}: {other:?}"),
                Err(error) => {
                    self.is_typed(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    /// Two claims of one new id, straight at the store, and the winner's answer.
    async fn claims(self, worker: usize) {
        let mut number = 0;
        while self.goes_on() {
            let key = format!("claim-{worker}-{number}");
            number += 1;
            let rivals = [claim(&key), claim(&key)];
            let senders = rivals
                .clone()
                .map(|claim| tokio::spawn(self.clone().until_claimed(claim)));
            let mut owners = Vec::new();
            for sender in senders {
                owners.push(sender.await.unwrap());
            }
            // Both are told of the same owner, who is one of the two.
            assert_eq!(owners[0], owners[1], "{key}");
            let winner = rivals.iter().find(|claim| claim.token() == owners[0]);
            let winner = winner.unwrap_or_else(|| panic!("{key} is nobody's"));
            self.until_completed(winner).await;
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The token of the record's owner.
    async fn until_claimed(self, claim: Claim) -> OwnerToken {
        let until = Instant::now() + PATIENCE;
        let key = claim.id().key().as_str().to_owned();
        loop {
            assert!(Instant::now() < until, "{key} was not claimed");
            match in_time(self.store.claim(&claim)).await {
                Ok(ClaimOutcome::Won(won)) => {
                    let mut ledger = self.ledger.lock().unwrap();
                    let other = ledger.won.insert(key.clone(), won.record.token);
                    assert!(other.is_none(), "{key} was won twice");
                    return won.record.token;
                }
                Ok(ClaimOutcome::Held(held)) => return held.record.token,
                Ok(ClaimOutcome::Contended { retry_after }) => {
                    tokio::time::sleep(retry_after).await;
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    self.is_typed(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    async fn until_completed(&self, winner: &Claim) {
        let until = Instant::now() + PATIENCE;
        let key = winner.id().key().as_str().to_owned();
        let mut may_be_there = false;
        loop {
            assert!(Instant::now() < until, "{key} was not completed");
            let change = complete(&key);
            let sent = self.store.transition(winner.id(), owner(winner), &change);
            match in_time(sent).await {
                Ok(TransitionOutcome::Applied { .. }) => break,
                Ok(TransitionOutcome::Lost(Some(held))) => {
                    // An answer that was lost on the way: it was there already.
                    assert!(may_be_there, "{key} was refused");
                    assert_eq!(held.record.state.response(), Some(&answer(&key)), "{key}");
                    break;
                }
                Ok(TransitionOutcome::Contended { retry_after }) => {
                    tokio::time::sleep(retry_after).await;
                }
                Ok(other) => panic!("{key}: {other:?}"),
                Err(error) => {
                    may_be_there |= error.kind() == StoreErrorKind::Ambiguous;
                    self.is_typed(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        let mut ledger = self.ledger.lock().unwrap();
        ledger.answered.insert(key.clone(), answer(&key));
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(answered) => answered,
        Err(_) => panic!("a call had neither an answer nor an error within {PATIENCE:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_twenty_times_loses_nothing() {
    let Some(mut postgres) = unless_missing(Postgres::start(Version::V15)) else {
        return;
    };
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy(&postgres.url())
        .unwrap();
    let store = PgOptions::new().build(pool);
    store.migrate().await.unwrap();
    let load = Load {
        store: store.clone(),
        ledger: Arc::default(),
        over: Arc::default(),
        done: Arc::default(),
    };
    let mut workers = Vec::new();
    for worker in 0..4 {
        workers.push(tokio::spawn(load.clone().operations(worker)));
        workers.push(tokio::spawn(load.clone().claims(worker)));
    }
    let began = Instant::now();
    let done = load.done.clone();
    // Each kill comes in the middle of work: after something more was done than at the last one.
    let nemesis = tokio::task::spawn_blocking(move || {
        let kills = AtomicU32::new(0);
        for kill in 0..KILLS {
            let before = done.load(Ordering::SeqCst);
            let until = Instant::now() + PATIENCE;
            while done.load(Ordering::SeqCst) < before + 8 + kill % 5 {
                assert!(Instant::now() < until, "nothing is done after {kill} kills");
                std::thread::sleep(Duration::from_millis(1));
            }
            postgres.kill().unwrap();
            kills.fetch_add(1, Ordering::SeqCst);
            postgres.restart().unwrap();
        }
        postgres
    });
    let ended = nemesis.await;
    load.over.store(true, Ordering::SeqCst);
    let _postgres = ended.unwrap();
    for worker in workers {
        worker.await.unwrap();
    }

    // The same client goes on, and finds everything that it was told of.
    let (won, answered, effects) = {
        let mut ledger = load.ledger.lock().unwrap();
        println!(
            "{KILLS} kills in {:?}: {} ids claimed, {} answers, errors {:?}",
            began.elapsed(),
            ledger.won.len(),
            ledger.answered.len(),
            ledger.errors
        );
        (
            std::mem::take(&mut ledger.won),
            std::mem::take(&mut ledger.answered),
            std::mem::take(&mut ledger.effects),
        )
    };
    for (key, response) in &answered {
        let held = store.load(&id(key)).await.unwrap();
        let held = held.unwrap_or_else(|| panic!("{key} was answered, and is gone"));
        assert_eq!(held.record.status(), Status::Completed, "{key}");
        assert_eq!(held.record.state.response(), Some(response), "{key}");
        if let Some(token) = won.get(key) {
            assert_eq!(held.record.token, *token, "{key}");
        }
        // Work is done again only by an attempt that took over from one whose outcome was unknown.
        if let Some(effects) = effects.get(key) {
            assert!(
                *effects <= held.record.attempt.as_u32(),
                "{key}: {effects} effects"
            );
        }
    }
    let last = claim("last");
    assert!(matches!(store.claim(&last).await, Ok(ClaimOutcome::Won(_))));
    let expect = Expect::Owner(last.token());
    let done = store.transition(last.id(), expect, &complete("x")).await;
    assert!(matches!(done, Ok(TransitionOutcome::Applied { .. })));
}

/// A server for one case, which a crash kills.
struct Crashing;

#[async_trait]
impl Harness for Crashing {
    type Data = Mutex<Postgres>;
    type Store = PgKeyStore;

    async fn create(&self) -> Result<Mutex<Postgres>, Unavailable> {
        let Some(postgres) = unless_missing(Postgres::start(Version::V15)) else {
            return Err(Unavailable::new("there is no Postgres"));
        };
        let data = Mutex::new(postgres);
        let store = self.open(&data).await?;
        store.migrate().await.map_err(Unavailable::new)?;
        store.pool().close().await;
        Ok(data)
    }

    async fn open(&self, data: &Mutex<Postgres>) -> Result<PgKeyStore, Unavailable> {
        let url = data.lock().unwrap().url();
        let pool = PgPoolOptions::new().connect_lazy(&url);
        Ok(PgKeyStore::new(pool.map_err(Unavailable::new)?))
    }

    async fn crash(&self, data: &Mutex<Postgres>) -> Result<(), Missing> {
        tokio::task::block_in_place(|| {
            let mut postgres = data.lock().unwrap();
            postgres.kill().unwrap();
            postgres.restart().unwrap();
        });
        Ok(())
    }
}

/// Each kind of write by itself is there after a crash right behind it.
#[test]
fn every_write_outlives_a_crash() {
    // Without a server there is nothing to crash, and nothing that could pass.
    if unless_missing(Postgres::start(Version::V15)).is_none() {
        return;
    }
    let report = Suite::new().only("durable_after_a_crash").run(Crashing);
    assert_eq!(report.cases.len(), 1, "{report}");
    assert_eq!(report.cases[0].verdict, CaseVerdict::Passed, "{report}");
}
