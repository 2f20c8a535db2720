//! From a transition to the patch that carries it out: the meaning of every transition, in one place.

use crate::record::{OwnerToken, Status};

use super::{
    AttemptColumn, Columns, Condition, EffectColumn, Expect, FinishColumn, Guard, Misuse,
    NoteColumn, Patch, ReclaimsColumn, RecoveryColumn, ResponseColumn, Transition, UncertainColumn,
    Verdict, Write,
};

impl Transition {
    /// How a store writes this transition.
    ///
    /// # Errors
    ///
    /// [`Misuse`] when the expectation does not go with the transition.
    ///
    /// ```
    /// use idem_core::{Condition, Expect, OwnerToken, Response, Transition};
    ///
    /// let token = OwnerToken::from_bytes([7; 16]);
    /// let complete = Transition::Complete(Response::new(204));
    /// let patch = complete.patch(Expect::Owner(token))?;
    /// assert_eq!(patch.guard.condition, Condition::InProgress);
    /// # Ok::<(), idem_core::Misuse>(())
    /// ```
    pub fn patch(&self, expect: Expect) -> Result<Patch<'_>, Misuse> {
        Ok(Patch {
            guard: self.guard(expect)?,
            write: self.write(),
        })
    }

    fn guard(&self, expect: Expect) -> Result<Guard, Misuse> {
        let (condition, owner) = match self {
            Self::Renew { .. }
            | Self::Complete(_)
            | Self::FailFinal(_)
            | Self::FailRetryable { .. }
            | Self::Release => (Condition::InProgress, true),
            Self::Checkpoint { sequence, .. } => (
                Condition::NewerCheckpoint {
                    sequence: *sequence,
                },
                true,
            ),
            Self::TakeOver { .. } => (Condition::Reclaimable, false),
            Self::Restart(_) => (Condition::Expired, false),
            Self::Resolve { .. } => (Condition::Resolvable, false),
        };
        match (expect, owner) {
            (Expect::Owner(token), true) => Ok(Guard {
                token,
                revision: None,
                condition,
            }),
            (Expect::Unchanged { token, revision }, false) => Ok(Guard {
                token,
                revision: Some(revision),
                condition,
            }),
            _ => Err(Misuse {
                transition: self.name(),
            }),
        }
    }

    fn write(&self) -> Write<'_> {
        match self {
            Self::Renew { lease } => Write::Set(Columns {
                lease: Some(*lease),
                ..Columns::KEEP
            }),
            Self::Checkpoint {
                point,
                sequence,
                lease,
            } => Write::Set(Columns {
                lease: Some(*lease),
                uncertain: UncertainColumn::Set,
                recovery: RecoveryColumn::Set {
                    point,
                    sequence: *sequence,
                },
                ..Columns::KEEP
            }),
            Self::Complete(response) => Write::Set(Columns {
                response: ResponseColumn::Set(response),
                ..finished(Status::Completed)
            }),
            Self::FailFinal(response) => Write::Set(Columns {
                response: ResponseColumn::Set(response),
                ..finished(Status::FailedFinal)
            }),
            Self::FailRetryable { reason, uncertain } => Write::Set(Columns {
                note: NoteColumn::Set(reason),
                uncertain: if *uncertain {
                    UncertainColumn::Set
                } else {
                    UncertainColumn::Keep
                },
                ..finished(Status::FailedRetryable)
            }),
            Self::Release => Write::RemoveUnlessUncertain(finished(Status::FailedRetryable)),
            Self::TakeOver { token, lease } => Write::Set(Columns {
                status: Some(Status::InProgress),
                token: Some(*token),
                lease: Some(*lease),
                attempt: AttemptColumn::Next,
                reclaims: ReclaimsColumn::CountIfDoubtful,
                uncertain: UncertainColumn::SetIfInProgress,
                effect_since: EffectColumn::NowUnlessDoubtful,
                note: NoteColumn::Clear,
                finish: FinishColumn::Clear,
                ..Columns::KEEP
            }),
            Self::Restart(claim) => Write::Set(Columns {
                status: Some(Status::InProgress),
                token: Some(claim.token()),
                lease: Some(claim.lease()),
                identity: Some(claim),
                attempt: AttemptColumn::First,
                reclaims: ReclaimsColumn::Zero,
                uncertain: UncertainColumn::Clear,
                effect_since: EffectColumn::Now,
                recovery: RecoveryColumn::Clear,
                response: ResponseColumn::Clear,
                note: NoteColumn::Clear,
                finish: FinishColumn::Clear,
            }),
            Self::Resolve {
                verdict: Verdict::Released,
                ..
            } => Write::Remove,
            Self::Resolve {
                verdict: Verdict::Completed(response),
                token,
                note,
            } => Write::Set(Columns {
                response: ResponseColumn::Set(response),
                note: NoteColumn::Set(note),
                ..settled(Status::Completed, *token)
            }),
            Self::Resolve {
                verdict: Verdict::Failed(response),
                token,
                note,
            } => Write::Set(Columns {
                response: ResponseColumn::Set(response),
                note: NoteColumn::Set(note),
                ..settled(Status::FailedFinal, *token)
            }),
            Self::Resolve {
                verdict: Verdict::Retryable,
                token,
                note,
            } => Write::Set(Columns {
                uncertain: UncertainColumn::Set,
                note: NoteColumn::Set(note),
                ..settled(Status::FailedRetryable, *token)
            }),
        }
    }
}

fn finished(status: Status) -> Columns<'static> {
    Columns {
        status: Some(status),
        finish: FinishColumn::Now,
        ..Columns::KEEP
    }
}

fn settled(status: Status, token: OwnerToken) -> Columns<'static> {
    Columns {
        token: Some(token),
        ..finished(status)
    }
}
