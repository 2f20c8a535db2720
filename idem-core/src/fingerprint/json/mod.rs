//! JSON read for its meaning: one pass over the text makes a tape of tokens, a second one encodes the tape.

mod encode;
mod exclude;
mod number;
mod parse;
mod string;
mod tape;

pub(super) use tape::Document;
