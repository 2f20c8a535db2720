use super::tape::{Document, Token};
use crate::fingerprint::encoder::Encoder;

const HOLE: u8 = 0x00;
const NULL: u8 = 0x01;
const FALSE: u8 = 0x02;
const TRUE: u8 = 0x03;
pub(super) const ZERO: u8 = 0x04;
pub(super) const POSITIVE: u8 = 0x05;
pub(super) const NEGATIVE: u8 = 0x06;
const STRING: u8 = 0x07;
const ARRAY: u8 = 0x08;
const OBJECT: u8 = 0x09;

impl Document<'_> {
    /// Encodes the document so that its end is known from what went before.
    pub(in crate::fingerprint) fn encode(&self, encoder: &mut Encoder) {
        let mut open = Vec::new();
        let mut token = 0;
        loop {
            self.encode_token(token, encoder, &mut open);
            match self.next(encoder, &mut open) {
                Some(next) => token = next,
                None => return,
            }
        }
    }

    #[inline]
    fn encode_token(&self, token: usize, encoder: &mut Encoder, open: &mut Vec<Container>) {
        match self.tape.tokens[token] {
            Token::Hole { .. } => encoder.byte(HOLE),
            Token::Null => encoder.byte(NULL),
            Token::False => encoder.byte(FALSE),
            Token::True => encoder.byte(TRUE),
            Token::Number(span) => encoder.raw(&self.tape.decoded[span.range()]),
            Token::Plain(_) | Token::Unescaped(_) => {
                encoder.byte(STRING);
                encoder.bytes(self.string(token));
            }
            Token::Array { count, end } => {
                encoder.byte(ARRAY);
                encoder.count(count as usize);
                open.push(Container::Array {
                    next: token + 1,
                    end: end as usize,
                });
            }
            Token::Object { first, count, .. } => {
                encoder.byte(OBJECT);
                encoder.count(count as usize);
                open.push(Container::Object {
                    next: first as usize,
                    end: (first + count) as usize,
                });
            }
        }
    }

    /// The next value's token, with its name encoded if it has one.
    #[inline]
    fn next(&self, encoder: &mut Encoder, open: &mut Vec<Container>) -> Option<usize> {
        loop {
            match open.last_mut()? {
                Container::Array { next, end } if *next < *end => {
                    let element = *next;
                    *next = self.tape.after(element);
                    return Some(element);
                }
                Container::Object { next, end } if *next < *end => {
                    let name = self.tape.members[*next] as usize;
                    *next += 1;
                    encoder.bytes(self.string(name));
                    return Some(name + 1);
                }
                _ => open.pop(),
            };
        }
    }
}

/// A container that is being encoded, with what comes next in it: a token, or an index of the members.
#[derive(Debug)]
enum Container {
    Array { next: usize, end: usize },
    Object { next: usize, end: usize },
}
