use std::time::Duration;

use idem_core::{Fingerprint, Operation, OwnerToken, Profile, Scheme, Span};

use crate::names::{Digest, Name};

/// What is remembered of one record: that somebody had it in progress, who, and with what request. No instants: how long
/// it is good for is what Redis counts down.
///
/// In Redis it is exactly [`Entry::BYTES`] bytes:
///
/// | bytes | |
/// |---|---|
/// | 1 | version of this format |
/// | 16 | token of the attempt |
/// | 4 | scheme of the fingerprint |
/// | 4 | lifetime in milliseconds, when it was written |
/// | 8 | what was left of the lease then, in microseconds |
/// | 32 | [seal](Name::seal): a hash of the bytes before, the record, the operation and the fingerprint |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: OwnerToken,
    pub(crate) scheme: Scheme,
    pub(crate) lifetime: Lifetime,
    pub(crate) lease_left: Span,
    seal: Digest,
}

/// How long an entry lives from the moment that the store was asked: at least a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lifetime(u32);

impl Lifetime {
    /// In whole milliseconds, and so a little shorter at most. `None` if nothing is left, or if it is out of all
    /// proportion.
    pub(crate) fn new(duration: Duration) -> Option<Self> {
        let millis = u32::try_from(duration.as_millis()).ok()?;
        Self::from_millis(millis)
    }

    fn from_millis(millis: u32) -> Option<Self> {
        (millis > 0).then_some(Self(millis))
    }

    pub(crate) fn millis(self) -> u32 {
        self.0
    }

    pub(crate) fn as_duration(self) -> Duration {
        Duration::from_millis(self.0.into())
    }
}

impl Entry {
    const VERSION: u8 = 1;

    /// How many bytes an entry is, no more and no less.
    pub(crate) const BYTES: usize = Self::HEAD_BYTES + 32;

    /// How many of them come before the seal.
    pub(crate) const HEAD_BYTES: usize = 1 + 16 + 4 + 4 + 8;

    /// How many of the first bytes say whose it is: what a removal compares.
    pub(crate) const HOLDER_BYTES: usize = 1 + 16;

    /// The first bytes of every entry of this attempt.
    pub(crate) fn holder(token: OwnerToken) -> [u8; Self::HOLDER_BYTES] {
        let mut bytes = [Self::VERSION; Self::HOLDER_BYTES];
        bytes[1..].copy_from_slice(token.as_bytes());
        bytes
    }

    /// That `token` has the record in progress, with this request.
    pub(crate) fn new(
        name: &Name,
        token: OwnerToken,
        (operation, fingerprint): (&Operation, &Fingerprint),
        lifetime: Lifetime,
        lease_left: Span,
    ) -> Self {
        let mut entry = Self {
            token,
            scheme: fingerprint.scheme(),
            lifetime,
            lease_left,
            seal: [0; 32],
        };
        entry.seal = name.seal(&entry.head(), operation, fingerprint);
        entry
    }

    /// One of no record and no request, to try writing with.
    pub(crate) fn blank(token: OwnerToken, lifetime: Lifetime) -> Self {
        Self {
            token,
            scheme: Scheme::new(0, Profile::new(0)),
            lifetime,
            lease_left: Span::MAX,
            seal: [0; 32],
        }
    }

    /// Whether it is of this record and of this request, and every byte of it is as it was written.
    pub(crate) fn is_of(
        &self,
        name: &Name,
        operation: &Operation,
        fingerprint: &Fingerprint,
    ) -> bool {
        self.seal == name.seal(&self.head(), operation, fingerprint)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.head().as_slice(), self.seal.as_slice()].concat()
    }

    fn head(&self) -> [u8; Self::HEAD_BYTES] {
        let mut head = [0; Self::HEAD_BYTES];
        let (holder, rest) = head.split_at_mut(Self::HOLDER_BYTES);
        holder.copy_from_slice(&Self::holder(self.token));
        rest[..2].copy_from_slice(&self.scheme.encoding().to_be_bytes());
        rest[2..4].copy_from_slice(&self.scheme.profile().number().to_be_bytes());
        rest[4..8].copy_from_slice(&self.lifetime.0.to_be_bytes());
        rest[8..].copy_from_slice(&self.lease_left.as_micros().to_be_bytes());
        head
    }

    /// Reads what Redis holds. `None` for anything that [`Entry::encode`] does not write, and for an entry that lives
    /// for longer than `cap`: a process with another cap wrote it, and this one promised less.
    pub(crate) fn decode(bytes: &[u8], cap: Lifetime) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        if *version != Self::VERSION {
            return None;
        }
        let (token, rest) = rest.split_first_chunk()?;
        let (encoding, rest) = rest.split_first_chunk()?;
        let (profile, rest) = rest.split_first_chunk()?;
        let (lifetime, rest) = rest.split_first_chunk()?;
        let (lease_left, rest) = rest.split_first_chunk()?;
        let seal = rest.try_into().ok()?;
        let entry = Self {
            token: OwnerToken::from_bytes(*token),
            scheme: Scheme::new(
                u16::from_be_bytes(*encoding),
                Profile::new(u16::from_be_bytes(*profile)),
            ),
            lifetime: Lifetime::from_millis(u32::from_be_bytes(*lifetime))?,
            lease_left: Span::from_micros(u64::from_be_bytes(*lease_left)).ok()?,
            seal,
        };
        let within_its_lease = entry.lifetime.as_duration() <= entry.lease_left.as_duration();
        (within_its_lease && entry.lifetime <= cap).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            token: OwnerToken::from_bytes([7; 16]),
            scheme: Scheme::new(1, Profile::new(3)),
            lifetime: Lifetime(900),
            lease_left: Span::from_secs(90),
            seal: [9; 32],
        }
    }

    const CAP: Lifetime = Lifetime(1000);

    #[test]
    fn what_is_written_is_read() {
        let bytes = entry().encode();
        assert_eq!(bytes.len(), Entry::BYTES);
        assert!(bytes.starts_with(&Entry::holder(entry().token)));
        assert_eq!(Entry::decode(&bytes, CAP), Some(entry()));
    }

    #[test]
    fn nothing_else_is() {
        let good = entry().encode();
        for length in 0..good.len() {
            assert_eq!(Entry::decode(&good[..length], CAP), None, "{length} bytes");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(Entry::decode(&longer, CAP), None);
        for version in (0..=u8::MAX).filter(|version| *version != Entry::VERSION) {
            let mut other = good.clone();
            other[0] = version;
            assert_eq!(Entry::decode(&other, CAP), None, "version {version}");
        }
        assert_eq!(Entry::decode(b"busy", CAP), None);
        assert_eq!(Entry::decode(&[0xff; Entry::BYTES], CAP), None);
    }

    #[test]
    fn an_entry_without_a_lifetime_or_with_too_long_a_one_is_none() {
        let with = |lifetime: u32, lease: Span| {
            Entry {
                lifetime: Lifetime(lifetime),
                lease_left: lease,
                ..entry()
            }
            .encode()
        };
        assert_eq!(Entry::decode(&with(0, Span::from_secs(1)), CAP), None);
        assert!(Entry::decode(&with(1, Span::from_millis(1)), CAP).is_some());
        assert!(Entry::decode(&with(1000, Span::from_secs(1)), CAP).is_some());
        // Another process has a longer cap.
        assert_eq!(Entry::decode(&with(1001, Span::from_secs(2)), CAP), None);
        // Longer than its own lease.
        assert_eq!(Entry::decode(&with(900, Span::from_millis(899)), CAP), None);
    }

    /// Any one byte that is changed makes it another entry or none, and never panics.
    #[test]
    fn every_byte_counts() {
        let good = entry().encode();
        for place in 0..good.len() {
            for change in 1..=u8::MAX {
                let mut bytes = good.clone();
                bytes[place] ^= change;
                assert_ne!(Entry::decode(&bytes, CAP), Some(entry()), "byte {place}");
            }
        }
    }

    #[test]
    fn a_lifetime_is_whole_milliseconds() {
        assert_eq!(Lifetime::new(Duration::from_micros(999)), None);
        let rounded = Lifetime::new(Duration::from_micros(1999)).unwrap();
        assert_eq!(rounded.as_duration(), Duration::from_millis(1));
        assert_eq!(Lifetime::new(Duration::MAX), None);
    }
}
