use thiserror::Error;

use crate::record::{
    AttemptNumber, Finish, Moment, Record, Recovery, RecoveryPoint, Response, State, Status,
};

use super::{
    AttemptColumn, Columns, EffectColumn, Expect, FinishColumn, Misuse, NoteColumn, Patch,
    ReclaimsColumn, RecoveryColumn, ResponseColumn, Settled, Transition, UncertainColumn, Write,
    settle,
};

/// What a transition does to a record that it was allowed to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The record is now this one.
    Changed(Box<Record>),
    /// The same transition was applied before, and its acknowledgement was lost: nothing more happens.
    Unchanged,
    /// The record is gone, and the key is unused.
    Removed,
}

/// Why a transition changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Rejected {
    /// The record is no longer what the writer believed: it has another owner, another revision or another
    /// state, or the time for this transition has not come or is over.
    #[error("the record is no longer what the writer expected")]
    Lost,
    /// A newer checkpoint is stored already.
    #[error("a newer checkpoint is stored already")]
    Superseded,
    /// A checkpoint with the same number and other content is stored: two checkpoints were given one number.
    #[error("another checkpoint with the same number is stored")]
    Conflict,
    /// The expectation does not go with the transition.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

impl Record {
    /// What `change` does to this record: the reference that every store is compared with.
    ///
    /// It carries out [`Transition::patch`], the same patch that a store does, so the two cannot differ in what
    /// a transition means.
    ///
    /// # Errors
    ///
    /// [`Rejected`], and then the record stays as it is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use idem_core::{Applied, Expect, Moment, Rejected, Response, Span, Timestamp, Transition};
    /// # use idem_core::{
    /// #     Claim, Fingerprints, IdempotencyKey, Nulls, Operation, Origin, OwnerToken, Policy, Profile,
    /// #     RecordId, Request, Rules, Scope,
    /// # };
    /// # let operation = Operation::new("POST /v1/charges")?;
    /// # let fingerprint = Rules::new(Profile::new(1), Nulls::Distinct).of(&operation).finish();
    /// # let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("k-1")?);
    /// # let request = Request::new(id, operation, Fingerprints::new(fingerprint));
    /// # let token = OwnerToken::from_bytes([7; 16]);
    /// # let claim = Claim::new(request, &Policy::default(), Origin::from_bytes([1; 16]), token);
    /// let record = claim.first_record(Timestamp::from_micros(0));
    /// let complete = Transition::Complete(Response::new(204));
    ///
    /// let now = Moment::exact(Timestamp::from_micros(5));
    /// let done = match record.apply(Expect::Owner(token), &complete, now)? {
    ///     Applied::Changed(record) => record,
    ///     other => unreachable!("{other:?}"),
    /// };
    /// // An owner cannot renew what is finished.
    /// let renewal = Transition::Renew { lease: Span::from_secs(90) };
    /// assert_eq!(done.apply(Expect::Owner(token), &renewal, now), Err(Rejected::Lost));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply(
        &self,
        expect: Expect,
        change: &Transition,
        moment: Moment,
    ) -> Result<Applied, Rejected> {
        let patch = change.patch(expect)?;
        if patch.guard.admits(self, moment) {
            return Ok(patch.carry_out(self, moment));
        }
        match settle(expect, change, Some(self)) {
            Settled::AlreadyApplied => Ok(Applied::Unchanged),
            Settled::Superseded => Err(Rejected::Superseded),
            Settled::Conflict => Err(Rejected::Conflict),
            Settled::Lost => Err(Rejected::Lost),
        }
    }
}

impl Patch<'_> {
    /// What this patch makes of a record that its guard admits.
    fn carry_out(&self, record: &Record, moment: Moment) -> Applied {
        match &self.write {
            Write::Remove => Applied::Removed,
            Write::RemoveUnlessUncertain(_) if !record.uncertain => Applied::Removed,
            Write::Set(columns) | Write::RemoveUnlessUncertain(columns) => {
                Applied::Changed(Box::new(columns.write(record, moment)))
            }
        }
    }
}

impl Columns<'_> {
    fn write(&self, record: &Record, moment: Moment) -> Record {
        let now = moment.now;
        let in_progress = record.status() == Status::InProgress;
        let doubtful = record.uncertain || in_progress;
        let mut next = record.clone();

        next.revision = record.revision.next();
        if let Some(claim) = self.identity {
            next.operation = claim.operation().clone();
            next.fingerprint = *claim.fingerprint();
            next.origin = claim.origin();
            next.terms = claim.terms();
            next.created_at = now;
        }
        if let Some(token) = self.token {
            next.token = token;
        }
        if let Some(lease) = self.lease {
            next.locked_at = now;
            next.locked_until = now + lease;
        }
        match self.attempt {
            AttemptColumn::Keep => {}
            AttemptColumn::Next => next.attempt = record.attempt.next(),
            AttemptColumn::First => next.attempt = AttemptNumber::FIRST,
        }
        match self.reclaims {
            ReclaimsColumn::CountIfDoubtful if doubtful => {
                next.reclaims = record.reclaims.saturating_add(1)
            }
            ReclaimsColumn::Keep | ReclaimsColumn::CountIfDoubtful => {}
            ReclaimsColumn::Zero => next.reclaims = 0,
        }
        match self.uncertain {
            UncertainColumn::Keep => {}
            UncertainColumn::Set => next.uncertain = true,
            UncertainColumn::SetIfInProgress => next.uncertain = doubtful,
            UncertainColumn::Clear => next.uncertain = false,
        }
        match self.effect_since {
            EffectColumn::Now => next.effect_since = now,
            EffectColumn::NowUnlessDoubtful if !doubtful => next.effect_since = now,
            EffectColumn::Keep | EffectColumn::NowUnlessDoubtful => {}
        }
        match self.recovery {
            RecoveryColumn::Keep => {}
            RecoveryColumn::Clear => next.recovery = None,
            RecoveryColumn::Set { point, sequence } => {
                next.recovery = Some(recovery(record, point, sequence))
            }
        }
        match self.note {
            NoteColumn::Keep => {}
            NoteColumn::Clear => next.note = None,
            NoteColumn::Set(note) => next.note = Some(note.clone()),
        }
        next.state = self.state(record, next.terms.retention, now);
        next
    }

    /// Status, response and finish, which are three columns and one state.
    fn state(&self, record: &Record, retention: crate::Span, now: crate::Timestamp) -> State {
        let response: Option<Response> = match self.response {
            ResponseColumn::Keep => record.state.response().cloned(),
            ResponseColumn::Clear => None,
            ResponseColumn::Set(response) => Some(response.clone()),
        };
        let finish = match self.finish {
            FinishColumn::Keep => record.state.finish(),
            FinishColumn::Clear => None,
            FinishColumn::Now => Some(Finish {
                finished_at: now,
                expires_at: now + retention,
            }),
        };
        match (self.status.unwrap_or(record.status()), response, finish) {
            (Status::Completed, Some(response), Some(finish)) => {
                State::Completed { response, finish }
            }
            (Status::FailedFinal, Some(response), Some(finish)) => {
                State::FailedFinal { response, finish }
            }
            (Status::FailedRetryable, None, Some(finish)) => State::FailedRetryable { finish },
            // No transition makes any other combination: those that finish set the response that belongs to
            // the status, and those that do not clear both.
            _ => State::InProgress,
        }
    }
}

fn recovery(record: &Record, point: &RecoveryPoint, sequence: u32) -> Recovery {
    Recovery {
        point: point.clone(),
        attempt: record.attempt,
        sequence,
    }
}
