use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use idem_core::StoreError;
use idem_core::StoreErrorKind;
use idem_core::executor::TxAttempt;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use crate::error::{self, Effect};

pub(crate) const WORKING: &str = "working in one transaction";

/// A transaction, in the hands of the work that is done in it.
///
/// It derefs to the connection: `sqlx::query(…).execute(&mut *tx)`. With [`Connection::begin`](sqlx::Connection::begin) it
/// makes savepoints. The work must not end it, and must not keep it: when the work is done, its record is written in it.
pub struct Tx<'c> {
    /// There until it is dropped.
    held: Option<Held<'c>>,
    home: Arc<Home<'c>>,
    attempt: TxAttempt,
}

impl Tx<'_> {
    /// The attempt that the work is.
    #[must_use]
    pub fn attempt(&self) -> &TxAttempt {
        &self.attempt
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Deref for Tx<'_> {
    type Target = PgConnection;

    #[expect(
        clippy::expect_used,
        reason = "only `drop` takes it, and nobody derefs afterwards"
    )]
    fn deref(&self) -> &PgConnection {
        self.held
            .as_ref()
            .expect("a transaction that is not dropped")
            .connection()
    }
}

impl DerefMut for Tx<'_> {
    #[expect(
        clippy::expect_used,
        reason = "only `drop` takes it, and nobody derefs afterwards"
    )]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.held
            .as_mut()
            .expect("a transaction that is not dropped")
            .connection_mut()
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        *self.home.0.lock().unwrap_or_else(PoisonError::into_inner) = self.held.take();
    }
}

/// Where the connection of a [`Tx`] goes when the work drops it. So the work's future can own it, and may be any future.
struct Home<'c>(Mutex<Option<Held<'c>>>);

/// A connection with a transaction open.
enum Held<'c> {
    Owned(Transaction<'static, Postgres>),
    Callers(&'c mut PgConnection),
}

impl Held<'_> {
    fn connection(&self) -> &PgConnection {
        match self {
            Self::Owned(transaction) => transaction,
            Self::Callers(connection) => connection,
        }
    }

    fn connection_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Owned(transaction) => transaction,
            Self::Callers(connection) => connection,
        }
    }
}

/// A transaction of which the work is lent the connection.
pub(crate) struct Lent<'c> {
    held: Option<Held<'c>>,
    home: Arc<Home<'c>>,
}

impl<'c> From<&'c mut PgConnection> for Lent<'c> {
    fn from(connection: &'c mut PgConnection) -> Self {
        Self::holding(Held::Callers(connection))
    }
}

impl<'c> Lent<'c> {
    fn holding(held: Held<'c>) -> Self {
        Self {
            held: Some(held),
            home: Arc::new(Home(Mutex::new(None))),
        }
    }

    pub(crate) fn connection(&mut self) -> Result<&mut PgConnection, StoreError> {
        let held = self.held.as_mut().ok_or_else(gone)?;
        Ok(held.connection_mut())
    }

    pub(crate) fn lend(&mut self, attempt: TxAttempt) -> Result<Tx<'c>, StoreError> {
        Ok(Tx {
            held: Some(self.held.take().ok_or_else(gone)?),
            home: self.home.clone(),
            attempt,
        })
    }

    /// What was lent, after the work has dropped it.
    pub(crate) fn back(&mut self) -> Result<&mut PgConnection, StoreError> {
        let mut home = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.held = home.take();
        drop(home);
        self.connection()
    }
}

impl Lent<'static> {
    /// A transaction on a connection of this pool.
    ///
    /// It is begun in a task of its own, which ends whatever becomes of the caller. Dropped in the middle, sqlx 0.9 would give
    /// the connection back to the pool with the transaction open.
    pub(crate) async fn begun(pool: &PgPool) -> Result<Self, StoreError> {
        let pool = pool.clone();
        let begin = async move {
            let begun = pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED");
            begun.await
        };
        let begun = tokio::spawn(begin).await.map_err(|ended| {
            StoreError::unavailable("beginning a transaction, while the runtime ends")
                .because(ended)
        })?;
        let transaction = begun.map_err(|error| error::not_sent(WORKING, error))?;
        Ok(Self::holding(Held::Owned(transaction)))
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self.held {
            Some(Held::Owned(transaction)) => transaction.commit().await,
            // It is the caller's to commit, or it is gone, and was rolled back.
            Some(Held::Callers(_)) | None => Ok(()),
        }
    }

    /// Undoes it, so that its locks are gone when the next one begins. If that fails, the connection is on its way out, and so
    /// is the transaction.
    pub(crate) async fn roll_back(self) {
        if let Some(Held::Owned(transaction)) = self.held {
            let _ = transaction.rollback().await;
        }
    }
}

/// The error of a statement in a transaction whose commit was not sent: nothing is applied, even if the answer was lost.
pub(crate) fn failed(error: sqlx::Error) -> StoreError {
    error::sent(WORKING, Effect::Read, error).into()
}

fn gone() -> StoreError {
    StoreError::of_kind(
        StoreErrorKind::Misuse,
        "working in one transaction, which the work has kept for itself",
    )
}
