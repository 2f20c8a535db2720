use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::identity::RecordId;
use crate::record::Snapshot;
use crate::record::Status;
use crate::store::KeyStore;

/// Those who wait for somebody else's attempt.
///
/// A waiter holds no connection and asks nothing of the store: for each id one task looks now and then, and
/// tells everybody who waits for that id in this process.
#[derive(Debug)]
pub(super) struct Waiters {
    store: Arc<dyn KeyStore>,
    probes: Mutex<BTreeMap<RecordId, Probe>>,
    waiting: AtomicUsize,
    most: usize,
}

#[derive(Debug, Clone)]
struct Probe {
    found: watch::Sender<Found>,
    look: Arc<Notify>,
}

/// What a probe found when there was no more to wait for.
type Found = Option<Over>;

/// The end of what was waited for.
#[derive(Debug, Clone)]
pub(super) struct Over {
    /// The record, or that it is gone.
    pub(super) held: Option<Snapshot>,
    /// Whether the record's own attempt was seen running. It need not be the one that the waiting began with,
    /// if any was known then: somebody may have taken over since.
    pub(super) watched: bool,
}

/// How soon a probe looks for the second time, and how seldom in the end. An attempt in this process wakes its
/// probe when it is done, so this is for the attempts of others.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(250);

/// How many probes a waiter outlives before it gives up. Where they end at once, on a runtime that is shutting
/// down, there is no use in starting more.
const PROBES: u32 = 3;

/// What a waiter is told.
#[derive(Debug)]
pub(super) enum Waited {
    /// The attempt is over.
    Over(Over),
    /// It is still running, and the time is up or too many wait already.
    StillRunning,
}

impl Waiters {
    pub(super) fn new(store: Arc<dyn KeyStore>, most: usize) -> Self {
        Self {
            store,
            probes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            most,
        }
    }

    /// Waits until the record is no longer in progress within its lease, or until `deadline`.
    pub(super) async fn wait(self: &Arc<Self>, id: &RecordId, deadline: Instant) -> Waited {
        let Some(_seat) = self.seat() else {
            return Waited::StillRunning;
        };
        for _ in 0..PROBES {
            let mut found = self.subscribe(id);
            let is_found = |found: &Found| found.is_some();
            match timeout_at(deadline, found.wait_for(is_found)).await {
                Ok(Ok(found)) => return found.clone().map_or(Waited::StillRunning, Waited::Over),
                // The probe ended without a word: its runtime did, which need not be this one, or the store
                // panicked under it.
                Ok(Err(_)) => {}
                Err(_) => return Waited::StillRunning,
            }
        }
        Waited::StillRunning
    }

    /// An attempt at this id has just stored its outcome in this process.
    pub(super) fn poke(&self, id: &RecordId) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(probe) = self.lock().get(id) {
            probe.look.notify_one();
        }
    }

    fn seat(&self) -> Option<Seat<'_>> {
        let taken = |waiting| (waiting < self.most).then_some(waiting + 1);
        let seat = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken);
        seat.is_ok().then(|| Seat(&self.waiting))
    }

    fn subscribe(self: &Arc<Self>, id: &RecordId) -> watch::Receiver<Found> {
        let (probe, receiver) = match self.lock().entry(id.clone()) {
            Entry::Occupied(probe) => return probe.get().found.subscribe(),
            Entry::Vacant(vacant) => {
                let (found, receiver) = watch::channel(None);
                let probe = Probe {
                    found,
                    look: Arc::default(),
                };
                vacant.insert(probe.clone());
                (probe, receiver)
            }
        };
        let listed = Listed {
            waiters: Arc::clone(self),
            id: id.clone(),
            probe,
        };
        // Not under the lock: a runtime that is shutting down drops the task here and now.
        tokio::spawn(listed.look());
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RecordId, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A probe that waiters can find, and that is no longer listed when this value is dropped, however its task
/// ended.
struct Listed {
    waiters: Arc<Waiters>,
    id: RecordId,
    probe: Probe,
}

impl Listed {
    async fn look(self) {
        let mut pause = FIRST_LOOK;
        let mut running = None;
        loop {
            let woken = timeout(pause, self.probe.look.notified()).await.is_ok();
            pause = if woken {
                FIRST_LOOK
            } else {
                (pause * 2).min(LAST_LOOK)
            };
            if self.leave_if_alone() {
                return;
            }
            let held = match self.waiters.store.load(&self.id).await {
                Ok(held) => held,
                // The waiters' own deadlines end this.
                Err(_) => continue,
            };
            if let Some(snapshot) = &held
                && snapshot.record.status() == Status::InProgress
                && !snapshot.record.is_lease_over(snapshot.moment())
            {
                running = Some(snapshot.record.fence());
                continue;
            }
            let fence = held.as_ref().map(|snapshot| snapshot.record.fence());
            let watched = fence.is_some() && fence == running;
            // Nobody may join a probe that has found something: whoever comes now starts another.
            self.leave(&mut self.waiters.lock());
            self.probe.found.send_replace(Some(Over { held, watched }));
            return;
        }
    }

    fn leave_if_alone(&self) -> bool {
        // Under the lock nobody can join, so a probe without listeners stays without.
        let mut probes = self.waiters.lock();
        let alone = self.probe.found.receiver_count() == 0;
        if alone {
            self.leave(&mut probes);
        }
        alone
    }

    /// Takes this probe off the list, and no other that has its place by now.
    fn leave(&self, probes: &mut BTreeMap<RecordId, Probe>) {
        if let Some(listed) = probes.get(&self.id)
            && listed.found.same_channel(&self.probe.found)
        {
            probes.remove(&self.id);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.leave(&mut self.waiters.lock());
    }
}

struct Seat<'a>(&'a AtomicUsize);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
