use std::fmt;

use super::Scheme;
use crate::hex::Hex;

/// What a request meant, in 32 bytes: a SHA-256 of its operation, path parameters, query and body, and the
/// [`Scheme`] under which they were read.
///
/// A key that comes back with another fingerprint is a client's mistake. Compare only under one scheme:
/// [`Fingerprints::under`] gives the one to compare a stored fingerprint with.
///
/// `Debug` shows the scheme and four bytes.
///
/// ```
/// use idem_core::{Fingerprint, Profile, Scheme};
///
/// let stored = Fingerprint::from_parts(Scheme::new(1, Profile::new(7)), [0xab; 32]);
/// assert_eq!(stored.scheme().to_string(), "1.7");
/// assert_eq!(format!("{stored:?}"), "Fingerprint(1.7, abababab)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    scheme: Scheme,
    digest: [u8; 32],
}

impl Fingerprint {
    /// A fingerprint as it was stored.
    #[must_use]
    pub const fn from_parts(scheme: Scheme, digest: [u8; 32]) -> Self {
        Self { scheme, digest }
    }

    /// How it was made.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The SHA-256.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Fingerprint({}, {})",
            self.scheme,
            Hex(&self.digest[..4])
        )
    }
}

/// All that a request can be compared under: the fingerprint that a new record is written with, and those
/// that are only read, for records that older or newer nodes wrote.
///
/// [`RuleSet`](crate::RuleSet) makes them from a request; a caller with fingerprints of its own puts them
/// together here.
///
/// ```
/// use idem_core::{Fingerprint, Fingerprints, Profile, Scheme};
///
/// let new = Fingerprint::from_parts(Scheme::current(Profile::new(2)), [2; 32]);
/// let old = Fingerprint::from_parts(Scheme::current(Profile::new(1)), [1; 32]);
/// let request = Fingerprints::new(new).and_reads(old);
///
/// assert_eq!(request.written(), &new);
/// assert_eq!(request.under(old.scheme()), Some(&old));
/// assert_eq!(request.under(Scheme::current(Profile::new(3))), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints {
    written: Fingerprint,
    read: Vec<Fingerprint>,
}

impl Fingerprints {
    /// A request with one fingerprint.
    #[must_use]
    pub const fn new(written: Fingerprint) -> Self {
        Self {
            written,
            read: Vec::new(),
        }
    }

    /// Adds one that is only read. Of two under one scheme the first counts, and the written one before all.
    #[must_use]
    pub fn and_reads(mut self, read: Fingerprint) -> Self {
        self.read.push(read);
        self
    }

    /// The fingerprint that a new record is written with.
    #[must_use]
    pub const fn written(&self) -> &Fingerprint {
        &self.written
    }

    /// The fingerprint to compare with one stored under `scheme`. `None` when it cannot be computed here:
    /// then the two are neither equal nor different.
    #[must_use]
    pub fn under(&self, scheme: Scheme) -> Option<&Fingerprint> {
        std::iter::once(&self.written)
            .chain(&self.read)
            .find(|fingerprint| fingerprint.scheme == scheme)
    }
}

impl From<Fingerprint> for Fingerprints {
    fn from(written: Fingerprint) -> Self {
        Self::new(written)
    }
}
