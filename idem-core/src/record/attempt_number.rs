use std::fmt;
use std::num::NonZeroU32;

use super::Origin;

/// Which try at one logical operation this is: 1, then 2 when somebody takes over, and so on.
///
/// Numbers only grow within an [`Origin`], and begin again with the next one.
///
/// ```
/// use idem_core::AttemptNumber;
///
/// assert_eq!(AttemptNumber::FIRST.next().as_u32(), 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptNumber(NonZeroU32);

impl AttemptNumber {
    /// The first attempt.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// The attempt with this number, which is not zero.
    #[must_use]
    pub const fn new(number: NonZeroU32) -> Self {
        Self(number)
    }

    /// The number, from 1.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0.get()
    }

    /// The attempt after this one. The last number there is stays the last.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for AttemptNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fencing number of an attempt, to hand to whatever it writes to.
///
/// Within one origin a higher attempt is a later owner, so a downstream system that remembers the highest
/// attempt it has seen for an origin can refuse a late owner by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The logical operation.
    pub origin: Origin,
    /// The attempt at it.
    pub attempt: AttemptNumber,
}
