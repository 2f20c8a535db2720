//! The demo: starts the provider and the service as processes, plays the client, and judges by the ledger.

mod call;
mod error;
mod judge;
mod paper;
mod process;
mod scenes;
mod serve;
mod stage;
mod told;

pub use self::error::DemoError;
pub use self::judge::{Answered, Operation, Verdict, judge};
pub use self::process::Process;
pub use self::serve::serve;

use self::paper::Paper;
use self::stage::Stage;
use crate::listen::{Lifetime, stop_asked};
use crate::service::Keys;

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

/// Plays the whole story and prints it, with a Redis in front of the store if there is one.
///
/// # Errors
///
/// [`DemoError`] when it cannot be played to its end.
///
/// # Cancellation
///
/// However it ends, the processes that it started are killed and its directory is removed.
pub async fn play(keys: Keys, redis: Option<String>) -> Result<Ending, DemoError> {
    let stop = stop_asked(Lifetime::UntilSignal)?;
    let story = async {
        let paper = Paper::on_standard_output();
        let mut stage = Stage::set(paper, keys, redis).await?;
        scenes::play(&mut stage).await?;
        stage.conclude()
    };
    tokio::select! {
        ending = story => ending,
        () = stop => Ok(Ending::Interrupted),
    }
}
