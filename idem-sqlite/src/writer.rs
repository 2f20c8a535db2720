//! The writer: one thread that commits many callers' writes together.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_core::{Clock, Swept};
use tokio::sync::{mpsc, watch};

use crate::backoff::Backoff;
use crate::reader::{self, Read, Reply};
use crate::statement;
use crate::transaction::{Extent, Failure, WriteConnection};
use crate::underway::Underway;
use crate::work::{Answer, Claimed, Work};
use crate::working;

/// What the writer is given to do, and when its caller stops waiting for locks.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) job: Job,
    pub(crate) deadline: Instant,
}

#[derive(Debug)]
pub(crate) enum Job {
    Write(Work),
    /// Something that has a transaction to itself.
    Exclusive(Box<dyn Exclusive>),
    Sweep {
        limit: NonZeroU32,
        reply: Reply<Swept>,
    },
    /// A question, where there are no readers.
    Read(Read),
    /// To take no more, do what is in line, and end.
    Close,
}

/// What has a transaction to itself.
pub(crate) trait Exclusive: fmt::Debug + Send {
    /// Tries it, and answers whoever waits for it, unless somebody else's lock is in the way and the deadline has not come.
    fn attempt(&mut self, database: &mut WriteConnection, deadline: Instant) -> Progress;
}

/// Whether something came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Made,
    /// Somebody else holds a lock: it is to be attempted again.
    LockedOut,
}

/// A sweep that is under way.
#[derive(Debug)]
struct Sweep {
    limit: u32,
    removed: u32,
    deadline: Instant,
    reply: Reply<Swept>,
}

/// How many records a sweep removes in one transaction. Writers that come meanwhile wait for one such.
const SWEEP_CHUNK: u32 = 128;

/// How many bytes are committed together, about. What is larger commits alone.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A write and when its caller stops waiting.
type Pending = (Work, Instant);

/// The writer's side of the line.
#[derive(Debug)]
pub(crate) struct Writer {
    database: WriteConnection,
    clock: Arc<dyn Clock>,
    busy_timeout: Duration,
    batch_limit: usize,
    underway: Arc<Underway>,
    sweeps: VecDeque<Sweep>,
    exclusives: VecDeque<(Box<dyn Exclusive>, Instant)>,
    text: String,
    /// Dropped after the connection, which is how whoever closes the store learns that it is gone.
    _closed: watch::Sender<()>,
}

impl Writer {
    pub(crate) fn new(
        database: WriteConnection,
        underway: Arc<Underway>,
        closed: watch::Sender<()>,
    ) -> Self {
        let options = &database.opener().options;
        Self {
            clock: options.clock.clone(),
            busy_timeout: options.busy_timeout,
            batch_limit: options.batch_limit.get(),
            database,
            underway,
            sweeps: VecDeque::new(),
            exclusives: VecDeque::new(),
            text: String::with_capacity(1024),
            _closed: closed,
        }
    }

    /// Works until the store is closed or dropped and the line is empty.
    ///
    /// What meets somebody else's lock stays here until the lock is free or its caller's time is over. What comes
    /// meanwhile is taken out of the line all the same, since some of it needs no lock.
    pub(crate) fn serve(mut self, mut queue: mpsc::Receiver<Queued>) {
        let mut taken = Vec::with_capacity(self.batch_limit);
        let mut writes = Vec::with_capacity(self.batch_limit);
        let mut backoff = Backoff::default();
        loop {
            // What has come while the last batch was committed is the next one. Nobody waits for others to come:
            // a lone caller commits alone and at once.
            if writes.is_empty() && self.sweeps.is_empty() && self.exclusives.is_empty() {
                if queue.blocking_recv_many(&mut taken, self.batch_limit) == 0 {
                    break;
                }
            } else {
                while taken.len() + writes.len() < self.batch_limit
                    && let Ok(queued) = queue.try_recv()
                {
                    taken.push(queued);
                }
            }
            self.sort_out(&mut taken, &mut queue, &mut writes);
            let callers = writes.len();
            self.write_in_batches(&mut writes);
            let mut is_locked_out = !writes.is_empty();
            // Those who were just answered often have something to ask at once. Letting them run before the line is looked
            // at makes one batch of what would be a small one and a large one, each with its own sync.
            if callers > 1 && !is_locked_out {
                std::thread::yield_now();
            }
            // One of these, and then whoever has come meanwhile: neither holds up requests for longer than it has to.
            if let Some(exclusive) = self.exclusives.pop_front() {
                is_locked_out |= self.work_exclusively(exclusive) == Progress::LockedOut;
                if working::is_to_close() {
                    queue.close();
                }
            }
            if let Some(sweep) = self.sweeps.pop_front() {
                is_locked_out |= self.sweep_chunk(sweep) == Progress::LockedOut;
            }
            if is_locked_out {
                backoff.sleep();
            } else {
                backoff = Backoff::default();
            }
        }
    }

    /// Does at once what needs no transaction, and puts the writes with those that wait.
    fn sort_out(
        &mut self,
        taken: &mut Vec<Queued>,
        queue: &mut mpsc::Receiver<Queued>,
        writes: &mut Vec<Pending>,
    ) {
        for Queued { job, deadline } in taken.drain(..) {
            match job {
                Job::Write(work) => writes.push((work, deadline)),
                Job::Exclusive(exclusive) => self.exclusives.push_back((exclusive, deadline)),
                Job::Sweep { limit, reply } => self.sweeps.push_back(Sweep {
                    limit: limit.get(),
                    removed: 0,
                    deadline,
                    reply,
                }),
                Job::Read(read) => self.read(read),
                Job::Close => queue.close(),
            }
        }
    }

    /// Answers the claims of records that are there already. They have nothing to write, so they need not wait for the
    /// lock that somebody else holds.
    fn answer_held(&mut self, batch: &mut Vec<Pending>) {
        if self.database.check_place().is_err() {
            // The next transaction says so to everybody.
            return;
        }
        let clock = self.clock.clone();
        let Ok(connection) = self.database.get() else {
            return;
        };
        let held = |work: &Work| match work {
            // What cannot be read is looked at again in the transaction, which knows what to make of an error.
            Work::Claim { claim, .. } => {
                guarded(|| reader::load(connection, claim.id(), clock.now()).ok()?)?
            }
            Work::Transition { .. } => None,
        };
        let mut waiting = Vec::with_capacity(batch.len());
        for (work, deadline) in batch.drain(..) {
            match held(&work) {
                Some(held) => work.reply(Answer::Claim(Ok(Claimed::Held(held)))),
                None => waiting.push((work, deadline)),
            }
        }
        *batch = waiting;
    }

    fn read(&mut self, read: Read) {
        let clock = self.clock.clone();
        if let Ok(connection) = self.database.get() {
            // A panic fails the one call, whose answer is dropped with it.
            let _ = guarded(|| read.answer(connection, &*clock));
        }
    }

    /// Leaves those that wait for a lock.
    fn write_in_batches(&mut self, writes: &mut Vec<Pending>) {
        let mut locked_out = Vec::new();
        let mut batch = Vec::with_capacity(writes.len());
        let mut bytes = 0_usize;
        for pending in writes.drain(..) {
            let size = pending.0.size();
            if !batch.is_empty() && bytes + size > BATCH_BYTES {
                locked_out.append(&mut self.write_together(std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += size;
            batch.push(pending);
        }
        locked_out.append(&mut self.write_together(batch));
        *writes = locked_out;
    }

    /// Commits these writes in one transaction, and answers every caller after the commit.
    ///
    /// When somebody else is in the way, those are returned with which the whole transaction is to be begun again. When it
    /// fails for another reason each write is tried by itself, so that one of them does not fail the others: a body
    /// that does not fit on the disk, a damaged page.
    fn write_together(&mut self, mut batch: Vec<Pending>) -> Vec<Pending> {
        batch.retain(|(work, _)| !work.is_pointless());
        if batch.is_empty() {
            return batch;
        }
        self.underway.begin();
        let attempted = self.attempt(&mut batch);
        // Before they are answered, since the first of them may be back before the last one is.
        self.underway.end();
        let failure = match attempted {
            Ok(answers) => {
                for ((work, _), answer) in batch.into_iter().zip(answers) {
                    work.reply(answer);
                }
                return Vec::new();
            }
            Err(failure) => failure,
        };
        match failure.extent {
            Extent::Busy => {
                self.answer_held(&mut batch);
                let now = Instant::now();
                for (work, _) in batch.extract_if(.., |(_, deadline)| *deadline <= now) {
                    work.fail(failure.store_error());
                }
                batch
            }
            Extent::RolledBack if batch.len() > 1 => batch
                .into_iter()
                .flat_map(|pending| self.write_together(vec![pending]))
                .collect(),
            Extent::RolledBack | Extent::NoConnection | Extent::Unknown => {
                for (work, _) in batch {
                    work.fail(failure.store_error());
                }
                Vec::new()
            }
        }
    }

    fn attempt(&mut self, batch: &mut Vec<Pending>) -> Result<Vec<Answer>, Failure> {
        let clock = &self.clock;
        let text = &mut self.text;
        self.database.transaction(|connection| {
            // Once, under the write lock: the transaction is one instant, later than everything that it sees, and
            // a batch that is begun again reads it again.
            let now = clock.now();
            // Once more: whoever had the lock may have had it for long, and callers have gone meanwhile.
            batch.retain(|(work, _)| !work.is_pointless());
            batch
                .iter()
                .map(|(work, _)| work.carry_out(connection, text, now))
                .collect()
        })
    }

    fn work_exclusively(
        &mut self,
        (mut exclusive, deadline): (Box<dyn Exclusive>, Instant),
    ) -> Progress {
        self.underway.begin();
        // What can panic in it is caught in it, so this is only for what nobody has thought of.
        let progress = guarded(|| exclusive.attempt(&mut self.database, deadline));
        self.underway.end();
        match progress {
            Some(Progress::LockedOut) => {
                self.exclusives.push_front((exclusive, deadline));
                Progress::LockedOut
            }
            Some(Progress::Made) | None => Progress::Made,
        }
    }

    /// Removes one chunk, and either answers or puts the sweep back in its line.
    fn sweep_chunk(&mut self, mut sweep: Sweep) -> Progress {
        if sweep.reply.is_closed() {
            return Progress::Made;
        }
        let chunk = SWEEP_CHUNK.min(sweep.limit - sweep.removed);
        self.underway.begin();
        let outcome = self.attempt_sweep(&sweep, chunk);
        self.underway.end();
        match outcome {
            Err(failure) if failure.extent == Extent::Busy && Instant::now() < sweep.deadline => {
                self.sweeps.push_front(sweep);
                return Progress::LockedOut;
            }
            Err(failure) => drop(sweep.reply.send(Err(failure.store_error()))),
            Ok(Chunk::Last(swept)) => drop(sweep.reply.send(Ok(swept))),
            Ok(Chunk::More) => {
                sweep.removed += chunk;
                sweep.deadline = Instant::now() + self.busy_timeout;
                self.sweeps.push_back(sweep);
            }
        }
        Progress::Made
    }

    fn attempt_sweep(&mut self, sweep: &Sweep, chunk: u32) -> Result<Chunk, Failure> {
        let clock = &self.clock;
        self.database.transaction(|connection| {
            let now = clock.now().as_micros();
            let removed = connection
                .prepare_cached(statement::SWEEP)?
                .execute((now, chunk))?;
            // No more are removed than the statement was told to.
            let removed = u32::try_from(removed).unwrap_or(chunk).min(chunk);
            if removed == chunk && sweep.removed + removed < sweep.limit {
                return Ok(Chunk::More);
            }
            let stuck = connection
                .prepare_cached(statement::STUCK)?
                .query_row((now, sweep.limit), |row| row.get(0))?;
            Ok(Chunk::Last(Swept {
                removed: sweep.removed + removed,
                stuck,
            }))
        })
    }
}

/// What one chunk of a sweep came to.
enum Chunk {
    /// It was a whole one, and there may be more.
    More,
    /// There is no more to remove, or no more to be removed.
    Last(Swept),
}

/// Runs what calls into the program's clock, which may panic. `None` if it did.
fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
}
