//! Callers that do one operation after the other, and what they measured.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::contest::{Budget, Fault, Plan};

/// What one contestant did in one round.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    /// What all threads of the process used meanwhile. Unlike the time that passed, it hardly depends on what else
    /// the machine does.
    pub(crate) cpu: Duration,
    /// In nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Round {
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }
}

/// A caller that awaits.
pub(crate) trait Caller: Send + 'static {
    /// One operation.
    fn call(&mut self) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Calls a function on this thread. So many calls are timed together, where a single one is shorter than it takes to
/// read the clock; latencies are their means then.
pub(crate) fn repeat(plan: Plan, together: u32, mut call: impl FnMut()) -> Result<Round, Fault> {
    let cpu = cpu_time();
    let mut log = Log::begin(plan)?;
    while log.goes_on() {
        let started = Instant::now();
        for _ in 0..together {
            call();
        }
        log.add(started, together);
    }
    Log::together([log], cpu_time().saturating_sub(cpu))
}

/// Runs each caller on a thread of its own, all from the same moment.
pub(crate) fn threads<C>(plan: Plan, callers: Vec<C>) -> Result<Round, Fault>
where
    C: FnMut() -> Result<(), Fault> + Send,
{
    let cpu = cpu_time();
    let start = Barrier::new(callers.len());
    let logs = thread::scope(|scope| {
        let running: Vec<_> = callers
            .into_iter()
            .map(|mut call| {
                let start = &start;
                scope.spawn(move || -> Result<Log, Fault> {
                    start.wait();
                    let mut log = Log::begin(plan)?;
                    while log.goes_on() {
                        let started = Instant::now();
                        call()?;
                        log.add(started, 1);
                    }
                    Ok(log)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|caller| {
                caller
                    .join()
                    .unwrap_or_else(|_| Err(Fault::from("a caller panicked")))
            })
            .collect::<Result<Vec<_>, _>>()
    })?;
    Log::together(logs, cpu_time().saturating_sub(cpu))
}

/// Runs each caller in a task of its own, all from the same moment.
pub(crate) fn tasks<C: Caller>(
    runtime: &Runtime,
    plan: Plan,
    callers: Vec<C>,
) -> Result<Round, Fault> {
    let cpu = cpu_time();
    let start = Arc::new(tokio::sync::Barrier::new(callers.len()));
    runtime.block_on(async {
        let running: Vec<_> = callers
            .into_iter()
            .map(|mut caller| {
                let start = Arc::clone(&start);
                tokio::spawn(async move {
                    start.wait().await;
                    let mut log = Log::begin(plan)?;
                    while log.goes_on() {
                        let started = Instant::now();
                        caller.call().await?;
                        log.add(started, 1);
                    }
                    Ok::<_, Fault>((log, caller))
                })
            })
            .collect();
        let mut logs = Vec::new();
        // Callers own what they worked on. It is dropped when all are done, and not while others are timed.
        let mut done = Vec::new();
        for caller in running {
            let (log, caller) = caller.await??;
            logs.push(log);
            done.push(caller);
        }
        Log::together(logs, cpu_time().saturating_sub(cpu))
    })
}

/// A runtime as a server has it: a worker for each core.
pub(crate) fn runtime() -> Result<Runtime, Fault> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime)
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// What one caller has done so far.
struct Log {
    budget: Budget,
    left: u64,
    operations: u64,
    began: Instant,
    ended: Instant,
    latency: Histogram<u64>,
}

impl Log {
    fn begin(plan: Plan) -> Result<Self, Fault> {
        // From a nanosecond to a minute, to one part in a hundred.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 2)?;
        let began = Instant::now();
        Ok(Self {
            budget: plan.budget,
            left: plan.operations_per_caller().unwrap_or(u64::MAX),
            operations: 0,
            began,
            ended: began,
            latency,
        })
    }

    fn goes_on(&self) -> bool {
        match self.budget {
            Budget::Time(length) => self.ended - self.began < length,
            Budget::Operations(_) => self.operations < self.left,
        }
    }

    fn add(&mut self, started: Instant, calls: u32) {
        self.ended = Instant::now();
        let nanos = (self.ended - started).as_nanos() / u128::from(calls);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).max(1);
        self.latency.saturating_record_n(nanos, u64::from(calls));
        self.operations += u64::from(calls);
    }

    fn together(logs: impl IntoIterator<Item = Self>, cpu: Duration) -> Result<Round, Fault> {
        let mut logs = logs.into_iter();
        let mut all = logs.next().ok_or("a round without callers")?;
        for log in logs {
            all.operations += log.operations;
            all.began = all.began.min(log.began);
            all.ended = all.ended.max(log.ended);
            all.latency.add(&log.latency)?;
        }
        Ok(Round {
            operations: all.operations,
            elapsed: all.ended - all.began,
            cpu,
            latency: all.latency,
        })
    }
}
