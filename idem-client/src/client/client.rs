use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use idem_core::IdempotencyKey;
use reqwest::Url;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::credentials::{BoxError, Credentials};
use super::{Finished, LastAttempt, Outgoing, Resumed, SendError, Source, Step};
use crate::{
    Answer, Begun, Claim, Failure, Going, Journal, JournalError, Next, Operation, Parked, Progress,
    RetryPolicy, Verdict, key_hash,
};

/// Sends operations until they are answered, each under one key and with the same bytes every time.
///
/// It is around a [`reqwest::Client`] whose settings the program chooses: TLS, proxies, pools. It is no middleware of
/// `reqwest-middleware`, which sees requests whose bodies may be streams and whose retries end with the process, where here a
/// request has to be in the journal before it is one.
///
/// # Cancellation
///
/// Dropping the future of a call leaves the operation pending in the journal, whatever was sent of it. It can be sent again at once, by
/// this process or, a moment later, by another.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use idem_client::{Client, Horizon, Journal, Operation, RetryPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The service says that it keeps keys for 24 hours.
/// let horizon = Horizon::within(Duration::from_secs(20 * 3600), Duration::from_secs(24 * 3600))?;
/// let client = Client::builder(Journal::open("sent.db").await?, RetryPolicy::until(horizon))
///     .build(reqwest::Client::builder())?;
///
/// let charge = Operation::post("http://127.0.0.1:8080/v1/charges")
///     .key_for("charge", "order-4711")
///     .header("content-type", "application/json")
///     .body(r#"{"amount": 2500, "currency": "eur", "source": "tok_visa"}"#)
///     .build()?;
/// let finished = client.send(&charge).await?;
/// println!("{} {:?}", finished.answer().status(), finished.answer().body());
/// // Here the program records the answer for itself, and then:
/// finished.acknowledge().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    http: reqwest::Client,
    journal: Journal,
    settings: Settings,
}

struct Settings {
    policy: RetryPolicy,
    attempt_timeout: Duration,
    answer_limit: usize,
    credentials: Option<Credentials>,
    observer: Option<Observer>,
}

type Observer = Arc<dyn Fn(&str, Step) + Send + Sync>;

/// A [`Client`] in the making.
#[must_use]
pub struct ClientBuilder {
    journal: Journal,
    settings: Settings,
}

impl ClientBuilder {
    /// How long one attempt may take, from its credentials to the last byte of its answer. By default it is 30 seconds. The last
    /// ones before the horizon may take less.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attempt_timeout = timeout;
        self
    }

    /// How long the body of an answer may be, in bytes. Of a longer one the status and the header lines are kept. By default it is
    /// 4 MiB.
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.settings.answer_limit = bytes;
        self
    }

    /// What gives the header lines that are added to each attempt and kept in no file: authorization, above all. If it fails, the
    /// attempt is not made. Lines that the operation has itself are not replaced by them.
    ///
    /// ```no_run
    /// use http::{HeaderMap, header::AUTHORIZATION};
    /// use idem_client::ClientBuilder;
    ///
    /// fn authorized(client: ClientBuilder) -> ClientBuilder {
    ///     client.credentials(|_outgoing| async {
    ///         let token = std::env::var("API_TOKEN")?;
    ///         let mut lines = HeaderMap::new();
    ///         lines.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    ///         Ok(lines)
    ///     })
    /// }
    /// ```
    pub fn credentials<F, L>(mut self, credentials: F) -> Self
    where
        F: Fn(Outgoing<'_>) -> L + Send + Sync + 'static,
        L: Future<Output = Result<HeaderMap, BoxError>> + Send + 'static,
    {
        let credentials = move |outgoing: Outgoing<'_>| Box::pin(credentials(outgoing)) as _;
        self.settings.credentials = Some(Arc::new(credentials));
        self
    }

    /// What is told of every [`Step`], with the hash of the operation's key. It must not block.
    pub fn observe(mut self, observer: impl Fn(&str, Step) + Send + Sync + 'static) -> Self {
        self.settings.observer = Some(Arc::new(observer));
        self
    }

    /// The client, on an HTTP client with these settings. Redirects and retries are switched off in it: an operation is sent
    /// where and when it says, and by nothing else than its policy.
    ///
    /// # Errors
    ///
    /// Those of [`reqwest::ClientBuilder::build`].
    pub fn build(self, http: reqwest::ClientBuilder) -> reqwest::Result<Client> {
        let http = http
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .build()?;
        Ok(Client(Arc::new(Inner {
            http,
            journal: self.journal,
            settings: self.settings,
        })))
    }
}

impl Client {
    /// Begins a client with this journal, for services that keep keys at least for the policy's horizon.
    pub fn builder(journal: Journal, policy: RetryPolicy) -> ClientBuilder {
        ClientBuilder {
            journal,
            settings: Settings {
                policy,
                attempt_timeout: Duration::from_secs(30),
                answer_limit: 4 << 20,
                credentials: None,
                observer: None,
            },
        }
    }

    /// Its journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// Sends an operation until it is answered, or must not be sent any more. If the journal has its answer already, that is it, and
    /// nothing is sent. No attempt begins after the policy's deadline, and each takes at most the time-out of one.
    ///
    /// # Errors
    ///
    /// [`SendError`]. An answer that is an error is none here: it is [`Finished`].
    pub async fn send(&self, operation: &Operation) -> Result<Finished, SendError> {
        let hash = key_hash(operation.key());
        self.step(&hash, Step::Beginning);
        let horizon = self.settings().policy.horizon();
        let begun = self.0.journal.begin(operation, horizon).await;
        self.go_on(operation.key(), hash, begun).await
    }

    /// Takes an operation up that is in the journal, and sends it until it is answered. An answer that was not acknowledged is given
    /// again.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn resume(&self, key: &IdempotencyKey) -> Result<Finished, SendError> {
        let hash = key_hash(key);
        self.step(&hash, Step::Beginning);
        let begun = self.0.journal.take(key).await;
        self.go_on(key, hash, begun).await
    }

    /// Takes everything up that is in the journal and not over, so many operations at a time, and says what became of each. Parked
    /// ones are not sent, and are among the results as such; so are answers that were not acknowledged. It is what a program does when
    /// it starts, and from time to time later.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when the journal cannot be read.
    pub async fn resume_all(&self, at_once: NonZeroUsize) -> Result<Vec<Resumed>, JournalError> {
        let mut waiting = self.0.journal.unfinished().await?.into_iter();
        let mut running = JoinSet::new();
        let mut resumed = Vec::new();
        loop {
            while running.len() < at_once.get() {
                let Some(entry) = waiting.next() else { break };
                let client = self.clone();
                running.spawn(async move {
                    let result = client.resume(&entry.key).await;
                    Resumed {
                        key: entry.key,
                        label: entry.label,
                        result,
                    }
                });
            }
            match running.join_next().await {
                Some(Ok(one)) => resumed.push(one),
                // It panicked, as only the program's own functions can; what it sent is pending.
                Some(Err(error)) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                Some(Err(_)) => {}
                None => return Ok(resumed),
            }
        }
    }

    pub(super) fn step(&self, operation: &str, step: Step) {
        if let Some(observer) = &self.settings().observer {
            observer(operation, step);
        }
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn finished(&self, key: &IdempotencyKey, answer: Answer, source: Source) -> Finished {
        Finished {
            client: self.clone(),
            key: key.clone(),
            answer,
            source,
        }
    }

    async fn go_on(
        &self,
        key: &IdempotencyKey,
        operation: String,
        begun: Result<Begun, JournalError>,
    ) -> Result<Finished, SendError> {
        match begun {
            Ok(Begun::Claimed(claim)) => self.run(claim, operation).await,
            Ok(Begun::Answered(answer)) => Ok(self.finished(key, *answer, Source::Journal)),
            Ok(Begun::Parked(why)) => Err(parked(operation, why)),
            Ok(Begun::Busy) => Err(SendError::Busy { operation }),
            Ok(Begun::Closed) => Err(SendError::Closed { operation }),
            Ok(Begun::Different) => Err(SendError::Different { operation }),
            Ok(Begun::Absent) => Err(SendError::Absent { operation }),
            Err(source) => Err(SendError::Journal { operation, source }),
        }
    }

    /// Attempts, until there is an answer or a reason to stop.
    async fn run(&self, mut claim: Claim, operation: String) -> Result<Finished, SendError> {
        let policy = self.settings().policy.no_later_than(claim.horizon());
        let began = Instant::now();
        let mut attempt = 1;
        loop {
            self.step(&operation, Step::Journaled { attempt });
            let attempted = Instant::now();
            let outcome = self.attempt(&claim, policy, attempt).await;
            self.step(&operation, Step::Attempted { attempt });
            let (verdict, outcome) = match outcome {
                Ok((answer, verdict)) => (verdict, Ok(answer)),
                Err(NoAnswer::Credentials(source)) => {
                    release(claim, "there were no credentials").await;
                    return Err(SendError::Credentials { operation, source });
                }
                Err(NoAnswer::Failed(failure, source)) => {
                    (Verdict::of_failure(failure), Err((failure, source)))
                }
            };
            let progress = Progress {
                attempts: attempt,
                elapsed: began.elapsed(),
                age: claim.age() + attempted.elapsed(),
                random: random(),
            };
            match (policy.next(&verdict, progress), outcome) {
                (Next::Finish, Ok(answer)) => return self.record(claim, operation, answer).await,
                (Next::SendAfter(pause), _) => {
                    self.step(&operation, Step::Pausing { attempt, pause });
                    sleep(pause).await;
                }
                (Next::Park(why), outcome) => {
                    let text = in_words(&outcome);
                    let answer = outcome.ok().map(Box::new);
                    return Err(match claim.park(why, text).await {
                        Ok(()) => SendError::Parked {
                            operation,
                            why,
                            answer,
                        },
                        Err(source) => SendError::Journal { operation, source },
                    });
                }
                (Next::GiveUp | Next::Finish, outcome) => {
                    release(claim, &in_words(&outcome)).await;
                    let last = match outcome {
                        Ok(answer) => LastAttempt::Answered {
                            status: answer.status(),
                        },
                        Err((failure, source)) => LastAttempt::Failed { failure, source },
                    };
                    return Err(SendError::GaveUp {
                        operation,
                        attempts: attempt,
                        elapsed: began.elapsed(),
                        last,
                    });
                }
            }
            match claim.attempt().await {
                Ok(Going::On) => attempt += 1,
                Ok(Going::Parked(why)) => return Err(parked(operation, why)),
                Ok(Going::Gone) => return Err(SendError::Busy { operation }),
                Err(source) => return Err(SendError::Journal { operation, source }),
            }
        }
    }

    async fn record(
        &self,
        claim: Claim,
        operation: String,
        answer: Answer,
    ) -> Result<Finished, SendError> {
        let key = claim.operation().key().clone();
        if let Err(source) = claim.answered(&answer).await {
            return Err(SendError::NotRecorded {
                operation,
                answer: Box::new(answer),
                source,
            });
        }
        self.step(&operation, Step::Recorded);
        Ok(self.finished(&key, answer, Source::Service))
    }

    /// One attempt, which ends before the horizon.
    async fn attempt(
        &self,
        claim: &Claim,
        policy: RetryPolicy,
        attempt: u32,
    ) -> Result<(Answer, Verdict), NoAnswer> {
        let left = policy.horizon().as_duration().saturating_sub(claim.age());
        let time = self.settings().attempt_timeout.min(left);
        timeout(time, self.exchange(claim.operation(), attempt))
            .await
            .unwrap_or(Err(NoAnswer::Failed(Failure::Lost, None)))
    }

    async fn exchange(
        &self,
        operation: &Operation,
        attempt: u32,
    ) -> Result<(Answer, Verdict), NoAnswer> {
        let url = Url::parse(operation.url())
            .map_err(|error| NoAnswer::Failed(Failure::Unsendable, Some(Box::new(error))))?;
        let mut request = reqwest::Request::new(operation.method().clone(), url);
        *request.headers_mut() = operation.headers().clone();
        if let Some(credentials) = &self.settings().credentials {
            let outgoing = Outgoing { operation, attempt };
            let lines = credentials(outgoing).await.map_err(NoAnswer::Credentials)?;
            for name in lines.keys() {
                if !operation.headers().contains_key(name) {
                    for value in lines.get_all(name) {
                        request.headers_mut().append(name, value.clone());
                    }
                }
            }
        }
        if !operation.body().is_empty() {
            *request.body_mut() = Some(operation.body().clone().into());
        }
        let mut response = self.0.http.execute(request).await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        let mut is_cut = false;
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > self.settings().answer_limit {
                is_cut = true;
                break;
            }
            body.extend_from_slice(&chunk);
        }
        let verdict = Verdict::of_reply(status, &headers, &body, SystemTime::now());
        let answer = Answer::new(status, headers, body);
        Ok((if is_cut { answer.cut() } else { answer }, verdict))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("journal", &self.0.journal)
            .field("policy", &self.settings().policy)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("journal", &self.journal)
            .field("policy", &self.settings.policy)
            .finish_non_exhaustive()
    }
}

/// Why an attempt has no answer.
enum NoAnswer {
    Credentials(BoxError),
    Failed(Failure, Option<BoxError>),
}

fn failed(error: reqwest::Error) -> NoAnswer {
    let failure = if error.is_builder() {
        Failure::Unsendable
    } else if error.is_connect() {
        Failure::NotSent
    } else {
        Failure::Lost
    };
    // URLs may hold what no log should.
    NoAnswer::Failed(failure, Some(Box::new(error.without_url())))
}

fn parked(operation: String, why: Parked) -> SendError {
    SendError::Parked {
        operation,
        why,
        answer: None,
    }
}

/// If this cannot be written, the operation is still pending, and only what its last attempt came to is not noted.
async fn release(claim: Claim, outcome: &str) {
    let _ = claim.release(outcome).await;
}

/// For people who look into the journal.
fn in_words(outcome: &Result<Answer, (Failure, Option<BoxError>)>) -> String {
    match outcome {
        Ok(answer) => format!("answered {}", answer.status().as_u16()),
        Err((Failure::NotSent, _)) => "no connection".to_owned(),
        Err((Failure::Lost, _)) => "no answer".to_owned(),
        Err((Failure::Unsendable, _)) => "cannot be sent".to_owned(),
    }
}

/// From 0 up to and without 1. Without random numbers of the system it is the longest pause, which is safe.
fn random() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_be_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 1.0,
    }
}
