use thiserror::Error;

use super::{FingerprintBuilder, Fingerprints, Profile, Rules};
use crate::Operation;

/// The rules under which new records are written, and those under which older ones can still be read.
///
/// Rules change in two deployments, so that at no moment does a node meet a record which it cannot read:
/// first every node reads the new rules and writes the old ones, then every node writes the new ones and
/// reads the old. The old ones can go when the last record under them has expired.
///
/// ```
/// use idem_core::{Nulls, Operation, Profile, RuleSet, Rules};
///
/// let old = Rules::new(Profile::new(1), Nulls::Distinct);
/// let new = Rules::new(Profile::new(2), Nulls::SameAsAbsent);
/// let rules = RuleSet::new(new.clone()).reading(old.clone())?;
///
/// let charge = Operation::new("POST /v1/charges")?;
/// let request = rules.try_of(&charge, |request| request.json(br#"{"amount":5,"note":null}"#))?;
/// assert_eq!(request.written().scheme(), new.scheme());
/// assert!(request.under(old.scheme()).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    written: Rules,
    read: Vec<Rules>,
}

impl RuleSet {
    /// Writes under these rules, and so far reads under no others.
    #[must_use]
    pub const fn new(written: Rules) -> Self {
        Self {
            written,
            read: Vec::new(),
        }
    }

    /// Reads under these rules as well.
    ///
    /// # Errors
    ///
    /// [`ProfileTaken`] when there are rules with the same profile: a stored fingerprint could not tell
    /// which of the two it was made under.
    pub fn reading(mut self, rules: Rules) -> Result<Self, ProfileTaken> {
        let profile = rules.profile();
        if self.all().any(|taken| taken.profile() == profile) {
            return Err(ProfileTaken { profile });
        }
        self.read.push(rules);
        Ok(self)
    }

    /// The rules under which new records are written.
    #[must_use]
    pub const fn written(&self) -> &Rules {
        &self.written
    }

    /// Fingerprints one request under all the rules. `describe` says what is in it, once for each.
    #[must_use]
    pub fn of<'a>(
        &'a self,
        operation: &'a Operation,
        describe: impl Fn(FingerprintBuilder<'a>) -> FingerprintBuilder<'a>,
    ) -> Fingerprints {
        let of = |rules: &'a Rules| describe(rules.of(operation)).finish();
        self.read.iter().map(of).fold(
            Fingerprints::new(of(&self.written)),
            Fingerprints::and_reads,
        )
    }

    /// Fingerprints one request that may have no fingerprint. Rules that are only read and refuse it are
    /// passed over: no record was written for such a request under them.
    ///
    /// # Errors
    ///
    /// Whatever `describe` returns under the rules that are written.
    pub fn try_of<'a, E>(
        &'a self,
        operation: &'a Operation,
        describe: impl Fn(FingerprintBuilder<'a>) -> Result<FingerprintBuilder<'a>, E>,
    ) -> Result<Fingerprints, E> {
        let of = |rules: &'a Rules| Ok(describe(rules.of(operation))?.finish());
        let written = of(&self.written)?;
        let read = self.read.iter().filter_map(|rules| of(rules).ok());
        Ok(read.fold(Fingerprints::new(written), Fingerprints::and_reads))
    }

    fn all(&self) -> impl Iterator<Item = &Rules> {
        std::iter::once(&self.written).chain(&self.read)
    }
}

impl From<Rules> for RuleSet {
    fn from(written: Rules) -> Self {
        Self::new(written)
    }
}

/// Two sets of rules have one [`Profile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("two sets of rules have the profile {profile}: number them differently")]
pub struct ProfileTaken {
    /// The profile that both have.
    pub profile: Profile,
}
