use redis::{Cmd, Value};

use crate::entry::Entry;

/// A script that Redis runs as one step. It is named by its hash, which is a constant; a server that does not know it
/// yet is sent the whole text, in the background.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    source: &'static str,
    sha1: &'static str,
}

pub(crate) const LOOK: Script = Script {
    source: include_str!("scripts/look.lua"),
    sha1: "9e9435728e591ac2f1e4d3308750626d20a9b0b2",
};

pub(crate) const REMEMBER: Script = Script {
    source: include_str!("scripts/remember.lua"),
    sha1: "16d28d2a761dccba42f69f968165178971c6593d",
};

pub(crate) const FORGET: Script = Script {
    source: include_str!("scripts/forget.lua"),
    sha1: "e28bc528e879fb3063882a6fb96bc7f7dd4fc634",
};

/// A run of a script that is to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    script: Script,
    key: String,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    /// Looks an entry up.
    pub(crate) fn look(key: &str, nonce: u64) -> Self {
        let bytes = Entry::BYTES.to_string();
        Self {
            script: LOOK,
            key: key.to_owned(),
            arguments: vec![nonce.to_string().into(), bytes.into()],
        }
    }

    /// Writes an entry that ends so many milliseconds of its lifetime after `anchor`.
    pub(crate) fn remember(key: &str, entry: &Entry, anchor: ServerTime) -> Self {
        let lifetime = entry.lifetime.millis();
        let end = anchor.0.saturating_add(lifetime.into());
        Self {
            script: REMEMBER,
            key: key.to_owned(),
            arguments: vec![
                entry.encode(),
                end.to_string().into(),
                lifetime.to_string().into(),
            ],
        }
    }

    /// Removes an entry that begins like this.
    pub(crate) fn forget(key: &str, holder: &[u8]) -> Self {
        let last = holder.len().saturating_sub(1).to_string();
        Self {
            script: FORGET,
            key: key.to_owned(),
            arguments: vec![holder.to_vec(), last.into()],
        }
    }

    /// The command that names the script by its hash.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", self.script.sha1)
    }

    /// The command that brings the whole script, after which the server knows its hash.
    pub(crate) fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(&self.key);
        for argument in &self.arguments {
            command.arg(argument.as_slice());
        }
        command
    }
}

/// A reading of the Redis server's own clock, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerTime(pub(crate) i64);

/// What [`LOOK`] answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) now: ServerTime,
    /// The first bytes of what is there, and for how many milliseconds it is; negative for something without an end.
    pub(crate) found: Option<(Vec<u8>, i64)>,
}

impl Look {
    /// Reads an answer. `None` if it is not one, or is that to another question.
    pub(crate) fn read(answer: Value, nonce: u64) -> Option<Self> {
        let Value::Array(parts) = answer else {
            return None;
        };
        let mut parts = parts.into_iter();
        let (Some(Value::BulkString(echo)), Some(Value::Int(now))) = (parts.next(), parts.next())
        else {
            return None;
        };
        if echo != nonce.to_string().as_bytes() {
            return None;
        }
        let found = match (parts.next(), parts.next(), parts.next()) {
            (None, None, None) => None,
            (Some(Value::BulkString(bytes)), Some(Value::Int(left)), None) => Some((bytes, left)),
            _ => return None,
        };
        Some(Self {
            now: ServerTime(now),
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn an_answer_is_read_strictly() {
        let empty = Look::read(Value::Array(vec![text("7"), Value::Int(1000)]), 7);
        assert_eq!(
            empty,
            Some(Look {
                now: ServerTime(1000),
                found: None
            })
        );
        let parts = vec![text("7"), Value::Int(1000), text("x"), Value::Int(5)];
        let found = Look::read(Value::Array(parts.clone()), 7).unwrap();
        assert_eq!(found.found, Some((b"x".to_vec(), 5)));

        // An answer to another question, on a connection that got out of step.
        assert_eq!(Look::read(Value::Array(parts.clone()), 8), None);
        for shorter in [0, 1, 3] {
            assert_eq!(Look::read(Value::Array(parts[..shorter].to_vec()), 7), None);
        }
        let mut longer = parts.clone();
        longer.push(Value::Nil);
        assert_eq!(Look::read(Value::Array(longer), 7), None);
        for place in 0..parts.len() {
            let mut other = parts.clone();
            other[place] = Value::Nil;
            assert_eq!(Look::read(Value::Array(other), 7), None, "part {place}");
        }
        for other in [Value::Nil, Value::Okay, Value::Int(7), text("7")] {
            assert_eq!(Look::read(other, 7), None);
        }
    }
}
