use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use idem_core::{
    Claim, ClaimOutcome, Clock, Counts, Expect, Filter, Inspect, KeyStore, RecordId, Response,
    Snapshot, StoreError, StoreErrorKind, Swept, Transition, TransitionOutcome, Verdict,
};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use crate::connection::Opener;
use crate::home::Home;
use crate::joined;
use crate::options::{Location, SqliteOptions};
use crate::place::Place;
use crate::reader::{self, Read, ReaderJob, Reply};
use crate::transaction::WriteConnection;
use crate::underway::Underway;
use crate::work::{Claimed, Work};
use crate::working;
use crate::writer::{Exclusive, Job, Queued, Writer};

/// A [`KeyStore`] in a SQLite database.
///
/// It is a handle: one thread writes, a few read, and they end when the store is dropped. Share it in an
/// [`Arc`].
///
/// # Cancellation
///
/// Dropping the future of a call leaves the old record or the new one. A claim that the writer has not begun by then
/// is not made; any other write that is in line is.
///
/// ```
/// use idem_core::KeyStore as _;
/// use idem_sqlite::SqliteKeyStore;
///
/// # async fn example() -> Result<(), idem_core::StoreError> {
/// let store = SqliteKeyStore::open_in_memory().await?;
/// # let id = idem_core::RecordId::new(
/// #     idem_core::Scope::new("acct_1").unwrap(),
/// #     idem_core::IdempotencyKey::new("k-1").unwrap(),
/// # );
/// assert!(store.load(&id).await?.is_none());
/// store.close().await;
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SqliteKeyStore {
    writer: mpsc::Sender<Queued>,
    underway: Arc<Underway>,
    writer_closed: End,
    /// `None` for a database in memory, whose one connection is the writer's.
    readers: Option<Readers>,
    busy_timeout: Duration,
    response_limit: usize,
    clock: Arc<dyn Clock>,
    home: Home,
    description: String,
}

struct Readers {
    queue: mpsc::Sender<ReaderJob>,
    closed: End,
}

/// How the end of threads is waited for, by any number of callers, of which none waits for another: the other side is
/// dropped with their connections. Nothing is ever sent.
struct End(watch::Receiver<()>);

impl End {
    fn new() -> (watch::Sender<()>, Self) {
        let (sender, receiver) = watch::channel(());
        (sender, Self(receiver))
    }

    async fn wait(&self) {
        let mut end = self.0.clone();
        while end.changed().await.is_ok() {}
    }
}

impl SqliteKeyStore {
    /// Opens the database in this file with the default [options](SqliteOptions), and creates it if it is not
    /// there.
    ///
    /// # Errors
    ///
    /// As for [`SqliteOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteOptions::new().open(path).await
    }

    /// Opens a database in memory that is gone with the store. For tests.
    ///
    /// # Errors
    ///
    /// As for [`SqliteOptions::open_in_memory`].
    pub async fn open_in_memory() -> Result<Self, StoreError> {
        SqliteOptions::new().open_in_memory().await
    }

    /// Does what is in line, and closes the database: when this returns, the last connection of this store is gone,
    /// and the file may be copied or moved. Calls that come later fail as unavailable.
    ///
    /// It may be called again, also while another call waits, and each call returns when the connections are gone. If
    /// its future is dropped, the store may be closing or not; to call it again is the way to know.
    ///
    /// Called by work that has this store's writer to itself ([`execute_in_tx`](Self::execute_in_tx)), it does not wait for
    /// the writer, since that would be for ever: the work goes on, its transaction ends as it says, and then the store
    /// closes.
    ///
    /// Dropping the store does the same without waiting for it.
    pub async fn close(&self) {
        if let Some(readers) = &self.readers {
            // An error says that they are closed already.
            let _ = readers.queue.send(ReaderJob::Close).await;
            readers.closed.wait().await;
        }
        if working::is_here_for(&self.underway) {
            working::close_afterwards();
            return;
        }
        let _ = self.send(Job::Close).await;
        self.writer_closed.wait().await;
    }

    pub(crate) async fn start(
        location: Location,
        options: SqliteOptions,
    ) -> Result<Self, StoreError> {
        let description = match &location {
            Location::File(path) => path.display().to_string(),
            Location::Uri(uri) => uri.clone(),
            Location::Memory => "in memory".to_owned(),
        };
        let opener = Opener { location, options };
        let options = opener.options.clone();
        let (writer, queue) = mpsc::channel(options.queue_capacity.get());
        let (ready, opened) = oneshot::channel();
        let (close, writer_closed) = End::new();
        let underway = Arc::new(Underway::new());

        let writers = underway.clone();
        // Opening a database blocks as well, so the writer does that too.
        spawn("idem-sqlite-writer", move || match open(opener) {
            Err(error) => drop(ready.send(Err(error))),
            Ok((database, reading)) => {
                // If nobody waits for the store, the line has no other end, and the thread is done at once.
                if ready.send(Ok(reading)).is_ok() {
                    Writer::new(database, writers, close).serve(queue);
                }
            }
        })?;
        let (reading, home) = opened.await.map_err(|_| {
            StoreError::unavailable("opening the database: the thread that was to do it panicked")
        })??;
        Ok(Self {
            writer,
            underway,
            writer_closed,
            readers: start_readers(reading, &options)?,
            busy_timeout: options.busy_timeout,
            response_limit: options.response_limit,
            clock: options.clock.clone(),
            home,
            description,
        })
    }

    async fn enqueue(&self, job: Job) -> Result<(), StoreError> {
        if working::is_here() {
            return Err(StoreError::of_kind(
                StoreErrorKind::Misuse,
                "waiting for a write in work that has the writer to itself, which would be for ever; do it before or \
                 after, or in the work's own transaction",
            ));
        }
        self.send(job).await
    }

    async fn send(&self, job: Job) -> Result<(), StoreError> {
        // A place first: whoever drops this call while the line is full has asked for nothing.
        let place = self.writer.reserve().await.map_err(|_| closed())?;
        place.send(Queued {
            job,
            deadline: Instant::now() + self.busy_timeout,
        });
        Ok(())
    }

    /// Has a write done. If its answer is lost the thread has come to grief in the middle of it.
    async fn write<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(job(reply)).await?;
        answer.await.map_err(|_| {
            StoreError::ambiguous(
                "waiting for the writer, which dropped the call without an answer",
            )
        })?
    }

    /// Has the writer do this in a transaction of its own.
    pub(crate) async fn exclusively<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) -> Box<dyn Exclusive>,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Job::Exclusive(job(reply))).await?;
        answer.await.map_err(|_| {
            StoreError::ambiguous(
                "waiting for the writer, which dropped the call without an answer",
            )
        })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn response_limit(&self) -> usize {
        self.response_limit
    }

    pub(crate) fn underway(&self) -> &Arc<Underway> {
        &self.underway
    }

    /// Refuses a connection that is in no transaction, or whose transaction does not commit with this store's records.
    pub(crate) fn refuse_unfit(&self, connection: &Connection) -> Result<(), StoreError> {
        joined::in_transaction(connection)?;
        if working::has(&self.underway, connection) {
            return Ok(());
        }
        self.home.refuse_others(connection)
    }

    async fn read<T>(&self, read: impl FnOnce(Reply<T>) -> Read) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let read = read(reply);
        match &self.readers {
            None => self.enqueue(Job::Read(read)).await?,
            Some(readers) => {
                let place = readers.queue.reserve().await.map_err(|_| closed())?;
                place.send(ReaderJob::Read(read));
            }
        }
        answer
            .await
            .map_err(|_| StoreError::unavailable("reading, which a panic has ended"))?
    }

    fn refuse_too_large(&self, id: &RecordId, change: &Transition) -> Result<(), StoreError> {
        let size = stored_response(change).map_or(0, Response::size);
        if size <= self.response_limit {
            return Ok(());
        }
        Err(StoreError::too_large(format!(
            "a response of {size} bytes, where this store takes {}",
            self.response_limit
        ))
        .about(id))
    }
}

impl fmt::Debug for SqliteKeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeyStore")
            .field("database", &self.description)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl KeyStore for SqliteKeyStore {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        // A claim of a record that is there has nothing to write, so it does not wait for a disk that is slow, nor for
        // a lock that somebody else holds: a reader looks meanwhile.
        if self.readers.is_some()
            && self.underway.is_long()
            && let Some(held) = self.load(claim.id()).await?
        {
            return Ok(ClaimOutcome::Held(held));
        }
        let claimed = self
            .write(|reply| {
                Job::Write(Work::Claim {
                    claim: claim.clone(),
                    reply,
                })
            })
            .await?;
        Ok(match claimed {
            Claimed::Won(now) => ClaimOutcome::Won(Snapshot::new(claim.first_record(now), now)),
            Claimed::Held(held) => ClaimOutcome::Held(held),
        })
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        change.patch(expect)?;
        self.refuse_too_large(id, change)?;
        self.write(|reply| {
            Job::Write(Work::Transition {
                id: id.clone(),
                expect,
                change: change.clone(),
                reply,
            })
        })
        .await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.read(|reply| Read::Load {
            id: id.clone(),
            reply,
        })
        .await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.write(|reply| Job::Sweep { limit, reply }).await
    }

    fn refusal_staleness(&self) -> Duration {
        Duration::ZERO
    }
}

#[async_trait]
impl Inspect for SqliteKeyStore {
    async fn count(&self) -> Result<Counts, StoreError> {
        self.read(|reply| Read::Count { reply }).await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<&RecordId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Snapshot>, StoreError> {
        self.read(|reply| Read::List {
            filter: filter.clone(),
            after: after.cloned(),
            limit,
            reply,
        })
        .await
    }
}

/// The response that a transition stores, if it stores one.
fn stored_response(change: &Transition) -> Option<&Response> {
    match change {
        Transition::Complete(response)
        | Transition::FailFinal(response)
        | Transition::Resolve {
            verdict: Verdict::Completed(response) | Verdict::Failed(response),
            ..
        } => Some(response),
        _ => None,
    }
}

/// What the readers are started with.
struct Reading {
    connections: Vec<Connection>,
    place: Option<Arc<Place>>,
}

/// The writer's connection, the readers', and which database they are to.
fn open(opener: Opener) -> Result<(WriteConnection, (Reading, Home)), StoreError> {
    let mut database = WriteConnection::open(opener)?;
    let opener = database.opener();
    let connections = if opener.is_in_memory() {
        Vec::new()
    } else {
        (0..opener.options.readers.get())
            .map(|_| opener.reader())
            .collect::<Result<_, _>>()?
    };
    let place = database.place();
    let home = Home::of(&mut database).map_err(|failure| failure.store_error())?;
    Ok((database, (Reading { connections, place }, home)))
}

fn start_readers(
    Reading { connections, place }: Reading,
    options: &SqliteOptions,
) -> Result<Option<Readers>, StoreError> {
    if connections.is_empty() {
        return Ok(None);
    }
    let (sender, queue) = mpsc::channel(options.queue_capacity.get());
    let queue = Arc::new(Mutex::new(queue));
    let (close, closed) = End::new();
    for connection in connections {
        let (queue, clock, close) = (queue.clone(), options.clock.clone(), close.clone());
        let place = place.clone();
        spawn("idem-sqlite-reader", move || {
            reader::serve(connection, place.as_deref(), &queue, &*clock, close);
        })?;
    }
    Ok(Some(Readers {
        queue: sender,
        closed,
    }))
}

/// A thread that nobody joins: it ends by itself when its line has no other end.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .map_err(|error| StoreError::unavailable("starting a thread").because(error))
}

fn closed() -> StoreError {
    StoreError::unavailable("the store was closed")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use idem_core::{
        Fingerprints, IdempotencyKey, Nulls, Operation, Origin, OwnerToken, Policy, Profile,
        Request, Rules, Scope,
    };

    use super::*;

    fn claim() -> Claim {
        let id = RecordId::new(
            Scope::new("acct_1").unwrap(),
            IdempotencyKey::new("k").unwrap(),
        );
        let operation = Operation::new("POST /v1/charges").unwrap();
        let rules = Rules::new(Profile::new(1), Nulls::Distinct);
        let fingerprint = rules.of(&operation).finish();
        let request = Request::new(id, operation, Fingerprints::new(fingerprint));
        let origin = Origin::from_bytes([1; 16]);
        Claim::new(
            request,
            &Policy::default(),
            origin,
            OwnerToken::from_bytes([7; 16]),
        )
    }

    /// Whether it is done now.
    async fn is_done<F: Future>(mut future: Pin<&mut F>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn every_close_waits_for_the_connection_to_be_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.sqlite");
        let store = SqliteOptions::new()
            .busy_timeout(Duration::from_secs(600))
            .open(&path)
            .await
            .unwrap();
        let in_line = || store.writer.max_capacity() - store.writer.capacity();
        let lock = Connection::open(&path).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();

        // A claim holds the writer up, until it has been given a write and a `Close`; then it is dropped.
        let claim = claim();
        let mut held_up = Box::pin(store.claim(&claim));
        assert!(!is_done(held_up.as_mut()).await);
        while in_line() > 0 {
            tokio::task::yield_now().await;
        }
        let owner = Expect::Owner(claim.token());
        let change = Transition::Complete(Response::new(200));
        let mut write = pin!(store.transition(claim.id(), owner, &change));
        assert!(!is_done(write.as_mut()).await);
        let mut dropped = Box::pin(store.close());
        while !store.writer.is_closed() {
            assert!(!is_done(dropped.as_mut()).await);
            tokio::task::yield_now().await;
        }
        drop(held_up);

        // The writer has taken `Close`, and is at the write that the lock keeps from being done.
        let mut first = pin!(store.close());
        let mut second = pin!(store.close());
        assert!(!is_done(dropped.as_mut()).await);
        assert!(!is_done(first.as_mut()).await);
        assert!(!is_done(second.as_mut()).await);
        drop(dropped);
        assert!(!is_done(second.as_mut()).await);
        assert!(!is_done(first.as_mut()).await);

        drop(lock);
        second.await;
        assert!(!path.with_file_name("keys.sqlite-wal").exists());
        assert!(is_done(write).await);
        first.await;
        store.close().await;
    }
}
