use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::{Backend, Bench, Live, panicked};
use crate::case::Case;
use crate::failure::{CaseResult, Failure, Stop, failure};
use crate::harness::Harness;
use crate::report::{CaseReport, CaseVerdict, Report};

/// Runs the cases from a program, instead of as tests.
///
/// ```
/// # use std::sync::Arc;
/// # use idem_core::{async_trait, ManualClock, MemoryKeyStore, Timestamp};
/// # use idem_testkit::{Harness, Unavailable};
/// # struct Memory;
/// # #[async_trait]
/// # impl Harness for Memory {
/// #     type Data = Arc<MemoryKeyStore<ManualClock>>;
/// #     type Store = Arc<MemoryKeyStore<ManualClock>>;
/// #     async fn create(&self) -> Result<Self::Data, Unavailable> {
/// #         Ok(Arc::new(MemoryKeyStore::new(ManualClock::new(Timestamp::from_micros(0)))))
/// #     }
/// #     async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> { Ok(data.clone()) }
/// # }
/// use idem_testkit::Suite;
///
/// let report = Suite::new().only("claim_race").run(Memory);
/// assert!(report.is_conformant(), "{report}");
/// ```
#[derive(Debug, Clone)]
pub struct Suite {
    settings: Settings,
    only: Option<String>,
}

/// What a run can be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How long one call may take.
    pub(crate) patience: Duration,
    /// Where random sequences begin.
    pub(crate) seed: u64,
    /// How many of them there are.
    pub(crate) histories: u32,
    /// How often a failing one may be made smaller.
    pub(crate) shrinks: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            seed: 0x1DE4,
            histories: 48,
            shrinks: 400,
        }
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl Suite {
    /// All cases. `IDEM_TESTKIT_SEED` and `IDEM_TESTKIT_HISTORIES` in the environment, both whole numbers, choose
    /// other random histories than the usual, and more of them.
    #[must_use]
    pub fn new() -> Self {
        let mut settings = Settings::default();
        if let Some(seed) = number("IDEM_TESTKIT_SEED") {
            settings.seed = seed;
        }
        if let Some(histories) = number("IDEM_TESTKIT_HISTORIES") {
            settings.histories = u32::try_from(histories).unwrap_or(u32::MAX);
        }
        Self {
            settings,
            only: None,
        }
    }

    /// Only the cases in whose name this text is.
    #[must_use]
    pub fn only(mut self, text: impl Into<String>) -> Self {
        self.only = Some(text.into());
        self
    }

    /// How long one call of the store may take before it counts as hung: ten seconds, unless said otherwise.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Where random sequences begin.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// How often a failing random sequence may be made smaller. Zero is for runs that only ask whether there is
    /// one.
    #[must_use]
    pub fn shrinks(mut self, shrinks: u32) -> Self {
        self.settings.shrinks = shrinks;
        self
    }

    /// Runs the cases one after the other, each on new data and on a runtime of its own. Blocks until they are
    /// done.
    #[must_use]
    pub fn run<H: Harness>(&self, harness: impl Into<Arc<H>>) -> Report {
        let harness = harness.into();
        let cases = Case::all()
            .iter()
            .filter(|case| {
                self.only
                    .as_deref()
                    .is_none_or(|text| case.name().contains(text))
            })
            .map(|case| self.run_case(&harness, case))
            .collect();
        Report { cases }
    }

    /// Runs one case. Blocks until it is done.
    #[must_use]
    pub fn run_case<H: Harness>(&self, harness: &Arc<H>, case: &'static Case) -> CaseReport {
        let started = Instant::now();
        // A thread of its own, because a runtime cannot be made inside another one.
        let result = std::thread::scope(|scope| {
            scope
                .spawn(|| on_a_runtime(self.settings, Arc::clone(harness), case))
                .join()
                .unwrap_or_else(|_| Err(Failure::new("the suite itself panicked").into()))
        });
        let verdict = match result {
            Ok(()) => CaseVerdict::Passed,
            Err(Stop::Failed(failure)) => CaseVerdict::Failed {
                explanation: failure.to_string(),
            },
            Err(Stop::Skipped(missing)) => CaseVerdict::Skipped {
                reason: missing.to_string(),
            },
            Err(Stop::Unavailable(unavailable)) => CaseVerdict::Unavailable {
                reason: unavailable.to_string(),
            },
        };
        CaseReport::new(case, verdict, started.elapsed())
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.trim().parse().ok()
}

/// More threads than many machines have cores: the more often a task is interrupted, the better.
const WORKERS: usize = 4;

fn on_a_runtime<H: Harness>(
    settings: Settings,
    harness: Arc<H>,
    case: &'static Case,
) -> CaseResult {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| failure!("the suite cannot start a runtime: {error}"))?;
    let result = runtime.block_on(with_data(settings, harness, case));
    // A call that blocks its thread would keep an ordinary shutdown waiting for ever.
    runtime.shutdown_background();
    result
}

async fn with_data<H: Harness>(
    settings: Settings,
    harness: Arc<H>,
    case: &'static Case,
) -> CaseResult {
    let data = harness.create().await?;
    let backend: Arc<dyn Backend> = Arc::new(Live { harness, data });
    let running = tokio::spawn({
        let backend = Arc::clone(&backend);
        async move {
            let mut bench = Bench::open(backend, settings).await?;
            (case.run)(&mut bench).await
        }
    });
    // Each call has its own limit; this one is for calls that block a thread, which no timer can interrupt.
    let abort = running.abort_handle();
    let limit = settings
        .patience
        .saturating_mul(4)
        .max(Duration::from_secs(2));
    let result = match tokio::time::timeout(limit, running).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(panicked(error).into()),
        Err(_) => {
            abort.abort();
            Err(failure!("the case did not end within {limit:?}").into())
        }
    };
    backend.destroy().await;
    result
}

/// Runs one case as a test. What [`conformance!`](crate::conformance) expands to.
#[doc(hidden)]
pub fn run_as_test<H: Harness>(harness: H, name: &str) {
    let Some(case) = Case::named(name) else {
        fail(&format!("there is no case `{name}`"));
    };
    let report = Suite::new().run_case(&Arc::new(harness), case);
    match &report.verdict {
        CaseVerdict::Passed => {}
        CaseVerdict::Failed { explanation } => {
            let clauses: Vec<_> = case.clauses().iter().map(|clause| clause.name()).collect();
            fail(&format!(
                "{name} ({}): {}\n    {explanation}",
                clauses.join(", "),
                case.about()
            ));
        }
        CaseVerdict::Unavailable { reason } if in_ci() => {
            fail(&format!(
                "{name}: {reason} (with CI=true that is a failure)"
            ));
        }
        CaseVerdict::Unavailable { reason } | CaseVerdict::Skipped { reason } => {
            shout(&format!("SKIPPED {name}: {reason}\n"));
        }
    }
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

#[expect(
    clippy::panic,
    reason = "a test fails by panicking, and this is called by tests alone"
)]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

/// Writes past the test runner, which shows what `println!` prints only when a test fails.
fn shout(line: &str) {
    use std::io::Write as _;
    // There is nobody to tell that telling failed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
