use std::hash::{BuildHasher as _, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use idem_core::OwnerToken;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::BreakerState;
use crate::breaker::{Breaker, Epoch};
use crate::connection::{Connection, Source};
use crate::entry::{Entry, Lifetime};
use crate::names::Name;
use crate::options::CacheOptions;
use crate::script::{Call, Look, ServerTime};
use crate::stats::Counters;

/// The way to Redis: it keeps a connection, bounds everything that is under way, and stops asking when it is of no use.
///
/// Nothing here fails. A question that has no answer in time has none.
#[derive(Debug)]
pub(crate) struct Link {
    source: Source,
    state: Mutex<State>,
    breaker: watch::Sender<BreakerState>,
    began: Instant,
    command_timeout: Duration,
    /// How long a probe may take, connecting included.
    patience: Duration,
    questions: Semaphore,
    background: Arc<Semaphore>,
    nonces: AtomicU64,
    probe_key: String,
    cap: Lifetime,
    counters: Arc<Counters>,
}

struct State {
    breaker: Breaker,
    connection: Option<Arc<dyn Connection>>,
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
pub(crate) struct Asked {
    /// There if Redis answered.
    pub(crate) anchor: Option<Anchor>,
    /// An entry that can be read, and how much longer it lives.
    pub(crate) found: Option<(Entry, Duration)>,
}

/// Why a command has no answer.
enum Trouble {
    Late,
    Failed(RedisError),
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
            }),
            breaker: watch::Sender::new(BreakerState::Open),
            began: Instant::now(),
            command_timeout: options.command_timeout,
            // Connecting takes a few round trips by itself, and a probe sends three commands.
            patience: options.connect_timeout + options.command_timeout * 4,
            questions: Semaphore::new(most),
            background: Arc::new(Semaphore::new(most)),
            nonces: AtomicU64::new(0),
            probe_key,
            cap,
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
        let nothing = Asked {
            anchor: None,
            found: None,
        };
        let (Some(permit), Ok(_seat)) = (self.admit(), self.questions.try_acquire()) else {
            self.counters.bypassed.count();
            return nothing;
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
                })
                .await;
                return nothing;
            }
            Err(_) => return nothing,
        };
        let Some(look) = Look::read(answer, nonce) else {
            // Whatever answers there is no Redis, or answers somebody else. Nothing that comes on this connection can
            // be trusted any more.
            self.counters.errors.count();
            self.broke(permit.epoch);
            return nothing;
        };
        let found = look.found.and_then(|(bytes, left)| {
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let entry = Entry::decode(&bytes, self.cap).zip(left);
            if entry.is_none() {
                self.counters.odd.count();
            }
            entry
        });
        Asked {
            anchor: Some(Anchor {
                permit,
                now: look.now,
            }),
            found,
        }
    }

    /// Writes an entry, in the background, to end its lifetime after `anchor`.
    pub(crate) async fn remember(self: &Arc<Self>, name: &Name, entry: Entry, anchor: Anchor) {
        let call = Call::remember(&name.key, &entry, anchor.now);
        let link = Arc::clone(self);
        self.in_background(async move {
            match link.run(&anchor.permit, &call).await {
                Some(Value::Int(1)) => link.counters.written.count(),
                // It came too late.
                Some(Value::Int(0)) => link.counters.dropped.count(),
                Some(_) => link.nonsense(anchor.permit.epoch),
                None => {}
            }
        })
        .await;
    }

    /// Removes the entry of this attempt, in the background.
    pub(crate) async fn forget(self: &Arc<Self>, name: &Name, token: OwnerToken) {
        let Some(permit) = self.admit() else {
            self.counters.dropped.count();
            return;
        };
        let call = Call::forget(&name.key, &Entry::holder(token));
        let link = Arc::clone(self);
        self.in_background(async move {
            match link.run(&permit, &call).await {
                Some(Value::Int(1)) => link.counters.removed.count(),
                Some(Value::Int(0)) | None => {}
                Some(_) => link.nonsense(permit.epoch),
            }
        })
        .await;
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
        let connection = timeout(self.patience, self.try_out()).await;
        let connection = connection.ok().flatten();
        if connection.is_none() {
            self.counters.errors.count();
            self.broke(epoch);
            return;
        }
        let mut state = self.lock();
        if state.breaker.answered(epoch) {
            state.connection = connection;
        }
        self.publish(&state);
    }

    async fn try_out(&self) -> Option<Arc<dyn Connection>> {
        let connection = self.source.connect().await.ok()?;
        let nonce = self.nonces.fetch_add(1, Ordering::Relaxed);
        let look = Call::look(&self.probe_key, nonce).in_full();
        let look = Look::read(connection.query(&look).await.ok()?, nonce)?;
        let entry = self.probe_entry(nonce);
        let remember = Call::remember(&self.probe_key, &entry, look.now).in_full();
        let written = connection.query(&remember).await.ok()?;
        let forget = Call::forget(&self.probe_key, &Entry::holder(entry.token)).in_full();
        let forgotten = connection.query(&forget).await.ok()?;
        // Another process's probe may have come between, and an entry that lives for a millisecond may be over.
        let sane = |answer| matches!(answer, Value::Int(0 | 1));
        (sane(written) && sane(forgotten)).then_some(connection)
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
        match timeout(self.command_timeout, permit.connection.query(command)).await {
            Ok(Ok(value)) => {
                self.lock().breaker.answered(permit.epoch);
                Ok(value)
            }
            Ok(Err(error)) if is_unknown_script(&error) => {
                self.lock().breaker.answered(permit.epoch);
                Err(Trouble::Failed(error))
            }
            Ok(Err(error)) => {
                self.counters.errors.count();
                self.broke(permit.epoch);
                Err(Trouble::Failed(error))
            }
            Err(_) => {
                self.counters.timeouts.count();
                let mut state = self.lock();
                let opened = state.breaker.timed_out(permit.epoch, self.now(), spread());
                self.after(state, opened);
                Err(Trouble::Late)
            }
        }
    }

    fn nonsense(&self, epoch: Epoch) {
        self.counters.errors.count();
        self.broke(epoch);
    }

    fn broke(&self, epoch: Epoch) {
        let mut state = self.lock();
        let opened = state.breaker.broke(epoch, self.now(), spread());
        self.after(state, opened);
    }

    fn after(&self, mut state: MutexGuard<'_, State>, opened: bool) {
        if !opened {
            return;
        }
        self.counters.opened.count();
        // Ours is closed with its last user, and whatever is still under way on it is of no interest. The next probe
        // makes a new one, to wherever the name of the server leads by then.
        let connection = state.connection.take();
        self.publish(&state);
        drop(state);
        drop(connection);
    }

    /// Begins `job` here and now, so that its command is in line before anything that this caller sends next, and lets
    /// it go on in the background. With too many there already it is not begun.
    async fn in_background(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        let (Ok(seat), Ok(runtime)) = (
            Arc::clone(&self.background).try_acquire_owned(),
            Handle::try_current(),
        ) else {
            self.counters.dropped.count();
            return;
        };
        let mut job: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let _seat = seat;
            job.await;
        });
        let begun = std::future::poll_fn(|context| Poll::Ready(job.as_mut().poll(context))).await;
        if begun.is_pending() {
            runtime.spawn(job);
        }
    }

    fn publish(&self, state: &State) {
        self.breaker.send_replace(state.breaker.state());
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
