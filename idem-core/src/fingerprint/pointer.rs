use std::fmt;

use thiserror::Error;

/// A JSON Pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    text: String,
    steps: Vec<Step>,
}

impl Pointer {
    pub(super) fn new(pointer: &str) -> Result<Self, InvalidPointer> {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(InvalidPointer::NoSlash);
        }
        let mut steps = Vec::new();
        let mut position = 0;
        for step in pointer.split('/').skip(1) {
            position += 1;
            steps.push(Step::new(step, position)?);
            position += step.len();
        }
        Ok(Self {
            text: pointer.to_owned(),
            steps,
        })
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A step into an object by name, or into an array by index: the document decides which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    name: Vec<u8>,
    index: Option<u32>,
}

impl Step {
    fn new(step: &str, position: usize) -> Result<Self, InvalidPointer> {
        let mut escapes = step.match_indices('~');
        if let Some((at, _)) =
            escapes.find(|(at, _)| !matches!(step.as_bytes().get(at + 1), Some(b'0' | b'1')))
        {
            return Err(InvalidPointer::MalformedEscape {
                position: position + at,
            });
        }
        // `~0` last: `~01` is `~1`, not `/`.
        let name = step.replace("~1", "/").replace("~0", "~").into_bytes();
        // No sign and no leading zeros. `-`, the element after the last, is never there.
        let is_index = step == "0"
            || (!step.starts_with('0') && step.bytes().all(|byte| byte.is_ascii_digit()));
        let index = if is_index { step.parse().ok() } else { None };
        Ok(Self { name, index })
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn index(&self) -> Option<u32> {
        self.index
    }
}

/// A part of the body that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exclusion {
    pub(super) pointer: Pointer,
    pub(super) required: Required,
}

/// Whether a body without the part has no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Required {
    No,
    Yes,
}

/// Why a text is not a JSON Pointer (RFC 6901).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPointer {
    /// It is not empty, and does not start with a slash.
    #[error("a json pointer starts with /, or is empty for the whole document")]
    NoSlash,
    /// A `~` is not followed by `0` or `1`.
    #[error(
        "a ~ in a json pointer is followed by 0 or 1, the one at byte {position} is not: write ~0 for the sign itself"
    )]
    MalformedEscape {
        /// The index of the `~`.
        position: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pointer: &str) -> Vec<Vec<u8>> {
        Pointer::new(pointer)
            .unwrap()
            .steps
            .into_iter()
            .map(|step| step.name)
            .collect()
    }

    #[test]
    fn steps_are_split_and_unescaped() {
        assert_eq!(names(""), Vec::<Vec<u8>>::new());
        assert_eq!(names("/"), [b""]);
        assert_eq!(names("/a~1b/m~0n/~01/"), [&b"a/b"[..], b"m~n", b"~1", b""]);
    }

    #[test]
    fn only_plain_numbers_are_indices() {
        let index = |step: &str| Pointer::new(&format!("/{step}")).unwrap().steps[0].index;
        assert_eq!((index("0"), index("17")), (Some(0), Some(17)));
        for step in ["", "-", "01", "+1", "1e0", "a", "99999999999999999999"] {
            assert_eq!(index(step), None, "{step}");
        }
    }

    #[test]
    fn malformed_pointers_are_refused() {
        assert_eq!(Pointer::new("a/b"), Err(InvalidPointer::NoSlash));
        for (pointer, position) in [("/~", 1), ("/a/b~2", 4), ("/~0/é~", 6)] {
            assert_eq!(
                Pointer::new(pointer),
                Err(InvalidPointer::MalformedEscape { position }),
                "{pointer}"
            );
        }
    }
}
