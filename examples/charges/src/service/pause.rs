use std::io::{self, Write as _};
use std::str::FromStr;

use thiserror::Error;

/// A place in the work at which a service can be told to stop and wait, so that it can be killed exactly there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The provider has answered, and nothing is stored of that.
    ProviderAnswered,
    /// The provider's answer is stored as a checkpoint, and the request is not completed.
    Checkpointed,
}

/// What a service prints, on a line of its own, when it waits to be killed.
pub const PAUSED: &str = "paused";

impl Place {
    const ALL: [Self; 2] = [Self::ProviderAnswered, Self::Checkpointed];

    /// The name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ProviderAnswered => "provider-answered",
            Self::Checkpointed => "checkpointed",
        }
    }
}

impl FromStr for Place {
    type Err = UnknownPlace;

    fn from_str(name: &str) -> Result<Self, UnknownPlace> {
        let known = Self::ALL.into_iter().find(|place| place.name() == name);
        known.ok_or(UnknownPlace)
    }
}

/// A text that names no [`Place`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a service pauses at provider-answered or at checkpointed")]
pub struct UnknownPlace;

/// Waits for good, if this is the place.
pub(super) async fn pause(at: Option<Place>, here: Place) {
    if at == Some(here) {
        let mut out = io::stdout();
        let _ = writeln!(out, "{PAUSED}").and_then(|()| out.flush());
        std::future::pending::<()>().await;
    }
}
