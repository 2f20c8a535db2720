use std::fmt;

/// Which version of a record this is. It grows with every write, whoever writes.
///
/// Together with the [`OwnerToken`](super::OwnerToken) it is what a compare-and-swap compares: a lease that was
/// renewed since the snapshot has another revision, so it cannot be stolen through that snapshot.
///
/// ```
/// use idem_core::Revision;
///
/// assert!(Revision::FIRST < Revision::FIRST.next());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(u64);

impl Revision {
    /// What a first claim writes.
    pub const FIRST: Self = Self(1);

    /// The revision with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The revision after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
