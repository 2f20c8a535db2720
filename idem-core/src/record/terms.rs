use std::fmt;

use thiserror::Error;

use crate::time::Span;

/// What may happen when a lease runs out and nobody knows whether the work was done.
///
/// ```
/// use idem_core::Contract;
///
/// assert_eq!(Contract::parse(Contract::Hold.as_str()), Ok(Contract::Hold));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Somebody else takes over and runs the work again. Right where the effect is guarded by a second key: a
    /// card charge with the provider's own idempotency key.
    Reclaim,
    /// Nobody runs it again: at most once. Right where a repetition is worse than a loss: a text message that
    /// costs money, a push notification. An operator or a reconciler resolves the record.
    Hold,
}

impl Contract {
    /// Every contract.
    pub const ALL: [Self; 2] = [Self::Reclaim, Self::Hold];

    /// The word that stores write.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::Hold => "hold",
        }
    }

    /// Reads the word that a store holds.
    ///
    /// # Errors
    ///
    /// [`UnknownContract`] for any other word.
    pub fn parse(word: &str) -> Result<Self, UnknownContract> {
        Self::ALL
            .into_iter()
            .find(|contract| contract.as_str() == word)
            .ok_or(UnknownContract)
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no [`Contract`] of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the stored contract is none that this version knows; a newer version may have written it")]
pub struct UnknownContract;

/// What was promised when the record was claimed.
///
/// They are stored in the record, so that a configuration that changes while work is under way cannot break
/// the promise: a message that was begun *at most once* stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// What may happen when a lease runs out.
    pub contract: Contract,
    /// How long a finished record replays, counted from when it finished.
    pub retention: Span,
    /// How long after a side effect may first have existed the work may still be run again. It has to end
    /// before the provider forgets its own key.
    pub reclaim_window: Span,
    /// How many times an uncertain record may be taken over.
    pub max_reclaims: u32,
}
