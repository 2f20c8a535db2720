use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use idem_core::StoreError;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::Fault;
use crate::options::Coalescing;

/// A kind of call of which many can be sent in one statement.
pub(crate) trait Coalesce: Send + Sync + Sized + 'static {
    /// What the caller is told.
    type Answer: Send + 'static;
    /// What the calls are sent with.
    type Context: Send + Sync + 'static;

    /// How often those that a batch left without an answer go together, before each of them goes alone.
    const ROUNDS: usize;

    /// Whether one that goes by itself is sent by a task, too, and not inside its caller's future. It costs a little, and a
    /// caller who does not poll that future holds no connection.
    const BY_A_TASK: bool;

    /// About how much it takes on the way, in bytes.
    fn size(&self) -> usize;

    /// Whether it is better not sent at all when nobody waits for it any more.
    fn is_pointless_alone(&self) -> bool;

    /// Whether it probably waits for somebody else's lock. Then it goes beside the line, so that nobody waits with it.
    fn is_hot(&self, context: &Self::Context) -> bool;

    /// Sends it by itself.
    fn alone(
        &self,
        context: &Self::Context,
    ) -> impl Future<Output = Result<Self::Answer, StoreError>> + Send;

    /// Sends all of these in one statement.
    fn together(
        items: &[&Self],
        context: &Self::Context,
    ) -> impl Future<Output = Together<Self::Answer>> + Send;
}

/// What came of a batch.
#[derive(Debug)]
pub(crate) enum Together<A> {
    /// An answer for each item in its order, or none where the item has to be sent again.
    Answers(Vec<Option<Result<A, StoreError>>>),
    /// Nothing was done, because of one item or another.
    Undone,
    /// The same for all of them.
    Failed(Fault),
}

/// Has calls travel together while others are under way.
///
/// A call that finds less than so many under way is sent at once, by itself; inside its own future, if its kind does not say
/// otherwise. Whatever comes later is put in line. Each call that ends, or is dropped, makes room for what is in line then, and that goes as one batch, in a
/// task of its own, so that no caller's end is another's.
///
/// A call that is under way inside a future stands still when nobody polls that, and its owner may be waiting for one that is
/// in line behind it. So a line that does not move goes on beside it.
pub(crate) struct Coalescer<C: Coalesce> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: Coalesce> {
    context: Arc<C::Context>,
    in_flight: usize,
    batch: usize,
    line: Mutex<Line<C>>,
    strays: Semaphore,
    hot: Semaphore,
    standstill: Duration,
}

struct Line<C: Coalesce> {
    under_way: usize,
    waiting: VecDeque<Waiting<C>>,
    moved_at: Instant,
}

struct Waiting<C: Coalesce> {
    item: C,
    reply: oneshot::Sender<Result<C::Answer, StoreError>>,
    /// The caller's.
    runtime: Handle,
}

/// The most that goes in one statement, in bytes; or one item, if that has more.
const LARGEST: usize = 4 * 1024 * 1024;

/// How many calls that a batch left over are sent alone at a time.
const STRAYS: usize = 4;

/// How many calls that probably wait for a lock are sent beside the line at a time.
const HOT: usize = 2;

/// When a line does not move for so long, and not for twice as long as a statement waits for a lock either, it goes on beside
/// those that are under way. One that waits for a lock is not standing still, and what it waits for may be in line as well.
const STANDSTILL: Duration = Duration::from_secs(1);

impl<C: Coalesce> Coalescer<C> {
    pub(crate) fn new(
        coalescing: Coalescing,
        lock_wait: Duration,
        context: Arc<C::Context>,
    ) -> Self {
        let (in_flight, batch) = match coalescing {
            Coalescing::Off => (usize::MAX, 1),
            Coalescing::Natural { in_flight, batch } => (in_flight.get(), batch.get()),
        };
        Self {
            shared: Arc::new(Shared {
                context,
                in_flight,
                batch,
                line: Mutex::new(Line {
                    under_way: 0,
                    waiting: VecDeque::new(),
                    moved_at: Instant::now(),
                }),
                strays: Semaphore::new(STRAYS),
                hot: Semaphore::new(HOT),
                standstill: STANDSTILL.max(lock_wait * 2),
            }),
        }
    }

    pub(crate) async fn call(&self, item: C) -> Result<C::Answer, StoreError> {
        // Without tokio nothing can be sent for several callers, and everybody sends for himself.
        let Ok(runtime) = Handle::try_current() else {
            return item.alone(&self.shared.context).await;
        };
        if item.is_hot(&self.shared.context) {
            let shared = self.shared.clone();
            let sent = async move {
                // Nobody closes it, here and below, and without a permit it would be sent all the same.
                let _permit = shared.hot.acquire().await;
                item.alone(&shared.context).await
            };
            if C::BY_A_TASK {
                return runtime
                    .spawn(sent)
                    .await
                    .unwrap_or_else(|_| Err(abandoned()));
            }
            return sent.await;
        }
        let (turn, makes_room) = {
            let mut line = self.shared.line();
            let has_room = line.under_way < self.shared.in_flight;
            if has_room {
                line.under_way += 1;
                line.moved_at = Instant::now();
            }
            if has_room && !C::BY_A_TASK {
                (Turn::Now(item), false)
            } else {
                let (reply, answer) = oneshot::channel();
                line.waiting.push_back(Waiting {
                    item,
                    reply,
                    runtime,
                });
                (Turn::Later(answer), has_room)
            }
        };
        if makes_room {
            drop(UnderWay(self.shared.clone()));
        }
        match turn {
            Turn::Now(item) => {
                let _under_way = UnderWay(self.shared.clone());
                item.alone(&self.shared.context).await
            }
            Turn::Later(mut answer) => loop {
                match timeout(self.shared.standstill, &mut answer).await {
                    Ok(answered) => return answered.unwrap_or_else(|_| Err(abandoned())),
                    Err(_) => self.shared.go_on_if_standing_still(),
                }
            },
        }
    }
}

impl<C: Coalesce> fmt::Debug for Coalescer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").finish_non_exhaustive()
    }
}

enum Turn<C: Coalesce> {
    Now(C),
    Later(oneshot::Receiver<Result<C::Answer, StoreError>>),
}

/// Only a runtime that ends drops a batch.
fn abandoned() -> StoreError {
    StoreError::ambiguous("waiting for a statement that was sent for several callers and dropped")
}

impl<C: Coalesce> Shared<C> {
    fn line(&self) -> MutexGuard<'_, Line<C>> {
        // Nothing panics while it is held.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn go_on_if_standing_still(self: &Arc<Self>) {
        {
            let mut line = self.line();
            if line.waiting.is_empty() || line.moved_at.elapsed() < self.standstill {
                return;
            }
            line.under_way += 1;
        }
        drop(UnderWay(self.clone()));
    }

    /// What goes next. If nothing is in line, one less is under way.
    fn next(&self) -> Option<Vec<Waiting<C>>> {
        let mut line = self.line();
        line.moved_at = Instant::now();
        let mut batch = Vec::new();
        let mut size = 0;
        while batch.len() < self.batch {
            let Some(first) = line.waiting.front() else {
                break;
            };
            let more = first.item.size();
            if !batch.is_empty() && size + more > LARGEST {
                break;
            }
            let next = line.waiting.pop_front();
            batch.extend(
                next.filter(|waiting| !waiting.is_pointless())
                    .inspect(|_| size += more),
            );
        }
        if batch.is_empty() {
            line.under_way -= 1;
            return None;
        }
        Some(batch)
    }

    async fn send(self: &Arc<Self>, mut batch: Vec<Waiting<C>>) {
        for _ in 0..C::ROUNDS {
            if batch.len() < 2 {
                break;
            }
            let items: Vec<&C> = batch.iter().map(|waiting| &waiting.item).collect();
            match C::together(&items, &self.context).await {
                Together::Answers(answers) => {
                    let mut left = Vec::new();
                    // An item past the last answer keeps its place, and is sent again.
                    let answers = answers.into_iter().chain(std::iter::repeat_with(|| None));
                    for (waiting, answer) in batch.into_iter().zip(answers) {
                        match answer {
                            // The caller may have gone, which is nobody's fault.
                            Some(answer) => drop(waiting.reply.send(answer)),
                            None => left.push(waiting),
                        }
                    }
                    batch = left;
                }
                Together::Undone => break,
                Together::Failed(fault) => {
                    for waiting in batch {
                        let _ = waiting.reply.send(Err(fault.clone().into()));
                    }
                    return;
                }
            }
        }
        match <[_; 1]>::try_from(batch) {
            Ok([waiting]) => waiting.send_alone(&self.context).await,
            // Whatever one of them waits for, the next batch does not wait for them.
            Err(left) => {
                for waiting in left {
                    let shared = self.clone();
                    tokio::spawn(async move {
                        let _permit = shared.strays.acquire().await;
                        if !waiting.is_pointless() {
                            waiting.send_alone(&shared.context).await;
                        }
                    });
                }
            }
        }
    }
}

impl<C: Coalesce> Waiting<C> {
    fn is_pointless(&self) -> bool {
        self.reply.is_closed() && self.item.is_pointless_alone()
    }

    async fn send_alone(self, context: &C::Context) {
        let answer = self.item.alone(context).await;
        let _ = self.reply.send(answer);
    }
}

/// One of those that are under way, until it ends or is dropped: then what is in line takes its place.
struct UnderWay<C: Coalesce>(Arc<Shared<C>>);

impl<C: Coalesce> Drop for UnderWay<C> {
    fn drop(&mut self) {
        let Some(batch) = self.0.next() else { return };
        // Of a caller who still waits, the runtime is driven. That of whoever was under way may be at its end.
        let mut callers = batch.iter();
        let waits = callers.find(|waiting| !waiting.reply.is_closed());
        let Some(caller) = waits.or(batch.first()) else {
            return;
        };
        let runtime = caller.runtime.clone();
        let under_way = Self(self.0.clone());
        runtime.spawn(async move { under_way.0.send(batch).await });
    }
}
