use std::hash::{BuildHasher as _, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use idem_core::OwnerToken;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::breaker::{Breaker, Epoch};
use crate::connection::{Connection, Source};
use crate::entry::{Entry, Lifetime};
use crate::names::Name;
use crate::options::CacheOptions;
use crate::patience::{Late, within};
use crate::script::{Call, Look, ServerTime};
use crate::stats::{Counters, Event};
use crate::{BreakerState, Namespace};

/// The way to Redis: it keeps a connection, bounds everything that is under way, and stops asking when it is of no use.
///
/// Nothing here fails. A question that has no answer in time has none.
#[derive(Debug)]
pub(crate) struct Link {
    source: Source,
    state: Mutex<State>,
    breaker: watch::Sender<BreakerState>,
    began: Instant,
    connect_timeout: Duration,
    command_timeout: Duration,
    /// How long a probe may take, connecting included.
    patience: Duration,
    questions: Semaphore,
    background: Arc<Semaphore>,
    nonces: AtomicU64,
    probe_key: String,
    cap: Lifetime,
    namespace: Namespace,
    counters: Arc<Counters>,
}

struct State {
    breaker: Breaker,
    connection: Option<Arc<dyn Connection>>,
    /// What was last said in the log about a Redis that is of no use. So it is said once, and not at every probe.
    complaint: Option<String>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("breaker", &self.breaker)
            .field("connected", &self.connection.is_some())
            .finish()
    }
}

/// That a command may be sent, and on which connection.
#[derive(Clone)]
struct Permit {
    connection: Arc<dyn Connection>,
    epoch: Epoch,
}

/// When Redis was asked, by its own clock: what an entry that is written afterwards ends by. An entry goes out on the
/// connection that the time came in on, and so to the same server.
pub(crate) struct Anchor {
    permit: Permit,
    now: ServerTime,
}

/// What came of a question.
pub(crate) enum Asked {
    Answered {
        anchor: Anchor,
        /// An entry that can be read, and how much longer it lives.
        found: Option<(Entry, Duration)>,
    },
    /// It was asked, and did not answer in time, or not as it should.
    InVain,
    /// It is not asked at present.
    Unasked,
}

/// Why a command has no answer, or none that is of use.
#[derive(Debug, Error)]
enum Trouble {
    #[error("it did not answer in time")]
    Late,
    #[error("it answered with something that Redis does not say")]
    Nonsense,
    #[error(transparent)]
    Failed(#[from] RedisError),
}

impl From<Late> for Trouble {
    fn from(Late: Late) -> Self {
        Self::Late
    }
}

impl Link {
    pub(crate) fn new(
        source: Source,
        options: &CacheOptions,
        probe_key: String,
        cap: Lifetime,
        counters: Arc<Counters>,
    ) -> Self {
        let most = options.in_flight.get().min(Semaphore::MAX_PERMITS);
        Self {
            source,
            state: Mutex::new(State {
                breaker: Breaker::new(),
                connection: None,
                complaint: None,
            }),
            breaker: watch::Sender::new(BreakerState::Open),
            began: Instant::now(),
            connect_timeout: options.connect_timeout,
            command_timeout: options.command_timeout,
            // For connecting, and for a probe's four commands.
            patience: options.connect_timeout + options.command_timeout * 4,
            questions: Semaphore::new(most),
            background: Arc::new(Semaphore::new(most)),
            nonces: AtomicU64::new(0),
            probe_key,
            cap,
            namespace: options.namespace.clone(),
            counters,
        }
    }

    pub(crate) fn breaker(&self) -> BreakerState {
        *self.breaker.borrow()
    }

    /// Waits until Redis can be asked, for at most so long.
    pub(crate) async fn ready(self: &Arc<Self>, within: Duration) -> bool {
        let mut states = self.breaker.subscribe();
        let closed = async {
            loop {
                if self.admit().is_some() {
                    return;
                }
                // An open breaker wakes nobody when its pause is over.
                let _ = timeout(Duration::from_millis(20), states.changed()).await;
            }
        };
        timeout(within, closed).await.is_ok()
    }

    /// Asks what is remembered under this name.
    pub(crate) async fn look(self: &Arc<Self>, name: &Name) -> Asked {
        let (Some(permit), Ok(_seat)) = (self.admit(), self.questions.try_acquire()) else {
            return Asked::Unasked;
        };
        let nonce = self.nonces.fetch_add(1, Ordering::Relaxed);
        let call = Call::look(&name.key, nonce);
        let answer = match self.send(&permit, &call.by_hash()).await {
            Ok(answer) => answer,
            Err(Trouble::Failed(error)) if is_unknown_script(&error) => {
                // One round trip is all that a claim waits for. The next one will find the script.
                let link = Arc::clone(self);
                self.in_background(async move {
                    let _ = link.send(&permit, &call.in_full()).await;
                });
                return Asked::InVain;
            }
            Err(_) => return Asked::InVain,
        };
        let Some(look) = Look::read(answer, nonce) else {
            // Whatever answers there is no Redis, or answers somebody else. Nothing that comes on this connection can
            // be trusted any more.
            self.nonsense(permit.epoch);
            return Asked::InVain;
        };
        let found = look.found.and_then(|(bytes, left)| {
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let entry = Entry::decode(&bytes, self.cap).zip(left);
            if entry.is_none() {
                self.counters.count(Event::Odd);
            }
            entry
        });
        Asked::Answered {
            anchor: Anchor {
                permit,
                now: look.now,
            },
            found,
        }
    }

    /// Writes an entry, in the background, to end its lifetime after `anchor`.
    pub(crate) fn remember(self: &Arc<Self>, name: &Name, entry: Entry, anchor: Anchor) {
        let call = Call::remember(&name.key, &entry, anchor.now);
        let link = Arc::clone(self);
        self.in_background(async move {
            match link.run(&anchor.permit, &call).await {
                Some(Value::Int(1)) => link.counters.count(Event::Written),
                // It came too late.
                Some(Value::Int(0)) => link.counters.count(Event::Dropped),
                Some(_) => link.nonsense(anchor.permit.epoch),
                None => {}
            }
        });
    }

    /// Removes the entry of this attempt, in the background.
    pub(crate) fn forget(self: &Arc<Self>, name: &Name, token: OwnerToken) {
        let Some(permit) = self.admit() else {
            self.counters.count(Event::Dropped);
            return;
        };
        let call = Call::forget(&name.key, &Entry::holder(token));
        let link = Arc::clone(self);
        self.in_background(async move {
            match link.run(&permit, &call).await {
                Some(Value::Int(1)) => link.counters.count(Event::Removed),
                Some(Value::Int(0)) | None => {}
                Some(_) => link.nonsense(permit.epoch),
            }
        });
    }

    /// A permit, unless Redis is not asked at present. Then, if it is time, a probe begins.
    fn admit(self: &Arc<Self>) -> Option<Permit> {
        // Without a runtime there are no timeouts and no background.
        let runtime = Handle::try_current().ok()?;
        let epoch = {
            let mut state = self.lock();
            if let (Some(epoch), Some(connection)) = (state.breaker.admit(), &state.connection) {
                let connection = Arc::clone(connection);
                return Some(Permit { connection, epoch });
            }
            let epoch = state.breaker.probe(self.now(), self.patience * 2)?;
            self.publish(&state);
            epoch
        };
        runtime.spawn(Arc::clone(self).probe(epoch));
        None
    }

    /// Connects if need be, and tries everything that will be asked for: a server that can be read and not written, a
    /// replica or a full one, is of no use.
    async fn probe(self: Arc<Self>, epoch: Epoch) {
        match within(self.patience, self.try_out()).await {
            Ok(Ok(connection)) => self.works(epoch, connection),
            Ok(Err(trouble)) => self.failed(epoch, trouble),
            Err(late) => self.failed(epoch, late.into()),
        }
    }

    async fn try_out(&self) -> Result<Arc<dyn Connection>, Trouble> {
        let connection = within(self.connect_timeout, self.source.connect()).await??;
        let nonce = self.nonces.fetch_add(1, Ordering::Relaxed);
        let look = Call::look(&self.probe_key, nonce).in_full();
        let look = Look::read(connection.query(&look).await?, nonce).ok_or(Trouble::Nonsense)?;
        let entry = self.probe_entry(nonce);
        let remember = Call::remember(&self.probe_key, &entry, look.now).in_full();
        let written = connection.query(&remember).await?;
        // Of an entry that is there more is asked, and by its hash, which takes a right of its own.
        let again = Call::look(&self.probe_key, nonce).by_hash();
        Look::read(connection.query(&again).await?, nonce).ok_or(Trouble::Nonsense)?;
        let forget = Call::forget(&self.probe_key, &Entry::holder(entry.token)).in_full();
        let forgotten = connection.query(&forget).await?;
        // Another process's probe may have come between, and an entry that lives for a millisecond may be over.
        let sane = |answer| matches!(answer, Value::Int(0 | 1));
        if sane(written) && sane(forgotten) {
            Ok(connection)
        } else {
            Err(Trouble::Nonsense)
        }
    }

    fn probe_entry(&self, nonce: u64) -> Entry {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&nonce.to_be_bytes());
        token[8..].copy_from_slice(&random().to_be_bytes());
        Entry::blank(OwnerToken::from_bytes(token), self.cap)
    }

    /// Runs a script by its hash, or in full where it is not known. For the background, where round trips are cheap.
    async fn run(&self, permit: &Permit, call: &Call) -> Option<Value> {
        match self.send(permit, &call.by_hash()).await {
            Err(Trouble::Failed(error)) if is_unknown_script(&error) => {
                self.send(permit, &call.in_full()).await.ok()
            }
            answer => answer.ok(),
        }
    }

    /// Sends one command, and tells the breaker what came of it.
    async fn send(&self, permit: &Permit, command: &Cmd) -> Result<Value, Trouble> {
        match within(self.command_timeout, permit.connection.query(command)).await {
            Ok(Ok(value)) => {
                self.lock().breaker.answered(permit.epoch);
                Ok(value)
            }
            Ok(Err(error)) if is_unknown_script(&error) => {
                self.lock().breaker.answered(permit.epoch);
                Err(Trouble::Failed(error))
            }
            Ok(Err(error)) => {
                self.failed(permit.epoch, Trouble::Failed(error.clone()));
                Err(Trouble::Failed(error))
            }
            Err(Late) => {
                self.counters.count(Event::Timeout);
                let mut state = self.lock();
                let opened = state.breaker.timed_out(permit.epoch, self.now(), spread());
                self.after(state, opened, &Trouble::Late);
                Err(Trouble::Late)
            }
        }
    }

    fn nonsense(&self, epoch: Epoch) {
        self.failed(epoch, Trouble::Nonsense);
    }

    /// Something went wrong that is certain, or the probe failed.
    fn failed(&self, epoch: Epoch, trouble: Trouble) {
        self.counters.count(Event::Error);
        let mut state = self.lock();
        let opened = state.breaker.broke(epoch, self.now(), spread());
        self.after(state, opened, &trouble);
    }

    fn after(&self, mut state: MutexGuard<'_, State>, opened: bool, trouble: &Trouble) {
        if !opened {
            return;
        }
        self.counters.count(Event::Opened);
        // Ours is closed with its last user, and whatever is still under way on it is of no interest. The next probe
        // makes a new one, to wherever the name of the server leads by then.
        let connection = state.connection.take();
        let reason = trouble.to_string();
        let is_news = state.complaint.as_ref() != Some(&reason);
        if is_news {
            state.complaint = Some(reason.clone());
        }
        self.publish(&state);
        drop(state);
        drop(connection);
        if is_news {
            tracing::warn!(
                namespace = self.namespace.as_str(),
                reason,
                "Redis is of no use and not asked until a probe comes through; the store is asked instead"
            );
        }
    }

    /// The probe came through.
    fn works(&self, epoch: Epoch, connection: Arc<dyn Connection>) {
        let mut state = self.lock();
        let mut is_news = false;
        if state.breaker.answered(epoch) {
            state.connection = Some(connection);
            is_news = state.complaint.take().is_some();
        }
        self.publish(&state);
        drop(state);
        if is_news {
            tracing::info!(namespace = self.namespace.as_str(), "Redis is asked again");
        }
    }

    /// Begins `job` here and now, so that its command is in line before anything that is sent next, and lets it go on in
    /// the background. With too many there already it is not begun.
    fn in_background(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        let (Ok(seat), Ok(runtime)) = (
            Arc::clone(&self.background).try_acquire_owned(),
            Handle::try_current(),
        ) else {
            self.counters.count(Event::Dropped);
            return;
        };
        let mut job: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let _seat = seat;
            job.await;
        });
        // Nobody need be woken: as a task it is polled again at once.
        let begun = job.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if begun.is_pending() {
            runtime.spawn(job);
        }
    }

    fn publish(&self, state: &State) {
        let now = state.breaker.state();
        if self.breaker.send_replace(now) != now {
            self.counters.breaker(now);
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock cannot leave half a state behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Random enough to keep processes apart: the keys of the standard library's hash maps are.
fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

fn spread() -> u8 {
    random().to_be_bytes()[0]
}
