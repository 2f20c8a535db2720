use thiserror::Error;

/// Why a request has no fingerprint under the declared rules.
///
/// Like the errors in it, it names offsets and limits and never repeats a body: errors reach logs.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// The body is not JSON with one meaning.
    #[error(
        "the body has no one meaning as json: send it corrected, or fingerprint its exact bytes"
    )]
    Json(#[from] InvalidJson),
    /// The body is not a form.
    #[error("the body is not a form: send it corrected, or fingerprint its exact bytes")]
    Form(#[from] InvalidForm),
    /// A pointer that was declared as required matches nothing in the body.
    #[error(
        "the required pointer {pointer:?} matches nothing in the body: send that member, or declare the pointer as optional"
    )]
    PointerUnmatched {
        /// The pointer, as it was declared.
        pointer: String,
    },
    /// A value cannot be written as JSON.
    #[cfg(feature = "executor")]
    #[error("the value cannot be written as json: see the source")]
    Unserializable(#[source] serde_json::Error),
}

/// Why a text has no one meaning as JSON.
///
/// Stricter than many parsers, which pick a meaning: of two members with one name, say, some take the first
/// and some the last.
///
/// ```
/// use idem_core::{FingerprintError, InvalidJson, Nulls, Operation, Profile, Rules};
///
/// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
/// let charge = Operation::new("POST /v1/charges")?;
/// let error = rules.of(&charge).json(br#"{"amount":5,"amount":500}"#).unwrap_err();
/// assert!(matches!(error, FingerprintError::Json(InvalidJson::DuplicateMember { offset: 12 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidJson {
    /// There is nothing in it, or only white space.
    #[error("json needs a value, and this text is empty")]
    Empty,
    /// It starts with a byte order mark.
    #[error("json must not start with a byte order mark: send it without")]
    ByteOrderMark,
    /// It is not UTF-8.
    #[error("json is utf-8, and byte {offset} of this text is not")]
    InvalidUtf8 {
        /// The index of the first such byte.
        offset: usize,
    },
    /// It breaks the grammar.
    #[error("byte {offset} is not what json allows there")]
    Syntax {
        /// The index of the first byte that cannot be.
        offset: usize,
    },
    /// It stops in the middle.
    #[error("the json ends too early, after {bytes} bytes")]
    UnexpectedEnd {
        /// How long the text is.
        bytes: usize,
    },
    /// Something follows the value.
    #[error("json is one value, and at byte {offset} something follows it")]
    TrailingData {
        /// The index of the first byte that is too many.
        offset: usize,
    },
    /// An object has two members of one name.
    #[error("an object's names must differ, and the name at byte {offset} repeats another")]
    DuplicateMember {
        /// The index of the repeated name.
        offset: usize,
    },
    /// A string escapes half of a surrogate pair, which is no character.
    #[error("a surrogate needs its other half, and the one escaped at byte {offset} has none")]
    LoneSurrogate {
        /// The index of the escape.
        offset: usize,
    },
    /// Arrays and objects are nested too deeply.
    #[error("json may nest {limit} levels deep, and byte {offset} opens one more")]
    TooDeep {
        /// The index of the bracket.
        offset: usize,
        /// How many levels there may be.
        limit: usize,
    },
    /// A number's exponent does not fit 64 bits, once the number is written without trailing zeros.
    #[error(
        "the exponent of the number at byte {offset} does not fit 64 bits: send a string instead"
    )]
    ExponentTooLarge {
        /// The index of the number.
        offset: usize,
    },
    /// The text is too long.
    #[error("json may have {limit} bytes, this text has {bytes}")]
    TooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
}

/// Why a text is not `application/x-www-form-urlencoded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidForm {
    /// A `%` is not followed by two hexadecimal digits.
    #[error(
        "a % in a form is followed by two hexadecimal digits, the one at byte {offset} is not: write %25 for the sign itself"
    )]
    MalformedEscape {
        /// The index of the `%`.
        offset: usize,
    },
}
