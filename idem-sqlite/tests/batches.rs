//! What the writer does together and what it does apart.
//!
//! A transaction reads the clock once, so on a clock that never shows the same time twice, writes with one time were
//! committed together.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::future::poll_fn;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Clock, Expect, KeyStore, Policy, RecoveryPoint, Response, Span,
    StoreError, StoreErrorKind, Timestamp, Transition, TransitionOutcome,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use rusqlite::Connection;
use support::{claim, claim_of, directory, id, raw};
use tempfile::TempDir;

/// Shows another time whenever somebody looks, and can be told to keep whoever looks next.
#[derive(Debug)]
struct Ticking {
    time: AtomicI64,
    keeps: AtomicBool,
    came: Barrier,
    goes: Barrier,
}

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        if self.keeps.swap(false, Ordering::SeqCst) {
            self.came.wait();
            self.goes.wait();
        }
        Timestamp::from_micros(self.time.fetch_add(1, Ordering::SeqCst))
    }
}

struct Place {
    store: SqliteKeyStore,
    clock: Arc<Ticking>,
    path: PathBuf,
    _directory: TempDir,
}

async fn open(options: SqliteOptions) -> Place {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let clock = Arc::new(Ticking {
        time: AtomicI64::new(0),
        keeps: AtomicBool::new(false),
        came: Barrier::new(2),
        goes: Barrier::new(2),
    });
    let store = options.clock(clock.clone()).open(&path).await.unwrap();
    won(&store, &first()).await;
    Place {
        store,
        clock,
        path,
        _directory: directory,
    }
}

async fn won(store: &SqliteKeyStore, claim: &Claim) {
    let outcome = store.claim(claim).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)), "{outcome:?}");
}

async fn applied(store: &SqliteKeyStore, claim: &Claim, change: Transition) -> Timestamp {
    let owner = Expect::Owner(claim.token());
    match store.transition(claim.id(), owner, &change).await.unwrap() {
        TransitionOutcome::Applied { now, .. } => now,
        other => panic!("{other:?}"),
    }
}

async fn is_done<F: Future + ?Sized>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// A claim whose renewal holds everything up.
fn first() -> Claim {
    claim("first", 9999)
}

impl Place {
    /// Has everything that is asked for in `queue` stand in line at once, behind a write that is not done before, and gives
    /// what comes of it.
    async fn in_line<T>(&self, mut queue: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
        self.clock.keeps.store(true, Ordering::SeqCst);
        let claim = first();
        let renewal = Transition::Renew { lease: Span::MAX };
        let mut first = pin!(applied(&self.store, &claim, renewal));
        assert!(!is_done(first.as_mut()).await);
        self.clock.came.wait();
        for call in &mut queue {
            assert!(!is_done(call.as_mut()).await);
        }
        self.clock.goes.wait();
        first.await;
        let mut done = Vec::new();
        for call in queue {
            done.push(call.await);
        }
        done
    }
}

#[tokio::test]
async fn what_comes_together_is_committed_together_up_to_some_megabytes() {
    const MEGABYTES: usize = 1 << 20;
    let place = open(SqliteOptions::new()).await;
    let (store, place) = (&place.store, &place);
    let mut claims = Vec::new();
    for number in 0..44 {
        let claim = claim(format!("k{number}"), number + 1);
        won(store, &claim).await;
        claims.push(claim);
    }
    let answer = |number: usize, bytes| {
        let response = Response::new(200).body(vec![7; bytes]);
        let change = Transition::Complete(response);
        let call = applied(store, &claims[number], change);
        Box::pin(call) as Pin<Box<dyn Future<Output = Timestamp> + '_>>
    };
    let small = place.in_line((0..4).map(|n| answer(n, 10)).collect()).await;
    assert!(small.iter().all(|now| *now == small[0]), "{small:?}");

    // Two of three fit.
    let large = place
        .in_line((4..7).map(|n| answer(n, 3 * MEGABYTES)).collect())
        .await;
    assert_eq!(large[0], large[1]);
    assert!(large[1] < large[2], "{large:?}");

    // What does not fit at all is committed alone, and does not keep others apart.
    let huge = place
        .in_line(vec![
            answer(7, 10),
            answer(8, 10),
            answer(9, 9 * MEGABYTES),
            answer(10, 10),
        ])
        .await;
    assert_eq!(huge[0], huge[1]);
    assert!(huge[1] < huge[2] && huge[2] < huge[3], "{huge:?}");

    // Recovery data counts as well.
    let data = vec![7; RecoveryPoint::MAX_DATA_BYTES];
    let checkpoints = (11..44).map(|number| {
        let point = RecoveryPoint::new("point").unwrap();
        let change = Transition::Checkpoint {
            point: point.with_data(data.clone()).unwrap(),
            sequence: 1,
            lease: Span::MAX,
        };
        let call = applied(store, &claims[number], change);
        Box::pin(call) as Pin<Box<dyn Future<Output = Timestamp> + '_>>
    });
    let checkpoints = place.in_line(checkpoints.collect()).await;
    assert_eq!(checkpoints[0], checkpoints[30]);
    assert!(checkpoints[30] < checkpoints[31], "{checkpoints:?}");
}

#[tokio::test]
async fn a_statement_that_fails_leaves_the_others_in_their_transaction() {
    let place = open(SqliteOptions::new()).await;
    let claims = [claim("a", 1), claim("refused", 2), claim("b", 3)];
    for claim in &claims {
        won(&place.store, claim).await;
    }
    raw(&place.path)
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE UPDATE ON idem_record WHEN new.\"key\" = 'refused' \
             BEGIN SELECT RAISE(ABORT, 'no'); END;",
        )
        .unwrap();
    let change = Transition::Complete(Response::new(200));
    let calls = claims.iter().map(|claim| {
        let owner = Expect::Owner(claim.token());
        let call = place.store.transition(claim.id(), owner, &change);
        Box::pin(call) as Pin<Box<dyn Future<Output = Result<_, StoreError>> + '_>>
    });
    let outcomes = place.in_line(calls.collect()).await;
    let [Ok(a), Err(refused), Ok(b)] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    // The same revision, and the same instant.
    assert_eq!(a, b);
    assert!(matches!(a, TransitionOutcome::Applied { .. }), "{a:?}");
    assert_eq!(refused.kind(), StoreErrorKind::Misconfigured);
}

/// A trigger can make a statement write nothing that says that it should have.
#[tokio::test]
async fn a_write_that_was_swallowed_is_an_error_and_not_lost() {
    let place = open(SqliteOptions::new()).await;
    let claim = claim("k", 1);
    won(&place.store, &claim).await;
    raw(&place.path)
        .execute_batch(
            "CREATE TRIGGER swallow_update BEFORE UPDATE ON idem_record BEGIN SELECT RAISE(IGNORE); END; \
             CREATE TRIGGER swallow_insert BEFORE INSERT ON idem_record BEGIN SELECT RAISE(IGNORE); END;",
        )
        .unwrap();
    let owner = Expect::Owner(claim.token());
    let change = Transition::Complete(Response::new(200));
    let swallowed = place.store.transition(claim.id(), owner, &change).await;
    assert_eq!(swallowed.unwrap_err().kind(), StoreErrorKind::Corrupt);
    let other = support::claim("other", 2);
    place.store.claim(&other).await.unwrap_err();
}

/// This many records that have expired.
fn expired(path: &Path, count: u32) {
    let outside = raw(path);
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let policy = Policy::builder().retention(Duration::ZERO).build().unwrap();
    for number in 0..count {
        let claim = claim_of(id(format!("expired-{number}")), 1, &policy);
        let record = claim.first_record(Timestamp::from_micros(-1000));
        let owner = Expect::Owner(claim.token());
        let change = Transition::Complete(Response::new(200));
        let moment = idem_core::Moment::exact(Timestamp::from_micros(-1000));
        let Ok(idem_core::Applied::Changed(record)) = record.apply(owner, &change, moment) else {
            panic!("it is its owner's");
        };
        support::put(&outside, &record);
    }
    outside.execute_batch("COMMIT").unwrap();
}

#[tokio::test]
async fn a_sweep_of_several_chunks_keeps_its_limit() {
    let place = open(SqliteOptions::new()).await;
    expired(&place.path, 900);
    let mut left = 900;
    // A chunk is 128.
    for limit in [1, 128, 129, 256, 255, 127, 128] {
        let swept = place.store.sweep(NonZeroU32::new(limit).unwrap()).await;
        assert_eq!(swept.unwrap().removed, limit.min(left));
        left = left.saturating_sub(limit);
        let held: u32 = raw(&place.path)
            .query_row("SELECT count(*) FROM idem_record", [], |row| row.get(0))
            .unwrap();
        // And the one that is not over.
        assert_eq!(held, left + 1);
    }
    assert_eq!(left, 0);
}

#[tokio::test]
async fn requests_come_between_the_chunks_of_a_sweep() {
    let place = open(SqliteOptions::new().batch_limit(NonZeroUsize::MIN)).await;
    expired(&place.path, 1000);
    let store = &place.store;
    let claims = [claim("a", 1), claim("b", 2)];
    for claim in &claims {
        won(store, claim).await;
    }
    let complete = |number: usize| {
        let change = Transition::Complete(Response::new(200));
        let call = applied(store, &claims[number], change);
        Box::pin(call) as Pin<Box<dyn Future<Output = Timestamp> + '_>>
    };
    let clock = &place.clock;
    let sweep = Box::pin(async {
        assert_eq!(store.sweep(NonZeroU32::MAX).await.unwrap().removed, 1000);
        clock.now()
    });
    let ends = place.in_line(vec![sweep, complete(0), complete(1)]).await;
    // One chunk before each of them; and for the last of them six are left.
    assert_eq!(ends[1] + Span::from_micros(2).unwrap(), ends[2]);
    assert!(
        ends[2] + Span::from_micros(6).unwrap() <= ends[0],
        "{ends:?}"
    );
}

#[tokio::test]
async fn a_sweep_waits_for_a_lock_that_passes() {
    let place = open(SqliteOptions::new()).await;
    expired(&place.path, 3);
    let lock: Connection = raw(&place.path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut sweep = Box::pin(place.store.sweep(NonZeroU32::MAX));
    let waits = tokio::time::timeout(Duration::from_millis(30), sweep.as_mut()).await;
    assert!(waits.is_err(), "{waits:?}");
    lock.execute_batch("ROLLBACK").unwrap();
    assert_eq!(sweep.await.unwrap().removed, 3);
}

#[tokio::test]
async fn a_file_is_opened_when_a_lock_has_passed() {
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let lock = raw(&path);
    // Nothing is in the file yet, so opening it migrates it.
    lock.execute_batch("BEGIN IMMEDIATE; CREATE TABLE other (a)")
        .unwrap();
    let mut opening = Box::pin(SqliteKeyStore::open(&path));
    let waits = tokio::time::timeout(Duration::from_millis(30), opening.as_mut()).await;
    assert!(waits.is_err(), "{waits:?}");
    lock.execute_batch("ROLLBACK").unwrap();
    won(&opening.await.unwrap(), &claim("k", 1)).await;
}

#[tokio::test]
async fn a_store_is_printed_with_its_place_and_nothing_else() {
    let place = open(SqliteOptions::new()).await;
    let printed = format!("{:?}", place.store);
    assert_eq!(
        printed,
        format!(
            "SqliteKeyStore {{ database: {:?}, .. }}",
            place.path.display().to_string()
        )
    );
}
