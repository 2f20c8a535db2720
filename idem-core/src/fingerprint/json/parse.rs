use super::number::scan_number;
use super::string::{Scanned, scan_string};
use super::tape::{Span, Tape, Token};
use crate::fingerprint::{InvalidJson, Nulls};

/// A parser that keeps its own stack: nesting costs memory, which is limited, and never the thread's stack.
#[derive(Debug)]
pub(super) struct Parser<'t> {
    text: &'t [u8],
    at: usize,
    nulls: Nulls,
    tape: Tape,
    open: Vec<Container>,
    /// The members so far of every open object, the innermost object's last.
    pending: Vec<Member>,
}

impl<'t> Parser<'t> {
    /// What [`Span`] can hold, with room for numbers, whose encoding may be twice as long as they are.
    pub(super) const MAX_BYTES: usize = 1 << 30;
    const MAX_DEPTH: usize = 128;

    pub(super) fn new(text: &'t [u8], nulls: Nulls) -> Result<Self, InvalidJson> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidJson::TooLarge {
                bytes: text.len(),
                limit: Self::MAX_BYTES,
            });
        }
        if text.starts_with(b"\xef\xbb\xbf") {
            return Err(InvalidJson::ByteOrderMark);
        }
        if let Err(error) = std::str::from_utf8(text) {
            return Err(InvalidJson::InvalidUtf8 {
                offset: error.valid_up_to(),
            });
        }
        let tape = Tape {
            tokens: Vec::with_capacity(text.len() / 8 + 1),
            ..Tape::default()
        };
        Ok(Self {
            text,
            at: 0,
            nulls,
            tape,
            open: Vec::new(),
            pending: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Tape, InvalidJson> {
        self.skip_space();
        if self.at == self.text.len() {
            return Err(InvalidJson::Empty);
        }
        loop {
            let opened = self.value()?;
            let another = if opened {
                self.first_in_container()?
            } else {
                false
            };
            if !another && !self.next_in_container()? {
                break;
            }
        }
        match self.text.get(self.at) {
            Some(_) => Err(InvalidJson::TrailingData { offset: self.at }),
            None => Ok(self.tape),
        }
    }

    /// Reads a scalar, or the bracket that opens a container: then the answer is true.
    #[inline]
    fn value(&mut self) -> Result<bool, InvalidJson> {
        let token = match self.peek()? {
            b'"' => self.string()?,
            b'-' | b'0'..=b'9' => {
                let start = self.tape.decoded.len();
                self.at = scan_number(self.text, self.at, &mut self.tape.decoded)?;
                Token::Number(Span::new(start, self.tape.decoded.len()))
            }
            b'{' => return self.open(Kind::Object),
            b'[' => return self.open(Kind::Array),
            b't' => self.literal(b"true", Token::True)?,
            b'f' => self.literal(b"false", Token::False)?,
            b'n' => self.literal(b"null", Token::Null)?,
            _ => return Err(self.syntax()),
        };
        self.tape.tokens.push(token);
        Ok(false)
    }

    fn open(&mut self, kind: Kind) -> Result<bool, InvalidJson> {
        if self.open.len() == Self::MAX_DEPTH {
            return Err(InvalidJson::TooDeep {
                offset: self.at,
                limit: Self::MAX_DEPTH,
            });
        }
        self.open.push(Container {
            kind,
            token: self.tape.tokens.len(),
            pending: self.pending.len(),
            count: 0,
        });
        // Stands for the container until its end is known.
        self.tape.tokens.push(Token::Hole { end: 0 });
        self.at += 1;
        Ok(true)
    }

    /// After an opening bracket: true when a value comes next, false when the container was empty.
    fn first_in_container(&mut self) -> Result<bool, InvalidJson> {
        self.skip_space();
        let Some(container) = self.open.last_mut() else {
            return Ok(false);
        };
        match (container.kind, self.text.get(self.at)) {
            (Kind::Array, Some(b']')) | (Kind::Object, Some(b'}')) => {
                self.at += 1;
                self.close()?;
                Ok(false)
            }
            (Kind::Array, _) => {
                container.count = 1;
                Ok(true)
            }
            (Kind::Object, _) => self.name().map(|()| true),
        }
    }

    /// After a value: true when another one comes next, false when that was the last of the document.
    #[inline]
    fn next_in_container(&mut self) -> Result<bool, InvalidJson> {
        loop {
            self.skip_space();
            let Some(container) = self.open.last_mut() else {
                return Ok(false);
            };
            let Some(byte) = self.text.get(self.at) else {
                return Err(self.end());
            };
            match (container.kind, byte) {
                (Kind::Array, b',') => {
                    container.count += 1;
                    self.at += 1;
                    self.skip_space();
                    return Ok(true);
                }
                (Kind::Object, b',') => {
                    self.at += 1;
                    self.skip_space();
                    return self.name().map(|()| true);
                }
                (Kind::Array, b']') | (Kind::Object, b'}') => {
                    self.at += 1;
                    self.close()?;
                }
                _ => return Err(self.syntax()),
            }
        }
    }

    /// Reads a name and its colon.
    #[inline]
    fn name(&mut self) -> Result<(), InvalidJson> {
        if self.peek()? != b'"' {
            return Err(self.syntax());
        }
        let (offset, token) = (self.at, self.tape.tokens.len());
        let name = self.string()?;
        self.tape.tokens.push(name);
        let prefix = prefix(self.tape.string(self.text, token));
        self.pending.push(Member {
            prefix,
            token: token as u32,
            offset: offset as u32,
        });
        self.skip_space();
        if self.peek()? != b':' {
            return Err(self.syntax());
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn close(&mut self) -> Result<(), InvalidJson> {
        let Some(container) = self.open.pop() else {
            return Ok(());
        };
        let end = self.tape.tokens.len() as u32;
        self.tape.tokens[container.token] = match container.kind {
            Kind::Array => Token::Array {
                count: container.count,
                end,
            },
            Kind::Object => {
                let first = self.tape.members.len() as u32;
                self.sort_members(container.pending)?;
                Token::Object {
                    first,
                    count: self.tape.members.len() as u32 - first,
                    end,
                }
            }
        };
        Ok(())
    }

    /// Moves an object's members to the tape in the order of their names. Sorting also finds repeated names,
    /// and unlike a hash table takes no longer for names that were chosen to collide.
    fn sort_members(&mut self, pending: usize) -> Result<(), InvalidJson> {
        let (text, tape) = (self.text, &self.tape);
        let string = |member: &Member| tape.string(text, member.token as usize);
        let order = |one: &Member, other: &Member| {
            one.prefix
                .cmp(&other.prefix)
                .then_with(|| string(one).cmp(string(other)))
        };
        let object = &mut self.pending[pending..];
        if !object.is_sorted_by(|one, other| order(one, other).is_lt()) {
            object.sort_unstable_by(order);
            if let Some(twice) = object
                .windows(2)
                .find(|pair| order(&pair[0], &pair[1]).is_eq())
            {
                let offset = twice[0].offset.max(twice[1].offset) as usize;
                return Err(InvalidJson::DuplicateMember { offset });
            }
        }
        let Tape {
            tokens, members, ..
        } = &mut self.tape;
        let is_null = |member: &Member| tokens[member.token as usize + 1] == Token::Null;
        let kept = object
            .iter()
            .filter(|member| self.nulls == Nulls::Distinct || !is_null(member));
        members.extend(kept.map(|member| member.token));
        self.pending.truncate(pending);
        Ok(())
    }

    #[inline]
    fn string(&mut self) -> Result<Token, InvalidJson> {
        let start = self.at + 1;
        let decoded = self.tape.decoded.len();
        let Scanned { end, unescaped } = scan_string(self.text, start, &mut self.tape.decoded)?;
        self.at = end + 1;
        Ok(if unescaped {
            Token::Unescaped(Span::new(decoded, self.tape.decoded.len()))
        } else {
            Token::Plain(Span::new(start, end))
        })
    }

    fn literal(&mut self, literal: &[u8], token: Token) -> Result<Token, InvalidJson> {
        let rest = &self.text[self.at..];
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(token);
        }
        let common = rest
            .iter()
            .zip(literal)
            .take_while(|(one, other)| one == other)
            .count();
        self.at += common;
        Err(if self.at == self.text.len() {
            self.end()
        } else {
            self.syntax()
        })
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    #[inline]
    fn peek(&self) -> Result<u8, InvalidJson> {
        self.text.get(self.at).copied().ok_or_else(|| self.end())
    }

    fn syntax(&self) -> InvalidJson {
        InvalidJson::Syntax { offset: self.at }
    }

    fn end(&self) -> InvalidJson {
        InvalidJson::UnexpectedEnd {
            bytes: self.text.len(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Array,
    Object,
}

#[derive(Debug)]
struct Container {
    kind: Kind,
    token: usize,
    /// Where this object's members start in [`Parser::pending`].
    pending: usize,
    /// How many elements this array has so far.
    count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    prefix: u64,
    token: u32,
    offset: u32,
}

/// The first bytes of a name as a number of the same order, so that most comparisons stay here.
#[inline]
fn prefix(name: &[u8]) -> u64 {
    if let Some(first) = name.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    name.iter().enumerate().fold(0, |prefix, (index, byte)| {
        prefix | u64::from(*byte) << (56 - 8 * index)
    })
}
