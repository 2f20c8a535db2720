use crate::record::{Moment, Note, OwnerToken, Record, RecoveryPoint, Response, Revision, Status};
use crate::time::Span;

use super::Claim;

/// A transition as a store writes it: which rows it may touch, and what it does to their columns.
///
/// Everything is relative to the row and to the store's own now, so a store can carry it out in one statement
/// without reading first. Every write, whatever else it does, sets `revision = revision + 1`.
#[derive(Debug, Clone)]
pub struct Patch<'a> {
    /// The rows that may be written: the `WHERE`.
    pub guard: Guard,
    /// What is written: the `SET`.
    pub write: Write<'a>,
}

/// Which row may be written. All of it must hold in the same atomic step as the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// `token = this`.
    pub token: OwnerToken,
    /// `revision = this`, if there is one.
    pub revision: Option<Revision>,
    /// And this.
    pub condition: Condition,
}

/// What must hold beside token and revision. `earliest` is the store's now less its skew, `latest` is its now
/// plus its skew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// `status = 'in_progress'`
    InProgress,
    /// `status = 'in_progress'`, and no recovery point is stored that is as new: `recovery_attempt` is null, or
    /// less than `attempt`, or equal to it and `recovery_sequence < sequence`
    NewerCheckpoint {
        /// The sequence that is to be stored.
        sequence: u32,
    },
    /// [`Record::is_reclaimable`]: `status = 'in_progress' AND locked_until <= earliest AND terms`, or
    /// `status = 'failed_retryable' AND (NOT uncertain OR terms)`, where *terms* is
    /// `contract = 'reclaim' AND latest < effect_since + reclaim_window AND reclaims < max_reclaims`
    Reclaimable,
    /// [`Record::is_expired`]: `expires_at <= earliest`, and the status is `completed`, or `failed_final`, or
    /// `failed_retryable` and not `uncertain`
    Expired,
    /// [`Record::is_resolvable`]: `status = 'in_progress' AND locked_until <= earliest`, or
    /// `status = 'failed_retryable' AND uncertain AND NOT terms`
    Resolvable,
}

/// What becomes of the row.
#[derive(Debug, Clone)]
pub enum Write<'a> {
    /// Its columns change.
    Set(Columns<'a>),
    /// It is removed.
    Remove,
    /// It is removed if it is not `uncertain`; else its columns change.
    RemoveUnlessUncertain(Columns<'a>),
}

/// What happens to each column. [`Columns::KEEP`] keeps all of them.
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    /// A new `status`.
    pub status: Option<Status>,
    /// A new `token`.
    pub token: Option<OwnerToken>,
    /// `locked_at = now`, `locked_until = now + this`.
    pub lease: Option<Span>,
    /// The columns that only a restart writes: `operation`, the fingerprint, `origin`, the terms, and
    /// `created_at = now`. They come from this claim.
    pub identity: Option<&'a Claim>,
    /// `attempt`.
    pub attempt: AttemptColumn,
    /// `reclaims`.
    pub reclaims: ReclaimsColumn,
    /// `uncertain`.
    pub uncertain: UncertainColumn,
    /// `effect_since`.
    pub effect_since: EffectColumn,
    /// The recovery columns.
    pub recovery: RecoveryColumn<'a>,
    /// The response columns.
    pub response: ResponseColumn<'a>,
    /// `note`.
    pub note: NoteColumn<'a>,
    /// `finished_at` and `expires_at`.
    pub finish: FinishColumn,
}

/// What happens to `attempt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptColumn {
    /// Nothing.
    Keep,
    /// `attempt + 1`
    Next,
    /// `1`
    First,
}

/// What happens to `reclaims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReclaimsColumn {
    /// Nothing.
    Keep,
    /// `reclaims + 1` if the row was `uncertain` or `in_progress`: a side effect may already have existed.
    CountIfDoubtful,
    /// `0`
    Zero,
}

/// What happens to `uncertain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UncertainColumn {
    /// Nothing.
    Keep,
    /// `true`
    Set,
    /// `true` if the row was `in_progress`, else as it was.
    SetIfInProgress,
    /// `false`
    Clear,
}

/// What happens to `effect_since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectColumn {
    /// Nothing.
    Keep,
    /// The store's now.
    Now,
    /// The store's now, unless the row was `uncertain` or `in_progress`.
    ///
    /// A lease that ran out counts as doubt here, although `uncertain` is only set by that takeover: what its
    /// owner may have done, it may have done since the time that is stored.
    NowUnlessDoubtful,
}

/// What happens to the recovery columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryColumn<'a> {
    /// Nothing.
    Keep,
    /// All null.
    Clear,
    /// This point; `recovery_attempt` is the row's `attempt`.
    Set {
        /// `recovery_name` and `recovery_data`.
        point: &'a RecoveryPoint,
        /// `recovery_sequence`.
        sequence: u32,
    },
}

/// What happens to the response columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseColumn<'a> {
    /// Nothing.
    Keep,
    /// All null.
    Clear,
    /// This response.
    Set(&'a Response),
}

/// What happens to `note`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteColumn<'a> {
    /// Nothing.
    Keep,
    /// Null.
    Clear,
    /// This note.
    Set(&'a Note),
}

/// What happens to `finished_at` and `expires_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishColumn {
    /// Nothing.
    Keep,
    /// Both null.
    Clear,
    /// `finished_at = now`, `expires_at = now + retention`, with the row's own retention.
    Now,
}

impl Columns<'_> {
    /// No column changes, but for the revision.
    pub const KEEP: Self = Self {
        status: None,
        token: None,
        lease: None,
        identity: None,
        attempt: AttemptColumn::Keep,
        reclaims: ReclaimsColumn::Keep,
        uncertain: UncertainColumn::Keep,
        effect_since: EffectColumn::Keep,
        recovery: RecoveryColumn::Keep,
        response: ResponseColumn::Keep,
        note: NoteColumn::Keep,
        finish: FinishColumn::Keep,
    };
}

impl Guard {
    /// Whether the guard lets a write through to this record at this moment.
    ///
    /// A store asks it about the record that it found after a write had touched nothing. If the answer is yes,
    /// the record was read too early, before the write that it lost to, and both are tried again.
    #[must_use]
    pub fn admits(&self, record: &Record, moment: Moment) -> bool {
        self.token == record.token
            && self
                .revision
                .is_none_or(|revision| revision == record.revision)
            && match self.condition {
                Condition::InProgress => record.status() == Status::InProgress,
                Condition::NewerCheckpoint { sequence } => {
                    record.status() == Status::InProgress
                        && record.recovery.as_ref().is_none_or(|stored| {
                            (stored.attempt, stored.sequence) < (record.attempt, sequence)
                        })
                }
                Condition::Reclaimable => record.is_reclaimable(moment),
                Condition::Expired => record.is_expired(moment),
                Condition::Resolvable => record.is_resolvable(moment),
            }
    }
}
