use std::error::Error;
use std::io;
use std::path::PathBuf;

use idem_core::StoreError;
use idem_postgres::sqlx;
use thiserror::Error;

use crate::http::HttpError;
use crate::provider::LedgerError;

/// Why the demo cannot be played to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DemoError {
    /// A process could not be started, or a directory not made.
    #[error("the demo could not set itself up")]
    Io(#[from] io::Error),
    /// The story cannot be written to standard output.
    #[error("standard output cannot be written to")]
    Output(#[source] io::Error),
    /// The database that was named cannot be opened.
    #[error("the store {} cannot be opened", path.display())]
    Store {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// The database that was named cannot be reached, or no schema be made in it.
    #[error("there is no place for the records in {database}")]
    Postgres {
        /// Which database.
        database: String,
        /// Why.
        source: sqlx::Error,
    },
    /// What the demo has made in the database is still there.
    #[error("the schema {schema} is left in {database}; drop it by hand")]
    SchemaLeft {
        /// Which schema.
        schema: String,
        /// Of which database.
        database: String,
        /// Why it could not be dropped.
        #[source]
        why: Box<dyn Error + Send + Sync>,
    },
    /// A process of the demo ended before it listened.
    #[error("the {name} ended before it was ready: {said}")]
    NotReady {
        /// Which process.
        name: &'static str,
        /// What it said on standard error.
        said: String,
    },
    /// A process of the demo did not say what it should within ten seconds.
    #[error("the {name} did not say {expected:?} in time")]
    Silent {
        /// Which process.
        name: &'static str,
        /// What it should have said.
        expected: &'static str,
    },
    /// A process ended by itself.
    #[error("the {name} has ended: see above for why")]
    Ended {
        /// Which process.
        name: &'static str,
    },
    /// There was no answer where there should be one.
    #[error("there was no answer")]
    Http(#[from] HttpError),
    /// A request could not be made.
    #[error("a request could not be made")]
    Request(#[from] axum::http::Error),
    /// The ledger cannot be read.
    #[error("the ledger cannot be read")]
    Ledger(#[from] LedgerError),
    /// A task of the demo died.
    #[error("a client of the demo died")]
    Task(#[from] tokio::task::JoinError),
}
