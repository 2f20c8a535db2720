//! Reading: what is asked, and the threads that answer.

use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use idem_core::{
    Clock, Counts, Filter, RecordId, Selection, Snapshot, Status, StoreError, Timestamp,
};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::ReadError;
use crate::place::Place;
use crate::row;
use crate::statement;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A question that changes nothing.
#[derive(Debug)]
pub(crate) enum Read {
    Load {
        id: RecordId,
        reply: Reply<Option<Snapshot>>,
    },
    Count {
        reply: Reply<Counts>,
    },
    List {
        filter: Filter,
        after: Option<RecordId>,
        limit: NonZeroU32,
        reply: Reply<Vec<Snapshot>>,
    },
}

impl Read {
    /// Answers it. Whoever asked may have gone, which is nobody's fault.
    ///
    /// The time is read before the rows: a snapshot that is a little older than its rows makes a lease seem
    /// longer, and nobody is replaced too early.
    pub(crate) fn answer(self, connection: &Connection, clock: &dyn Clock) {
        match self {
            Self::Load { id, reply } if !reply.is_closed() => {
                let loaded = load(connection, &id, clock.now());
                let _ =
                    reply
                        .send(loaded.map_err(|error| {
                            error.into_store_error("loading a record").about(&id)
                        }));
            }
            Self::Count { reply } if !reply.is_closed() => {
                let counted = count(connection, clock.now());
                let _ = reply
                    .send(counted.map_err(|error| error.into_store_error("counting the records")));
            }
            Self::List {
                filter,
                after,
                limit,
                reply,
            } if !reply.is_closed() => {
                let listed = list(connection, &filter, after.as_ref(), limit, clock.now());
                let _ = reply
                    .send(listed.map_err(|error| error.into_store_error("listing the records")));
            }
            Self::Load { .. } | Self::Count { .. } | Self::List { .. } => {}
        }
    }

    fn fail(self, error: StoreError) {
        match self {
            Self::Load { id, reply } => drop(reply.send(Err(error.about(&id)))),
            Self::Count { reply } => drop(reply.send(Err(error))),
            Self::List { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// The record with this id, as it is when it was `now`.
pub(crate) fn load(
    connection: &Connection,
    id: &RecordId,
    now: Timestamp,
) -> Result<Option<Snapshot>, ReadError> {
    let mut prepared = connection.prepare_cached(statement::LOAD)?;
    let mut rows = prepared.query((id.scope().as_str(), id.key().as_str()))?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => Ok(Some(Snapshot::new(row::record(id, row)?, now))),
    }
}

fn count(connection: &Connection, now: Timestamp) -> Result<Counts, ReadError> {
    let mut prepared = connection.prepare_cached(statement::COUNT)?;
    let mut rows = prepared.query([now.as_micros()])?;
    let mut counts = Counts::default();
    while let Some(row) = rows.next()? {
        let status: String = row.get(0)?;
        let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
        let records = number(1)?;
        counts.expired += number(3)?;
        match Status::parse(&status) {
            Ok(Status::InProgress) => {
                counts.in_progress = records;
                counts.stuck = number(4)?;
                if counts.stuck > 0 {
                    let oldest: i64 = row.get(5)?;
                    counts.oldest_stuck = Some(Timestamp::from_micros(oldest));
                }
            }
            Ok(Status::Completed) => counts.completed = records,
            Ok(Status::FailedFinal) => counts.failed_final = records,
            Ok(Status::FailedRetryable) => {
                counts.failed_retryable = records;
                counts.uncertain_failures = number(2)?;
            }
            Err(_) => return Err(idem_core::CorruptRow::in_column("status").into()),
        }
    }
    Ok(counts)
}

fn list(
    connection: &Connection,
    filter: &Filter,
    after: Option<&RecordId>,
    limit: NonZeroU32,
    now: Timestamp,
) -> Result<Vec<Snapshot>, ReadError> {
    let mut prepared = connection.prepare_cached(match filter.selection {
        Selection::All => statement::LIST_ALL,
        Selection::Unresolved => statement::LIST_UNRESOLVED,
        Selection::Stuck => statement::LIST_STUCK,
    })?;
    let mut rows = prepared.query((
        after.map(|id| id.scope().as_str()),
        after.map(|id| id.key().as_str()),
        limit.get(),
        filter.scope.as_ref().map(idem_core::Scope::as_str),
        now.as_micros(),
    ))?;
    let mut listed = Vec::new();
    while let Some(row) = rows.next()? {
        listed.push(Snapshot::new(row::listed(row)?, now));
    }
    Ok(listed)
}

/// What a reader thread is given to do.
#[derive(Debug)]
pub(crate) enum ReaderJob {
    Read(Read),
    /// To take no more questions, answer those that are in line, and end.
    Close,
}

/// The line that all readers of a store take their questions from.
pub(crate) type ReaderQueue = Arc<Mutex<mpsc::Receiver<ReaderJob>>>;

/// Answers questions until the store is closed or dropped. `_closed` is dropped with the connection, which is
/// how whoever closes the store learns that it is.
pub(crate) fn serve(
    connection: Connection,
    place: Option<&Place>,
    queue: &ReaderQueue,
    clock: &dyn Clock,
    closed: watch::Sender<()>,
) {
    loop {
        // Only one idle reader waits at the line, the others wait for its place. Nothing is done under the lock.
        let mut line = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let next = line.blocking_recv();
        if let Some(ReaderJob::Close) = next {
            // Before the place is given up: whoever has it next would wait there for a question that cannot come.
            line.close();
        }
        drop(line);
        match next {
            None => break,
            Some(ReaderJob::Close) => {}
            Some(ReaderJob::Read(read)) => match place.map_or(Ok(()), Place::check) {
                // What a file that others do not see says of a key decides nothing.
                Err(misplaced) => read.fail(misplaced.into()),
                Ok(()) => {
                    // A panic in the program's clock fails the one call, whose answer is dropped with it.
                    let _ = catch_unwind(AssertUnwindSafe(|| read.answer(&connection, clock)));
                }
            },
        }
    }
    drop(connection);
    drop(closed);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::thread;

    use idem_core::SystemClock;

    use super::*;

    /// If it were open, whoever has the place next would wait there, while the one that is to close it waits for the
    /// place.
    #[test]
    fn the_place_at_the_line_is_not_given_up_between_taking_close_and_closing_it() {
        for _ in 0..500 {
            let (sender, queue) = mpsc::channel(4);
            let queue: ReaderQueue = Arc::new(Mutex::new(queue));
            let (close, closed) = watch::channel(());
            let reader = thread::spawn({
                let queue = queue.clone();
                let connection = Connection::open_in_memory().unwrap();
                move || serve(connection, None, &queue, &SystemClock, close)
            });
            // The reader waits at the line.
            while queue.try_lock().is_ok() {
                thread::yield_now();
            }
            // This is the next one.
            let next = thread::spawn({
                let queue = queue.clone();
                move || queue.lock().unwrap().is_closed()
            });
            thread::yield_now();
            sender.blocking_send(ReaderJob::Close).unwrap();
            let is_closed = next.join().unwrap();
            assert!(is_closed);
            reader.join().unwrap();
            assert!(closed.has_changed().is_err());
        }
    }
}
