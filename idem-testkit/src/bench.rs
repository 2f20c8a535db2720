//! What a case works with: the opened store, fresh names and tokens, and the hooks of the harness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use idem_core::{KeyStore, OwnerToken, RecordId, Span};

use crate::failure::{Failure, Stop, ensure};
use crate::harness::{Foreign, Harness, Instances, Missing, OpenWrite, Unavailable};
use crate::subject::Subject;
use crate::suite::Settings;
use crate::track::Track;
use crate::wish::{Bits, Wish};

/// One case's workplace. Cases get it, and get at everything through it.
pub(crate) struct Bench {
    backend: Arc<dyn Backend>,
    settings: Settings,
    subject: Subject,
    names: AtomicU64,
}

/// A [`Harness`] and its data, with the types erased, so that cases are compiled once and not for each backend.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    async fn open(&self) -> Result<Arc<dyn KeyStore>, Unavailable>;
    async fn open_with_one_connection(&self) -> Result<Arc<dyn KeyStore>, Missing>;
    async fn open_beside(&self) -> Result<Arc<dyn KeyStore>, Missing>;
    async fn advance(&self, by: Span) -> Result<(), Missing>;
    async fn crash(&self) -> Result<(), Missing>;
    async fn corrupt(&self, id: &RecordId) -> Result<(), Missing>;
    async fn interfere(&self, write: Foreign<'_>) -> Result<Box<dyn OpenWrite>, Missing>;
    async fn destroy(&self);
    fn instances(&self) -> Instances;
    fn contention_bound(&self) -> Duration;
}

pub(crate) struct Live<H: Harness> {
    pub(crate) harness: Arc<H>,
    pub(crate) data: H::Data,
}

#[async_trait]
impl<H: Harness> Backend for Live<H> {
    async fn open(&self) -> Result<Arc<dyn KeyStore>, Unavailable> {
        Ok(Arc::new(self.harness.open(&self.data).await?))
    }

    async fn open_with_one_connection(&self) -> Result<Arc<dyn KeyStore>, Missing> {
        let store = self.harness.open_with_one_connection(&self.data).await?;
        Ok(Arc::new(store))
    }

    async fn open_beside(&self) -> Result<Arc<dyn KeyStore>, Missing> {
        Ok(Arc::new(self.harness.open_beside(&self.data).await?))
    }

    async fn advance(&self, by: Span) -> Result<(), Missing> {
        self.harness.advance(&self.data, by).await
    }

    async fn crash(&self) -> Result<(), Missing> {
        self.harness.crash(&self.data).await
    }

    async fn corrupt(&self, id: &RecordId) -> Result<(), Missing> {
        self.harness.corrupt(&self.data, id).await
    }

    async fn interfere(&self, write: Foreign<'_>) -> Result<Box<dyn OpenWrite>, Missing> {
        self.harness.interfere(&self.data, write).await
    }

    async fn destroy(&self) {
        self.harness.destroy(&self.data).await;
    }

    fn instances(&self) -> Instances {
        self.harness.instances()
    }

    fn contention_bound(&self) -> Duration {
        self.harness.contention_bound()
    }
}

impl Bench {
    pub(crate) async fn open(
        backend: Arc<dyn Backend>,
        settings: Settings,
    ) -> Result<Self, Unavailable> {
        let subject = Subject::new(backend.open().await?, settings.patience);
        Ok(Self {
            backend,
            settings,
            subject,
            names: AtomicU64::new(0),
        })
    }

    /// The store.
    pub(crate) fn store(&self) -> &Subject {
        &self.subject
    }

    /// What the suite was told.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A request for an id that this case has not used yet.
    pub(crate) fn wish(&self) -> Wish {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        Wish::new(format!("acct_{}", number % 3), format!("key-{number:05}"))
    }

    /// A token that nobody has.
    pub(crate) fn token(&self) -> OwnerToken {
        OwnerToken::from_bytes(Bits::fresh())
    }

    /// The record of an id under watch, from before its first claim.
    pub(crate) fn track(&self, id: &RecordId) -> Track {
        Track::new(self.subject.clone(), id.clone())
    }

    /// One more store on the same data, at the same time.
    pub(crate) async fn another_instance(&self) -> Result<Subject, Stop> {
        if self.backend.instances() == Instances::One {
            return Err(Missing::new("the harness opens one store at a time").into());
        }
        Ok(self.subject.over(self.backend.open().await?))
    }

    /// Drops the store and opens the same data again.
    pub(crate) async fn reopen(&mut self) -> Result<(), Stop> {
        self.close()?;
        self.subject = self.subject.over(self.backend.open().await?);
        Ok(())
    }

    /// Drops the store, loses whatever does not survive a loss of power, and opens the same data again.
    pub(crate) async fn crash(&mut self) -> Result<(), Stop> {
        self.close()?;
        self.backend.crash().await?;
        self.subject = self.subject.over(self.backend.open().await?);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Failure> {
        let closed = self.subject.over(Arc::new(crate::closed::Closed));
        let store = std::mem::replace(&mut self.subject, closed);
        // A harness counts on it: whatever a store does when it is dropped must have been done.
        ensure!(
            Arc::strong_count(store.raw()) == 1,
            "the suite keeps a store that it was to drop"
        );
        Ok(())
    }

    pub(crate) async fn with_one_connection(&self) -> Result<Subject, Stop> {
        let store = self.backend.open_with_one_connection().await?;
        Ok(self.subject.over(store))
    }

    pub(crate) async fn beside(&self) -> Result<Subject, Stop> {
        Ok(self.subject.over(self.backend.open_beside().await?))
    }

    pub(crate) async fn advance(&self, by: Span) -> Result<(), Stop> {
        Ok(self.backend.advance(by).await?)
    }

    pub(crate) async fn corrupt(&self, id: &RecordId) -> Result<(), Stop> {
        Ok(self.backend.corrupt(id).await?)
    }

    pub(crate) async fn interfere(&self, write: Foreign<'_>) -> Result<Box<dyn OpenWrite>, Stop> {
        Ok(self.backend.interfere(write).await?)
    }

    pub(crate) fn contention_bound(&self) -> Duration {
        self.backend.contention_bound()
    }

    /// Lets the store's clock move on by at least a millisecond: by hand where that can be done.
    pub(crate) async fn let_time_pass(&self) {
        if self.backend.advance(Span::from_millis(1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets leases and retentions of zero be over on a store whose clock may be off.
    ///
    /// A store with one clock needs no time for that.
    pub(crate) async fn lapse(&self, skew: Span) -> Result<(), Stop> {
        if skew.is_zero() {
            return Ok(());
        }
        let enough = skew.saturating_add(skew);
        if self.backend.advance(enough).await.is_ok() {
            return Ok(());
        }
        if enough.as_duration() > Duration::from_millis(50) {
            return Err(Missing::new(
                "the store's skew is over 25 ms, and the harness has no `advance`",
            )
            .into());
        }
        tokio::time::sleep(enough.as_duration()).await;
        Ok(())
    }

    /// Runs these calls on tasks of their own that all begin at once, and gives what each of them gave.
    pub(crate) async fn at_once<T, F>(
        &self,
        calls: impl IntoIterator<Item = F>,
    ) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let calls: Vec<F> = calls.into_iter().collect();
        let barrier = Arc::new(tokio::sync::Barrier::new(calls.len()));
        let tasks: Vec<_> = calls
            .into_iter()
            .map(|call| {
                let barrier = Arc::clone(&barrier);
                tokio::spawn(async move {
                    barrier.wait().await;
                    call.await
                })
            })
            .collect();
        let mut results = Vec::with_capacity(tasks.len());
        for task in tasks {
            results.push(task.await.map_err(panicked)??);
        }
        Ok(results)
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A task that panicked, as a failure of the store that made it panic.
pub(crate) fn panicked(error: tokio::task::JoinError) -> Failure {
    match error.try_into_panic() {
        Ok(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Failure::new(format!("a call panicked: {text}"))
        }
        Err(_) => Failure::new("a call was aborted"),
    }
}
