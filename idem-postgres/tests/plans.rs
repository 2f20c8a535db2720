//! How the server finds one record: by its key, however young the table is, and whatever its statistics say.
//!
//! A statement is planned when a connection has carried it out a few times, and the plan stays until statistics are next
//! taken. So each test does everything often enough for that, lets the table grow behind it, and does everything again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Instant;

use idem_core::executor::{Answer, Outcome};
use idem_core::{
    ClaimOutcome, Decision, Expect, KeyStore as _, Note, OwnerToken, Policy, RecoveryPoint,
    Transition, TransitionOutcome, Verdict, decide,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions, Pooling, Tx};
use tools::{
    Database, SOON, answer, brief_claim, claim, complete, id, in_line, lease, own_server, owner,
    renew, request, win,
};

/// A connection plans five times for the values that it has, and then once for all.
const OFTEN: usize = 12;

/// How many records come while a connection has its plans already.
const GROWN: u32 = 10_000;

/// How often the table was read as a whole, how often the index of unresolved records was used, and how many entries of the key's
/// index were read: an index can be read from one end to the other as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scans {
    whole: i64,
    unresolved: i64,
    entries: i64,
}

impl Scans {
    fn since(self, before: Self) -> Self {
        Self {
            whole: self.whole - before.whole,
            unresolved: self.unresolved - before.unresolved,
            entries: self.entries - before.entries,
        }
    }

    /// Nothing was read but the records that were asked for, and what may be dead beside them.
    fn assert_lookups(self, way: usize) {
        assert_eq!((self.whole, self.unresolved), (0, 0), "way {way}");
        // One reading of the whole index once the table has grown would be more.
        assert!(self.entries < i64::from(GROWN), "way {way}: {self:?}");
    }
}

/// Of the table, and of its partitions if it has any.
async fn scans(database: &Database) -> Scans {
    let whole = "SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE relname ~ '^idem_record(_[0-9]+)?$'";
    let unresolved = "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes JOIN pg_index USING (indexrelid) \
                      WHERE pg_get_indexdef(indexrelid) LIKE '%(created_at)%'";
    let entries = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes JOIN pg_index USING (indexrelid) \
                   WHERE indisprimary AND pg_stat_user_indexes.relname ~ '^idem_record(_[0-9]+)?$'";
    Scans {
        whole: database.number(whole).await,
        unresolved: database.number(unresolved).await,
        entries: database.number(entries).await,
    }
}

/// A way to send statements, each of which has texts of its own.
fn ways() -> [PgOptions; 3] {
    const ONE: NonZeroUsize = NonZeroUsize::MIN;
    [
        PgOptions::new().coalescing(Coalescing::Off),
        PgOptions::new().coalescing(Coalescing::Natural {
            in_flight: ONE,
            batch: ONE.saturating_add(7),
        }),
        PgOptions::new()
            .coalescing(Coalescing::Off)
            .pooling(Pooling::Transaction),
    ]
}

fn psql(name: &str, sql: &str) {
    own_server().unwrap().psql(name, sql).unwrap();
}

/// So many more completed records, written by hand.
fn grow(name: &str, records: u32) {
    completed(name, records, "1 day");
}

/// So many completed records that expire then.
fn completed(name: &str, records: u32, expire_in: &str) {
    psql(
        name,
        &format!(
            "INSERT INTO idem_record (scope, \"key\", operation, fingerprint_encoding, fingerprint_profile, fingerprint, \
             status, origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, \
             max_reclaims, created_at, effect_since, locked_at, locked_until, finished_at, expires_at, response_code, \
             response_headers) SELECT 'grown', gen_random_uuid()::text, 'POST /orders', 1, 1, \
             decode(repeat('00', 32), 'hex'), 'completed', decode(repeat('00', 16), 'hex'), \
             decode(repeat('00', 16), 'hex'), 2, 1, 0, false, 'reclaim', 86400000000, 0, 0, now(), now(), now(), now(), \
             now(), now() + interval '{expire_in}', 201, '' FROM generate_series(1, {records})"
        ),
    );
}

/// Everything that a store does with one record, and with a few at once.
async fn everything(store: &PgKeyStore, round: &str) {
    let key = |name: &str| format!("{round}-{name}");
    let applied = |outcome: &TransitionOutcome| {
        assert!(
            matches!(outcome, TransitionOutcome::Applied { .. }),
            "{outcome:?}"
        );
    };
    // Claimed, refused, renewed, checkpointed, answered, replayed, read.
    let first = claim(&key("answered"));
    win(store, &first).await;
    let point = Transition::Checkpoint {
        point: RecoveryPoint::new("p").unwrap(),
        sequence: 1,
        lease: lease(),
    };
    for change in [renew(), point, complete("a")] {
        let outcome = store.transition(first.id(), owner(&first), &change).await;
        applied(&outcome.unwrap());
        let refused = store.claim(&claim(&key("answered"))).await.unwrap();
        assert!(matches!(refused, ClaimOutcome::Held(_)), "{refused:?}");
    }
    assert!(store.load(first.id()).await.unwrap().is_some());
    assert!(store.load(&id(&key("nobody's"))).await.unwrap().is_none());
    // Released.
    let released = claim(&key("released"));
    win(store, &released).await;
    let outcome = store.transition(released.id(), owner(&released), &Transition::Release);
    applied(&outcome.await.unwrap());
    // Taken over, failed, and resolved.
    let stale = brief_claim(&key("stale"));
    win(store, &stale).await;
    let heir = claim(&key("stale"));
    let ClaimOutcome::Held(held) = store.claim(&heir).await.unwrap() else {
        panic!("nobody holds it");
    };
    let Decision::TakeOver(swap) = decide(&heir, Some(&held)) else {
        panic!("it cannot be taken over");
    };
    let outcome = store.transition(heir.id(), swap.expect, &swap.change).await;
    applied(&outcome.unwrap());
    let failed = Transition::FailRetryable {
        reason: Note::new("busy"),
        uncertain: true,
    };
    let outcome = store.transition(heir.id(), owner(&heir), &failed).await;
    applied(&outcome.unwrap());
    let stuck = brief_claim(&key("stuck"));
    let held = win(store, &stuck).await.record;
    let resolved = Transition::Resolve {
        verdict: Verdict::Completed(answer("r")),
        token: OwnerToken::from_bytes([7; 16]),
        note: Note::new("looked up"),
    };
    let unchanged = Expect::Unchanged {
        token: held.token,
        revision: held.revision,
    };
    let outcome = store.transition(stuck.id(), unchanged, &resolved).await;
    applied(&outcome.unwrap());
    // In one transaction.
    let work = |_: Tx<'static>| async { Ok::<_, Infallible>(Outcome::Completed(answer("t"))) };
    let policy = Policy::default();
    let done = store
        .execute_in_tx(&request(&key("tx")), &policy, work)
        .await;
    assert!(matches!(done, Ok(Answer::Fresh(_))), "{done:?}");
    // The first goes alone, and the others together while they wait for it.
    let several: Vec<_> = (0..4)
        .map(|number| claim(&key(&format!("b{number}"))))
        .collect();
    let claiming = several.iter().map(|claim| {
        let (store, claim) = (store.clone(), claim.clone());
        in_line(async move { win(&store, &claim).await })
    });
    for claiming in claiming.collect::<Vec<_>>() {
        claiming.await.unwrap();
    }
    for change in [renew(), complete("b")] {
        let writing = several.iter().map(|claim| {
            let (store, claim, change) = (store.clone(), claim.clone(), change.clone());
            in_line(async move { store.transition(claim.id(), owner(&claim), &change).await })
        });
        for writing in writing.collect::<Vec<_>>() {
            applied(&writing.await.unwrap().unwrap());
        }
    }
}

async fn often(store: &PgKeyStore, round: &str) {
    for time in 0..OFTEN {
        everything(store, &format!("{round}-{time}")).await;
    }
}

/// The tables, made by somebody who is gone. What a connection has read is known when it has ended.
async fn tables(database: &Database) {
    let store = database.store(PgOptions::new(), 1).await;
    all_end(database, store).await;
}

async fn all_end(database: &Database, store: PgKeyStore) {
    store.pool().close().await;
    drop(store);
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'test' \
               AND backend_type = 'client backend'";
    let until = Instant::now() + SOON;
    while database.number(sql).await > 0 {
        assert!(Instant::now() < until, "a connection does not end");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// What was scanned by everything, done before and after the table has grown.
async fn scanned(name: &str, options: PgOptions, young: impl FnOnce()) -> Option<Scans> {
    let database = Database::new(name)?;
    tables(&database).await;
    young();
    let before = scans(&database).await;
    let store = options.build(database.pool(1));
    often(&store, "young").await;
    grow(name, GROWN);
    often(&store, "grown").await;
    all_end(&database, store).await;
    Some(scans(&database).await.since(before))
}

#[tokio::test]
async fn a_table_without_statistics_is_never_read_as_a_whole() {
    for (number, options) in ways().into_iter().enumerate() {
        let name = format!("plans_without_{number}");
        let Some(scanned) = scanned(&name, options, || {}).await else {
            return;
        };
        scanned.assert_lookups(number);
    }
}

#[tokio::test]
async fn a_table_that_was_analysed_empty_is_never_read_as_a_whole() {
    for (number, options) in ways().into_iter().enumerate() {
        let name = format!("plans_empty_{number}");
        let young = || psql(&name, "VACUUM (ANALYZE) idem_record");
        let Some(scanned) = scanned(&name, options, young).await else {
            return;
        };
        scanned.assert_lookups(number);
    }
}

/// As a service that has just begun to work leaves it.
#[tokio::test]
async fn a_table_that_was_analysed_young_is_never_read_as_a_whole() {
    for (number, options) in ways().into_iter().enumerate() {
        let name = format!("plans_young_{number}");
        let young = || {
            grow(&name, 60);
            psql(&name, "VACUUM (ANALYZE) idem_record");
        };
        let Some(scanned) = scanned(&name, options, young).await else {
            return;
        };
        scanned.assert_lookups(number);
    }
}

/// The index of unresolved records is empty when statistics are taken, as it nearly always is, so the planner takes it for the
/// shortest way to any record that might be in it.
#[tokio::test]
async fn no_record_is_looked_for_among_the_unresolved() {
    for (number, options) in ways().into_iter().enumerate() {
        let name = format!("plans_unresolved_{number}");
        let young = || {
            grow(&name, 5000);
            psql(&name, "VACUUM (ANALYZE) idem_record");
        };
        let Some(scanned) = scanned(&name, options, young).await else {
            return;
        };
        scanned.assert_lookups(number);
    }
}

/// The scope says in which partition a record is, and nobody looks into another one.
#[tokio::test]
async fn the_records_of_a_scope_are_looked_for_in_its_partition() {
    for (number, options) in ways().into_iter().enumerate() {
        let name = format!("plans_partitioned_{number}");
        let young = || {
            psql(&name, include_str!("../src/partitions.sql"));
            psql(&name, "VACUUM (ANALYZE) idem_record");
        };
        let Some(scanned) = scanned(&name, options, young).await else {
            return;
        };
        scanned.assert_lookups(number);
        let touched = "SELECT string_agg(relname, ' ') FROM pg_stat_user_tables \
                       WHERE relname ~ '^idem_record_[0-9]+$' AND idx_scan > 0";
        let of_the_scope =
            "SELECT DISTINCT tableoid::regclass FROM idem_record WHERE scope = 'acct_1'";
        let server = own_server().unwrap();
        let touched = server.psql(&name, touched).unwrap();
        assert_eq!(touched, server.psql(&name, of_the_scope).unwrap());
    }
}

/// Whoever sweeps a young table looks up what he removes.
#[tokio::test]
async fn a_sweep_of_a_young_table_reads_no_more_than_is_due() {
    let name = "plans_of_a_sweep";
    let Some(database) = Database::new(name) else {
        return;
    };
    tables(&database).await;
    grow(name, 20);
    psql(name, "VACUUM (ANALYZE) idem_record");
    let before = scans(&database).await;
    let store = PgOptions::new().build(database.pool(1));
    let sweep = async || {
        let swept = store.sweep(NonZeroU32::new(10).unwrap()).await;
        swept.unwrap().removed
    };
    for _ in 0..OFTEN {
        completed(name, 1, "-1 day");
        assert_eq!(sweep().await, 1);
    }
    grow(name, GROWN);
    completed(name, 15, "-1 day");
    assert_eq!([sweep().await, sweep().await, sweep().await], [10, 5, 0]);
    all_end(&database, store).await;
    let scanned = scans(&database).await.since(before);
    assert_eq!(scanned.whole, 0);
    assert!(scanned.entries < i64::from(GROWN), "{scanned:?}");
}
