use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::names::Digest;
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

/// How long others wait for the one that asks. It may be stuck, or nobody may poll it; then one of them asks as well: one,
/// since a machine that is short of time makes everything late, and is not helped by ten thousand more who ask.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the store may fail those who ask before the others take that for their own answer.
const FAILURES: u32 = 3;

#[derive(Debug)]
struct Flight {
    number: u64,
    /// Who asks, as far as the others know: nobody if that one was dropped or has failed.
    leader: Option<u64>,
    failures: u32,
    /// There when somebody waits.
    news: Option<watch::Sender<News>>,
}

/// What those who wait see.
#[derive(Debug, Clone, Copy, Default)]
enum News {
    /// Somebody asks.
    #[default]
    Asking,
    /// Nobody does. One of those who wait should.
    Vacant,
    Told(Verdict),
}

/// What the one that asked was told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// That this attempt is in progress.
    InProgress(Sighting),
    /// That somebody was writing the record, and how soon it is worth asking again.
    Contended { retry_after: Duration },
    /// Nothing: the store failed whoever asked it.
    Failed,
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
pub(crate) enum Heard<'a> {
    Verdict(Verdict),
    /// The one in front was dropped, has failed, or is stuck: it is this one's turn to ask.
    Turn(Seat<'a>),
    /// What was asked for has changed since. All of them ask afresh.
    Void,
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
                let number = self.number();
                vacant.insert(Flight {
                    number,
                    leader: Some(number),
                    failures: 0,
                    news: None,
                });
                Part::Lead(self.seat(digest, number, number))
            }
            Place::Occupied(mut flight) => {
                let flight = flight.get_mut();
                let news = flight.news.get_or_insert_with(watch::Sender::default);
                Part::Follow(Follower {
                    flights: self,
                    digest: *digest,
                    number: flight.number,
                    leader: flight.leader,
                    news: news.subscribe(),
                })
            }
        }
    }

    /// The record has changed: what a claim that is under way was told before says nothing any more.
    pub(crate) fn void(&self, digest: &Digest) {
        self.shard(digest).remove(digest);
    }

    fn seat(&self, digest: &Digest, number: u64, leader: u64) -> Seat<'_> {
        Seat {
            flights: self,
            digest: *digest,
            number,
            leader,
        }
    }

    /// One that no flight and no leader has had.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
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

/// This flight, if it is still there, and not another one of the same record.
fn flight<'a>(shard: &'a mut Shard, digest: &Digest, number: u64) -> Option<&'a mut Flight> {
    shard
        .get_mut(digest)
        .filter(|flight| flight.number == number)
}

/// The place of one that asks. Dropping it lets the next one ask.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    flights: &'a Flights,
    digest: Digest,
    number: u64,
    leader: u64,
}

impl Seat<'_> {
    /// Tells the others, and says whether what was told is still true as far as this process knows. One that has lost its
    /// turn meanwhile tells them all the same: it is the answer that they wait for.
    ///
    /// If it is, `note` is done before anybody can [void](Flights::void) it. So what it leaves behind is there before
    /// whatever takes that away.
    pub(crate) fn tell(self, verdict: Verdict, note: impl FnOnce()) -> bool {
        let told = {
            let mut shard = self.flights.shard(&self.digest);
            if flight(&mut shard, &self.digest, self.number).is_none() {
                return false;
            }
            note();
            shard.remove(&self.digest)
        };
        if let Some(news) = told.and_then(|flight| flight.news) {
            news.send_replace(News::Told(verdict));
        }
        true
    }

    /// The store failed. One failure is not everybody's, and another one asks; some in a row are.
    pub(crate) fn failed(self) {
        let failures = {
            let mut shard = self.flights.shard(&self.digest);
            let Some(flight) = flight(&mut shard, &self.digest, self.number) else {
                return;
            };
            flight.failures += 1;
            flight.failures
        };
        if failures >= FAILURES {
            self.tell(Verdict::Failed, || ());
        }
        // Or else it is dropped, and so it is another one's turn.
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.digest);
        let Some(flight) = flight(&mut shard, &self.digest, self.number) else {
            return;
        };
        if flight.leader != Some(self.leader) {
            return;
        }
        flight.leader = None;
        match &flight.news {
            Some(news) if news.receiver_count() > 0 => {
                news.send_replace(News::Vacant);
            }
            _ => {
                shard.remove(&self.digest);
            }
        }
    }
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    flights: &'a Flights,
    digest: Digest,
    number: u64,
    /// For whom it waits.
    leader: Option<u64>,
    news: watch::Receiver<News>,
}

impl<'a> Follower<'a> {
    /// Waits for what the one in front is told. If that takes too long, or will not be, it may be this one's turn.
    pub(crate) async fn hear(mut self) -> Heard<'a> {
        loop {
            let news = self.news.wait_for(|news| !matches!(news, News::Asking));
            match timeout(PATIENCE, news)
                .await
                .map(|news| news.map(|news| *news))
            {
                Ok(Ok(News::Told(verdict))) => return Heard::Verdict(verdict),
                Ok(Err(_)) => return Heard::Void,
                // Whose turn it is, is decided under the lock.
                Ok(Ok(News::Vacant | News::Asking)) => self.leader = None,
                Err(_) => {}
            }
            match self.turn() {
                Turn::Mine(seat) => return Heard::Turn(seat),
                Turn::Anothers(leader) => self.leader = leader,
                Turn::Void => {
                    return match *self.news.borrow() {
                        News::Told(verdict) => Heard::Verdict(verdict),
                        News::Asking | News::Vacant => Heard::Void,
                    };
                }
            }
        }
    }

    /// It is this one's turn unless another one has taken it since.
    fn turn(&self) -> Turn<'a> {
        let mut shard = self.flights.shard(&self.digest);
        let Some(flight) = flight(&mut shard, &self.digest, self.number) else {
            return Turn::Void;
        };
        if flight.leader != self.leader {
            return Turn::Anothers(flight.leader);
        }
        let leader = self.flights.number();
        flight.leader = Some(leader);
        if let Some(news) = &flight.news {
            news.send_replace(News::Asking);
        }
        Turn::Mine(self.flights.seat(&self.digest, self.number, leader))
    }
}

/// Whose turn it is to ask.
enum Turn<'a> {
    Mine(Seat<'a>),
    Anothers(Option<u64>),
    /// Nobody's: the flight is over.
    Void,
}

/// One that gives up waiting may have been the last that could have taken its turn.
impl Drop for Follower<'_> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.digest);
        if let Some(flight) = flight(&mut shard, &self.digest, self.number)
            && flight.leader.is_none()
            && flight
                .news
                .as_ref()
                .is_none_or(|news| news.receiver_count() <= 1)
        {
            shard.remove(&self.digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::{Late, within};

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
        let followers = [follow(&flights, &ONE), follow(&flights, &ONE)];
        drop(seat);
        let [one, other] = followers;
        // One of them takes it, and the others wait for that one.
        let Heard::Turn(seat) = one.hear().await else {
            panic!("nobody asks");
        };
        let mut other = Box::pin(other.hear());
        let heard = within(Duration::ZERO, &mut other).await;
        assert!(matches!(heard, Err(Late)), "{heard:?}");
        assert!(seat.tell(Verdict::Other, || ()));
        assert!(matches!(other.await, Heard::Verdict(Verdict::Other)));
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn nothing_is_left_of_those_who_gave_up() {
        let flights = Flights::new();
        let seat = lead(&flights, &ONE);
        let followers = [follow(&flights, &ONE), follow(&flights, &ONE)];
        drop(seat);
        assert!(!flights.is_empty());
        drop(followers);
        assert!(flights.is_empty());
        // Nor when nobody has ever waited, or does not any more.
        drop(lead(&flights, &ONE));
        assert!(flights.is_empty());
        let seat = lead(&flights, &ONE);
        drop(follow(&flights, &ONE));
        drop(seat);
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn whoever_comes_while_nobody_asks_does() {
        let flights = Flights::new();
        let seat = lead(&flights, &ONE);
        let _asleep = follow(&flights, &ONE);
        drop(seat);
        let follower = follow(&flights, &ONE);
        assert!(matches!(follower.hear().await, Heard::Turn(_)));
    }

    #[tokio::test]
    async fn three_failures_are_everybodys() {
        let flights = Flights::new();
        let [first, second, third] = [(); 3].map(|()| flights.join(&ONE));
        let (Part::Lead(seat), Part::Follow(second), Part::Follow(third)) = (first, second, third)
        else {
            panic!("they are in order");
        };
        seat.failed();
        let Heard::Turn(seat) = second.hear().await else {
            panic!("one failure is not everybody's");
        };
        seat.failed();
        let fourth = follow(&flights, &ONE);
        let Heard::Turn(seat) = third.hear().await else {
            panic!("two failures are not everybody's");
        };
        seat.failed();
        let heard = fourth.hear().await;
        assert!(matches!(heard, Heard::Verdict(Verdict::Failed)));
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn nobody_waits_for_long_for_one_that_is_stuck() {
        let flights = Flights::new();
        let stuck = lead(&flights, &ONE);
        let started = std::time::Instant::now();
        let (one, other) = tokio::join!(
            follow(&flights, &ONE).hear(),
            within(PATIENCE * 3 / 2, follow(&flights, &ONE).hear())
        );
        assert!(started.elapsed() >= PATIENCE);
        // One of them takes its turn, and the other one waits for that one.
        let Heard::Turn(next) = one else {
            panic!("{one:?}");
        };
        assert!(matches!(other, Err(Late)), "{other:?}");
        // What the first one hears in the end is an answer all the same.
        let follower = follow(&flights, &ONE);
        assert!(stuck.tell(Verdict::Other, || ()));
        assert!(matches!(follower.hear().await, Heard::Verdict(_)));
        assert!(!next.tell(Verdict::Other, || ()));
        assert!(flights.is_empty());
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
        assert!(matches!(follower.hear().await, Heard::Void));
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
