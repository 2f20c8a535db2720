//! The demo: starts the provider and the service as processes, plays the client, and judges by the ledger.

mod call;
mod error;
mod judge;
mod paper;
mod process;
mod scenes;
mod schema;
mod serve;
mod stage;
mod told;

pub use self::error::DemoError;
pub use self::judge::{Answered, Operation, Verdict, judge};
pub use self::process::Process;
pub use self::serve::serve;

use self::paper::Paper;
use self::schema::until_stopped;
use self::stage::Stage;
use crate::service::{Keys, PostgresUrl};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Good,
    /// Something was done twice, or lost, or answered in two ways.
    Bad,
    /// By a signal.
    Interrupted,
}

/// Plays the whole story and prints it: in SQLite or in that Postgres, with a Redis in front of it if there is one.
///
/// # Errors
///
/// [`DemoError`] when it cannot be played to its end.
///
/// # Cancellation
///
/// However it ends, the processes that it started are killed, its directory is removed, and its schema in the database is
/// dropped. Dropping the future leaves the schema.
pub async fn play(
    keys: Keys,
    postgres: Option<PostgresUrl>,
    redis: Option<String>,
) -> Result<Ending, DemoError> {
    let story = async |records| {
        let paper = Paper::on_standard_output();
        let mut stage = Stage::set(paper, keys, records, redis).await?;
        scenes::play(&mut stage).await?;
        stage.conclude()
    };
    until_stopped(postgres, Ending::Interrupted, story).await
}
