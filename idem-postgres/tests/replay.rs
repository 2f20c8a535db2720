//! What a call costs, and what it finds when somebody else was faster.
//!
//! Nothing here is about the clocks of application hosts, since none is ever compared with an instant of a record: a
//! statement carries lengths of time, and the server adds them to its own `clock_timestamp()`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use idem_core::executor::{Answer, Idempotency, Outcome};
use idem_core::{
    ClaimOutcome, KeyStore as _, OwnerToken, Policy, Response, Status, StoreError, Transition,
    TransitionOutcome,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions, Pooling};
use sqlx::Executor as _;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Barrier;
use tools::{
    Database, Tap, answer, brief_claim, claim, complete, in_line, number, owner, renew, request,
    soon, win,
};

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(10);

#[tokio::test]
async fn each_call_is_one_round_trip() {
    let Some(database) = Database::new("each_call_is_one_round_trip") else {
        return;
    };
    database.store(PgOptions::new(), 1).await;
    for pooling in [Pooling::Session, Pooling::Transaction] {
        for coalescing in [Coalescing::default(), Coalescing::Off] {
            let tap = Tap::new(&database.connect_options());
            let pool = PgPoolOptions::new()
                .max_connections(1)
                // A round trip that the pool makes for itself, if it is not told otherwise.
                .test_before_acquire(false)
                .connect_lazy_with(tap.through(database.connect_options()));
            let options = PgOptions::new().pooling(pooling).coalescing(coalescing);
            let store = options.build(pool);
            // The first time, a connection is made, and statements are prepared.
            for round in 0..2 {
                let name = |what: &str| {
                    format!("{pooling:?} {coalescing:?} {round} {what}").replace(' ', "")
                };
                let (first, other) = (claim(&name("first")), claim(&name("other")));
                let again = claim(&name("first"));
                let mut turns = Vec::new();
                let before = tap.turns();
                win(&store, &first).await;
                turns.push(("a first claim", tap.turns() - before));

                let before = tap.turns();
                assert_eq!(held(&store, &again).await.0, Status::InProgress);
                turns.push(("a refusal", tap.turns() - before));

                let before = tap.turns();
                applied(
                    store
                        .transition(first.id(), owner(&first), &complete("x"))
                        .await,
                );
                turns.push(("an answer", tap.turns() - before));

                let before = tap.turns();
                assert_eq!(held(&store, &again).await.0, Status::Completed);
                turns.push(("a replay", tap.turns() - before));

                win(&store, &other).await;
                let before = tap.turns();
                applied(
                    store
                        .transition(other.id(), owner(&other), &Transition::Release)
                        .await,
                );
                turns.push(("a release", tap.turns() - before));
                if round == 0 {
                    continue;
                }
                for (what, turns) in turns {
                    assert_eq!(
                        turns, 1,
                        "round trips of {what}, {pooling:?}, {coalescing:?}"
                    );
                }
            }
            // Renewals go their own way, and it is as short.
            let renewed = claim(&format!("{pooling:?}{coalescing:?}renewed").replace(' ', ""));
            win(&store, &renewed).await;
            applied(
                store
                    .transition(renewed.id(), owner(&renewed), &renew())
                    .await,
            );
            let before = tap.turns();
            applied(
                store
                    .transition(renewed.id(), owner(&renewed), &renew())
                    .await,
            );
            assert_eq!(tap.turns() - before, 1, "round trips of a renewal");
        }
    }
}

fn applied(outcome: Result<TransitionOutcome, StoreError>) {
    match outcome.unwrap() {
        TransitionOutcome::Applied { .. } => {}
        other => panic!("{other:?}"),
    }
}

async fn held(store: &PgKeyStore, claim: &idem_core::Claim) -> (Status, OwnerToken) {
    match soon(store.claim(claim)).await.unwrap() {
        ClaimOutcome::Held(held) => (held.record.status(), held.record.token),
        other => panic!("{other:?}"),
    }
}

/// Whoever writes a row or locks one has a transaction with a number. After many replays, the next number is the same.
#[tokio::test]
async fn a_replay_writes_nothing_and_locks_nothing() {
    let Some(database) = Database::new("a_replay_writes_nothing") else {
        return;
    };
    for (name, options) in [
        ("coalesced", PgOptions::new()),
        ("alone", PgOptions::new().coalescing(Coalescing::Off)),
        ("text", PgOptions::new().pooling(Pooling::Transaction)),
    ] {
        let store = database.store(options, 4).await;
        let first = claim(name);
        win(&store, &first).await;
        let running = claim(&format!("{name}-running"));
        win(&store, &running).await;
        applied(
            store
                .transition(first.id(), owner(&first), &complete("x"))
                .await,
        );
        // The first reader of a page may tidy it up, which is logged.
        replays(&store, name, 50).await;
        let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        let transactions = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        // Other tests write to this server too, so only a stretch in which they do not counts.
        let mut quiet = false;
        for _ in 0..200 {
            let mut connection = database.connection().await;
            let before = (
                number(&mut connection, position).await,
                number(&mut connection, transactions).await,
            );
            replays(&store, name, 20).await;
            let after = (
                number(&mut connection, position).await,
                number(&mut connection, transactions).await,
            );
            if before == after {
                quiet = true;
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(quiet, "replays were logged, or had numbers: {name}");
    }
}

async fn replays(store: &PgKeyStore, key: &str, times: usize) {
    let mut tasks = Vec::new();
    for _ in 0..times {
        let store = store.clone();
        let (finished, running) = (claim(key), claim(&format!("{key}-running")));
        tasks.push(tokio::spawn(async move {
            assert_eq!(held(&store, &finished).await.0, Status::Completed);
            assert_eq!(held(&store, &running).await.0, Status::InProgress);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Also while somebody else holds the record locked, or waits to.
#[tokio::test]
async fn a_replay_waits_for_nobody() {
    let Some(database) = Database::new("a_replay_waits_for_nobody") else {
        return;
    };
    let store = database.store(PgOptions::new().lock_wait(FOREVER), 4).await;
    let first = claim("k");
    win(&store, &first).await;
    let mut locking = database.connection().await;
    locking
        .execute("BEGIN; SELECT 1 FROM idem_record FOR UPDATE")
        .await
        .unwrap();
    assert_eq!(held(&store, &claim("k")).await.0, Status::InProgress);
    replays_of(&store, 40).await;
    locking.execute("ROLLBACK").await.unwrap();
}

async fn replays_of(store: &PgKeyStore, times: usize) {
    let tasks: Vec<_> = (0..times)
        .map(|_| {
            let store = store.clone();
            let again = claim("k");
            in_line(async move { held(&store, &again).await })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
}

const TAKE_OVER: &str = "BEGIN; UPDATE idem_record SET token = decode('ffffffffffffffffffffffffffffffff', 'hex'), \
                         attempt = attempt + 1, revision = revision + 1";

/// The answer waits for the takeover, which then commits. What it is told is the record that it lost to, and not the one
/// that it had seen before it waited. A renewal does not wait, and is told the same when it comes again.
#[tokio::test]
async fn an_answer_that_waits_behind_a_takeover_loses_to_the_new_record() {
    let Some(database) = Database::new("an_answer_behind_a_takeover") else {
        return;
    };
    let options = || PgOptions::new().lock_wait(FOREVER);
    for (key, options) in [
        ("coalesced", options()),
        ("alone", options().coalescing(Coalescing::Off)),
        ("text", options().pooling(Pooling::Transaction)),
    ] {
        let store = database.store(options, 4).await;
        for (what, change) in [
            ("complete", complete("late")),
            ("renew", renew()),
            ("release", Transition::Release),
        ] {
            let late = brief_claim(&format!("{key}-{what}"));
            win(&store, &late).await;
            let mut other = database.connection().await;
            let taking = format!("{TAKE_OVER} WHERE \"key\" = '{key}-{what}'");
            other
                .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(taking)))
                .await
                .unwrap();
            let writing = tokio::spawn({
                let (store, late) = (store.clone(), late.clone());
                async move { store.transition(late.id(), owner(&late), &change).await }
            });
            let outcome = if what == "renew" {
                let outcome = soon(writing).await.unwrap().unwrap();
                assert!(
                    matches!(outcome, TransitionOutcome::Contended { .. }),
                    "{key}: {outcome:?}"
                );
                other.execute("COMMIT").await.unwrap();
                let again = renew();
                soon(store.transition(late.id(), owner(&late), &again))
                    .await
                    .unwrap()
            } else {
                database.until_waiting(1).await;
                other.execute("COMMIT").await.unwrap();
                soon(writing).await.unwrap().unwrap()
            };
            let TransitionOutcome::Lost(Some(held)) = outcome else {
                panic!("{key} {what}: {outcome:?}");
            };
            assert_eq!(*held.record.token.as_bytes(), [0xff; 16], "{key} {what}");
            assert_eq!(held.record.attempt.as_u32(), 2, "{key} {what}");
        }
    }
}

/// A claim that has looked, found nothing, and met somebody else's row when it inserted: it looks again.
#[tokio::test]
async fn a_claim_that_lost_the_race_sees_who_won() {
    let Some(database) = Database::new("a_claim_that_lost_the_race") else {
        return;
    };
    let options = || PgOptions::new().lock_wait(FOREVER);
    for (name, options) in [
        ("coalesced", options()),
        ("alone", options().coalescing(Coalescing::Off)),
        ("text", options().pooling(Pooling::Transaction)),
    ] {
        let winner = database.store(options.clone(), 4).await;
        let store = database.store(options, 4).await;
        for (end, sql) in [
            ("committed", "COMMIT"),
            ("undone", "ROLLBACK"),
            // The row is there and gone again in the moment in which the other one looks.
            ("purged", "DELETE FROM idem_record; COMMIT"),
        ] {
            let key = format!("{name}-{end}");
            let policy = Policy::default();
            let mut transaction = winner.pool().begin().await.unwrap();
            let request = request(&key);
            let insert = winner.execute_within(&mut transaction, &request, &policy, |_| async {
                Ok::<_, sqlx::Error>(Outcome::Completed(answer("first")))
            });
            assert_eq!(insert.await.unwrap(), Answer::Fresh(answer("first")));
            // Two of them, so that one of them is in line, and a third of which nobody has heard.
            let late: Vec<_> = ["", "", "-beside"]
                .into_iter()
                .map(|beside| {
                    let (store, claim) = (store.clone(), claim(&format!("{key}{beside}")));
                    in_line(async move { store.claim(&claim).await })
                })
                .collect();
            database.until_waiting(1).await;
            transaction.execute(sqlx::raw_sql(sql)).await.unwrap();
            let mut won = 0;
            for (index, claimed) in late.into_iter().enumerate() {
                match soon(claimed).await.unwrap().unwrap() {
                    ClaimOutcome::Won(_) => won += 1,
                    ClaimOutcome::Held(held) if end == "committed" => {
                        assert_eq!(held.record.status(), Status::Completed, "{key}");
                    }
                    ClaimOutcome::Held(held) => {
                        assert_eq!(held.record.status(), Status::InProgress, "{key} {index}");
                    }
                    other => panic!("{key}: {other:?}"),
                }
            }
            let expected = if end == "committed" { 1 } else { 2 };
            assert_eq!(won, expected, "{key}");
        }
    }
}

/// Handlers that have all of the pool in their hands for much longer than their leases keep them.
#[tokio::test]
async fn leases_are_renewed_while_the_pool_is_exhausted() {
    const HANDLERS: usize = 4;
    const TAKEN: usize = 3;
    let Some(database) = Database::new("leases_are_renewed") else {
        return;
    };
    let store = database.store(PgOptions::new(), HANDLERS as u32).await;
    let policy = Policy::builder()
        .lease(Duration::from_secs(2))
        .heartbeat(Duration::from_millis(100))
        .build()
        .unwrap();
    let slow = Idempotency::new(store.clone()).with_policy(policy);
    let elsewhere = Idempotency::new(PgOptions::new().build(database.pool(2))).with_policy(policy);
    let all_hold = Arc::new(Barrier::new(HANDLERS + 1));
    let looked = Arc::new(Barrier::new(HANDLERS + 1));
    let mut handlers = Vec::new();
    for handler in 0..HANDLERS {
        let (slow, pool) = (slow.clone(), store.pool().clone());
        let (all_hold, looked) = (all_hold.clone(), looked.clone());
        handlers.push(tokio::spawn(async move {
            let request = request(&format!("k{handler}"));
            slow.execute(&request, async |attempt| {
                // It has a connection, and so has everybody else.
                let held = pool.acquire().await.unwrap();
                all_hold.wait().await;
                looked.wait().await;
                drop(held);
                let lost = attempt.is_lease_lost();
                assert_eq!(lost, handler == TAKEN, "whether {handler} lost its lease");
                Ok::<_, Infallible>(Outcome::Completed(answer("done")))
            })
            .await
        }));
    }
    all_hold.wait().await;
    // One lease was taken away by an operator. That its owner has to be told so does not keep the others from renewing.
    database
        .run("UPDATE idem_record SET token = decode('ffffffffffffffffffffffffffffffff', 'hex') WHERE \"key\" = 'k3'")
        .await;
    // Twice as long as a lease.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for handler in (0..HANDLERS).filter(|handler| *handler != TAKEN) {
        let request = request(&format!("k{handler}"));
        let again = elsewhere.execute(&request, async |_| {
            Ok::<Outcome<Response>, Infallible>(Outcome::Completed(answer("twice")))
        });
        let again = again.await.unwrap();
        assert!(matches!(again, Answer::Busy { .. }), "{again:?}");
    }
    looked.wait().await;
    for (handler, task) in handlers.into_iter().enumerate() {
        let answered = soon(task).await.unwrap().unwrap();
        if handler != TAKEN {
            assert_eq!(answered, Answer::Fresh(answer("done")));
        }
    }
    let attempts = database
        .number("SELECT max(attempt) FROM idem_record")
        .await;
    assert_eq!(attempts, 1);
}
