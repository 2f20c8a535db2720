use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use crate::store::{KeyStore, StoreError, Swept};

use super::backoff::Backoff;
use super::catch_panic::CatchPanic;
use super::random;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
const DEFAULT_BATCH: NonZeroU32 = NonZeroU32::new(1000).unwrap();
const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(60);
const DEFAULT_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// No wait is shorter, so that no setting makes the task spin.
const SHORTEST: Duration = Duration::from_millis(1);
/// And none is longer, so that no sum of them overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A task that removes expired records, batch by batch, and notices the ones that are stuck.
///
/// Run one in every replica of a service: any number of them may sweep at once, since a store removes each record by its
/// identity. While a batch comes back full the next one follows at once; then the sweeper rests for its interval.
/// A store that fails is asked again after a delay that doubles, for as long as the sweeper lives.
///
/// It stops when it is [told to](Self::stop), or dropped.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use idem_core::executor::{Idempotency, SweepReport, Sweeper};
/// use idem_core::{MemoryKeyStore, SystemClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = Arc::new(MemoryKeyStore::new(SystemClock));
/// let idempotency = Idempotency::new(Arc::clone(&store));
/// let sweeper = Sweeper::builder(store)
///     .interval(Duration::from_secs(30))
///     .on_report(|report| match report {
///         SweepReport::Swept { swept, .. } if swept.stuck > 0 => eprintln!("{} operations are stuck", swept.stuck),
///         SweepReport::Failed { error, .. } => eprintln!("not swept: {error}"),
///         _ => {}
///     })
///     .start();
///
/// // … the service runs …
/// # let _ = idempotency;
/// let totals = sweeper.stop().await; // a batch that is under way is waited for
/// println!("{} records were swept", totals.removed);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a sweeper stops when it is dropped"]
pub struct Sweeper {
    totals: Arc<Mutex<SweepTotals>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// What a sweeper has just done.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum SweepReport<'a> {
    /// The store swept a batch.
    Swept {
        /// What it removed, and how many operations it saw stuck: in progress past their lease. They are counted up to the
        /// batch's size.
        swept: Swept,
        /// Everything up to now, this batch included.
        totals: SweepTotals,
    },
    /// The store failed. Some records of the batch may have been removed, and are not counted.
    Failed {
        /// How.
        error: &'a StoreError,
        /// When it is asked again.
        retry_after: Duration,
    },
}

/// What a sweeper has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SweepTotals {
    /// How many records were removed.
    pub removed: u64,
    /// How many batches were swept, empty ones included.
    pub batches: u64,
    /// How many operations were stuck when the last batch was swept: in progress past their lease. Counted up to the
    /// batch's size.
    pub stuck: u32,
    /// How many times the store has failed since it last did not. Not zero means that nothing is being swept.
    pub failures_in_a_row: u64,
}

impl Sweeper {
    /// A sweeper for this store, to be set up and started.
    ///
    /// The store is shared with whoever else uses it by an [`Arc`] around it.
    pub fn builder<S: KeyStore + 'static>(store: S) -> SweeperBuilder<S> {
        let (backoff, longest_backoff) = DEFAULT_BACKOFF;
        SweeperBuilder {
            store,
            interval: DEFAULT_INTERVAL,
            jitter: None,
            batch: DEFAULT_BATCH,
            time_limit: DEFAULT_TIME_LIMIT,
            backoff,
            longest_backoff,
            on_report: None,
        }
    }

    /// What it has done up to now.
    #[must_use]
    pub fn totals(&self) -> SweepTotals {
        *lock(&self.totals)
    }

    /// Stops it. A batch that is under way is waited for, and no other is begun. Says what it has done in all.
    ///
    /// # Cancellation
    ///
    /// Dropped before it resolves, the sweeper is dropped.
    pub async fn stop(mut self) -> SweepTotals {
        drop(self.stop.take());
        // It panics only if the runtime ends it, and then it has stopped as well.
        let _ = (&mut self.task).await;
        self.totals()
    }
}

/// Dropped, it stops at once: the call that is under way is dropped, and may have removed its records or not.
impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type OnReport = Box<dyn FnMut(SweepReport<'_>) + Send>;

/// Settings of a [`Sweeper`] that is to be started.
#[must_use = "nothing is swept until it is started"]
pub struct SweeperBuilder<S> {
    store: S,
    interval: Duration,
    jitter: Option<Duration>,
    batch: NonZeroU32,
    time_limit: Duration,
    backoff: Duration,
    longest_backoff: Duration,
    on_report: Option<OnReport>,
}

impl<S: KeyStore + 'static> SweeperBuilder<S> {
    /// How long it rests after a batch that was not full. A minute, unless it is set.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How much longer a rest may be, by chance, so that replicas which were started together do not sweep together. The
    /// first sweep comes after such a part alone. A quarter of the interval, unless it is set.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = Some(most);
        self
    }

    /// How many records are removed at once. A thousand, unless it is set. More of them are fewer statements and longer
    /// ones.
    pub fn batch(mut self, limit: NonZeroU32) -> Self {
        self.batch = limit;
        self
    }

    /// How long a batch may take until it counts as failed and its call is dropped. A minute, unless it is set.
    pub fn time_limit(mut self, longest: Duration) -> Self {
        self.time_limit = longest;
        self
    }

    /// How long it waits when the store failed: about `first`, and twice as long each time that it fails again, up to
    /// `longest`. A second and a minute, unless they are set.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = first;
        self.longest_backoff = longest;
        self
    }

    /// Called with each [`SweepReport`], by the sweeper's own task: it must not block. If it panics, the panic goes no
    /// further.
    pub fn on_report(mut self, report: impl FnMut(SweepReport<'_>) + Send + 'static) -> Self {
        self.on_report = Some(Box::new(report));
        self
    }

    /// Starts it, in a task of its own.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(self) -> Sweeper {
        let totals = Arc::new(Mutex::new(SweepTotals::default()));
        let (stop, stopped) = oneshot::channel();
        let running = Running {
            interval: bounded(self.interval),
            jitter: self.jitter.unwrap_or(self.interval / 4).min(LONGEST),
            time_limit: self.time_limit,
            backoff: Backoff::new(bounded(self.backoff), bounded(self.longest_backoff)),
            store: self.store,
            batch: self.batch,
            on_report: self.on_report,
            totals: Arc::clone(&totals),
        };
        Sweeper {
            totals,
            stop: Some(stop),
            task: tokio::spawn(running.run(stopped)),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for SweeperBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweeperBuilder")
            .field("store", &self.store)
            .field("interval", &self.interval)
            .field("jitter", &self.jitter)
            .field("batch", &self.batch)
            .field("time_limit", &self.time_limit)
            .field("backoff", &(self.backoff, self.longest_backoff))
            .finish_non_exhaustive()
    }
}

/// The task.
struct Running<S> {
    store: S,
    interval: Duration,
    jitter: Duration,
    batch: NonZeroU32,
    time_limit: Duration,
    /// As it is before the first failure.
    backoff: Backoff,
    on_report: Option<OnReport>,
    totals: Arc<Mutex<SweepTotals>>,
}

impl<S: KeyStore> Running<S> {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut backoff = self.backoff.clone();
        let mut rest = self.some_jitter();
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => return,
                () = pause(rest) => {}
            }
            rest = match self.sweep().await {
                Ok(swept) => {
                    backoff = self.backoff.clone();
                    let totals = self.count(swept);
                    self.report(SweepReport::Swept { swept, totals });
                    if swept.removed < self.batch.get() {
                        self.interval + self.some_jitter()
                    } else {
                        Duration::ZERO
                    }
                }
                Err(error) => {
                    let retry_after = backoff.next();
                    lock(&self.totals).failures_in_a_row += 1;
                    let error = &error;
                    self.report(SweepReport::Failed { error, retry_after });
                    retry_after
                }
            };
        }
    }

    // Not `&self`, which a report that is not `Sync` would keep in its thread.
    async fn sweep(&mut self) -> Result<Swept, StoreError> {
        // Ambiguous in both cases: some of the batch may be gone.
        let call = CatchPanic::new(self.store.sweep(self.batch));
        match timeout(self.time_limit, call).await {
            Ok(Ok(swept)) => swept,
            Ok(Err(_)) => Err(StoreError::ambiguous("sweeping, and the store panicked")),
            Err(elapsed) => Err(StoreError::ambiguous("sweeping").because(elapsed)),
        }
    }

    fn count(&self, swept: Swept) -> SweepTotals {
        let mut totals = lock(&self.totals);
        totals.removed += u64::from(swept.removed);
        totals.batches += 1;
        totals.stuck = swept.stuck;
        totals.failures_in_a_row = 0;
        *totals
    }

    fn report(&mut self, report: SweepReport<'_>) {
        if let Some(on_report) = &mut self.on_report {
            // A sweeper that nobody notices to be gone would be worse than a report that is.
            let _ = catch_unwind(AssertUnwindSafe(|| on_report(report)));
        }
    }

    fn some_jitter(&self) -> Duration {
        self.jitter * u32::from(random::jitter()) / 255
    }
}

async fn pause(rest: Duration) {
    if rest.is_zero() {
        // A store that is never pending would otherwise keep everybody else from running.
        yield_now().await;
    } else {
        sleep(rest).await;
    }
}

fn bounded(duration: Duration) -> Duration {
    duration.clamp(SHORTEST, LONGEST)
}

fn lock(totals: &Mutex<SweepTotals>) -> MutexGuard<'_, SweepTotals> {
    totals.lock().unwrap_or_else(PoisonError::into_inner)
}
