use std::cell::RefCell;

use crate::record::{Origin, OwnerToken};
use crate::store::StoreError;

/// Random bytes of the system's generator, fetched for many claims at once: a call of the system takes longer
/// than everything else that a replay does.
///
/// Each byte is handed out once. A copy of the process would hand out the same ones, but an executor does not
/// survive being copied: the runtime's other threads stay behind in the original.
struct Supply {
    bytes: [u8; 1024],
    used: usize,
}

thread_local! {
    static SUPPLY: RefCell<Supply> = const { RefCell::new(Supply { bytes: [0; 1024], used: 1024 }) };
}

impl Supply {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], getrandom::Error> {
        if self.bytes.len() - self.used < N {
            getrandom::fill(&mut self.bytes)?;
            self.used = 0;
        }
        let mut taken = [0; N];
        let fresh = &mut self.bytes[self.used..self.used + N];
        taken.copy_from_slice(fresh);
        fresh.fill(0);
        self.used += N;
        Ok(taken)
    }
}

fn take<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    SUPPLY.with_borrow_mut(Supply::take)
}

/// A fresh origin and a fresh token.
pub(super) fn origin_and_token() -> Result<(Origin, OwnerToken), StoreError> {
    let failed =
        |error| StoreError::unavailable("reading the system's random numbers").because(error);
    let (origin, token) = (take().map_err(failed)?, take().map_err(failed)?);
    Ok((Origin::from_bytes(origin), OwnerToken::from_bytes(token)))
}

/// A number to spread retries with. Without randomness they are not spread, and that is all.
pub(super) fn jitter() -> u8 {
    match take() {
        Ok([byte]) => byte,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::origin_and_token;

    #[test]
    fn no_origin_and_no_token_is_handed_out_twice() {
        let mut seen = BTreeSet::new();
        let batches: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    (0..1000)
                        .map(|_| origin_and_token())
                        .collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        for batch in batches {
            for (origin, token) in batch.join().unwrap().unwrap() {
                assert!(seen.insert(*origin.as_bytes()));
                assert!(seen.insert(*token.as_bytes()));
            }
        }
        assert!(!seen.contains(&[0; 16]));
    }
}
