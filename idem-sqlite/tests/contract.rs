//! What the store promises, in one process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use idem_core::{
    Claim, ClaimOutcome, Clock, Contract, Counts, Expect, Filter, Headers, IdempotencyKey,
    Inspect as _, KeyStore as _, ManualClock, MemoryKeyStore, Note, Policy, RecordId,
    RecoveryPoint, Response, Scope, Selection, Snapshot, Span, StoreErrorKind, Timestamp,
    Transition, TransitionOutcome,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use support::{claim, directory, id, put, raw};

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_micros(1_000)))
}

async fn won(store: &SqliteKeyStore, claim: &Claim) -> Snapshot {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Won(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

async fn complete(store: &SqliteKeyStore, claim: &Claim, response: Response) {
    let outcome = store
        .transition(
            claim.id(),
            Expect::Owner(claim.token()),
            &Transition::Complete(response),
        )
        .await
        .unwrap();
    assert!(matches!(outcome, TransitionOutcome::Applied { .. }));
}

#[tokio::test]
async fn a_claim_writes_its_first_record_and_shows_it_to_the_next() {
    let directory = directory();
    for store in [
        SqliteKeyStore::open_in_memory().await.unwrap(),
        SqliteKeyStore::open(directory.path().join("keys.sqlite"))
            .await
            .unwrap(),
    ] {
        let first = won(&store, &claim("k", 1)).await;
        assert_eq!(*first.record, claim("k", 1).first_record(first.now));
        let Ok(ClaimOutcome::Held(held)) = store.claim(&claim("k", 2)).await else {
            panic!("the second claim did not find the first");
        };
        assert_eq!(held.record, first.record);
        assert!(held.now >= first.now);
        let loaded = store.load(&id("k")).await.unwrap().unwrap();
        assert_eq!(loaded.record, first.record);
        assert_eq!(store.load(&id("other")).await.unwrap(), None);
        store.close().await;
    }
}

#[tokio::test]
async fn a_database_in_memory_is_one_database_and_only_this_stores() {
    let one = SqliteKeyStore::open_in_memory().await.unwrap();
    let other = SqliteKeyStore::open_in_memory().await.unwrap();
    won(&one, &claim("k", 1)).await;
    for _ in 0..16 {
        assert!(one.load(&id("k")).await.unwrap().is_some());
        assert_eq!(other.load(&id("k")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn ids_are_exact() {
    let store = SqliteKeyStore::open_in_memory().await.unwrap();
    let long = "x".repeat(255);
    let scopes = [
        "a", "A", "a ", " a", "a:b", "\u{e9}", "e\u{301}", "\u{212b}", "\u{c5}", "ß", "ss", "%",
        "_", &long, "1", "1.0", "01", "0x1", "NULL", "'", "\"", "a\nb",
    ];
    let keys = [
        "b:c", "c", "C", "c ", " c", "1", "1.0", "1e0", "01", "'; --", "null", "%", &long,
    ];
    let mut ids = Vec::new();
    for scope in scopes {
        for key in keys {
            ids.push(RecordId::new(
                Scope::new(scope).unwrap(),
                IdempotencyKey::new(key).unwrap(),
            ));
        }
    }
    for (number, id) in (1..).zip(&ids) {
        won(
            &store,
            &support::claim_of(id.clone(), number, &Policy::default()),
        )
        .await;
    }
    for (number, id) in (1..).zip(&ids) {
        let held = store.load(id).await.unwrap().unwrap();
        assert_eq!(held.record.token, support::token(number));
        assert_eq!(held.record.id, *id);
    }
    let listed = store
        .list(&Filter::default(), None, NonZeroU32::MAX)
        .await
        .unwrap();
    ids.sort();
    let listed: Vec<_> = listed.into_iter().map(|it| it.record.id.clone()).collect();
    assert_eq!(listed, ids);
}

#[tokio::test]
async fn bytes_come_back_exactly() {
    let store = SqliteKeyStore::open_in_memory().await.unwrap();
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut headers = Headers::new();
    headers.push("set-cookie", "a=1");
    headers.push("Set-Cookie", "b=2, c");
    headers.push("set-cookie", "a=1");
    headers.push("x-bytes", every_byte.clone());
    headers.push("", "");
    let responses = [
        Response::from_parts(
            200,
            headers,
            idem_core::Body::Bytes(Bytes::from(every_byte.clone())),
        ),
        Response::new(204),
        Response::new(201).without_body(),
        Response::new(0).body("{ \"a\":1.00 }"),
        Response::new(u16::MAX).body(vec![0; 1 << 20]),
    ];
    for (number, response) in (1..).zip(responses) {
        let claim = claim(format!("k{number}"), number);
        won(&store, &claim).await;
        for (sequence, data) in [None, Some(vec![]), Some(every_byte.clone())]
            .into_iter()
            .enumerate()
        {
            let mut point = RecoveryPoint::new("chargé").unwrap();
            if let Some(data) = data {
                point = point.with_data(data).unwrap();
            }
            let checkpoint = Transition::Checkpoint {
                point: point.clone(),
                sequence: u32::try_from(sequence).unwrap(),
                lease: Span::from_secs(1),
            };
            let owner = Expect::Owner(claim.token());
            store
                .transition(claim.id(), owner, &checkpoint)
                .await
                .unwrap();
            let held = store.load(claim.id()).await.unwrap().unwrap();
            assert_eq!(held.record.recovery.as_ref().unwrap().point, point);
        }
        complete(&store, &claim, response.clone()).await;
        let held = store.load(claim.id()).await.unwrap().unwrap();
        assert_eq!(held.record.state.response(), Some(&response));
    }
}

#[tokio::test]
async fn what_this_version_does_not_know_is_corrupt_and_never_absent() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteOptions::new()
        .clock(clock())
        .open(&path)
        .await
        .unwrap();
    let spoilt = [
        "status = 'archived'",
        "contract = 'maybe'",
        "attempt = 4294967296",
        "operation = ''",
        "status = 'completed'",
        "response_body = x''",
    ];
    for (number, change) in (1..).zip(spoilt) {
        let claim = claim(format!("k{number}"), number);
        won(&store, &claim).await;
        let changed = raw(&path)
            .execute(
                &format!("UPDATE idem_record SET {change}, expires_at = 0, finished_at = 0 WHERE \"key\" = ?1"),
                [claim.id().key().as_str()],
            )
            .unwrap();
        assert_eq!(changed, 1);
        let errors = [
            store.claim(&claim).await.map(drop).unwrap_err(),
            store.load(claim.id()).await.map(drop).unwrap_err(),
            store
                .transition(
                    claim.id(),
                    Expect::Owner(support::token(999)),
                    &Transition::Release,
                )
                .await
                .map(drop)
                .unwrap_err(),
            store
                .list(&Filter::default(), None, NonZeroU32::MAX)
                .await
                .map(drop)
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}: {error}");
            assert!(!error.to_string().contains("acct_1"), "{error}");
        }
    }
    let error = store.count().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    // The sweeper takes what it knows to be finished: the row that says `completed` and has expired.
    let swept = store.sweep(NonZeroU32::MAX).await.unwrap();
    assert_eq!(swept.removed, 1);
    let left: i64 = raw(&path)
        .query_row("SELECT count(*) FROM idem_record", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 5);
}

#[tokio::test]
async fn null_is_no_part_of_a_key() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    won(&store, &claim("k", 1)).await;
    for column in ["scope", "\"key\""] {
        let error = raw(&path)
            .execute(&format!("UPDATE idem_record SET {column} = NULL"), [])
            .unwrap_err();
        assert!(error.to_string().contains("NOT NULL"), "{error}");
    }
}

#[tokio::test]
async fn one_write_that_cannot_be_made_does_not_fail_the_others() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    raw(&path)
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON idem_record WHEN new.\"key\" = 'refused' \
             BEGIN SELECT RAISE(ABORT, 'no'); END; \
             CREATE TRIGGER undo BEFORE INSERT ON idem_record WHEN new.\"key\" = 'rolled-back' \
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END;",
        )
        .unwrap();
    // The lock is held while they come, so that they are committed together.
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let keys = ["a", "refused", "b", "rolled-back", "c"];
    let claims: Vec<_> = (1..).zip(keys).map(|(n, key)| claim(key, n)).collect();
    let (a, refused, b, rolled_back, c, ()) = tokio::join!(
        store.claim(&claims[0]),
        store.claim(&claims[1]),
        store.claim(&claims[2]),
        store.claim(&claims[3]),
        store.claim(&claims[4]),
        async {
            tokio::task::yield_now().await;
            outside.execute_batch("ROLLBACK").unwrap();
        },
    );
    for outcome in [a, b, c] {
        assert!(matches!(outcome.unwrap(), ClaimOutcome::Won(_)));
    }
    for outcome in [refused, rolled_back] {
        assert_eq!(outcome.unwrap_err().kind(), StoreErrorKind::Misconfigured);
    }
    assert_eq!(store.count().await.unwrap().in_progress, 3);
}

#[tokio::test]
async fn a_response_that_is_too_large_is_refused_and_nothing_is_written() {
    let store = SqliteOptions::new()
        .response_limit(10)
        .open_in_memory()
        .await
        .unwrap();
    let claim = claim("k", 1);
    won(&store, &claim).await;
    let owner = Expect::Owner(claim.token());
    let large = Response::new(200).body(vec![0; 11]);
    let error = store
        .transition(claim.id(), owner, &Transition::Complete(large))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLarge);
    complete(&store, &claim, Response::new(200).body(vec![0; 10])).await;
}

#[tokio::test]
async fn a_full_database_fails_what_does_not_fit_and_nothing_else() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    // SQLite's own bound on the pages of a file gives the error of a full disk at a place of one's choice.
    let store = SqliteOptions::new()
        .on_connect(|connection| connection.execute_batch("PRAGMA max_page_count = 40"))
        .open(&path)
        .await
        .unwrap();
    let claims: Vec<_> = (1..=3).map(|n| claim(format!("k{n}"), n)).collect();
    for claim in &claims {
        won(&store, claim).await;
    }
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let finish = |claim: &Claim, bytes: usize| {
        let (id, owner) = (claim.id().clone(), Expect::Owner(claim.token()));
        let complete = Transition::Complete(Response::new(200).body(vec![7; bytes]));
        let store = &store;
        async move { store.transition(&id, owner, &complete).await }
    };
    let (small, large, other, ()) = tokio::join!(
        finish(&claims[0], 100),
        finish(&claims[1], 1 << 20),
        finish(&claims[2], 100),
        async {
            tokio::task::yield_now().await;
            outside.execute_batch("ROLLBACK").unwrap();
        },
    );
    assert!(matches!(small.unwrap(), TransitionOutcome::Applied { .. }));
    assert!(matches!(other.unwrap(), TransitionOutcome::Applied { .. }));
    assert_eq!(large.unwrap_err().kind(), StoreErrorKind::Unavailable);
    // And the connection works on.
    complete(&store, &claims[1], Response::new(200)).await;
    assert_eq!(support::integrity(&path), "ok");
}

#[tokio::test]
async fn a_lock_that_lasts_is_unavailable_and_a_lock_that_passes_is_waited_for() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteOptions::new()
        .busy_timeout(Duration::from_millis(20))
        .open(&path)
        .await
        .unwrap();
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.claim(&claim("k", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.is_retryable());
    let error = store.sweep(NonZeroU32::MIN).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    // A reader does not wait for a writer.
    assert_eq!(store.load(&id("k")).await.unwrap(), None);
    outside.execute_batch("COMMIT").unwrap();
    won(&store, &claim("k", 1)).await;
}

#[tokio::test]
async fn busy_on_a_read_is_an_error_and_never_absence() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    // Connections that share a cache have locks on tables, against which readers do come up.
    let uri = format!("file:{}?cache=shared", path.display());
    let store = SqliteOptions::new()
        .busy_timeout(Duration::from_millis(20))
        .open_uri(&uri)
        .await
        .unwrap();
    won(&store, &claim("k", 1)).await;
    let outside = idem_sqlite::rusqlite::Connection::open(&uri).unwrap();
    outside
        .execute_batch("BEGIN IMMEDIATE; UPDATE idem_record SET reclaims = 1")
        .unwrap();
    let errors = [
        store.load(&id("k")).await.map(drop).unwrap_err(),
        store.claim(&claim("k", 2)).await.map(drop).unwrap_err(),
        store.count().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    outside.execute_batch("COMMIT").unwrap();
    assert!(store.load(&id("k")).await.unwrap().is_some());
    assert!(matches!(
        store.claim(&claim("k", 2)).await.unwrap(),
        ClaimOutcome::Held(_)
    ));
}

#[tokio::test]
async fn a_held_record_is_shown_while_the_writer_waits_for_a_lock() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    won(&store, &claim("held", 1)).await;
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    // With an idle writer, and with one that waits.
    assert!(matches!(
        store.claim(&claim("held", 2)).await.unwrap(),
        ClaimOutcome::Held(_)
    ));
    let new = claim("new", 3);
    let held = claim("held", 4);
    let (new, ()) = tokio::join!(store.claim(&new), async {
        tokio::task::yield_now().await;
        assert!(matches!(
            store.claim(&held).await.unwrap(),
            ClaimOutcome::Held(_)
        ));
        outside.execute_batch("ROLLBACK").unwrap();
    });
    assert!(matches!(new.unwrap(), ClaimOutcome::Won(_)));
}

#[tokio::test]
async fn a_dropped_claim_is_not_made_and_a_dropped_write_leaves_no_lock() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    let owned = claim("owned", 1);
    won(&store, &owned).await;
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let abandoned = claim("abandoned", 2);
    let complete = Transition::Complete(Response::new(204));
    {
        let claiming = store.claim(&abandoned);
        let completing = store.transition(owned.id(), Expect::Owner(owned.token()), &complete);
        tokio::select! {
            biased;
            _ = claiming => panic!("claimed under another's lock"),
            _ = completing => panic!("completed under another's lock"),
            () = tokio::task::yield_now() => {}
        }
    }
    outside.execute_batch("COMMIT").unwrap();
    // Whatever is in line is done before the answer to this.
    won(&store, &claim("after", 3)).await;
    assert_eq!(store.load(abandoned.id()).await.unwrap(), None);
    let counts = store.count().await.unwrap();
    assert_eq!((counts.completed, counts.in_progress), (1, 1));
    outside.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}

/// A clock that panics when it is told to.
#[derive(Debug, Default)]
struct BadClock(AtomicBool);

impl Clock for BadClock {
    fn now(&self) -> Timestamp {
        assert!(!self.0.load(Ordering::SeqCst), "the clock is broken");
        Timestamp::from_micros(5)
    }
}

#[tokio::test]
async fn a_panic_fails_the_call_and_not_the_store() {
    let directory = directory();
    let clock = Arc::new(BadClock::default());
    let options = SqliteOptions::new().clock(clock.clone());
    for store in [
        options.clone().open_in_memory().await.unwrap(),
        options
            .open(directory.path().join("keys.sqlite"))
            .await
            .unwrap(),
    ] {
        won(&store, &claim("before", 1)).await;
        clock.0.store(true, Ordering::SeqCst);
        let errors = [
            store.claim(&claim("k", 2)).await.map(drop).unwrap_err(),
            store.load(&id("k")).await.map(drop).unwrap_err(),
            store.sweep(NonZeroU32::MIN).await.map(drop).unwrap_err(),
            store.count().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        }
        clock.0.store(false, Ordering::SeqCst);
        won(&store, &claim("k", 3)).await;
        assert_eq!(store.count().await.unwrap().in_progress, 2);
    }
}

#[tokio::test]
async fn a_sweep_removes_what_is_expired_up_to_its_limit_and_counts_what_is_stuck() {
    let clock = clock();
    let store = SqliteOptions::new()
        .clock(clock.clone())
        .open_in_memory()
        .await
        .unwrap();
    let policy = Policy::builder()
        .retention(Duration::from_secs(10))
        .build()
        .unwrap();
    for number in 0..300 {
        let claim = support::claim_of(id(format!("done{number}")), number, &policy);
        won(&store, &claim).await;
        complete(&store, &claim, Response::new(204)).await;
    }
    for number in 0..5 {
        won(&store, &claim(format!("stuck{number}"), number)).await;
    }
    let unknown = claim("unknown", 9);
    won(&store, &unknown).await;
    let fail = Transition::FailRetryable {
        reason: Note::new("timed out"),
        uncertain: true,
    };
    store
        .transition(unknown.id(), Expect::Owner(unknown.token()), &fail)
        .await
        .unwrap();
    let sweep = async |limit| {
        let swept = store.sweep(NonZeroU32::new(limit).unwrap()).await.unwrap();
        (swept.removed, swept.stuck)
    };
    assert_eq!(sweep(1000).await, (0, 0));
    clock.advance(Span::from_micros(9_999_999).unwrap());
    assert_eq!(sweep(1000).await, (0, 0));
    clock.advance(Span::from_micros(1).unwrap());
    assert_eq!(sweep(1).await, (1, 0));
    assert_eq!(sweep(200).await, (200, 0));
    clock.advance(Span::MAX);
    assert_eq!(sweep(3).await, (3, 3));
    assert_eq!(sweep(1000).await, (96, 5));
    assert_eq!(sweep(1000).await, (0, 5));
    let counts = store.count().await.unwrap();
    assert_eq!(
        (counts.in_progress, counts.stuck, counts.uncertain_failures),
        (5, 5, 1)
    );
}

#[tokio::test]
async fn what_operators_see_is_what_the_reference_shows() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let clock = clock();
    let reference = MemoryKeyStore::new(clock.clone());
    let store = SqliteOptions::new()
        .clock(clock.clone())
        .open(&path)
        .await
        .unwrap();
    let outside = raw(&path);
    assert_eq!(store.count().await.unwrap(), Counts::default());
    let mut number = 0;
    for scope in ["a", "b", "B", "c"] {
        for state in 0..6 {
            number += 1;
            let id = RecordId::new(
                Scope::new(scope).unwrap(),
                IdempotencyKey::new(format!("k{}", 9 - state)).unwrap(),
            );
            let policy = Policy::builder()
                .contract(Contract::Hold)
                .retention(Duration::from_secs(number % 3))
                .build()
                .unwrap();
            let claim = support::claim_of(id, number, &policy);
            let mut record = claim.first_record(clock.now());
            record.locked_until = Timestamp::from_micros(1_000 + i64::try_from(number).unwrap());
            let change = match state {
                0 => Some(Transition::Complete(Response::new(200))),
                1 => Some(Transition::FailFinal(Response::new(500))),
                2 | 3 => Some(Transition::FailRetryable {
                    reason: Note::new("no"),
                    uncertain: state == 2,
                }),
                _ => None,
            };
            if let Some(change) = change {
                let moment = idem_core::Moment::exact(clock.now());
                let owner = Expect::Owner(record.token);
                let Ok(idem_core::Applied::Changed(next)) = record.apply(owner, &change, moment)
                else {
                    panic!("{change:?}");
                };
                record = *next;
            }
            put(&outside, &record);
            reference.put(record);
        }
    }
    for _ in 0..4 {
        clock.advance(Span::from_micros(9).unwrap());
        assert_eq!(
            store.count().await.unwrap(),
            reference.count().await.unwrap()
        );
        for scope in [None, Some("a"), Some("B"), Some("absent")] {
            for selection in [Selection::All, Selection::Unresolved, Selection::Stuck] {
                let filter = Filter {
                    scope: scope.map(|scope| Scope::new(scope).unwrap()),
                    selection,
                };
                let mut listed = Vec::new();
                loop {
                    let after = listed.last().map(|it: &Snapshot| it.record.id.clone());
                    let limit = NonZeroU32::new(4).unwrap();
                    let page = store.list(&filter, after.as_ref(), limit).await.unwrap();
                    if page.is_empty() {
                        break;
                    }
                    listed.extend(page);
                }
                // Each store has an order of its own. This one's is that of the ids.
                let mut expected = reference
                    .list(&filter, None, NonZeroU32::MAX)
                    .await
                    .unwrap();
                expected.sort_by(|one, other| one.record.id.cmp(&other.record.id));
                assert_eq!(listed, expected);
            }
        }
        clock.advance(Span::from_secs(1));
    }
}

#[tokio::test]
async fn misuse_is_said_and_changes_nothing() {
    let store = SqliteKeyStore::open_in_memory().await.unwrap();
    let claim = claim("k", 1);
    let first = won(&store, &claim).await;
    let error = store
        .transition(
            claim.id(),
            Expect::unchanged(&first.record),
            &Transition::Release,
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misuse);
    let held = store.load(claim.id()).await.unwrap().unwrap();
    assert_eq!(held.record, first.record);
}

#[tokio::test]
async fn closing_does_what_is_in_line_and_refuses_what_comes_later() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let store = SqliteKeyStore::open(&path).await.unwrap();
    let claims: Vec<_> = (0..8).map(|n| claim(format!("k{n}"), n)).collect();
    let outside = raw(&path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (one, two, (), ()) = tokio::join!(
        store.claim(&claims[0]),
        store.transition(
            claims[1].id(),
            Expect::Owner(claims[1].token()),
            &Transition::Release
        ),
        store.close(),
        async {
            tokio::task::yield_now().await;
            outside.execute_batch("COMMIT").unwrap();
        }
    );
    assert!(matches!(one.unwrap(), ClaimOutcome::Won(_)));
    assert_eq!(two.unwrap(), TransitionOutcome::Lost(None));
    for error in [
        store.claim(&claims[2]).await.map(drop).unwrap_err(),
        store.load(claims[0].id()).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
    store.close().await;
    drop(outside);
    // The last connection that goes takes the log with it, so the file is all there is.
    let files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(files.len(), 1);
}

/// The threads of this process that are a store's.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("idem-sqlite-"))
        .count()
}

/// In a process of its own, since other tests have stores as well.
#[test]
#[cfg(target_os = "linux")]
fn threads_end_when_the_store_is_dropped() {
    const NAME: &str = "threads_end_when_the_store_is_dropped";
    if std::env::var_os(support::ROLE).is_none() {
        let status = support::child(NAME, "alone", &[]).status().unwrap();
        assert!(status.success());
        return;
    }
    let directory = directory();
    support::runtime().block_on(async {
        for round in 0..10 {
            let store = SqliteOptions::new()
                .readers(NonZeroUsize::new(3).unwrap())
                .open(directory.path().join("keys.sqlite"))
                .await
                .unwrap();
            won(&store, &claim(format!("k{round}"), round)).await;
            // A thread gives itself its name, a moment after it was started.
            while threads() != 4 {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                store.close().await;
            }
            drop(store);
            // A thread takes its name off the list a moment after its last act; it has nothing to wait for.
            while threads() > 0 {
                std::thread::yield_now();
            }
        }
        // And an opening that nobody waits for.
        let opening = SqliteKeyStore::open(directory.path().join("keys.sqlite"));
        tokio::select! {
            biased;
            _ = opening => {}
            () = tokio::task::yield_now() => {}
        }
        while threads() > 0 {
            std::thread::yield_now();
        }
    });
}

#[tokio::test]
async fn a_line_that_is_full_is_waited_at() {
    let store = SqliteOptions::new()
        .queue_capacity(NonZeroUsize::MIN)
        .batch_limit(NonZeroUsize::MIN)
        .open_in_memory()
        .await
        .unwrap();
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                won(&store, &claim(format!("k{number}"), number)).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(store.count().await.unwrap().in_progress, 64);
}

#[tokio::test]
async fn the_indexes_are_used() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let _store = SqliteKeyStore::open(&path).await.unwrap();
    let plan = |sql: &str| -> String {
        let outside = raw(&path);
        let mut prepared = outside
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let steps: Vec<String> = prepared
            .query_map([], |row| row.get(3))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        steps.join("; ")
    };
    let sweep = plan(
        "DELETE FROM idem_record WHERE rowid IN (SELECT rowid FROM idem_record WHERE \
         CASE status WHEN 'completed' THEN 0 WHEN 'failed_final' THEN 0 WHEN 'failed_retryable' THEN uncertain \
         WHEN 'in_progress' THEN 2 END = 0 AND coalesce(expires_at, locked_until) <= 1 \
         ORDER BY coalesce(expires_at, locked_until) LIMIT 1)",
    );
    assert!(
        sweep.contains("idem_record_due (<expr>=? AND <expr><?)") && !sweep.contains("B-TREE"),
        "{sweep}"
    );
    let stuck = plan(
        "SELECT 1 FROM idem_record WHERE \
         CASE status WHEN 'completed' THEN 0 WHEN 'failed_final' THEN 0 WHEN 'failed_retryable' THEN uncertain \
         WHEN 'in_progress' THEN 2 END = 2 AND coalesce(expires_at, locked_until) <= 1 LIMIT 1",
    );
    assert!(
        stuck.contains("idem_record_due (<expr>=? AND <expr><?)"),
        "{stuck}"
    );
    let update = plan(
        "UPDATE idem_record SET revision = 1 WHERE scope = 'a' AND \"key\" = 'b' AND token = x'' \
         AND status = 'in_progress' AND locked_until <= 1",
    );
    assert!(update.contains("(scope=? AND key=?)"), "{update}");
}
