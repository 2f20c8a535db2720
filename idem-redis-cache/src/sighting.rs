use std::time::{Duration, Instant};

use crate::entry::Entry;

/// What this process knows of an attempt in progress, until when it may be said to others, by this process's own
/// monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) entry: Entry,
    pub(crate) until: Instant,
}

impl Sighting {
    /// It is good for `left` from `asked`, when the question was sent: before it was answered.
    pub(crate) fn new(entry: Entry, asked: Instant, left: Duration) -> Self {
        Self {
            entry,
            until: asked + left,
        }
    }

    /// For how much longer than `asked` it is good.
    pub(crate) fn left(&self, asked: Instant) -> Duration {
        // Whoever asked before it was learnt is told what was learnt.
        let left = self.until.saturating_duration_since(asked);
        left.min(self.entry.lifetime.as_duration())
    }
}

#[cfg(test)]
mod tests {
    use idem_core::OwnerToken;

    use super::*;
    use crate::entry::Lifetime;

    #[test]
    fn it_is_good_until_its_end_and_never_for_longer_than_it_was_given() {
        let lifetime = Duration::from_millis(900);
        let token = OwnerToken::from_bytes([7; 16]);
        let entry = Entry::blank(token, Lifetime::new(lifetime).unwrap());
        let asked = Instant::now();
        let left = Duration::from_millis(400);
        let sighting = Sighting::new(entry, asked, left);
        let after = |millis| sighting.left(asked + Duration::from_millis(millis));
        assert_eq!(after(0), left);
        assert_eq!(after(399), Duration::from_millis(1));
        assert_eq!(after(400), Duration::ZERO);
        assert_eq!(after(4000), Duration::ZERO);
        // Asked long before it was learnt: as if it had been learnt then, and no more than that.
        let sighting = Sighting::new(entry, asked + Duration::from_secs(5), lifetime);
        assert_eq!(sighting.left(asked), lifetime);
    }
}
