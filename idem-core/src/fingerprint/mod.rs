//! What a request means, in 32 bytes.
//!
//! A fingerprint is stored with its record and compared for as long as the record lives, so the encoding is a
//! durable format. Any change of it, however small, needs a new [`Scheme::ENCODING`], and the old encoding
//! stays readable. The golden values in `tests/fingerprint_golden.rs` notice a change that nobody meant.
//!
//! # The encoding, version 1
//!
//! SHA-256 over the parts below, in this order and with nothing between them. Every part says where it ends,
//! so no two different requests have one encoding.
//!
//! - *count*: an unsigned LEB128 (seven bits a byte, the lowest first, the high bit set on all but the last
//!   byte), of the least length.
//! - *bytes*: the *count* of the bytes, then the bytes.
//! - *pairs*: the *count* of the pairs, then name and value of each as *bytes*. Sorted by the name's bytes;
//!   pairs of one name stay in the order in which they were sent.
//!
//! | part | encoding |
//! |---|---|
//! | format | `idem/fingerprint` in ASCII, 16 bytes |
//! | encoding version | 2 bytes, big-endian: `00 01` |
//! | profile | 2 bytes, big-endian |
//! | operation | *bytes* |
//! | path parameters | *pairs* |
//! | query | `00` and *pairs*, without the excluded ones; or, with a malformed escape, `01` and the text as *bytes*. None is `00 00` |
//! | body | a tag, and what the tag announces |
//!
//! | tag of the body | |
//! |---|---|
//! | `00` | no body: nothing follows |
//! | `01` | JSON: a *value* follows |
//! | `02` | a form: *pairs* follow |
//! | `03` | exact bytes: *bytes* follow, and so for all the tags below |
//! | `04` | exact bytes, because of the `Content-Encoding` |
//! | `05` | exact bytes of what should be JSON and has no one meaning, or lacks what a required pointer names |
//! | `06` | exact bytes of what should be a form and is not |
//!
//! | *value* | |
//! |---|---|
//! | `00` | excluded, in an array or as the whole document |
//! | `01` | `null` |
//! | `02` | `false` |
//! | `03` | `true` |
//! | `04` | the number zero, of either sign |
//! | `05` | a positive number. Its digits are those of its decimal form, without zeros in front and behind; its exponent is the power of ten to multiply them by. The exponent follows as a *count* of `2e` if it is not negative and of `-2e - 1` if it is, and then the digits in ASCII as *bytes*. So 1200 is `05 04 02 31 32` |
//! | `06` | a negative number: its absolute value follows as after `05` |
//! | `07` | a string: its UTF-8, without escapes, as *bytes* |
//! | `08` | an array: the *count* of its elements, then each as a *value* |
//! | `09` | an object: the *count* of its members, then each: its name as *bytes* and its *value*. Sorted by the name's bytes. Excluded members are left out, and so are null ones under [`Nulls::SameAsAbsent`] |
//!
//! The null rule and the exclusions are not encoded: the profile's number stands for them.

mod body;
mod builder;
mod encoder;
mod error;
mod fingerprints;
mod json;
mod pairs;
mod pointer;
mod rule_set;
mod rules;
mod scheme;

pub use builder::FingerprintBuilder;
pub use error::{FingerprintError, InvalidForm, InvalidJson};
pub use fingerprints::{Fingerprint, Fingerprints};
pub use pointer::InvalidPointer;
pub use rule_set::{ProfileTaken, RuleSet};
pub use rules::{Nulls, Rules};
pub use scheme::{Profile, Scheme};
