use std::fmt;
use std::sync::Arc;

/// A short text kept with a record for the people who look at it later: why it failed, who resolved it.
///
/// At most [`Note::MAX_BYTES`] bytes; a longer text is cut at a character, and NUL becomes a space, because a
/// reason must never be the reason why a failure cannot be stored. Notes are shown to operators: put no
/// secrets and no request bodies into them.
///
/// ```
/// use idem_core::Note;
///
/// assert_eq!(Note::new("provider answered 429").as_str(), "provider answered 429");
/// assert_eq!(Note::new("x".repeat(5000)).as_str().len(), Note::MAX_BYTES);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Note(Arc<str>);

impl Note {
    /// The longest note, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// A note with this text, or as much of it as fits.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        let cut = &text[..text.floor_char_boundary(Self::MAX_BYTES)];
        if cut.contains('\0') {
            Self(cut.replace('\0', " ").into())
        } else {
            Self(cut.into())
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({:?})", &*self.0)
    }
}
