use std::fmt;

/// The caller's number of one declared set of [`Rules`](crate::Rules).
///
/// It is stored with every fingerprint. Rules that change get a new number, so that a record written under
/// the old ones is compared under the old ones, and never taken for another payload.
///
/// ```
/// use idem_core::Profile;
///
/// assert_eq!(Profile::new(7).number(), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Profile(u16);

impl Profile {
    /// The profile with this number. Any number will do, as long as it is never used for two sets of rules.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a [`Fingerprint`](crate::Fingerprint) was made: this library's encoding version, and the caller's
/// [`Profile`].
///
/// Two fingerprints say something about each other only when their schemes are equal. The text form is
/// `encoding.profile`.
///
/// ```
/// use idem_core::{Profile, Scheme};
///
/// let scheme = Scheme::current(Profile::new(7));
/// assert_eq!(scheme, Scheme::new(1, Profile::new(7)));
/// assert_eq!(scheme.to_string(), "1.7");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scheme {
    encoding: u16,
    profile: Profile,
}

impl Scheme {
    /// The encoding version that this library writes.
    pub const ENCODING: u16 = 1;

    /// A scheme as it was stored. The encoding may be one that this version of the library does not know:
    /// a newer node wrote it, and only such a node can compare it.
    #[must_use]
    pub const fn new(encoding: u16, profile: Profile) -> Self {
        Self { encoding, profile }
    }

    /// The scheme under which this library fingerprints for `profile`.
    #[must_use]
    pub const fn current(profile: Profile) -> Self {
        Self::new(Self::ENCODING, profile)
    }

    /// The library's encoding version.
    #[must_use]
    pub const fn encoding(self) -> u16 {
        self.encoding
    }

    /// The caller's rules.
    #[must_use]
    pub const fn profile(self) -> Profile {
        self.profile
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.encoding, self.profile)
    }
}
