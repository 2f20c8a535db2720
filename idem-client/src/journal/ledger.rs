//! What is done to the file. One thread does it, a call after the other, each in one transaction that is synced when it returns.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idem_core::{IdempotencyKey, Timestamp};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior};

use super::options::FilesystemPolicy;
use super::owner::{self, Owner};
use super::place::Place;
use super::row::{COLUMNS, Row, name_of};
use super::{
    Answer, Entry, JournalError, JournalErrorKind, JournalOptions, Operation, Recorded, State,
};
use super::{filesystem, headers, schema};
use crate::{Horizon, Parked, key_hash};

/// By how much the clock may be behind what was written under it. A step of a time server is smaller.
const TOLERATED: Duration = Duration::from_secs(60);

/// The open file.
#[derive(Debug)]
pub(crate) struct Ledger {
    connection: Connection,
    owner: Owner,
    place: Option<Place>,
    path: Option<PathBuf>,
    options: JournalOptions,
    /// What this process sends at the moment. The rows say that it is this owner's, which they may also do after a release
    /// that could not be written.
    in_flight: HashSet<IdempotencyKey>,
}

/// What may be done with an operation.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It is to be sent, now, by whoever asked.
    Send {
        operation: Box<Operation>,
        horizon: Horizon,
        age: Duration,
    },
    /// Somebody else sends it.
    Busy,
    Parked(Parked),
    Answered(Box<Answer>),
    Closed,
    /// There is another request under its key.
    Different,
    Absent,
}

impl Ledger {
    pub(crate) fn open(
        path: Option<PathBuf>,
        options: JournalOptions,
        name: [u8; 16],
    ) -> Result<Self, JournalError> {
        let failed = |error| JournalError::sqlite("opening the journal", error);
        if let Some(path) = &path
            && options.filesystem == FilesystemPolicy::RefuseNetwork
        {
            filesystem::refuse_remote(path)?;
        }
        let mut connection = connect(path.as_deref())?;
        connection
            .busy_timeout(options.busy_timeout)
            .map_err(failed)?;
        // What is somebody else's is left as it is, so this comes before the first setting that is written.
        schema::refuse_others(&connection)?;
        if connection.is_readonly(rusqlite::MAIN_DB).map_err(failed)? {
            return Err(JournalError::new(
                JournalErrorKind::ReadOnly,
                "the journal's file is read-only for this program; a journal is written",
            ));
        }
        // A rollback journal, since there is one writer and hardly a reader: its commits are synced before they return,
        // the removal of the old content included, and beside the file there is nothing when nobody writes.
        let settings = "PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA; PRAGMA fullfsync = ON; \
             PRAGMA secure_delete = ON; PRAGMA trusted_schema = OFF";
        connection.execute_batch(settings).map_err(failed)?;
        schema::prepare(&mut connection, options.clock.now())?;
        let place = path.as_deref().map(Place::of).transpose()?;
        let transaction =
            Transaction::new(&mut connection, TransactionBehavior::Immediate).map_err(failed)?;
        let owner = match &path {
            Some(path) => Owner::register(&transaction, path, name)?,
            None => Owner::alone(name),
        };
        // A table that was altered by hand is found out now, and not by the first operation.
        transaction
            .prepare(&format!("SELECT {COLUMNS} FROM idem_client_operation"))
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(Self {
            connection,
            owner,
            place,
            path,
            options,
            in_flight: HashSet::new(),
        })
    }

    /// Writes an operation down, unless it is there.
    pub(crate) fn record(
        &mut self,
        operation: &Operation,
        horizon: Horizon,
    ) -> Result<Recorded, JournalError> {
        self.write("writing an operation down", |ledger, transaction| {
            insert(transaction, operation, horizon, ledger.now())?;
            match load(transaction, operation.key())? {
                Some(row) if row.digest == operation.digest() => Ok(Recorded::There(row.state()?)),
                _ => Ok(Recorded::Different),
            }
        })
    }

    /// Writes an operation down, unless it is there, and begins an attempt, unless it must not.
    pub(crate) fn begin(
        &mut self,
        operation: &Operation,
        horizon: Horizon,
    ) -> Result<Standing, JournalError> {
        let key = operation.key().clone();
        let begun = self.write(
            "writing down that an operation begins",
            |ledger, transaction| {
                insert(transaction, operation, horizon, ledger.now())?;
                ledger.claim(transaction, operation.key(), Some(operation))
            },
        )?;
        Ok(self.keep(key, begun))
    }

    /// Begins an attempt of an operation that was written down.
    pub(crate) fn take(&mut self, key: &IdempotencyKey) -> Result<Standing, JournalError> {
        let taken = self.write("taking an operation up again", |ledger, transaction| {
            ledger.claim(transaction, key, None)
        })?;
        Ok(self.keep(key.clone(), taken))
    }

    /// Begins one more attempt of what this process sends. `Absent` when it is no longer its to send.
    pub(crate) fn attempt(&mut self, key: &IdempotencyKey) -> Result<Standing, JournalError> {
        self.write(
            "writing down that an attempt begins",
            |ledger, transaction| match load(transaction, key)? {
                Some(row)
                    if row.owner == Some(ledger.owner.name()) && row.state()? == State::Pending =>
                {
                    ledger.go(transaction, &row)
                }
                _ => Ok(Standing::Absent),
            },
        )
    }

    /// Keeps the answer of what this process sent.
    pub(crate) fn answered(
        &mut self,
        key: &IdempotencyKey,
        answer: &Answer,
    ) -> Result<(), JournalError> {
        let lines = headers::encode(answer.headers());
        self.write("writing an answer down", |ledger, transaction| {
            // Not by its owner alone: an answer is one, whoever has taken over meanwhile, unless there is one.
            transaction.execute(
                "UPDATE idem_client_operation SET state = 'answered', parked = NULL, owner = NULL, answer_status = ?2, \
                     answer_headers = ?3, answer_body = ?4, answer_cut = ?5, finished_at = ?6, last_outcome = ?7 \
                 WHERE \"key\" = ?1 AND state IN ('pending', 'parked')",
                (
                    key.as_str(),
                    answer.status().as_u16(),
                    &lines,
                    &answer.body()[..],
                    answer.is_cut(),
                    ledger.now().as_micros(),
                    format!("answered {}", answer.status().as_u16()),
                ),
            )
            .map_err(writing)?;
            Ok(())
        })?;
        self.in_flight.remove(key);
        Ok(())
    }

    /// Parks what this process sent.
    pub(crate) fn park(
        &mut self,
        key: &IdempotencyKey,
        why: Parked,
        outcome: &str,
    ) -> Result<(), JournalError> {
        self.write("parking an operation", |ledger, transaction| {
            transaction.execute(
                "UPDATE idem_client_operation SET state = 'parked', parked = ?2, owner = NULL, last_outcome = ?3 \
                 WHERE \"key\" = ?1 AND state = 'pending' AND owner = ?4",
                (key.as_str(), name_of(why), outcome, ledger.owner.name()),
            )
            .map_err(writing)?;
            Ok(())
        })?;
        self.in_flight.remove(key);
        Ok(())
    }

    /// This process does not send it any more. The row is told as well, for others; where that fails, they wait until this
    /// process ends.
    pub(crate) fn release(
        &mut self,
        key: &IdempotencyKey,
        outcome: Option<&str>,
    ) -> Result<(), JournalError> {
        self.in_flight.remove(key);
        self.write("releasing an operation", |ledger, transaction| {
            transaction.execute(
                "UPDATE idem_client_operation SET owner = NULL, last_outcome = coalesce(?2, last_outcome) \
                 WHERE \"key\" = ?1 AND owner = ?3",
                (key.as_str(), outcome, ledger.owner.name()),
            )
            .map_err(writing)?;
            Ok(())
        })
    }

    /// What is not closed, oldest first.
    pub(crate) fn open_entries(&mut self) -> Result<Vec<Entry>, JournalError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM idem_client_operation WHERE state <> 'closed' ORDER BY created_at, \"key\""
        );
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement
                .query_map([], Row::read)?
                .collect::<Result<Vec<_>, _>>()
        })?
        .iter()
        .map(Row::entry)
        .collect()
    }

    pub(crate) fn entry(&mut self, key: &IdempotencyKey) -> Result<Option<Entry>, JournalError> {
        let row = self.read(|connection| select(connection, key))?;
        row.as_ref().map(Row::entry).transpose()
    }

    /// Closes what is in one of these states and not being sent. Whether it was.
    pub(crate) fn close(
        &mut self,
        key: &IdempotencyKey,
        answered: bool,
        note: Option<&str>,
    ) -> Result<bool, JournalError> {
        self.write("closing an operation", |ledger, transaction| {
            let Some(row) = load(transaction, key)? else {
                return Ok(false);
            };
            let fits = match row.state()? {
                State::Answered(_) => answered,
                State::Pending | State::Parked(_) => !answered && !ledger.is_sent(transaction, &row)?,
                State::Closed => false,
            };
            if fits {
                transaction
                    .execute(
                        "UPDATE idem_client_operation SET state = 'closed', parked = NULL, owner = NULL, method = NULL, \
                             url = NULL, headers = NULL, body = NULL, answer_status = NULL, answer_headers = NULL, \
                             answer_body = NULL, answer_cut = NULL, note = ?2, finished_at = ?3 WHERE \"key\" = ?1",
                        (key.as_str(), note, ledger.now().as_micros()),
                    )
                    .map_err(writing)?;
            }
            Ok(fits)
        })
    }

    /// Makes what is parked pending. Whether it was.
    pub(crate) fn unpark(
        &mut self,
        key: &IdempotencyKey,
        note: Option<&str>,
    ) -> Result<bool, JournalError> {
        self.write("un-parking an operation", |ledger, transaction| {
            let Some(row) = load(transaction, key)? else {
                return Ok(false);
            };
            let State::Parked(why) = row.state()? else {
                return Ok(false);
            };
            // Past the horizon it would be parked again at once, so the count begins anew.
            let anew = (why == Parked::PastHorizon).then(|| ledger.now().as_micros());
            let sql = "UPDATE idem_client_operation SET state = 'pending', parked = NULL, owner = NULL, note = ?2, \
                       horizon_from = CASE WHEN horizon_from IS NULL THEN NULL ELSE coalesce(?3, horizon_from) END \
                       WHERE \"key\" = ?1";
            transaction
                .execute(sql, (key.as_str(), note, anew))
                .map_err(writing)?;
            Ok(true)
        })
    }

    /// Removes what was closed so long ago.
    pub(crate) fn forget(&mut self, age: Duration) -> Result<u64, JournalError> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        self.write("forgetting what was closed", |ledger, transaction| {
            let before = ledger.now().as_micros().saturating_sub(age);
            let removed = transaction
                .execute(
                    "DELETE FROM idem_client_operation WHERE state = 'closed' AND finished_at <= ?1",
                    [before],
                )
                .map_err(writing)?;
            Ok(removed as u64)
        })
    }

    /// Begins an attempt, if the operation is anybody's to send.
    fn claim(
        &self,
        transaction: &Transaction<'_>,
        key: &IdempotencyKey,
        expected: Option<&Operation>,
    ) -> Result<Standing, JournalError> {
        let Some(row) = load(transaction, key)? else {
            return Ok(Standing::Absent);
        };
        if expected.is_some_and(|expected| expected.digest() != row.digest) {
            return Ok(Standing::Different);
        }
        match row.state()? {
            State::Answered(answer) => Ok(Standing::Answered(Box::new(answer))),
            State::Parked(why) => Ok(Standing::Parked(why)),
            State::Closed => Ok(Standing::Closed),
            State::Pending if self.is_sent(transaction, &row)? => Ok(Standing::Busy),
            State::Pending => self.go(transaction, &row),
        }
    }

    /// Writes an attempt down, or parks the operation if it is too old for one.
    fn go(&self, transaction: &Transaction<'_>, row: &Row) -> Result<Standing, JournalError> {
        let now = self.now();
        let key = row.key()?;
        let horizon = Horizon::of_row(row.horizon());
        let age = age_at(row, now)?;
        if horizon.is_past(age) {
            transaction
                .execute(
                    "UPDATE idem_client_operation SET state = 'parked', parked = ?2, owner = NULL WHERE \"key\" = ?1",
                    (key.as_str(), name_of(Parked::PastHorizon)),
                )
                .map_err(writing)?;
            return Ok(Standing::Parked(Parked::PastHorizon));
        }
        transaction
            .execute(
                "UPDATE idem_client_operation SET owner = ?2, attempts = attempts + 1, last_attempt_at = ?3, \
                     first_attempt_at = coalesce(first_attempt_at, ?3), horizon_from = coalesce(horizon_from, ?3) \
                 WHERE \"key\" = ?1",
                (key.as_str(), self.owner.name(), now.as_micros()),
            )
            .map_err(writing)?;
        Ok(Standing::Send {
            operation: Box::new(row.operation()?),
            horizon,
            age,
        })
    }

    /// Whether somebody sends it at this moment. Whoever has ended does not.
    fn is_sent(&self, transaction: &Transaction<'_>, row: &Row) -> Result<bool, JournalError> {
        match (row.owner, &self.path) {
            (None, _) => Ok(false),
            (Some(owner), _) if owner == self.owner.name() => {
                Ok(self.in_flight.contains(&row.key()?))
            }
            (Some(_), None) => Ok(false),
            (Some(owner), Some(path)) => {
                let lives = owner::lives(path, &owner)?;
                if !lives {
                    owner::forget(transaction, path, &owner)?;
                }
                Ok(lives)
            }
        }
    }

    fn keep(&mut self, key: IdempotencyKey, standing: Standing) -> Standing {
        if matches!(standing, Standing::Send { .. }) {
            self.in_flight.insert(key);
        }
        standing
    }

    /// One transaction that has the lock from its beginning, so that what it reads is still so when it writes.
    fn write<T>(
        &mut self,
        doing: &str,
        work: impl FnOnce(&Self, &Transaction<'_>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.check_place()?;
        let failed = |error| JournalError::sqlite(doing, error);
        let transaction =
            Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
                .map_err(failed)?;
        let done = work(self, &transaction)?;
        transaction.commit().map_err(failed)?;
        Ok(done)
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        self.check_place()?;
        work(&self.connection).map_err(|error| JournalError::sqlite("reading the journal", error))
    }

    fn check_place(&self) -> Result<(), JournalError> {
        self.place.as_ref().map_or(Ok(()), Place::check)
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Before the lock goes: nothing is in flight any more. What cannot be written is seen by whoever looks at the lock.
        if self.path.is_some() && self.check_place().is_ok() {
            let name = self.owner.name();
            let _ = self
                .connection
                .execute("DELETE FROM idem_client_owner WHERE owner = ?1", [name]);
        }
    }
}

/// How long ago the horizon began to be counted.
fn age_at(row: &Row, now: Timestamp) -> Result<Duration, JournalError> {
    let (Some(from), Some(last)) = (row.horizon_from, row.last_attempt_at) else {
        return Ok(Duration::ZERO);
    };
    let latest = from.max(last);
    let behind =
        Duration::from_micros(latest.saturating_sub(now.as_micros()).max(0).unsigned_abs());
    if behind > TOLERATED {
        let message = format!(
            "the clock is {behind:?} behind the last attempt of operation {}, whose age is therefore not known; set the clock, \
             or close the operation",
            key_hash(&row.key()?)
        );
        return Err(JournalError::new(JournalErrorKind::ClockBehind, message));
    }
    let now = now.as_micros().max(latest);
    Ok(Duration::from_micros(
        now.saturating_sub(from).unsigned_abs(),
    ))
}

fn insert(
    transaction: &Transaction<'_>,
    operation: &Operation,
    horizon: Horizon,
    now: Timestamp,
) -> Result<(), JournalError> {
    let horizon = i64::try_from(horizon.as_duration().as_micros()).unwrap_or(i64::MAX);
    let lines = headers::encode(operation.headers());
    transaction
        .prepare_cached(
            "INSERT INTO idem_client_operation \
                 (\"key\", label, digest, state, method, url, headers, body, horizon, created_at, attempts) \
             VALUES (?1, ?2, ?3, 'pending', ?4, ?5, ?6, ?7, ?8, ?9, 0) ON CONFLICT (\"key\") DO NOTHING",
        )
        .and_then(|mut statement| {
            statement.execute((
                operation.key().as_str(),
                operation.label(),
                operation.digest(),
                operation.method().as_str(),
                operation.url(),
                &lines,
                &operation.body()[..],
                horizon,
                now.as_micros(),
            ))
        })
        .map_err(writing)?;
    Ok(())
}

fn load(transaction: &Transaction<'_>, key: &IdempotencyKey) -> Result<Option<Row>, JournalError> {
    select(transaction, key).map_err(|error| JournalError::sqlite("reading the journal", error))
}

fn select(connection: &Connection, key: &IdempotencyKey) -> rusqlite::Result<Option<Row>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM idem_client_operation WHERE \"key\" = ?1"
        ))?
        .query_row([key.as_str()], Row::read)
        .optional()
}

fn writing(error: rusqlite::Error) -> JournalError {
    JournalError::sqlite("writing the journal", error)
}

fn connect(path: Option<&Path>) -> Result<Connection, JournalError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match path {
        None => Connection::open_in_memory_with_flags(flags),
        Some(path) => {
            create_private(path)?;
            Connection::open_with_flags(path, flags)
        }
    };
    opened.map_err(|error| JournalError::sqlite("opening the journal", error))
}

/// Makes the file if it is not there, for nobody else to read: it holds what is sent and answered. SQLite gives the files beside
/// it the same mode.
fn create_private(path: &Path) -> Result<(), JournalError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(JournalError::of_io("making the journal's file", error)),
    }
}
