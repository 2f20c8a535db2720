use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use idem_core::IdempotencyKey;
use tokio::sync::oneshot;

use super::ledger::{Ledger, Standing};
use super::{
    Begun, Entry, JournalError, JournalErrorKind, JournalOptions, Operation, Recorded, State,
};
use crate::Horizon;

/// What was sent and not yet answered, in a SQLite file, so that a crash forgets nothing of it.
///
/// An operation is written down before its first attempt, and its answer before anybody is told of it. Each of these writes is
/// synced when its call returns. The answer stays until it is [acknowledged](Journal::acknowledge), so that a crash between the
/// answer and the program's own record of it loses nothing either. What was acknowledged or closed leaves its key behind:
/// the same operation does not begin again by mistake, until [`forget`](Journal::forget).
///
/// Several processes may have one file open. An operation is sent by one of them at a time: whoever sends holds a lock that
/// the system takes away when its process ends, so what a killed process was sending can be taken up at once. Cloning is
/// cheap, and clones are the same journal.
///
/// # What is in the file
///
/// The method, the URL, the header lines and the body of every operation that is not over, byte for byte; its key and its label,
/// and of an answer that is not acknowledged the status, the header lines but `Set-Cookie`, and the body. Authorization is not: it is
/// added to each attempt, and an [`Operation`] that holds some is refused. Whoever can read the file can read the rest, and with a
/// key can ask the service for the answer; so only the user who makes it may read it, on Unix. It belongs on a local disk, and not
/// into a backup that is put back: that would take operations up again which were finished since.
///
/// # Cancellation
///
/// A call that is dropped may still be carried out, whole. A [`Claim`](crate::Claim) that it would have given is released.
///
/// ```
/// use std::time::Duration;
/// use idem_client::{Horizon, Journal, Operation, State};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let journal = Journal::open_in_memory().await?; // in a program: `open("sent.db")`
/// let day = Duration::from_secs(24 * 3600);
/// let charge = Operation::post("https://api.example/v1/charges").key_for("charge", "order-4711").build()?;
/// journal.record(&charge, Horizon::within(day, day)?).await?;
///
/// let pending = journal.pending().await?;
/// assert_eq!(pending[0].label.as_deref(), Some("charge order-4711"));
/// assert_eq!(pending[0].state, State::Pending);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Journal {
    calls: Sender<Call>,
    path: Option<PathBuf>,
}

type Work = Box<dyn FnOnce(&mut Ledger) + Send>;

enum Call {
    Do(Work),
    Close(oneshot::Sender<()>),
}

impl Journal {
    /// Opens the journal in this file, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`JournalError`] whose kind says why: there is no such directory, it is on another machine, it must not be written, the file is another
    /// application's, a later version's, or damaged. Such a file is left as it is.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        JournalOptions::new().open(path).await
    }

    /// Opens a journal that is in memory: what it holds is gone with the process. For tests, and programs that have nothing to lose.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when the system gives no thread or no memory for it.
    pub async fn open_in_memory() -> Result<Self, JournalError> {
        JournalOptions::new().open_in_memory().await
    }

    pub(crate) async fn start(
        path: Option<PathBuf>,
        options: JournalOptions,
    ) -> Result<Self, JournalError> {
        let unavailable = |message: &str| JournalError::new(JournalErrorKind::Unavailable, message);
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(|error| {
            unavailable("the system gave no random numbers for the journal").because(error)
        })?;
        let (calls, work) = channel();
        let (opened, opening) = oneshot::channel();
        let file = path.clone();
        let serve = move || {
            let mut ledger = match Ledger::open(file, options, name) {
                Ok(ledger) => ledger,
                Err(error) => {
                    // Nobody waits for it any more.
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            if opened.send(Ok(())).is_err() {
                return;
            }
            for call in work {
                match call {
                    Call::Do(work) => work(&mut ledger),
                    Call::Close(closed) => {
                        drop(ledger);
                        let _ = closed.send(());
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("idem-client-journal".to_owned())
            .spawn(serve)
            .map_err(|error| {
                unavailable("the system gave no thread for the journal").because(error)
            })?;
        opening
            .await
            .unwrap_or_else(|_| Err(JournalError::closed()))?;
        Ok(Self { calls, path })
    }

    /// Writes an operation down that is to be sent later, by whoever resumes it, and says how far it has come. One that is there
    /// already, by its key, stays as it is, and so does its horizon.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written.
    pub async fn record(
        &self,
        operation: &Operation,
        horizon: Horizon,
    ) -> Result<Recorded, JournalError> {
        let operation = operation.clone();
        self.call(move |ledger| ledger.record(&operation, horizon))
            .await
    }

    /// Writes an operation down, unless it is there already, and that an attempt of it begins now. Whoever is given a [`Claim`](crate::Claim) is
    /// the only one to send it.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. Then it must not be sent.
    pub async fn begin(
        &self,
        operation: &Operation,
        horizon: Horizon,
    ) -> Result<Begun, JournalError> {
        let operation = operation.clone();
        self.stand(move |ledger| ledger.begin(&operation, horizon))
            .await
    }

    /// Writes down that an attempt begins now of an operation that is in the journal.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written. Then it must not be sent.
    pub async fn take(&self, key: &IdempotencyKey) -> Result<Begun, JournalError> {
        let key = key.clone();
        self.stand(move |ledger| ledger.take(&key)).await
    }

    /// What has no answer, parked or not, oldest first.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it cannot be read.
    pub async fn pending(&self) -> Result<Vec<Entry>, JournalError> {
        let mut entries = self.unfinished().await?;
        entries.retain(|entry| !matches!(entry.state, State::Answered(_)));
        Ok(entries)
    }

    /// What is not over, oldest first: what has no answer, and what has one that is not acknowledged.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it cannot be read.
    pub async fn unfinished(&self) -> Result<Vec<Entry>, JournalError> {
        self.call(Ledger::open_entries).await
    }

    /// What the journal holds under this key, whatever its state.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it cannot be read.
    pub async fn entry(&self, key: &IdempotencyKey) -> Result<Option<Entry>, JournalError> {
        let key = key.clone();
        self.call(move |ledger| ledger.entry(&key)).await
    }

    /// The program has recorded the answer itself. From here on the journal keeps neither what was sent nor what was
    /// answered. `false` when there is no such answer, or not any more.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written.
    pub async fn acknowledge(&self, key: &IdempotencyKey) -> Result<bool, JournalError> {
        let key = key.clone();
        self.call(move |ledger| ledger.close(&key, true, None))
            .await
    }

    /// Somebody has found out what became of an operation that has no answer, and it is not sent again. `false` when it has an
    /// answer, is being sent at this moment, or is not there.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written.
    pub async fn close_operation(
        &self,
        key: &IdempotencyKey,
        note: impl Into<String>,
    ) -> Result<bool, JournalError> {
        let (key, note) = (key.clone(), note.into());
        self.call(move |ledger| ledger.close(&key, false, Some(&note)))
            .await
    }

    /// Somebody has looked at a parked operation, and it may be sent again. `false` when it is not parked.
    ///
    /// If it was parked because of its horizon, the horizon counts anew from now. The service may have forgotten the key by then,
    /// and do what it did before once more: make sure that it has not done it.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written.
    pub async fn unpark(
        &self,
        key: &IdempotencyKey,
        note: impl Into<String>,
    ) -> Result<bool, JournalError> {
        let (key, note) = (key.clone(), note.into());
        self.call(move |ledger| ledger.unpark(&key, Some(&note)))
            .await
    }

    /// Removes what was acknowledged or closed at least so long ago, and gives the number. From then on the same operation can
    /// begin again, so this is longer than the program could come back to it.
    ///
    /// # Errors
    ///
    /// [`JournalError`] when it could not be written.
    pub async fn forget(&self, closed_for: Duration) -> Result<u64, JournalError> {
        self.call(move |ledger| ledger.forget(closed_for)).await
    }

    /// Closes the file, when what was begun before is done. Clones find it closed. Without it, the file is closed after the last
    /// clone is dropped.
    pub async fn close(self) {
        let (closed, closing) = oneshot::channel();
        if self.calls.send(Call::Close(closed)).is_ok() {
            // An error says that it was closed already.
            let _ = closing.await;
        }
    }

    async fn stand(
        &self,
        work: impl FnOnce(&mut Ledger) -> Result<Standing, JournalError> + Send + 'static,
    ) -> Result<Begun, JournalError> {
        let journal = self.clone();
        let (done, waiting) = oneshot::channel();
        self.post(move |ledger| {
            let begun = work(ledger).map(|standing| Begun::of(standing, journal));
            // If nobody waits for it any more, it is released here, before whatever that caller asks for next.
            if let Err(Ok(Begun::Claimed(claim))) = done.send(begun) {
                claim.forgo(ledger);
            }
        })?;
        waiting
            .await
            .unwrap_or_else(|_| Err(JournalError::closed()))
    }

    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (done, waiting) = oneshot::channel();
        self.post(move |ledger| {
            // Whoever has gone does not want to know.
            let _ = done.send(work(ledger));
        })?;
        waiting
            .await
            .unwrap_or_else(|_| Err(JournalError::closed()))
    }

    /// Has something done without waiting for it.
    pub(crate) fn post(
        &self,
        work: impl FnOnce(&mut Ledger) + Send + 'static,
    ) -> Result<(), JournalError> {
        self.calls
            .send(Call::Do(Box::new(work)))
            .map_err(|_| JournalError::closed())
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
