use super::tape::{Document, Token};
use crate::fingerprint::FingerprintError;
use crate::fingerprint::pointer::{Exclusion, Pointer, Required};

impl Document<'_> {
    /// Takes out what the pointers name. All are resolved before any is applied, so their order is of no
    /// importance.
    ///
    /// A member goes with its name. An element leaves a hole: `[1,2]` without its first element is not
    /// `[2,1]` without its second. So does the whole document.
    pub(in crate::fingerprint) fn exclude(
        &mut self,
        exclusions: &[Exclusion],
    ) -> Result<(), FingerprintError> {
        let mut targets = Vec::with_capacity(exclusions.len());
        for Exclusion { pointer, required } in exclusions {
            match (self.find(pointer), required) {
                (Some(target), _) => targets.push(target),
                (None, Required::No) => {}
                (None, Required::Yes) => {
                    return Err(FingerprintError::PointerUnmatched {
                        pointer: pointer.to_string(),
                    });
                }
            }
        }
        targets.into_iter().for_each(|target| self.take_out(target));
        Ok(())
    }

    fn find(&self, pointer: &Pointer) -> Option<Target> {
        let tape = &self.tape;
        let mut target = Target::Value { token: 0 };
        for step in pointer.steps() {
            let token = target.value();
            target = match tape.tokens[token] {
                Token::Object { first, count, .. } => {
                    let members = &tape.members[first as usize..][..count as usize];
                    let name_order = |name: &u32| self.string(*name as usize).cmp(step.name());
                    let found = members.binary_search_by(name_order).ok()?;
                    Target::Member {
                        object: token,
                        name: members[found],
                    }
                }
                Token::Array { count, .. } => {
                    let index = step.index().filter(|index| *index < count)?;
                    Target::Value {
                        token: (0..index).fold(token + 1, |element, _| tape.after(element)),
                    }
                }
                _ => return None,
            };
        }
        Some(target)
    }

    fn take_out(&mut self, target: Target) {
        match target {
            Target::Value { token } => {
                let end = self.tape.after(token) as u32;
                self.tape.tokens[token] = Token::Hole { end };
            }
            Target::Member { object, name } => {
                // A hole by now, if another pointer names the object itself.
                let Token::Object { first, count, .. } = &mut self.tape.tokens[object] else {
                    return;
                };
                let members = &mut self.tape.members[*first as usize..][..*count as usize];
                // Gone by now, if two pointers name the same member.
                if let Some(at) = members.iter().position(|member| *member == name) {
                    members.copy_within(at + 1.., at);
                    *count -= 1;
                }
            }
        }
    }
}

/// What a pointer names.
#[derive(Debug, Clone, Copy)]
enum Target {
    Value { token: usize },
    Member { object: usize, name: u32 },
}

impl Target {
    fn value(self) -> usize {
        match self {
            Self::Value { token } => token,
            Self::Member { name, .. } => name as usize + 1,
        }
    }
}
