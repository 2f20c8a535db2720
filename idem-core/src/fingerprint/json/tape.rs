use std::borrow::Cow;

use super::parse::Parser;
use crate::fingerprint::{InvalidJson, Nulls};

/// A JSON text and what is in it.
///
/// Tokens stand in the order of the text. A member is its name's token, with the value's token right after
/// it; the order in which members are encoded is kept beside the tokens.
#[derive(Debug, Clone)]
pub(in crate::fingerprint) struct Document<'a> {
    pub(super) text: Cow<'a, [u8]>,
    pub(super) tape: Tape,
}

impl<'a> Document<'a> {
    pub(in crate::fingerprint) fn parse(
        text: Cow<'a, [u8]>,
        nulls: Nulls,
    ) -> Result<Self, InvalidJson> {
        let tape = Parser::new(&text, nulls)?.run()?;
        Ok(Self { text, tape })
    }

    pub(super) fn string(&self, token: usize) -> &[u8] {
        self.tape.string(&self.text, token)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Tape {
    pub(super) tokens: Vec<Token>,
    /// The tokens of the names of every object's members: each object's are together, sorted by name.
    pub(super) members: Vec<u32>,
    /// Strings without their escapes, and numbers as they are encoded.
    pub(super) decoded: Vec<u8>,
}

impl Tape {
    /// The string at this token, without escapes. Empty for a token that is no string.
    #[inline]
    pub(super) fn string<'t>(&'t self, text: &'t [u8], token: usize) -> &'t [u8] {
        match self.tokens[token] {
            Token::Plain(span) => &text[span.range()],
            Token::Unescaped(span) => &self.decoded[span.range()],
            _ => &[],
        }
    }

    /// The token after the whole value at this one.
    pub(super) fn after(&self, token: usize) -> usize {
        match self.tokens[token] {
            Token::Array { end, .. } | Token::Object { end, .. } | Token::Hole { end } => {
                end as usize
            }
            _ => token + 1,
        }
    }
}

/// One value, or one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Null,
    False,
    True,
    /// A number, encoded in [`Tape::decoded`].
    Number(Span),
    /// A string that stands in the text as it is.
    Plain(Span),
    /// A string that stands in [`Tape::decoded`].
    Unescaped(Span),
    Array {
        count: u32,
        end: u32,
    },
    /// The members are `count` of [`Tape::members`] from `first` on.
    Object {
        first: u32,
        count: u32,
        end: u32,
    },
    /// A value that was excluded, but whose place counts.
    Hole {
        end: u32,
    },
}

/// Where some bytes stand. A text has at most [`Parser::MAX_BYTES`], so that 32 bits do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline]
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    #[inline]
    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}
