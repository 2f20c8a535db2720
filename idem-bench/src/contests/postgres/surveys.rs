use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use idem_core::executor::Sweeper;
use idem_core::{Filter, Inspect as _, KeyStore as _, Policy, Selection};
use idem_postgres::{Coalescing, PgKeyStore};
use tokio::runtime::Runtime;

use super::REPLAYED;
use super::growth::{Completed, Filling, empty, fill, run, settle, sizes, wal};
use super::ours::{Case, OurCaller};
use super::servers::{Ping, Servers};
use crate::contest::{Budget, Fault, Pace, Place, Plan};
use crate::load::{Caller as _, runtime, tasks};
use crate::survey::{Duration as Takes, Figure, Survey};

const SWEPT_AT_ONCE: NonZeroU32 = NonZeroU32::new(1000).unwrap();

pub(crate) fn surveys(_: &Place) -> Result<Vec<Survey>, Fault> {
    let servers = Arc::new(Servers::default());
    let survey = |name, what, duration, take: Take| {
        let servers = Arc::clone(&servers);
        Survey {
            name,
            what,
            duration,
            run: Box::new(move |rounds, pace| {
                let runtime = runtime()?;
                take(&servers, &runtime, rounds, pace)
            }),
        }
    };
    Ok(vec![
        survey(
            "postgres/replay-wal",
            "what replays write to the log",
            Takes::Short,
            replay_wal,
        ),
        survey(
            "postgres/growing",
            "claims and answers by statements that were prepared while the table was small",
            Takes::Short,
            growing,
        ),
        survey(
            "postgres/large",
            "claims, sweeps and lists with five million rows",
            Takes::Long,
            large,
        ),
        survey(
            "postgres/sweeping",
            "claims while a million of two million rows are swept",
            Takes::Long,
            sweeping,
        ),
        survey(
            "postgres/sizes",
            "the size of the table over a million operations whose records expire after two seconds",
            Takes::Long,
            level_off,
        ),
    ])
}

type Take = fn(&Servers, &Runtime, u32, Pace) -> Result<Vec<Figure>, Fault>;

/// All of it, or a two hundredth of it to show that everything runs.
fn scaled(number: u64, pace: Pace) -> u64 {
    match pace {
        Pace::Full => number,
        Pace::Quick => number / 200,
    }
}

/// How many times something is taken that takes long itself.
fn few(rounds: u32) -> u32 {
    rounds.min(3)
}

fn replay_wal(
    servers: &Servers,
    runtime: &Runtime,
    rounds: u32,
    _: Pace,
) -> Result<Vec<Figure>, Fault> {
    runtime.block_on(async {
        let store = empty(servers, "idem_replayed", 2, Coalescing::Off).await?;
        let mut filling = OurCaller::new(&store, 0, Case::ClaimAndComplete, Policy::default())?;
        for _ in 0..REPLAYED {
            filling.call().await?;
        }
        // Hint bits are written by whoever looks first, which is no replay's doing.
        settle(store.pool(), "idem_replayed").await?;
        let mut replaying = OurCaller::new(&store, 0, Case::Replay, Policy::default())?;
        let mut bytes = Vec::new();
        for _ in 0..rounds {
            let before = wal(store.pool()).await?;
            for _ in 0..REPLAYED {
                replaying.call().await?;
            }
            let written = wal(store.pool()).await? - before;
            bytes.push(written as f64 / REPLAYED as f64);
        }
        store.pool().close().await;
        Ok(vec![Figure::new("a replay", "bytes", bytes).at_most(0.0)])
    })
}

/// The table is small, as of its first day, when the statements are prepared and get the plans that are kept. Then it grows,
/// faster than autovacuum comes by, which is what has them planned anew.
fn growing(
    servers: &Servers,
    runtime: &Runtime,
    rounds: u32,
    pace: Pace,
) -> Result<Vec<Figure>, Fault> {
    let mut figures = Vec::new();
    for (name, coalescing, callers) in [
        ("each alone", Coalescing::Off, 1),
        ("coalesced", Coalescing::default(), 64),
    ] {
        let mut ratios = Vec::new();
        for round in 0..few(rounds) {
            let table = "idem_growing";
            let old = runtime.block_on(empty(servers, table, 2, coalescing))?;
            runtime.block_on(run(
                old.pool(),
                "DROP TABLE idem_growing, idem_growing_migration",
            ))?;
            let few_rows = Filling {
                completed: Completed::Live,
                first: 1,
                rows: 60,
                in_progress_every: 0,
            };
            runtime.block_on(async {
                old.migrate().await?;
                run(
                    old.pool(),
                    "ALTER TABLE idem_growing SET (autovacuum_enabled = off)",
                )
                .await?;
                fill(old.pool(), table, few_rows).await?;
                settle(old.pool(), table).await
            })?;
            // More than the five times that are planned anew, on both connections and of batches too.
            median_latency(runtime, &old, callers, 1000 + round * 3, pace)?;
            let filling = Filling {
                first: 61,
                rows: scaled(100_000, pace),
                ..few_rows
            };
            runtime.block_on(fill(old.pool(), table, filling))?;
            let new = runtime.block_on(async {
                let pool = servers.pool(2, Ping::BeforeEachUse).await?;
                let options = idem_postgres::PgOptions::new().table(table)?;
                Ok::<_, Fault>(options.coalescing(coalescing).build(pool))
            })?;
            median_latency(runtime, &new, callers, 2000 + round * 3, pace)?;
            let before = median_latency(runtime, &old, callers, 3000 + round * 3, pace)?;
            let beside = median_latency(runtime, &new, callers, 4000 + round * 3, pace)?;
            ratios.push(before.as_secs_f64() / beside.as_secs_f64());
            runtime.block_on(async {
                old.pool().close().await;
                new.pool().close().await;
            });
        }
        let figure = Figure::new(format!("p50 beside new connections, {name}"), "x", ratios);
        figures.push(figure.at_most(1.3));
    }
    Ok(figures)
}

/// The median time of a claim and its completion.
fn median_latency(
    runtime: &Runtime,
    store: &PgKeyStore,
    callers: u32,
    group: u32,
    pace: Pace,
) -> Result<Duration, Fault> {
    let first = group * 1000;
    let of = |number| OurCaller::new(store, number, Case::ClaimAndComplete, Policy::default());
    let each = scaled(40, pace).max(16);
    let plan = Plan {
        callers,
        budget: Budget::Operations(u64::from(callers) * each),
    };
    let callers = (first..first + callers)
        .map(of)
        .collect::<Result<_, Fault>>()?;
    Ok(tasks(runtime, plan, callers)?.quantile(0.5))
}

fn large(
    servers: &Servers,
    runtime: &Runtime,
    rounds: u32,
    pace: Pace,
) -> Result<Vec<Figure>, Fault> {
    let large = runtime.block_on(empty(servers, "idem_large", 8, Coalescing::Off))?;
    let small = runtime.block_on(empty(servers, "idem_small", 8, Coalescing::Off))?;
    let filling = Filling {
        completed: Completed::Live,
        first: 1,
        rows: scaled(5_000_000, pace),
        in_progress_every: 500,
    };
    eprintln!("making {} rows", filling.rows);
    runtime.block_on(async {
        fill(large.pool(), "idem_large", filling).await?;
        settle(large.pool(), "idem_large").await
    })?;
    let few_rows = Filling {
        rows: 10_000,
        ..filling
    };
    runtime.block_on(async {
        fill(small.pool(), "idem_small", few_rows).await?;
        settle(small.pool(), "idem_small").await
    })?;

    let mut figures = Vec::new();
    for callers in [1, 8] {
        let mut ratios = Vec::new();
        let (mut smalls, mut larges) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let group = 100 * callers + round;
            let on = |store: &PgKeyStore| claim_median(runtime, store, callers, group, pace);
            // In turns, as everywhere.
            let (of_small, of_large) = if round % 2 == 0 {
                let of_small = on(&small)?;
                (of_small, on(&large)?)
            } else {
                let of_large = on(&large)?;
                (on(&small)?, of_large)
            };
            if round > 0 {
                ratios.push(of_large / of_small);
                smalls.push(of_small);
                larges.push(of_large);
            }
        }
        figures.extend([
            Figure::new(
                format!("claim p50 at 10 thousand, {callers} callers"),
                "us",
                smalls,
            ),
            Figure::new(
                format!("claim p50 at 5 million, {callers} callers"),
                "us",
                larges,
            ),
            Figure::new(
                format!("one beside the other, {callers} callers"),
                "x",
                ratios,
            )
            .at_most(1.3),
        ]);
    }

    let (mut sweeps, mut lists, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let stuck = Filter {
            selection: Selection::Stuck,
            scope: None,
        };
        // Not the first ones: plans are made five times anew.
        for round in 0..rounds + 8 {
            let started = Instant::now();
            let swept = large.sweep(SWEPT_AT_ONCE).await?;
            let sweep = started.elapsed();
            let started = Instant::now();
            let listed = large.list(&stuck, None, SWEPT_AT_ONCE).await?;
            let list = started.elapsed();
            if swept.removed != 0 || swept.stuck == 0 || listed.is_empty() {
                return Err(Fault::from("the stuck records were not found"));
            }
            if round >= 8 {
                sweeps.push(millis(sweep));
                lists.push(millis(list));
            }
        }
        for _ in 0..few(rounds) {
            let started = Instant::now();
            large.count().await?;
            counts.push(millis(started.elapsed()));
        }
        large.pool().close().await;
        small.pool().close().await;
        Ok(())
    })?;
    figures.extend([
        Figure::new(
            "sweep with nothing to remove, which counts the stuck",
            "ms",
            sweeps,
        )
        .at_most(20.0),
        Figure::new("list of the stuck", "ms", lists),
        Figure::new("count of everything", "ms", counts),
    ]);
    Ok(figures)
}

/// In microseconds.
fn claim_median(
    runtime: &Runtime,
    store: &PgKeyStore,
    callers: u32,
    group: u32,
    pace: Pace,
) -> Result<f64, Fault> {
    let first = group * 1000;
    let each = scaled(1600, pace).max(8) / u64::from(callers);
    runtime.block_on(async {
        let mut running = Vec::new();
        for number in first..first + callers {
            let caller = OurCaller::new(store, number, Case::ClaimAndComplete, Policy::default())?;
            running.push(tokio::spawn(claims(
                caller,
                Duration::ZERO,
                Until::Claims(each),
            )));
        }
        let mut latency = latencies()?;
        for caller in running {
            latency.add(&caller.await??)?;
        }
        Ok(latency.value_at_quantile(0.5) as f64 / 1e3)
    })
}

/// How long a caller claims.
enum Until {
    Claims(u64),
    Told(tokio::sync::watch::Receiver<bool>),
}

/// Claims one key after the other, with a rest in between, and says how long each of them took.
async fn claims(
    mut caller: OurCaller,
    rest: Duration,
    mut until: Until,
) -> Result<Histogram<u64>, Fault> {
    let mut latency = latencies()?;
    loop {
        match &mut until {
            Until::Claims(0) => return Ok(latency),
            Until::Claims(left) => *left -= 1,
            Until::Told(stop) if *stop.borrow() => return Ok(latency),
            Until::Told(_) => {}
        }
        let started = Instant::now();
        caller.claim().await?;
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency.saturating_record(nanos.max(1));
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }
}

fn latencies() -> Result<Histogram<u64>, Fault> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 2)?)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How many callers claim while rows are swept, and how long each of them rests after a claim. A server that has
/// nothing to spare would be slower for anything else that it does.
const CLAIMING: u32 = 16;
const REST: Duration = Duration::from_millis(40);

fn sweeping(
    servers: &Servers,
    runtime: &Runtime,
    rounds: u32,
    pace: Pace,
) -> Result<Vec<Figure>, Fault> {
    let table = "idem_swept";
    let (mut resting, mut swept, mut ratios, mut speeds) = (vec![], vec![], vec![], vec![]);
    for round in 0..few(rounds) {
        let at_rest = Duration::from_millis(scaled(10_000, pace));
        let rows = scaled(2_000_000, pace);
        runtime.block_on(async {
            let store = empty(servers, table, 32, Coalescing::default()).await?;
            let filling = Filling {
                completed: Completed::Expired,
                first: 1,
                rows,
                in_progress_every: 0,
            };
            fill(store.pool(), table, filling).await?;
            // The other half stays.
            run(
                store.pool(),
                "UPDATE idem_swept SET expires_at = expires_at + interval '2 days' WHERE scope < 'acct_55'",
            )
            .await?;
            settle(store.pool(), table).await?;
            let first = 100_000 * (round + 1);
            claiming(&store, first, tokio::time::sleep(at_rest / 4)).await?;
            let rest = claiming(&store, first + 1000, tokio::time::sleep(at_rest)).await?;
            let started = Instant::now();
            let sweeper = Sweeper::builder(store.clone())
                .interval(Duration::from_millis(50))
                .jitter(Duration::ZERO)
                .start();
            let until = async {
                let most = rows / 4;
                while sweeper.totals().removed < most
                    || sweeper.totals().removed.is_multiple_of(u64::from(SWEPT_AT_ONCE.get()))
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let busy = claiming(&store, first + 2000, until).await?;
            let taken = started.elapsed();
            let totals = sweeper.stop().await;
            speeds.push(totals.removed as f64 / taken.as_secs_f64());
            let (rest, busy) = (rest.value_at_quantile(0.99), busy.value_at_quantile(0.99));
            resting.push(rest as f64 / 1e6);
            swept.push(busy as f64 / 1e6);
            ratios.push(busy as f64 / rest as f64);
            store.pool().close().await;
            Ok::<_, Fault>(())
        })?;
    }
    Ok(vec![
        Figure::new("claim p99 at rest", "ms", resting),
        Figure::new("claim p99 while swept", "ms", swept),
        Figure::new("one beside the other", "x", ratios).at_most(3.0),
        Figure::new("rows swept", "/s", speeds),
    ])
}

/// What claims take until something is over.
async fn claiming(
    store: &PgKeyStore,
    first: u32,
    until: impl Future<Output = ()>,
) -> Result<Histogram<u64>, Fault> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut running = Vec::new();
    for number in first..first + CLAIMING {
        let caller = OurCaller::new(store, number, Case::ClaimAndComplete, Policy::default())?;
        let until = Until::Told(stopped.clone());
        running.push(tokio::spawn(claims(caller, REST, until)));
    }
    until.await;
    let _ = stop.send(true);
    let mut latency = latencies()?;
    for caller in running {
        latency.add(&caller.await??)?;
    }
    Ok(latency)
}

/// In how many parts the operations are made, after each of which the sizes are looked at.
const PARTS: u32 = 10;

/// A day of records that live a day, in a minute: they live two seconds, and autovacuum comes by as much more often.
fn level_off(
    servers: &Servers,
    runtime: &Runtime,
    _: u32,
    pace: Pace,
) -> Result<Vec<Figure>, Fault> {
    let table = "idem_sizes";
    let store = runtime.block_on(empty(servers, table, 32, Coalescing::default()))?;
    let set = "ALTER SYSTEM SET autovacuum_naptime = '5s'; SELECT pg_reload_conf()";
    runtime.block_on(async {
        for statement in set.split("; ") {
            run(store.pool(), statement).await?;
        }
        Ok::<_, Fault>(())
    })?;
    let sweeper = {
        let _runtime = runtime.enter();
        Sweeper::builder(store.clone())
            .interval(Duration::from_millis(200))
            .start()
    };
    let policy = Policy::builder()
        .retention(Duration::from_secs(2))
        .build()?;
    let callers = 256;
    let mut sizes_after = Vec::new();
    for part in 0..PARTS {
        let plan = Plan {
            callers,
            budget: Budget::Operations(scaled(1_000_000, pace) / u64::from(PARTS)),
        };
        let first = part * callers;
        let callers = (first..first + callers)
            .map(|number| OurCaller::new(&store, number, Case::ClaimAndComplete, policy))
            .collect::<Result<_, Fault>>()?;
        tasks(runtime, plan, callers)?;
        sizes_after.push(runtime.block_on(sizes(store.pool(), table))?);
    }
    let totals = runtime.block_on(sweeper.stop());
    runtime.block_on(async {
        for statement in [
            "ALTER SYSTEM RESET autovacuum_naptime",
            "SELECT pg_reload_conf()",
        ] {
            run(store.pool(), statement).await?;
        }
        store.pool().close().await;
        Ok::<_, Fault>(())
    })?;
    let megabytes = |pick: fn(&(i64, i64)) -> i64| -> Vec<f64> {
        sizes_after
            .iter()
            .map(|size| pick(size) as f64 / 1e6)
            .collect()
    };
    let (tables, indexes) = (megabytes(|size| size.0), megabytes(|size| size.1));
    let late = |sizes: &[f64]| {
        let half = sizes.len() / 2;
        let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
        most(&sizes[half..]) / most(&sizes[..half])
    };
    Ok(vec![
        Figure::new(
            "the second half's largest table beside the first's",
            "x",
            vec![late(&tables)],
        )
        .at_most(1.1),
        Figure::new(
            "the second half's largest indexes beside the first's",
            "x",
            vec![late(&indexes)],
        )
        .at_most(1.1),
        Figure::new("the table after each tenth", "MB", tables),
        Figure::new("its indexes after each tenth", "MB", indexes),
        Figure::new("rows swept", "", vec![totals.removed as f64]),
    ])
}
