use super::pointer::{Exclusion, Pointer, Required};
use super::{FingerprintBuilder, InvalidPointer, Profile, Scheme};
use crate::Operation;

/// Whether a JSON member that is `null` means the same as one that is not there.
///
/// There is no default, because either choice is wrong for somebody: where `null` clears a field, reading the
/// two as one replays the answer to another request; where a client library fills in `null` for what it has
/// not got, reading them as two refuses a retry.
///
/// ```
/// use idem_core::{Nulls, Operation, Profile, Rules};
///
/// let charge = Operation::new("POST /v1/charges")?;
/// for (nulls, equal) in [(Nulls::Distinct, false), (Nulls::SameAsAbsent, true)] {
///     let rules = Rules::new(Profile::new(1), nulls);
///     let with = rules.of(&charge).json(br#"{"amount":5,"note":null}"#)?.finish();
///     let without = rules.of(&charge).json(br#"{"amount":5}"#)?.finish();
///     assert_eq!(with == without, equal);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nulls {
    /// `{"a":null}` and `{}` are two payloads.
    Distinct,
    /// `{"a":null}` and `{}` are one payload. Only members are dropped: `[null]` is not `[]`, and
    /// `{"a":{"b":null}}` is `{"a":{}}`, not `{}`.
    SameAsAbsent,
}

/// One declared way to read requests: what counts, and what does not.
///
/// Everything counts unless it is excluded here. The rules are the caller's promise under a [`Profile`]'s
/// number: rules that read requests in another way get another number, and the old ones stay declared in a
/// [`RuleSet`](crate::RuleSet) until their records have expired.
///
/// ```
/// use idem_core::{Nulls, Operation, Profile, Rules};
///
/// let rules = Rules::new(Profile::new(1), Nulls::Distinct)
///     .exclude_pointer("/metadata/sent_at")?
///     .exclude_query("utm_source");
///
/// let charge = Operation::new("POST /v1/charges")?;
/// let first = rules
///     .of(&charge)
///     .query("utm_source=mail")
///     .json(br#"{"amount":5.0,"metadata":{"sent_at":"12:00:00"}}"#)?
///     .finish();
/// let retry = rules.of(&charge).json(br#"{"metadata":{},"amount":5}"#)?.finish();
/// assert_eq!(first, retry);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    profile: Profile,
    pub(super) nulls: Nulls,
    pub(super) exclusions: Vec<Exclusion>,
    pub(super) excluded_query: Vec<Vec<u8>>,
}

impl Rules {
    /// Rules under which everything counts.
    #[must_use]
    pub const fn new(profile: Profile, nulls: Nulls) -> Self {
        Self {
            profile,
            nulls,
            exclusions: Vec::new(),
            excluded_query: Vec::new(),
        }
    }

    /// Leaves out what a JSON Pointer (RFC 6901) names in a JSON body, if it is there.
    ///
    /// A member goes with its name, so that a body which has it equals one which has not. An array element
    /// leaves its place behind: with `/0` left out, `[1,2]` equals `[3,2]`, and neither `[2]` nor `[2,3]`. The
    /// empty pointer leaves out the document.
    ///
    /// # Errors
    ///
    /// [`InvalidPointer`] when the text is not a JSON Pointer.
    pub fn exclude_pointer(self, pointer: impl AsRef<str>) -> Result<Self, InvalidPointer> {
        self.exclude(pointer.as_ref(), Required::No)
    }

    /// Leaves out what a JSON Pointer names, and refuses a JSON body in which it names nothing: a pointer
    /// with a slip in it would otherwise leave nothing out, unnoticed, until retries are refused.
    ///
    /// ```
    /// # use idem_core::{Nulls, Operation, Profile, Rules};
    /// let charge = Operation::new("POST /v1/charges")?;
    /// let rules = Rules::new(Profile::new(1), Nulls::Distinct).exclude_required_pointer("/sent_at")?;
    /// assert!(rules.of(&charge).json(br#"{"amount":5,"sent_at":"12:00:00"}"#).is_ok());
    /// assert!(rules.of(&charge).json(br#"{"amount":5,"sendt_at":"12:00:00"}"#).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidPointer`] when the text is not a JSON Pointer.
    pub fn exclude_required_pointer(
        self,
        pointer: impl AsRef<str>,
    ) -> Result<Self, InvalidPointer> {
        self.exclude(pointer.as_ref(), Required::Yes)
    }

    /// Leaves out the query parameters of this name, which is given as it is after decoding.
    #[must_use]
    pub fn exclude_query(mut self, name: impl AsRef<[u8]>) -> Self {
        self.excluded_query.push(name.as_ref().to_vec());
        self
    }

    /// The number of these rules.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Whether `null` is the same as absent.
    #[must_use]
    pub const fn nulls(&self) -> Nulls {
        self.nulls
    }

    /// The scheme of the fingerprints that these rules make.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        Scheme::current(self.profile)
    }

    /// Begins a request: to `operation`, so far without parameters and body.
    pub fn of<'a>(&'a self, operation: &'a Operation) -> FingerprintBuilder<'a> {
        FingerprintBuilder::new(self, operation)
    }

    fn exclude(mut self, pointer: &str, required: Required) -> Result<Self, InvalidPointer> {
        self.exclusions.push(Exclusion {
            pointer: Pointer::new(pointer)?,
            required,
        });
        Ok(self)
    }
}
