use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::executor::{SweepReport, SweepTotals, Sweeper, SweeperBuilder};
use idem_core::{
    Claim, ClaimOutcome, Expect, KeyStore, ManualClock, MemoryKeyStore, Origin, OwnerToken, Policy,
    RecordId, Response, Snapshot, StoreError, StoreErrorKind, Swept, Timestamp, Transition,
    TransitionOutcome, async_trait,
};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::support::{id, request, seconds};

const BATCH: u32 = 10;

/// What a sweep does.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Removes(u32),
    Stuck(u32),
    Fails,
    Panics,
    Hangs,
    /// Begins, and ends when the gate is opened.
    AtGate(u32),
}

/// A store that sweeps as planned, and removes nothing after that. It notes when.
#[derive(Debug)]
struct Planned {
    plan: Mutex<VecDeque<Plan>>,
    ever_after: Plan,
    began: Instant,
    swept_at: Mutex<Vec<Duration>>,
    limits: Mutex<Vec<u32>>,
    begun: Semaphore,
    gate: Semaphore,
}

impl Planned {
    fn new(plan: impl IntoIterator<Item = Plan>) -> Arc<Self> {
        Self::and_then(plan, Plan::Removes(0))
    }

    fn and_then(plan: impl IntoIterator<Item = Plan>, ever_after: Plan) -> Arc<Self> {
        Arc::new(Self {
            plan: Mutex::new(plan.into_iter().collect()),
            ever_after,
            began: Instant::now(),
            swept_at: Mutex::default(),
            limits: Mutex::default(),
            begun: Semaphore::new(0),
            gate: Semaphore::new(0),
        })
    }

    fn swept_at(&self) -> Vec<Duration> {
        self.swept_at.lock().unwrap().clone()
    }

    /// Resolves when a sweep has begun that nobody has waited for.
    async fn begun(&self) {
        self.begun.acquire().await.unwrap().forget();
    }

    /// The times between sweeps.
    fn rests(&self) -> Vec<Duration> {
        self.swept_at()
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect()
    }
}

#[async_trait]
impl KeyStore for Planned {
    async fn claim(&self, _: &Claim) -> Result<ClaimOutcome, StoreError> {
        panic!("a sweeper claims nothing")
    }

    async fn transition(
        &self,
        _: &RecordId,
        _: Expect,
        _: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        panic!("a sweeper changes nothing")
    }

    async fn load(&self, _: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        panic!("a sweeper loads nothing")
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.swept_at.lock().unwrap().push(self.began.elapsed());
        self.limits.lock().unwrap().push(limit.get());
        self.begun.add_permits(1);
        let plan = self.plan.lock().unwrap().pop_front();
        let swept = |removed, stuck| Ok(Swept { removed, stuck });
        match plan.unwrap_or(self.ever_after) {
            Plan::Removes(removed) => swept(removed, 0),
            Plan::Stuck(stuck) => swept(0, stuck),
            Plan::Fails => Err(StoreError::unavailable("planned")),
            Plan::Panics => panic!("planned"),
            Plan::Hangs => std::future::pending().await,
            Plan::AtGate(removed) => {
                self.gate.acquire().await.unwrap().forget();
                swept(removed, 0)
            }
        }
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

fn sweeper(store: &Arc<Planned>) -> SweeperBuilder<Arc<Planned>> {
    Sweeper::builder(Arc::clone(store))
        .batch(NonZeroU32::new(BATCH).unwrap())
        .interval(seconds(60))
        .jitter(Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn it_sweeps_at_once_and_then_at_its_interval() {
    let store = Planned::new([Plan::Removes(3), Plan::Removes(BATCH - 1)]);
    let sweeper = sweeper(&store).start();
    sleep(seconds(150)).await;
    assert_eq!(store.swept_at(), [seconds(0), seconds(60), seconds(120)]);
    assert_eq!(*store.limits.lock().unwrap(), [BATCH; 3]);
    let totals = sweeper.totals();
    assert_eq!((totals.removed, totals.batches), (12, 3));
    assert_eq!(sweeper.stop().await, totals);
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_is_followed_by_the_next_at_once() {
    let full = Plan::Removes(BATCH);
    let store = Planned::new([full, full, full, Plan::Removes(BATCH - 1), full]);
    let _sweeper = sweeper(&store).start();
    sleep(seconds(100)).await;
    let times = [0, 0, 0, 0, 60, 60].map(seconds);
    assert_eq!(store.swept_at(), times);
}

#[tokio::test(start_paused = true)]
async fn an_endless_backlog_leaves_others_their_turn_and_can_be_stopped() {
    let store = Planned::and_then([], Plan::Removes(BATCH));
    let sweeper = sweeper(&store).start();
    for _ in 0..100 {
        store.begun().await;
    }
    let totals = sweeper.stop().await;
    assert!(totals.batches >= 100);
    assert_eq!(totals.removed, totals.batches * u64::from(BATCH));
}

#[tokio::test(start_paused = true)]
async fn rests_are_spread_by_jitter() {
    let store = Planned::new([]);
    let _sweeper = sweeper(&store).jitter(seconds(20)).start();
    sleep(seconds(80 * 50)).await;
    let first = store.swept_at()[0];
    assert!(first <= seconds(20), "{first:?}");
    let rests = store.rests();
    assert!(rests.len() >= 48, "{}", rests.len());
    // The timer's ticks are milliseconds.
    let longest = Duration::from_millis(80_001);
    assert!(
        rests
            .iter()
            .all(|rest| (seconds(60)..=longest).contains(rest)),
        "{rests:?}"
    );
    // Fifty of 256 values are all in one half once in 2^49 times.
    assert!(rests.iter().any(|rest| *rest > seconds(70)), "{rests:?}");
    assert!(rests.iter().any(|rest| *rest < seconds(70)), "{rests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_is_asked_again_ever_later_and_forgiven_at_once() {
    let fails = [Plan::Fails; 6];
    let plan = fails.into_iter().chain([Plan::Removes(1), Plan::Fails]);
    let store = Planned::new(plan);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&reports);
    let sweeper = sweeper(&store)
        .backoff(seconds(1), seconds(8))
        .on_report(move |report| {
            noted.lock().unwrap().push(match report {
                SweepReport::Failed { error, retry_after } => Err((error.kind(), retry_after)),
                SweepReport::Swept { swept, totals } => {
                    Ok((swept.removed, totals.failures_in_a_row))
                }
                _ => panic!("a report of another kind"),
            });
        })
        .start();

    for _ in 0..6 {
        store.begun().await;
    }
    yield_now().await;
    assert_eq!(sweeper.totals().failures_in_a_row, 6);
    assert_eq!(sweeper.totals().batches, 0);
    while store.swept_at().len() < 9 {
        store.begun().await;
    }

    // Half of each delay is left to chance.
    let rests = store.rests();
    let tick = Duration::from_millis(1);
    for (at, delay) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (5, 8), (7, 1)] {
        let bounds = seconds(delay) / 2..=seconds(delay) + tick;
        assert!(bounds.contains(&rests[at]), "{at}: {rests:?}");
    }
    assert_eq!(rests[6], seconds(60));

    let reports = reports.lock().unwrap();
    for (at, report) in reports[..6].iter().enumerate() {
        let (kind, retry_after) = report.unwrap_err();
        assert_eq!(kind, StoreErrorKind::Unavailable);
        assert!(rests[at].abs_diff(retry_after) <= tick, "{at}");
    }
    assert_eq!(reports[6], Ok((1, 0)));
    assert!(reports[7].is_err());
}

#[tokio::test(start_paused = true)]
async fn stuck_operations_are_reported() {
    let store = Planned::new([Plan::Stuck(3), Plan::Stuck(0), Plan::Stuck(2)]);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&reports);
    let sweeper = sweeper(&store)
        .on_report(move |report| {
            if let SweepReport::Swept { swept, totals } = report {
                assert_eq!(swept.stuck, totals.stuck);
                noted.lock().unwrap().push(swept.stuck);
            }
        })
        .start();
    sleep(seconds(121)).await;
    assert_eq!(*reports.lock().unwrap(), [3, 0, 2]);
    assert_eq!(sweeper.totals().stuck, 2);
    sleep(seconds(60)).await;
    assert_eq!(sweeper.totals().stuck, 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_batch_and_begins_no_other() {
    let store = Planned::new([Plan::AtGate(BATCH)]);
    let sweeper = sweeper(&store).start();
    store.begun().await;
    let stopping = tokio::spawn(sweeper.stop());
    for _ in 0..10 {
        yield_now().await;
    }
    assert!(!stopping.is_finished(), "it did not wait");
    store.gate.add_permits(1);
    let totals = stopping.await.unwrap();
    assert_eq!(totals.removed, u64::from(BATCH));
    // The batch was full, and yet the next one was not begun.
    assert_eq!(store.swept_at().len(), 1);
    assert_eq!(Arc::strong_count(&store), 1, "the task is there");
}

#[tokio::test(start_paused = true)]
async fn stopping_a_resting_sweeper_takes_no_time() {
    for plan in [Plan::Removes(0), Plan::Fails] {
        let store = Planned::new([plan]);
        let sweeper = sweeper(&store).backoff(seconds(50), seconds(50)).start();
        store.begun().await;
        yield_now().await;
        let before = Instant::now();
        sweeper.stop().await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(Arc::strong_count(&store), 1, "the task is there");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_it_ends_even_within_a_batch() {
    let store = Planned::new([Plan::Hangs]);
    let running = sweeper(&store).start();
    store.begun().await;
    drop(running);
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(Arc::strong_count(&store), 1, "the task is there");

    // And so does it when its stopping is given up.
    let store = Planned::new([Plan::Hangs]);
    let running = sweeper(&store).start();
    store.begun().await;
    let given_up = tokio::time::timeout(seconds(1), running.stop()).await;
    assert!(given_up.is_err());
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(Arc::strong_count(&store), 1, "the task is there");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_or_panics_has_failed() {
    let store = Planned::new([Plan::Hangs, Plan::Panics, Plan::Removes(1)]);
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&kinds);
    let sweeper = sweeper(&store)
        .time_limit(seconds(5))
        .backoff(seconds(1), seconds(1))
        .on_report(move |report| {
            if let SweepReport::Failed { error, .. } = report {
                noted.lock().unwrap().push(error.kind());
            }
        })
        .start();
    sleep(seconds(30)).await;
    assert_eq!(*kinds.lock().unwrap(), [StoreErrorKind::Ambiguous; 2]);
    assert_eq!(sweeper.totals().removed, 1);
    let rest = store.rests()[0];
    assert!(
        (Duration::from_millis(5500)..=Duration::from_millis(6001)).contains(&rest),
        "{rest:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_report_that_panics_ends_nothing() {
    let store = Planned::new([]);
    let sweeper = sweeper(&store).on_report(|_| panic!("planned")).start();
    sleep(seconds(100)).await;
    assert_eq!(sweeper.totals().batches, 2);
}

#[tokio::test(start_paused = true)]
async fn settings_without_sense_neither_spin_nor_overflow() {
    let store = Planned::new([Plan::Removes(0), Plan::Fails]);
    let zero = sweeper(&store)
        .interval(Duration::ZERO)
        .backoff(Duration::ZERO, Duration::ZERO)
        .start();
    sleep(Duration::from_millis(10)).await;
    let sweeps = store.swept_at().len();
    assert!((3..=11).contains(&sweeps), "{sweeps}");
    drop(zero);

    let store = Planned::new([Plan::Removes(0), Plan::Fails, Plan::Fails, Plan::Removes(0)]);
    let builder = Sweeper::builder(Arc::clone(&store));
    let endless = builder
        .interval(Duration::MAX)
        .time_limit(Duration::MAX)
        .backoff(Duration::MAX, Duration::MAX)
        .start();
    sleep(seconds(20 * 365 * 24 * 60 * 60)).await;
    assert!(endless.totals().batches >= 2, "{:?}", endless.totals());
}

#[tokio::test(start_paused = true)]
async fn many_sweepers_share_one_store() {
    const RECORDS: u64 = 300;
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(
        1_700_000_000_000_000,
    )));
    let store = Arc::new(MemoryKeyStore::new(Arc::clone(&clock)));
    let policy = Policy::default();
    for at in 0..RECORDS {
        let mut request = request();
        let key = idem_core::IdempotencyKey::new(format!("k-{at}")).unwrap();
        request.id = RecordId::new(id().scope().clone(), key);
        let bytes = u128::from(at + 1).to_be_bytes();
        let (origin, token) = (Origin::from_bytes(bytes), OwnerToken::from_bytes(bytes));
        let claim = Claim::new(request.clone(), &policy, origin, token);
        let ClaimOutcome::Won(won) = store.claim(&claim).await.unwrap() else {
            panic!("taken")
        };
        // One of three is left in progress.
        if at % 3 != 0 {
            let completed = Transition::Complete(Response::new(200));
            let expect = Expect::Owner(won.record.token);
            store
                .transition(&request.id, expect, &completed)
                .await
                .unwrap();
        }
    }
    clock.advance(policy.terms().retention);
    clock.advance(policy.lease());

    let sweepers: Vec<_> = (0..8)
        .map(|_| {
            let builder = Sweeper::builder(Arc::clone(&store)).jitter(Duration::ZERO);
            builder.batch(NonZeroU32::new(7).unwrap()).start()
        })
        .collect();
    sleep(seconds(70)).await;
    let mut removed = 0;
    for sweeper in sweepers {
        let totals: SweepTotals = sweeper.stop().await;
        assert!(totals.removed < RECORDS, "one of them did it all");
        assert_eq!(totals.stuck, 7, "counted up to the size of a batch");
        removed += totals.removed;
    }
    assert_eq!(removed, RECORDS / 3 * 2);
}
