//! Whole flows through the executor: senders, crashes, and a provider that counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_core::executor::{Answer, Attempt, Idempotency, Outcome};
use idem_core::{KeyStore, OnBusy, Policy, Request, Response, Span};
use tokio::sync::Notify;

use crate::bench::Bench;
use crate::failure::{CaseResult, Failure, Stop, ensure, failure, unexpected};

type Executor = Idempotency<Arc<dyn KeyStore>>;

/// A provider of payments that charges once for each key, and counts how often it is called.
#[derive(Debug, Default)]
struct Provider {
    charges: Mutex<BTreeMap<String, usize>>,
    calls: Mutex<usize>,
}

impl Provider {
    fn charge(&self, attempt: &Attempt) -> Outcome<Response> {
        let Ok(key) = attempt.provider_key("charge") else {
            return Outcome::Unknown(Response::new(500));
        };
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let next = charges.len();
        let number = *charges.entry(key.to_string()).or_insert(next);
        Outcome::Completed(Response::new(201).body(format!("ch_{number}")))
    }

    fn counts(&self) -> (usize, usize) {
        let calls = *self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        (calls, charges.len())
    }
}

/// Where a sender's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    BeforeTheClaim,
    AfterTheClaim,
    AfterTheEffect,
    BeforeTheAnswer,
}

fn policy(lease: Span) -> Result<Policy, Failure> {
    Policy::builder()
        .lease(lease.as_duration())
        .heartbeat(Duration::ZERO)
        .on_busy(OnBusy::Wait(Span::from_secs(20)))
        .build()
        .map_err(|error| failure!("the suite made a bad policy: {error}"))
}

/// Two executors, as two processes have them: on stores of their own, if there can be two.
async fn executors(bench: &Bench) -> Result<[Executor; 2], Stop> {
    let first = bench.store().raw().clone();
    let second = match bench.another_instance().await {
        Ok(other) => other.raw().clone(),
        Err(Stop::Skipped(_)) => first.clone(),
        Err(stop) => return Err(stop),
    };
    Ok([Idempotency::new(first), Idempotency::new(second)])
}

/// Many senders of one operation at once: everybody has the one answer.
async fn send(
    bench: &Bench,
    executors: &[Executor; 2],
    request: &Request,
    provider: &Arc<Provider>,
) -> Result<(), Failure> {
    let policy = policy(Span::from_secs(90))?;
    let senders = (0..10).map(|number| {
        let executor = executors[number % 2].with_policy(policy);
        let (request, provider) = (request.clone(), Arc::clone(provider));
        let patience = bench.settings().patience;
        async move {
            let work = executor.execute(&request, |attempt| async move {
                tokio::task::yield_now().await;
                provider.charge(&attempt)
            });
            match tokio::time::timeout(patience, work).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => Err(unexpected("execute", &error)),
                Err(_) => Err(failure!("a sender had no answer within {patience:?}")),
            }
        }
    });
    let mut answers = Vec::new();
    for answer in bench.at_once(senders).await? {
        match answer {
            Answer::Fresh(response) | Answer::Replayed(response) => answers.push(response),
            other => {
                return Err(failure!(
                    "a sender that waits for the one at work must get its answer, and got {other:?}"
                ));
            }
        }
    }
    ensure!(
        answers.iter().all(|answer| *answer == answers[0]),
        "senders of one operation got different answers"
    );
    Ok(())
}

pub(crate) async fn flow_of_many_senders(bench: &mut Bench) -> CaseResult {
    let executors = executors(bench).await?;
    for _ in 0..5 {
        let claim = bench.wish().claim()?;
        let provider = Arc::new(Provider::default());
        send(bench, &executors, claim.request(), &provider).await?;
        // And once more, when it is long done.
        send(bench, &executors, claim.request(), &provider).await?;
        let (calls, charges) = provider.counts();
        ensure!(
            (calls, charges) == (1, 1),
            "no lease ran out, and the provider was called {calls} times and charged {charges} times"
        );
    }
    Ok(())
}

/// A sender whose process ends somewhere in the middle, and then many others.
pub(crate) async fn flow_after_crashes(bench: &mut Bench) -> CaseResult {
    let executors = executors(bench).await?;
    for crash in [
        Crash::BeforeTheClaim,
        Crash::AfterTheClaim,
        Crash::AfterTheEffect,
        Crash::BeforeTheAnswer,
    ] {
        for _ in 0..2 {
            let claim = bench.wish().claim()?;
            let provider = Arc::new(Provider::default());
            die(bench, &executors[0], claim.request(), &provider, crash).await?;
            if let Some(held) = bench.store().load(claim.id()).await? {
                bench.lapse(held.skew).await?;
            }
            send(bench, &executors, claim.request(), &provider).await?;
            let (calls, charges) = provider.counts();
            let expected = if crash == Crash::AfterTheEffect { 2 } else { 1 };
            ensure!(
                calls == expected,
                "{crash:?}: the provider must be called {expected} times, and was called {calls} times"
            );
            ensure!(
                charges == 1,
                "{crash:?}: a provider that charges once for each key charged {charges} times"
            );
        }
    }
    Ok(())
}

/// Sends the request on a lease that is over at once, and ends at this point.
async fn die(
    bench: &Bench,
    executor: &Executor,
    request: &Request,
    provider: &Arc<Provider>,
    crash: Crash,
) -> Result<(), Failure> {
    let executor = executor.with_policy(policy(Span::ZERO)?);
    let (request, provider) = (request.clone(), Arc::clone(provider));
    let reached = Arc::new(Notify::new());
    let sender = tokio::spawn({
        let reached = Arc::clone(&reached);
        async move {
            if crash == Crash::BeforeTheClaim {
                reached.notify_one();
                std::future::pending::<()>().await;
            }
            let arrived = Arc::clone(&reached);
            let answer = executor.execute(&request, |attempt| async move {
                if crash == Crash::AfterTheClaim {
                    arrived.notify_one();
                    std::future::pending::<()>().await;
                }
                let outcome = provider.charge(&attempt);
                if crash == Crash::AfterTheEffect {
                    arrived.notify_one();
                    std::future::pending::<()>().await;
                }
                outcome
            });
            drop(answer.await);
            reached.notify_one();
            std::future::pending::<()>().await;
        }
    });
    let arrived = bench.store().in_time("a sender", reached.notified()).await;
    sender.abort();
    // Aborting is done when the task has been dropped.
    drop(sender.await);
    arrived
}
