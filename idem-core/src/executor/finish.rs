//! How an outcome comes into the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::machine::Transition;
use crate::record::{Response, Snapshot};
use crate::store::StoreErrorKind;

use super::backoff::Backoff;
use super::keeper::Keeper;
use super::ownership::{Ownership, Sent, Written};
use super::shared::Underway;

/// What became of an outcome.
#[derive(Debug)]
pub(super) enum Stored {
    /// It is in the store.
    Applied,
    /// The record is somebody else's, or settled by somebody else.
    Lost(Option<Snapshot>),
}

/// An outcome that is to be stored, with all that has to live until it is: the heartbeat renews, and
/// the work counts as under way.
pub(super) struct Storing {
    pub(super) work: Underway,
    pub(super) ownership: Arc<Ownership>,
    pub(super) change: Transition,
    pub(super) keeper: Keeper,
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Storing {
    /// Tries until the outcome is applied or refused. Fencing decides when it is over, not age: as long as the
    /// record is ours, the answer belongs there.
    pub(super) async fn run(mut self) -> Stored {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let stored = loop {
            match self.keeper.during(self.ownership.send(&self.change)).await {
                Ok(Sent::Answered(Written::Lost(held))) => break Stored::Lost(held),
                Ok(Sent::Answered(_)) => break Stored::Applied,
                Ok(Sent::Contended { retry_after }) => sleep(retry_after).await,
                Err(error) if error.kind() == StoreErrorKind::TooLarge && self.shrink() => {}
                Err(_) => sleep(backoff.next()).await,
            }
        };
        self.work.waiters.poke(&self.ownership.record().id);
        stored
    }

    /// Makes the response smaller, and says whether there was anything to take away: first the body, then the
    /// headers. That the work was done must be stored, whatever else is lost.
    fn shrink(&mut self) -> bool {
        let (Transition::Complete(response) | Transition::FailFinal(response)) = &mut self.change
        else {
            return false;
        };
        let smaller = if response.body_ref().bytes().is_some() {
            response.clone().without_body()
        } else if !response.headers().is_empty() {
            Response::new(response.code()).without_body()
        } else {
            return false;
        };
        *response = smaller;
        true
    }
}
