//! Calls that travel together: that they do, and that none of them is another one's trouble.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use idem_core::{
    Claim, ClaimOutcome, KeyStore as _, Response, Status, StoreError, StoreErrorKind, Transition,
    TransitionOutcome,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions, Pooling};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::task::JoinHandle;
use tools::{Database, Tap, answer, claim, complete, in_line, owner, renew, soon, win};

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(10);

type Claimed = JoinHandle<Result<ClaimOutcome, StoreError>>;
type Written = JoinHandle<Result<TransitionOutcome, StoreError>>;

/// A store whose next statement of a kind waits until it is let go, so that what is sent meanwhile stands in line.
struct Plugged {
    database: Database,
    store: PgKeyStore,
    tap: Tap,
}

impl Plugged {
    async fn new(name: &str, options: PgOptions) -> Option<Self> {
        let database = Database::new(name)?;
        let tap = Tap::new(&database.connect_options());
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .test_before_acquire(false)
            .connect_lazy_with(tap.through(database.connect_options()));
        let store = options.lock_wait(FOREVER).build(pool);
        store.migrate().await.unwrap();
        Some(Self {
            database,
            store,
            tap,
        })
    }

    /// A row that somebody else is creating, and a claim of it that waits.
    async fn plug_claims(&self) -> (Plug, Claimed) {
        let mut open = self.database.connection().await;
        open.execute("BEGIN").await.unwrap();
        insert(&mut open, "plug").await;
        let plugged = self.claim(&claim("plug"));
        self.database.until_waiting(1).await;
        (Plug(open), plugged)
    }

    /// A table that nobody may write, and a write that waits for it.
    async fn plug_writes(&self, change: Transition) -> (Plug, Written) {
        let plug = claim("plug");
        win(&self.store, &plug).await;
        let mut open = self.database.connection().await;
        // Of rows, renewals would not wait for the lock.
        open.execute("BEGIN; LOCK TABLE idem_record IN SHARE MODE")
            .await
            .unwrap();
        let open = Plug(open);
        let plugged = self.write(&plug, change);
        self.database.until_waiting(1).await;
        (open, plugged)
    }

    async fn lock(&self, key: &str) -> Plug {
        let mut open = self.database.connection().await;
        let sql = format!("BEGIN; SELECT 1 FROM idem_record WHERE \"key\" = '{key}' FOR UPDATE");
        open.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap();
        Plug(open)
    }

    fn claim(&self, claim: &Claim) -> Claimed {
        let (store, claim) = (self.store.clone(), claim.clone());
        in_line(async move { store.claim(&claim).await })
    }

    fn write(&self, claim: &Claim, change: Transition) -> Written {
        let (store, claim) = (self.store.clone(), claim.clone());
        in_line(async move { store.transition(claim.id(), owner(&claim), &change).await })
    }

    /// Claims that are won, one by one.
    async fn owned(&self, prefix: &str, count: usize) -> Vec<Claim> {
        let mut owned = Vec::new();
        for number in 0..count {
            let claim = claim(&format!("{prefix}-{number}"));
            win(&self.store, &claim).await;
            owned.push(claim);
        }
        owned
    }
}

struct Plug(PgConnection);

impl Plug {
    async fn pull(mut self) {
        self.0.execute("ROLLBACK").await.unwrap();
        self.0.close().await.unwrap();
    }
}

/// A record that somebody else is creating.
async fn insert(open: &mut PgConnection, key: &str) {
    let sql = format!(
        "INSERT INTO idem_record (scope, \"key\", operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, \
         origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, \
         created_at, effect_since, locked_at, locked_until) VALUES ('acct_1', '{key}', 'o', 1, 1, \
         decode(repeat('00', 32), 'hex'), 'in_progress', decode(repeat('00', 16), 'hex'), decode(repeat('00', 16), 'hex'), \
         1, 1, 0, false, 'reclaim', 0, 0, 0, now(), now(), now(), now() + interval '1 hour')"
    );
    open.execute(AssertSqlSafe(sql)).await.unwrap();
}

fn applied(outcome: Result<TransitionOutcome, StoreError>) {
    match outcome.unwrap() {
        TransitionOutcome::Applied { .. } => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_in_line_goes_in_one_statement_and_each_is_told_its_own() {
    for (name, pooling) in [
        ("session", Pooling::Session),
        ("text", Pooling::Transaction),
    ] {
        let options = PgOptions::new().pooling(pooling);
        let Some(plugged) = Plugged::new(&format!("one_statement_{name}"), options).await else {
            return;
        };
        let store = &plugged.store;
        let finished = claim("finished");
        win(store, &finished).await;
        applied(
            store
                .transition(finished.id(), owner(&finished), &complete("kept"))
                .await,
        );
        let running = claim("running");
        win(store, &running).await;

        let (open, plug) = plugged.plug_claims().await;
        let before = plugged.tap.turns();
        let new: Vec<Claim> = (0..60).map(|n| claim(&format!("new-{n}"))).collect();
        let won: Vec<Claimed> = new.iter().map(|claim| plugged.claim(claim)).collect();
        let replayed: Vec<Claimed> = (0..10).map(|_| plugged.claim(&claim("finished"))).collect();
        let refused: Vec<Claimed> = (0..10).map(|_| plugged.claim(&claim("running"))).collect();
        let same: Vec<Claim> = (0..40).map(|_| claim("same")).collect();
        let raced: Vec<Claimed> = same.iter().map(|claim| plugged.claim(claim)).collect();
        open.pull().await;
        assert!(matches!(
            soon(plug).await.unwrap(),
            Ok(ClaimOutcome::Won(_))
        ));
        let mut records = Vec::new();
        for (claim, claimed) in new.iter().zip(won) {
            let Ok(ClaimOutcome::Won(won)) = soon(claimed).await.unwrap() else {
                panic!("{}", claim.id().key().as_str())
            };
            assert_eq!(won.record.token, claim.token());
            records.push(won.record);
        }
        for claimed in replayed {
            let Ok(ClaimOutcome::Held(held)) = soon(claimed).await.unwrap() else {
                panic!()
            };
            assert_eq!(held.record.token, finished.token());
            assert_eq!(held.record.status(), Status::Completed);
        }
        for claimed in refused {
            let Ok(ClaimOutcome::Held(held)) = soon(claimed).await.unwrap() else {
                panic!()
            };
            assert_eq!(held.record.token, running.token());
        }
        // Of one id, one wins, and the others are told who.
        let mut winners = Vec::new();
        let mut seen = Vec::new();
        for (claim, claimed) in same.iter().zip(raced) {
            match soon(claimed).await.unwrap().unwrap() {
                ClaimOutcome::Won(_) => winners.push(claim.token()),
                ClaimOutcome::Held(held) => seen.push(held.record.token),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert!(seen.iter().all(|token| *token == winners[0]));
        // One statement for the 120, and one that shows the 39 who won the fortieth; before a statement was prepared on its
        // connection, it takes two.
        let turns = plugged.tap.turns() - before;
        assert!(
            (2..=4).contains(&turns),
            "{name}: {turns} round trips for 120 claims"
        );
        for record in records {
            let held = store.load(&record.id).await.unwrap().unwrap();
            assert_eq!(held.record, record);
        }
    }
}

#[tokio::test]
async fn answers_and_renewals_go_in_one_statement_too() {
    for (name, change) in [("complete", complete("plug")), ("renew", renew())] {
        let Some(plugged) = Plugged::new(&format!("one_write_{name}"), PgOptions::new()).await
        else {
            return;
        };
        let owned = plugged.owned("k", 60).await;
        let (open, plug) = plugged.plug_writes(change.clone()).await;
        let before = plugged.tap.turns();
        let written: Vec<Written> = owned
            .iter()
            .enumerate()
            .map(|(number, claim)| {
                let change = match change {
                    Transition::Renew { .. } => renew(),
                    // Every third one fails for good, and every fifth one has no body.
                    _ if number % 3 == 0 => Transition::FailFinal(answer(&number.to_string())),
                    _ if number % 5 == 0 => Transition::Complete(answer("omitted").without_body()),
                    _ => complete(&number.to_string()),
                };
                plugged.write(claim, change)
            })
            .collect();
        // Somebody else's records, and those that are gone, are in it too.
        let stranger = plugged.write(&claim("k-0"), complete("stranger"));
        let nobody = plugged.write(&claim("nobody"), complete("nobody"));
        open.pull().await;
        applied(soon(plug).await.unwrap());
        for written in written {
            applied(soon(written).await.unwrap());
        }
        let lost = soon(stranger).await.unwrap().unwrap();
        let TransitionOutcome::Lost(Some(held)) = lost else {
            panic!("{lost:?}")
        };
        assert_eq!(held.record.token, owned[0].token());
        let lost = soon(nobody).await.unwrap().unwrap();
        assert!(matches!(lost, TransitionOutcome::Lost(None)), "{lost:?}");
        let turns = plugged.tap.turns() - before;
        assert!(
            (1..=16).contains(&turns),
            "{name}: {turns} round trips for 62 writes"
        );
        if name == "renew" {
            continue;
        }
        for (number, claim) in owned.iter().enumerate() {
            let held = plugged.store.load(claim.id()).await.unwrap().unwrap();
            let expected = match number {
                number if number % 3 == 0 => answer(&number.to_string()),
                number if number % 5 == 0 => answer("omitted").without_body(),
                number => answer(&number.to_string()),
            };
            assert_eq!(held.record.state.response(), Some(&expected), "{number}");
        }
    }
}

/// One that the server refuses, one that has gone on to somebody else, and one that is too large: the others do not notice.
#[tokio::test]
async fn one_bad_item_fails_alone() {
    let Some(plugged) = Plugged::new("one_bad_item", PgOptions::new().response_limit(1000)).await
    else {
        return;
    };
    plugged
        .database
        .run(
            "ALTER TABLE idem_record ADD CONSTRAINT good CHECK (\"key\" <> 'bad' AND response_code <> 666); \
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN IF new.\"key\" = 'worse' THEN RAISE 'no'; END IF; RETURN new; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON idem_record FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let (open, plug) = plugged.plug_claims().await;
    let good: Vec<Claim> = (0..30).map(|n| claim(&format!("good-{n}"))).collect();
    let mut claimed: Vec<Claimed> = good[..15]
        .iter()
        .map(|claim| plugged.claim(claim))
        .collect();
    let bad = [plugged.claim(&claim("bad")), plugged.claim(&claim("worse"))];
    claimed.extend(good[15..].iter().map(|claim| plugged.claim(claim)));
    open.pull().await;
    assert!(matches!(
        soon(plug).await.unwrap(),
        Ok(ClaimOutcome::Won(_))
    ));
    for claimed in claimed {
        let claimed = soon(claimed).await.unwrap();
        assert!(matches!(claimed, Ok(ClaimOutcome::Won(_))), "{claimed:?}");
    }
    for claimed in bad {
        let error = soon(claimed).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
    }

    plugged
        .database
        .run("DELETE FROM idem_record WHERE \"key\" = 'plug'")
        .await;
    let (open, plug) = plugged.plug_writes(complete("plug")).await;
    let mut written: Vec<Written> = good[1..]
        .iter()
        .map(|claim| plugged.write(claim, complete("x")))
        .collect();
    let bad = plugged.write(&good[0], Transition::Complete(Response::new(666)));
    let large = plugged.write(&good[0], complete(&"x".repeat(1001)));
    // Twice the same, as after an answer that was lost.
    written.push(plugged.write(&good[0], complete("x")));
    open.pull().await;
    applied(soon(plug).await.unwrap());
    for written in written {
        applied(soon(written).await.unwrap());
    }
    let error = soon(bad).await.unwrap();
    // It was refused, or the good one was before it.
    match error {
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Misconfigured),
        Ok(other) => assert!(matches!(other, TransitionOutcome::Lost(_)), "{other:?}"),
    }
    let error = soon(large).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLarge);
}

/// Two stores that claim the same ids, one from the front and one from the back. The server is never asked to untie them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_claim_in_opposite_order_do_not_deadlock() {
    const ROUNDS: usize = 20;
    const IDS: usize = 60;
    let Some(database) = Database::new("opposite_order") else {
        return;
    };
    let options = || PgOptions::new().lock_wait(FOREVER);
    let stores = [
        database.store(options(), 4).await,
        database.store(options(), 4).await,
    ];
    for round in 0..ROUNDS {
        let mut claimed = Vec::new();
        for (index, store) in stores.iter().enumerate() {
            for number in 0..IDS {
                let number = if index == 0 { number } else { IDS - number };
                let (store, claim) = (store.clone(), claim(&format!("{round}-{number}")));
                claimed.push((number, in_line(async move { store.claim(&claim).await })));
            }
        }
        let mut winners: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, claimed) in claimed {
            match soon(claimed).await.unwrap().unwrap() {
                ClaimOutcome::Won(_) => *winners.entry(number).or_default() += 1,
                ClaimOutcome::Held(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(winners.values().all(|winners| *winners == 1), "{winners:?}");
        assert_eq!(winners.len(), IDS + 1);
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    // A connection reports what it has seen when it ends.
    for store in &stores {
        store.pool().close().await;
    }
    assert_eq!(database.number(deadlocks).await, 0);
}

/// Somebody creates one key's record in a transaction that stays open, and holds another record locked, and others keep
/// asking for the two. Everybody else is held up for one bound, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_open_transaction_holds_the_others_up_for_one_bound_once() {
    /// So long that a busy machine is not taken for it.
    const BOUND: Duration = Duration::from_secs(1);
    const ROUNDS: usize = 20;
    const TASKS: usize = 50;
    let Some(database) = Database::new("one_open_transaction") else {
        return;
    };
    let store = database.store(PgOptions::new().lock_wait(BOUND), 8).await;
    let locked = claim("locked");
    win(&store, &locked).await;
    let mut open = database.connection().await;
    open.execute("BEGIN; SELECT 1 FROM idem_record FOR UPDATE")
        .await
        .unwrap();
    insert(&mut open, "hot").await;

    let done = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let mut impatient = Vec::new();
    for number in 0..12 {
        let (store, done, asked) = (store.clone(), done.clone(), asked.clone());
        let locked = locked.clone();
        impatient.push(tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let contended = match number % 3 {
                    0 => matches!(
                        store.claim(&claim("hot")).await,
                        Ok(ClaimOutcome::Contended { .. })
                    ),
                    other => {
                        let change = if other == 1 { renew() } else { complete("x") };
                        let sent = store.transition(locked.id(), owner(&locked), &change).await;
                        matches!(sent, Ok(TransitionOutcome::Contended { .. }))
                    }
                };
                assert!(contended);
                asked.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }));
    }
    let began = Instant::now();
    let others: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut waits = Vec::new();
                for number in 0..ROUNDS {
                    let new = claim(&format!("other-{task}-{number}"));
                    for kind in ["claim", "renewal", "answer"] {
                        let asked = Instant::now();
                        let change = match kind {
                            "renewal" => renew(),
                            _ => complete("x"),
                        };
                        if kind == "claim" {
                            win(&store, &new).await;
                        } else {
                            applied(store.transition(new.id(), owner(&new), &change).await);
                        }
                        waits.push((kind, asked.duration_since(began), asked.elapsed()));
                    }
                    // So that it goes on for longer than the bound, several times.
                    tokio::time::sleep(BOUND / 6).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for other in others {
        waits.extend(soon(other).await.unwrap());
    }
    let took = began.elapsed();
    done.store(true, Ordering::SeqCst);
    for task in impatient {
        soon(task).await.unwrap();
    }
    open.execute("ROLLBACK").await.unwrap();
    assert_eq!(waits.len(), 3 * ROUNDS * TASKS);
    assert!(
        took > BOUND * 3,
        "it was over too soon to say anything: {took:?}"
    );
    println!(
        "beside records that were contended {} times within {took:?}, at a bound of {BOUND:?}:",
        asked.load(Ordering::SeqCst)
    );
    for kind in ["claim", "renewal", "answer"] {
        let mut waits: Vec<_> = waits.iter().filter(|wait| wait.0 == kind).collect();
        waits.sort_by_key(|(_, _, wait)| *wait);
        let held_up: Vec<_> = waits
            .iter()
            .filter(|(_, _, wait)| *wait > BOUND * 3 / 4)
            .collect();
        let longest = waits[waits.len() - 1].2;
        let median = waits[waits.len() / 2].2;
        println!(
            "  {kind}: {} of {} were held up, for {longest:?} at most; the median is {:?}",
            held_up.len(),
            waits.len(),
            median,
        );
        // Those who were together go by themselves afterwards, a few at a time; on a busy machine that takes a while.
        assert!(
            longest < BOUND * 3 / 2 + median * TASKS as u32,
            "{held_up:?}"
        );
        // Each of the others had one call under way when it happened, and none later.
        assert!(
            held_up.len() <= TASKS,
            "{} {kind}s: {held_up:?}",
            held_up.len()
        );
    }
}

/// A row that somebody has locked is passed over by what travels with it, be it first or last.
#[tokio::test]
async fn a_locked_row_holds_up_only_its_own_writes() {
    for (name, change) in [("complete", complete("x")), ("renew", renew())] {
        let Some(plugged) = Plugged::new(&format!("a_locked_row_{name}"), PgOptions::new()).await
        else {
            return;
        };
        let owned = plugged.owned("k", 40).await;
        let locked = plugged.lock("k-7").await;
        let (open, plug) = plugged.plug_writes(change.clone()).await;
        let mut written: Vec<Written> = owned
            .iter()
            .map(|claim| plugged.write(claim, change.clone()))
            .collect();
        open.pull().await;
        applied(soon(plug).await.unwrap());
        let late = written.remove(7);
        for written in written {
            applied(soon(written).await.unwrap());
        }
        if name == "renew" {
            // Nobody waits where all renewals would wait behind it.
            let late = soon(late).await.unwrap();
            assert!(matches!(late, Ok(TransitionOutcome::Contended { .. })));
            locked.pull().await;
            continue;
        }
        assert!(!late.is_finished(), "{name}");
        locked.pull().await;
        applied(soon(late).await.unwrap());
    }
}

/// Many records are locked, and each of their owners renews; the connection that all renewals share is not theirs.
#[tokio::test]
async fn renewals_of_locked_records_hold_no_other_one_up() {
    for coalescing in [Coalescing::default(), Coalescing::Off] {
        let name = format!("locked_renewals_{}", coalescing == Coalescing::Off);
        let Some(database) = Database::new(&name) else {
            return;
        };
        let options = PgOptions::new().lock_wait(FOREVER).coalescing(coalescing);
        let store = database.store(options, 4).await;
        let mut owned = Vec::new();
        for number in 0..20 {
            let claim = claim(&format!("locked-{number}"));
            win(&store, &claim).await;
            owned.push(claim);
        }
        let mut open = database.connection().await;
        open.execute("BEGIN; SELECT 1 FROM idem_record FOR UPDATE")
            .await
            .unwrap();
        let free = claim("free");
        win(&store, &free).await;
        let locked: Vec<Written> = owned
            .into_iter()
            .map(|claim| {
                let store = store.clone();
                in_line(async move { store.transition(claim.id(), owner(&claim), &renew()).await })
            })
            .collect();
        // Were each of them to wait, this would take twenty times as long as a test may.
        applied(soon(store.transition(free.id(), owner(&free), &renew())).await);
        for locked in locked {
            let locked = soon(locked).await.unwrap();
            assert!(matches!(locked, Ok(TransitionOutcome::Contended { .. })));
        }
        open.execute("ROLLBACK").await.unwrap();
    }
}

/// Postgres makes a writer wait for those who wait before it, and then for the row. Both together are within the bound.
#[tokio::test]
async fn a_write_behind_another_one_that_waits_is_within_the_bound() {
    const BOUND: Duration = Duration::from_secs(4);
    let Some(database) = Database::new("behind_another") else {
        return;
    };
    let store = database.store(PgOptions::new().lock_wait(BOUND), 4).await;
    let locked = claim("locked");
    win(&store, &locked).await;
    let mut open = database.connection().await;
    open.execute("BEGIN; SELECT 1 FROM idem_record FOR UPDATE")
        .await
        .unwrap();
    // It waits first, and gives up when the store's write has waited for it for nearly half of the bound.
    let waiting = database.connect_options();
    let mut waiting = PgConnection::connect_with(&waiting).await.unwrap();
    let first = tokio::spawn(async move {
        let sql = "SET lock_timeout = '1500ms'; SELECT 1 FROM idem_record FOR UPDATE";
        assert!(waiting.execute(sqlx::raw_sql(sql)).await.is_err());
    });
    database.until_waiting(1).await;
    let asked = Instant::now();
    let written = store
        .transition(locked.id(), owner(&locked), &complete("x"))
        .await;
    let took = asked.elapsed();
    assert!(matches!(written, Ok(TransitionOutcome::Contended { .. })));
    assert!(took > BOUND / 2, "it did not wait twice: {took:?}");
    assert!(took <= BOUND, "{took:?}");
    soon(first).await.unwrap();
    open.execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_caller_has_gone_is_not_made() {
    let Some(plugged) = Plugged::new("a_claim_whose_caller_has_gone", PgOptions::new()).await
    else {
        return;
    };
    let owned = plugged.owned("k", 2).await;
    let (open, plug) = plugged.plug_claims().await;
    let gone: Vec<Claimed> = (0..5)
        .map(|n| plugged.claim(&claim(&format!("gone-{n}"))))
        .collect();
    let stays: Vec<Claimed> = (0..5)
        .map(|n| plugged.claim(&claim(&format!("stays-{n}"))))
        .collect();
    for gone in gone {
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
    }
    open.pull().await;
    assert!(soon(plug).await.unwrap().is_ok());
    for stays in stays {
        assert!(matches!(
            soon(stays).await.unwrap(),
            Ok(ClaimOutcome::Won(_))
        ));
    }
    let made = "SELECT count(*) FROM idem_record WHERE \"key\" LIKE 'gone%'";
    assert_eq!(plugged.database.number(made).await, 0);

    // An answer says what has happened, so it is stored all the same.
    plugged
        .database
        .run("DELETE FROM idem_record WHERE \"key\" = 'plug'")
        .await;
    let (open, plug) = plugged.plug_writes(complete("plug")).await;
    let gone: Vec<Written> = owned
        .iter()
        .map(|claim| plugged.write(claim, complete("kept")))
        .collect();
    for gone in gone {
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
    }
    open.pull().await;
    applied(soon(plug).await.unwrap());
    soon(async {
        for claim in &owned {
            while !is_completed(&plugged.store, claim).await {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
}

async fn is_completed(store: &PgKeyStore, claim: &Claim) -> bool {
    let held = store.load(claim.id()).await.unwrap().unwrap();
    held.record.status() == Status::Completed
}

/// The one that others wait for is dropped in the middle of its statement.
#[tokio::test]
async fn the_end_of_the_first_is_not_the_end_of_the_others() {
    let Some(plugged) = Plugged::new("the_end_of_the_first", PgOptions::new()).await else {
        return;
    };
    let (_open, plug) = plugged.plug_claims().await;
    let others: Vec<Claimed> = (0..20)
        .map(|n| plugged.claim(&claim(&format!("k-{n}"))))
        .collect();
    plug.abort();
    for other in others {
        assert!(matches!(
            soon(other).await.unwrap(),
            Ok(ClaimOutcome::Won(_))
        ));
    }
}

/// A caller holds a call that it has begun, and does something else first; then it makes another call.
#[tokio::test]
async fn a_call_that_nobody_polls_does_not_hold_the_others_up() {
    let Some(database) = Database::new("a_call_that_nobody_polls") else {
        return;
    };
    let store = database.store(PgOptions::new(), 4).await;
    let first = claim("first");
    let mut begun = Box::pin(store.claim(&first));
    assert!(tools::drop_after(1, &mut begun).await.is_none());
    for key in ["second", "third"] {
        soon(win(&store, &claim(key))).await;
    }
    let owned = claim("second-owned");
    win(&store, &owned).await;
    let (change, renewal) = (complete("x"), renew());
    let mut renewing = Box::pin(store.transition(owned.id(), owner(&owned), &renewal));
    assert!(tools::drop_after(1, &mut renewing).await.is_none());
    applied(soon(store.transition(owned.id(), owner(&owned), &renew())).await);
    let mut finishing = Box::pin(store.transition(first.id(), owner(&first), &change));
    assert!(tools::drop_after(1, &mut finishing).await.is_none());
    applied(soon(store.transition(owned.id(), owner(&owned), &complete("y"))).await);
    assert!(matches!(soon(begun).await, Ok(ClaimOutcome::Won(_))));
    applied(soon(renewing).await.or(Ok(TransitionOutcome::Applied {
        revision: idem_core::Revision::FIRST,
        now: idem_core::Timestamp::from_micros(0),
    })));
}

/// A runtime ends while it sends for others, or is not driven any more: a store that another runtime uses too goes on.
#[test]
fn a_runtime_that_ends_or_stands_still_does_not_hold_another_one_up() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let ours = tokio::runtime::Runtime::new().unwrap();
    let Some(plugged) = ours.block_on(Plugged::new("a_runtime_that_ends", PgOptions::new())) else {
        return;
    };
    for ends in [true, false] {
        let theirs = runtime();
        // Their claim is under way, and ours are in line behind it.
        let mut open = ours.block_on(plugged.database.connection());
        ours.block_on(async {
            open.execute("BEGIN").await.unwrap();
            insert(&mut open, &format!("plug-{ends}")).await;
        });
        let store = plugged.store.clone();
        let theirs_claim =
            theirs.spawn(async move { store.claim(&claim(&format!("plug-{ends}"))).await });
        // It is sent, and not waited for.
        theirs.block_on(async { plugged.database.until_waiting(1).await });
        let in_line: Vec<Claimed> = ours.block_on(async {
            (0..10)
                .map(|n| plugged.claim(&claim(&format!("{ends}-{n}"))))
                .collect()
        });
        if ends {
            drop(theirs);
        } else {
            // The last thing that their runtime is driven for makes room for those in line.
            theirs.block_on(async {
                theirs_claim.abort();
                assert!(theirs_claim.await.is_err());
            });
            std::mem::forget(theirs);
        }
        ours.block_on(async {
            for claimed in in_line {
                match soon(claimed).await.unwrap() {
                    Ok(ClaimOutcome::Won(_)) => {}
                    // What was under way on the runtime that ended may have been sent.
                    Err(error) => assert!(ends && error.kind() == StoreErrorKind::Ambiguous),
                    other => panic!("{other:?}"),
                }
            }
            soon(win(&plugged.store, &claim(&format!("{ends}-after")))).await;
            open.execute("ROLLBACK").await.unwrap();
        });
    }
}

/// Nobody waits for anybody, and everybody sends for himself.
#[tokio::test]
async fn switched_off_each_call_is_a_statement() {
    let options = PgOptions::new().coalescing(Coalescing::Off);
    let Some(plugged) = Plugged::new("switched_off", options).await else {
        return;
    };
    let (open, plug) = plugged.plug_claims().await;
    let before = plugged.tap.turns();
    let claimed: Vec<Claimed> = (0..20)
        .map(|n| plugged.claim(&claim(&format!("k-{n}"))))
        .collect();
    for claimed in claimed {
        assert!(matches!(
            soon(claimed).await.unwrap(),
            Ok(ClaimOutcome::Won(_))
        ));
    }
    let turns = plugged.tap.turns() - before;
    // Each of the connections prepares the statement once.
    assert!(
        (20..=30).contains(&turns),
        "{turns} round trips for 20 claims"
    );
    open.pull().await;
    assert!(soon(plug).await.unwrap().is_ok());
}

/// As many statements as are allowed, and as large as they are allowed.
#[tokio::test]
async fn the_limits_of_a_batch_are_kept() {
    let one = NonZeroUsize::MIN;
    let options = PgOptions::new().coalescing(Coalescing::Natural {
        in_flight: one.saturating_add(1),
        batch: one.saturating_add(9),
    });
    let Some(plugged) = Plugged::new("the_limits_of_a_batch", options).await else {
        return;
    };
    let (open, plug) = plugged.plug_claims().await;
    // The second statement is free.
    soon(win(&plugged.store, &claim("second"))).await;
    let mut also = plugged.database.connection().await;
    also.execute("BEGIN").await.unwrap();
    insert(&mut also, "plug-2").await;
    let second = plugged.claim(&claim("plug-2"));
    plugged.database.until_waiting(2).await;
    let before = plugged.tap.turns();
    let in_line: Vec<Claimed> = (0..40)
        .map(|n| plugged.claim(&claim(&format!("k-{n}"))))
        .collect();
    open.pull().await;
    for claimed in in_line {
        assert!(matches!(
            soon(claimed).await.unwrap(),
            Ok(ClaimOutcome::Won(_))
        ));
    }
    let turns = plugged.tap.turns() - before;
    assert!(
        (4..=6).contains(&turns),
        "{turns} round trips for 40 claims, 10 at a time"
    );
    also.execute("ROLLBACK").await.unwrap();
    assert!(soon(plug).await.unwrap().is_ok());
    assert!(soon(second).await.unwrap().is_ok());
}
