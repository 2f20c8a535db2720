use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use idem_core::OwnerToken;

use crate::names::Digest;
use crate::sighting::Sighting;

/// The tier in this process: refusals that need no round trip at all. It is in front of Redis where that is asked for, and
/// behind it otherwise, for when Redis cannot be asked.
///
/// Entries end when they end in Redis, so a refusal is no more out of date than one from there. What another process
/// finished is noticed by the end of the entry only, and not when that process removes it.
#[derive(Debug)]
pub(crate) struct Local {
    shelf: Mutex<Shelf>,
    most: NonZeroUsize,
}

#[derive(Debug, Default)]
struct Shelf {
    sightings: HashMap<Digest, Sighting>,
    /// When the next look for ended entries is worth it.
    next_look: Option<Instant>,
}

impl Local {
    pub(crate) fn new(most: NonZeroUsize) -> Self {
        Self {
            shelf: Mutex::default(),
            most,
        }
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<Sighting> {
        self.shelf().sightings.get(digest).copied()
    }

    /// Remembers it, if there is room.
    pub(crate) fn put(&self, digest: Digest, sighting: Sighting, now: Instant) {
        let mut shelf = self.shelf();
        if shelf.sightings.len() >= self.most.get() && !shelf.sightings.contains_key(&digest) {
            // Going through all of them for each one that comes would cost more than it saves.
            if shelf.next_look.is_some_and(|next| now < next) {
                return;
            }
            shelf.sightings.retain(|_, sighting| sighting.until > now);
            shelf.next_look = shelf
                .sightings
                .values()
                .map(|sighting| sighting.until)
                .min();
            if shelf.sightings.len() >= self.most.get() {
                return;
            }
        }
        shelf.sightings.insert(digest, sighting);
    }

    /// Forgets it, if it is still that of this attempt.
    pub(crate) fn remove(&self, digest: &Digest, token: OwnerToken) {
        let mut shelf = self.shelf();
        if shelf
            .sightings
            .get(digest)
            .is_some_and(|sighting| sighting.entry.token == token)
        {
            shelf.sightings.remove(digest);
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // A panic under the lock cannot leave half an entry behind.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use idem_core::{
        Fingerprint, IdempotencyKey, Operation, Profile, RecordId, Scheme, Scope, Span,
    };

    use super::*;
    use crate::Namespace;
    use crate::entry::{Entry, Lifetime};
    use crate::names::Names;

    fn sighting(token: u8, until: Instant) -> Sighting {
        let id = RecordId::new(
            Scope::new("acct_1").unwrap(),
            IdempotencyKey::new("k-1").unwrap(),
        );
        let name = Names::new("", Namespace::new("n").unwrap()).of(&id);
        let fingerprint = Fingerprint::from_parts(Scheme::current(Profile::new(1)), [0; 32]);
        let request = (&Operation::new("POST /x").unwrap(), &fingerprint);
        let lifetime = Lifetime::new(Duration::from_secs(1)).unwrap();
        let token = OwnerToken::from_bytes([token; 16]);
        let entry = Entry::new(&name, token, request, lifetime, Span::from_secs(1));
        Sighting { entry, until }
    }

    fn local(most: usize) -> Local {
        Local::new(NonZeroUsize::new(most).unwrap())
    }

    #[test]
    fn an_entry_is_removed_by_its_own_attempt() {
        let (local, now) = (local(2), Instant::now());
        local.put([1; 32], sighting(1, now), now);
        local.remove(&[1; 32], OwnerToken::from_bytes([2; 16]));
        assert!(local.find(&[1; 32]).is_some());
        local.remove(&[1; 32], OwnerToken::from_bytes([1; 16]));
        assert!(local.find(&[1; 32]).is_none());
    }

    #[test]
    fn it_never_holds_more_than_it_may_and_makes_room_when_entries_end() {
        let (local, now) = (local(2), Instant::now());
        let later = now + Duration::from_millis(10);
        local.put([1; 32], sighting(1, later), now);
        local.put([2; 32], sighting(1, later + Duration::from_secs(9)), now);
        local.put([3; 32], sighting(1, later), now);
        assert!(local.find(&[3; 32]).is_none(), "it is full");
        // One that is there already may be replaced.
        local.put([2; 32], sighting(5, later + Duration::from_secs(9)), now);
        assert_eq!(
            local.find(&[2; 32]).unwrap().entry.token,
            OwnerToken::from_bytes([5; 16])
        );
        local.put([3; 32], sighting(1, later), later);
        assert!(local.find(&[3; 32]).is_some(), "the first one has ended");
        assert!(local.find(&[1; 32]).is_none());
        assert_eq!(local.shelf().sightings.len(), 2);
    }
}
