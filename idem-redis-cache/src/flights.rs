use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::names::Digest;
use crate::patience::{Late, within};
use crate::sighting::Sighting;

/// Claims of one process that are under way, by record. Of many for the same record at once one asks, and the others
/// wait to hear what it was told: they would all be told the same.
///
/// Without this, ten thousand duplicates that arrive together would all find nothing in Redis, and all go to the store,
/// before the first of them has left anything behind.
#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<Shard>; SHARDS],
    numbers: AtomicU64,
}

type Shard = HashMap<Digest, Flight>;

/// More than the cores of most machines, so that tasks seldom meet at a lock.
const SHARDS: usize = 32;

/// How long others wait for the one that asks. It may be stuck, or nobody may poll it; then one of them asks. A machine
/// that is short of time makes everything late, and is not helped by ten thousand more who ask.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Flight {
    number: u64,
    /// There when somebody waits.
    verdict: Option<watch::Sender<Option<Verdict>>>,
}

/// What the one that asked was told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// That this attempt is in progress.
    InProgress(Sighting),
    /// That somebody was writing the record, and how soon it is worth asking again.
    Contended { retry_after: Duration },
    /// Something that each has to hear for itself.
    Other,
}

/// What a claim has to do.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// To ask, and to tell the others.
    Lead(Seat<'a>),
    /// To wait for somebody else's answer.
    Follow(Follower<'a>),
}

/// What a follower heard.
#[derive(Debug)]
pub(crate) enum Heard {
    Verdict(Verdict),
    /// The one in front was dropped, failed, or is stuck and has lost its place; or what it asked for has changed since.
    /// Somebody else should ask.
    Gone,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            numbers: AtomicU64::new(0),
        }
    }

    /// Joins the claims of this record.
    pub(crate) fn join(&self, digest: &Digest) -> Part<'_> {
        match self.shard(digest).entry(*digest) {
            Place::Vacant(vacant) => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                vacant.insert(Flight {
                    number,
                    verdict: None,
                });
                Part::Lead(Seat {
                    flights: self,
                    digest: *digest,
                    number,
                })
            }
            Place::Occupied(mut flight) => {
                let number = flight.get().number;
                let sender = flight
                    .get_mut()
                    .verdict
                    .get_or_insert_with(watch::Sender::default);
                Part::Follow(Follower {
                    flights: self,
                    digest: *digest,
                    number,
                    verdict: sender.subscribe(),
                })
            }
        }
    }

    /// The record has changed: what a claim that is under way was told before says nothing any more.
    pub(crate) fn void(&self, digest: &Digest) {
        self.shard(digest).remove(digest);
    }

    fn take(&self, digest: &Digest, number: u64) -> Option<Flight> {
        take(&mut self.shard(digest), digest, number)
    }

    fn shard(&self, digest: &Digest) -> MutexGuard<'_, Shard> {
        // A panic under the lock cannot leave half a flight behind.
        self.shards[usize::from(digest[0]) % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|shard| shard.lock().unwrap().is_empty())
    }
}

/// Takes this flight off the list, and no other that has its place by now.
fn take(shard: &mut Shard, digest: &Digest, number: u64) -> Option<Flight> {
    match shard.entry(*digest) {
        Place::Occupied(flight) if flight.get().number == number => Some(flight.remove()),
        _ => None,
    }
}

/// The place of the one that asks. Dropping it lets the next one ask.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    flights: &'a Flights,
    digest: Digest,
    number: u64,
}

impl Seat<'_> {
    /// Tells the others, and says whether what was told is still true as far as this process knows.
    ///
    /// If it is, `note` is done before anybody can [void](Flights::void) it. So what it leaves behind is there before
    /// whatever takes that away.
    pub(crate) fn tell(self, verdict: Verdict, note: impl FnOnce()) -> bool {
        let flight = {
            let mut shard = self.flights.shard(&self.digest);
            let flight = take(&mut shard, &self.digest, self.number);
            if flight.is_some() {
                note();
            }
            flight
        };
        let still_true = flight.is_some();
        if let Some(sender) = flight.and_then(|flight| flight.verdict) {
            sender.send_replace(Some(verdict));
        }
        still_true
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.flights.take(&self.digest, self.number);
    }
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    flights: &'a Flights,
    digest: Digest,
    number: u64,
    verdict: watch::Receiver<Option<Verdict>>,
}

impl Follower<'_> {
    /// Waits for what the one in front is told. If that takes too long its place is free, for this one or another.
    pub(crate) async fn hear(mut self) -> Heard {
        match within(PATIENCE, self.verdict.wait_for(Option::is_some)).await {
            Ok(Ok(verdict)) => verdict.map_or(Heard::Gone, Heard::Verdict),
            Ok(Err(_)) => Heard::Gone,
            Err(Late) => {
                // The others hear that it is gone, and one of them asks.
                drop(self.flights.take(&self.digest, self.number));
                Heard::Gone
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead<'a>(flights: &'a Flights, digest: &Digest) -> Seat<'a> {
        match flights.join(digest) {
            Part::Lead(seat) => seat,
            Part::Follow(_) => panic!("somebody else leads"),
        }
    }

    fn follow<'a>(flights: &'a Flights, digest: &Digest) -> Follower<'a> {
        match flights.join(digest) {
            Part::Follow(follower) => follower,
            Part::Lead(_) => panic!("nobody leads"),
        }
    }

    const ONE: Digest = [1; 32];
    const TWO: Digest = [2; 32];

    #[tokio::test]
    async fn one_asks_and_the_others_hear() {
        let flights = Flights::new();
        let seat = lead(&flights, &ONE);
        let other = lead(&flights, &TWO);
        let followers = [follow(&flights, &ONE), follow(&flights, &ONE)];
        assert!(seat.tell(Verdict::Other, || ()));
        for follower in followers {
            assert!(matches!(
                follower.hear().await,
                Heard::Verdict(Verdict::Other)
            ));
        }
        // Whoever comes now asks again.
        drop(lead(&flights, &ONE));
        drop(other);
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn one_that_is_dropped_leaves_its_place() {
        let flights = Flights::new();
        let seat = lead(&flights, &ONE);
        let follower = follow(&flights, &ONE);
        drop(seat);
        assert!(matches!(follower.hear().await, Heard::Gone));
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn nobody_waits_for_long_for_one_that_is_stuck() {
        let flights = Flights::new();
        let stuck = lead(&flights, &ONE);
        let started = std::time::Instant::now();
        let (follower, another) = (follow(&flights, &ONE), follow(&flights, &ONE));
        assert!(matches!(follower.hear().await, Heard::Gone));
        assert!(started.elapsed() >= PATIENCE);
        // The others need not wait any more.
        let heard = within(Duration::ZERO, another.hear()).await;
        assert!(matches!(heard, Ok(Heard::Gone)), "{heard:?}");
        // Its place is free, and it cannot take it from its successor.
        let next = lead(&flights, &ONE);
        let follower = follow(&flights, &ONE);
        assert!(!stuck.tell(Verdict::Other, || ()));
        assert!(next.tell(Verdict::Other, || ()));
        assert!(matches!(follower.hear().await, Heard::Verdict(_)));
    }

    #[tokio::test]
    async fn what_has_changed_is_not_told() {
        let flights = Flights::new();
        let seat = lead(&flights, &ONE);
        let follower = follow(&flights, &ONE);
        flights.void(&ONE);
        // The next one asks afresh, and the old answer goes nowhere.
        let next = lead(&flights, &ONE);
        let second = follow(&flights, &ONE);
        assert!(!seat.tell(Verdict::Other, || ()));
        assert!(matches!(follower.hear().await, Heard::Gone));
        assert!(next.tell(Verdict::Other, || ()));
        assert!(matches!(second.hear().await, Heard::Verdict(_)));
        assert!(flights.is_empty());
    }

    /// What is noted while it is told is noted before anybody can say that it is over, or not at all.
    #[test]
    fn what_is_noted_is_noted_before_it_can_be_void() {
        let flights = Flights::new();
        let mut noted = false;
        let seat = lead(&flights, &ONE);
        assert!(seat.tell(Verdict::Other, || {
            noted = true;
            let shard = &flights.shards[usize::from(ONE[0])];
            assert!(shard.try_lock().is_err(), "it could be void meanwhile");
        }));
        assert!(noted);
        let seat = lead(&flights, &ONE);
        flights.void(&ONE);
        assert!(!seat.tell(Verdict::Other, || panic!("it is void already")));
    }
}
