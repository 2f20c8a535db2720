use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Below what the kernel hands out to clients, so that no connection of anybody takes the port of a server that is
/// down for a moment.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Handed out by this process. Other processes may choose the same: who starts a server tries again.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of 127.0.0.1 on which nobody listens.
pub(crate) fn free_port() -> Option<u16> {
    let random = RandomState::new();
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let port = (0..COUNT)
        .map(|attempt| FIRST + (random.hash_one(attempt) % u64::from(COUNT)) as u16)
        .find(|port| !taken.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())?;
    taken.insert(port);
    Some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice() {
        let ports: BTreeSet<_> = (0..200).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 200);
    }
}
