use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use idem_core::RecordId;

/// The ids whose records somebody is creating, or holds locked, in a transaction which stays open.
///
/// A call about such an id waits for as long as a statement may wait, and whatever travels with it, or is in line behind it,
/// waits too. So an id on which a statement has waited in vain is asked for by itself for a second, and by one caller at a
/// time: whoever comes meanwhile is told that it is contended, which it was a moment ago.
#[derive(Debug)]
pub(crate) struct Hot {
    ids: Mutex<HashMap<RecordId, State>>,
    lock_wait: Duration,
}

#[derive(Debug, Clone, Copy)]
struct State {
    timed_out_at: Instant,
    is_probed: bool,
    /// It was in a batch that waited in vain, and so was every other id in it.
    is_suspect: bool,
}

/// How an id may be asked for.
#[derive(Debug)]
pub(crate) enum Heat<'a> {
    /// With others.
    Cold,
    /// By itself.
    Probe(Probe<'a>),
    /// Not now.
    Contended,
}

/// How long an id is asked for by itself after a statement has waited for it in vain.
const HOT: Duration = Duration::from_secs(1);

/// How many ids are remembered before the cold ones among them are looked for.
const MANY: usize = 1024;

impl Hot {
    pub(crate) fn new(lock_wait: Duration) -> Self {
        Self {
            ids: Mutex::default(),
            lock_wait,
        }
    }

    pub(crate) fn heat(&self, id: &RecordId) -> Heat<'_> {
        let mut ids = self.ids();
        let Some(state) = ids.get_mut(id) else {
            return Heat::Cold;
        };
        let age = state.timed_out_at.elapsed();
        if age >= HOT.max(self.lock_wait * 2) && !state.is_probed {
            ids.remove(id);
            return Heat::Cold;
        }
        if state.is_probed || (age < self.lock_wait && !state.is_suspect) {
            return Heat::Contended;
        }
        state.is_probed = true;
        Heat::Probe(Probe {
            hot: self,
            id: id.clone(),
        })
    }

    /// Whether this id is best left out of a batch.
    pub(crate) fn is_hot(&self, id: &RecordId) -> bool {
        self.ids().contains_key(id)
    }

    /// A statement has waited in vain, for one of these ids. Which one it was, each of them shows by itself, and meanwhile
    /// none of them travels with others and makes those wait too.
    pub(crate) fn suspect<'i>(&self, ids: impl Iterator<Item = &'i RecordId>) {
        let timed_out_at = Instant::now();
        let mut known = self.known();
        for id in ids {
            known.entry(id.clone()).or_insert(State {
                timed_out_at,
                is_probed: false,
                is_suspect: true,
            });
        }
    }

    /// A statement has waited for this id in vain.
    pub(crate) fn timed_out(&self, id: &RecordId) {
        let mut ids = self.known();
        let timed_out_at = Instant::now();
        let state = ids.entry(id.clone()).or_insert(State {
            timed_out_at,
            is_probed: false,
            is_suspect: false,
        });
        state.timed_out_at = timed_out_at;
        state.is_suspect = false;
    }

    /// The ids that are known, with those forgotten that have long been cold when there are many.
    fn known(&self) -> MutexGuard<'_, HashMap<RecordId, State>> {
        let mut ids = self.ids();
        if ids.len() >= MANY {
            ids.retain(|_, state| state.is_probed || state.timed_out_at.elapsed() < HOT);
        }
        ids
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<RecordId, State>> {
        // Nothing panics while it is held.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one call about a hot id that is under way.
#[derive(Debug)]
pub(crate) struct Probe<'a> {
    hot: &'a Hot,
    id: RecordId,
}

impl Probe<'_> {
    /// Nobody is in its way any more.
    pub(crate) fn has_cooled(&self) {
        self.hot.ids().remove(&self.id);
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.hot.ids().get_mut(&self.id) {
            state.is_probed = false;
        }
    }
}
