//! One record in the store and in the model, step by step.

use idem_core::{
    Applied, Claim, ClaimOutcome, Expect, Moment, Record, RecordId, Settled, Snapshot, Span,
    StoreErrorKind, Timestamp, Transition, TransitionOutcome, settle,
};

use crate::difference::difference;
use crate::failure::{Failure, ensure, failure, unexpected};
use crate::subject::{Subject, name_of, outcome_name};

/// Sends everything to the store and to [`Record::apply`], and compares what they say and what they hold.
///
/// The model says what happens; the one thing that it cannot know is the store's time. So the instant of a
/// write is read from the record that it left, and must lie between the instants of the calls before and after.
#[derive(Debug)]
pub(crate) struct Track {
    subject: Subject,
    id: RecordId,
    model: Option<Record>,
    seen: Option<Moment>,
}

/// What became of a transition, in the model's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Applied,
    AlreadyApplied,
    Refused,
    Misuse,
}

impl Track {
    pub(crate) fn new(subject: Subject, id: RecordId) -> Self {
        Self {
            subject,
            id,
            model: None,
            seen: None,
        }
    }

    /// Which record it is.
    pub(crate) fn id(&self) -> &RecordId {
        &self.id
    }

    /// What the store must hold.
    pub(crate) fn model(&self) -> Option<&Record> {
        self.model.as_ref()
    }

    /// What the store must hold, when it must hold something.
    pub(crate) fn record(&self) -> Result<&Record, Failure> {
        self.model
            .as_ref()
            .ok_or_else(|| Failure::new("the suite lost its record"))
    }

    /// That the record is its owner's.
    pub(crate) fn owner(&self) -> Result<Expect, Failure> {
        Ok(Expect::Owner(self.record()?.token))
    }

    /// That the record is as it is now.
    pub(crate) fn unchanged(&self) -> Result<Expect, Failure> {
        Ok(Expect::unchanged(self.record()?))
    }

    /// Goes on with the same record through another store.
    pub(crate) fn through(&mut self, subject: &Subject) {
        self.subject = subject.clone();
    }

    /// Lets go of the store, so that it can be closed.
    pub(crate) fn through_nothing(&mut self) {
        self.subject = self
            .subject
            .over(std::sync::Arc::new(crate::closed::Closed));
    }

    /// How far the store's clock may be off.
    pub(crate) fn skew(&self) -> Span {
        self.seen.map_or(Span::ZERO, |seen| seen.skew)
    }

    /// Claims, and checks that it is `Won` exactly when there was nothing, and what there is afterwards.
    pub(crate) async fn claim(&mut self, claim: &Claim) -> Result<ClaimOutcome, Failure> {
        let outcome = self.subject.claim(claim).await?;
        match (&outcome, &self.model) {
            (ClaimOutcome::Won(won), None) => {
                self.see(won.moment(), "a won claim")?;
                let expected = claim.first_record(won.record.created_at);
                self.plausible(won.record.created_at, "created_at")?;
                same(&expected, &won.record, "what the claim says that it wrote")?;
                self.model = Some(expected);
            }
            (ClaimOutcome::Held(held), Some(model)) => {
                same(model, &held.record, "what the claim says is held")?;
                self.see(held.moment(), "a held claim")?;
            }
            (ClaimOutcome::Held(_), None) => {
                return Err(failure!(
                    "a claim of an id without a record must be Won, and was Held"
                ));
            }
            (other, Some(_)) => {
                return Err(failure!(
                    "a claim of an id that has a record must be Held, and was {}",
                    name_of(other)
                ));
            }
            (other, None) => {
                return Err(failure!("a claim was answered {}", name_of(other)));
            }
        }
        self.check().await?;
        Ok(outcome)
    }

    /// Sends a transition, and checks the answer and what there is afterwards.
    pub(crate) async fn send(
        &mut self,
        expect: Expect,
        change: &Transition,
    ) -> Result<Sent, Failure> {
        let name = change.name();
        let answer = self
            .subject
            .try_transition(&self.id, expect, change)
            .await?;
        let outcome = match answer {
            Ok(outcome) => outcome,
            Err(error) if change.patch(expect).is_err() => {
                ensure!(
                    error.kind() == StoreErrorKind::Misuse,
                    "{name} under an expectation that does not go with it must be a Misuse, and was {:?}",
                    error.kind()
                );
                self.check().await?;
                return Ok(Sent::Misuse);
            }
            Err(error) => return Err(unexpected(name, &error)),
        };
        ensure!(
            change.patch(expect).is_ok(),
            "{name} under an expectation that does not go with it must be a Misuse, and was {}",
            outcome_name(&outcome)
        );
        match outcome {
            TransitionOutcome::Applied { revision, now } => {
                self.applied(expect, change, revision, now).await
            }
            TransitionOutcome::Lost(held) => self.lost(expect, change, held).await,
            other => Err(failure!("{name} was {}", outcome_name(&other))),
        }
    }

    async fn applied(
        &mut self,
        expect: Expect,
        change: &Transition,
        revision: idem_core::Revision,
        now: Timestamp,
    ) -> Result<Sent, Failure> {
        let name = change.name();
        let Some(before) = self.model.take() else {
            return Err(failure!("{name} was Applied to an id without a record"));
        };
        let after = self.subject.load(&self.id).await?;
        // Every write but a renewal sets `locked_at` or `finished_at`; which of them, the model knows.
        let written = after.as_ref().map_or(now, |after| stamp(&after.record));
        let moment = Moment {
            now: written,
            skew: self.skew(),
        };
        let model = match before.apply(expect, change, moment) {
            Ok(Applied::Changed(next)) => {
                ensure!(
                    revision == next.revision,
                    "{name} says that it wrote revision {revision}, and it must be {}",
                    next.revision
                );
                Some(*next)
            }
            Ok(Applied::Removed) => {
                ensure!(
                    revision == before.revision,
                    "{name} says that it removed revision {revision}, and it was {}",
                    before.revision
                );
                None
            }
            Ok(Applied::Unchanged) | Err(_) => {
                return Err(failure!(
                    "{name} was Applied, although its guard does not admit the record: {}",
                    brief(&before)
                ));
            }
        };
        self.model = model;
        self.compare(after, &format!("after {name}"))?;
        if self.model.is_some() {
            self.plausible(now, "the time of the answer")?;
            self.plausible(written, "the time of the write")?;
        }
        Ok(Sent::Applied)
    }

    async fn lost(
        &mut self,
        expect: Expect,
        change: &Transition,
        held: Option<Snapshot>,
    ) -> Result<Sent, Failure> {
        let name = change.name();
        let moment = held.as_ref().map(Snapshot::moment);
        self.compare(held, &format!("what {name} says that it was Lost to"))?;
        if let (Some(record), Some(moment)) = (&self.model, moment) {
            let admitted = change
                .patch(expect)
                .is_ok_and(|patch| patch.guard.admits(record, moment));
            ensure!(
                !admitted,
                "{name} was Lost, although its guard admits the record: {}",
                brief(record)
            );
        }
        self.check().await?;
        Ok(match settle(expect, change, self.model.as_ref()) {
            Settled::AlreadyApplied => Sent::AlreadyApplied,
            _ => Sent::Refused,
        })
    }

    /// A transition that must be applied.
    pub(crate) async fn apply(
        &mut self,
        expect: Expect,
        change: &Transition,
    ) -> Result<(), Failure> {
        match self.send(expect, change).await? {
            Sent::Applied => Ok(()),
            other => Err(failure!(
                "{} must be applied, and was {other:?}",
                change.name()
            )),
        }
    }

    /// A transition that must change nothing.
    pub(crate) async fn refuse(
        &mut self,
        expect: Expect,
        change: &Transition,
    ) -> Result<(), Failure> {
        match self.send(expect, change).await? {
            Sent::Refused => Ok(()),
            other => Err(failure!(
                "{} must be refused, and was {other:?}",
                change.name()
            )),
        }
    }

    /// Loads, and compares with the model.
    pub(crate) async fn check(&mut self) -> Result<Option<Snapshot>, Failure> {
        let held = self.subject.load(&self.id).await?;
        self.compare(held.clone(), "load")?;
        Ok(held)
    }

    /// The store removed it by sweeping.
    pub(crate) fn swept(&mut self) {
        self.model = None;
    }

    fn compare(&mut self, held: Option<Snapshot>, place: &str) -> Result<(), Failure> {
        match (&self.model, held) {
            (None, None) => Ok(()),
            (Some(model), Some(held)) => {
                same(model, &held.record, place)?;
                self.see(held.moment(), place)
            }
            (Some(model), None) => Err(failure!(
                "{place}: there is no record, and there must be one: {}",
                brief(model)
            )),
            (None, Some(held)) => Err(failure!(
                "{place}: there is a record, and there must be none: {}",
                brief(&held.record)
            )),
        }
    }

    /// The store's clock does not go back, by more than its skew.
    fn see(&mut self, moment: Moment, place: &str) -> Result<(), Failure> {
        if let Some(seen) = self.seen {
            ensure!(
                moment.latest() >= seen.earliest(),
                "{place}: the store's now went back by {:?}",
                seen.now.since(moment.now)
            );
        }
        if self.seen.is_none_or(|seen| seen.now <= moment.now) {
            self.seen = Some(moment);
        }
        Ok(())
    }

    /// A write happens neither before the calls that came before it, nor after those that came after it.
    fn plausible(&mut self, at: Timestamp, what: &str) -> Result<(), Failure> {
        let Some(seen) = self.seen else {
            return Ok(());
        };
        // A statement may read the clock more than once; a second is more than any of them takes.
        let slack = Span::from_secs(1).saturating_add(seen.skew);
        ensure!(
            at + slack >= seen.now && at <= seen.now + slack,
            "{what} is {} us away from the store's now",
            (at.as_micros() - seen.now.as_micros()).abs()
        );
        Ok(())
    }
}

/// When the last write was, as far as the record tells.
fn stamp(after: &Record) -> Timestamp {
    // No write leaves a finish as it was: it sets one, or it begins a lease.
    after
        .state
        .finish()
        .map_or(after.locked_at, |finish| finish.finished_at)
}

fn same(expected: &Record, found: &Record, place: &str) -> Result<(), Failure> {
    match difference(expected, found) {
        None => Ok(()),
        Some(difference) => Err(failure!("{place}: {difference}")),
    }
}

/// A record in a few words.
pub(crate) fn brief(record: &Record) -> String {
    format!(
        "{} attempt {} revision {} reclaims {}{}",
        record.status(),
        record.attempt,
        record.revision,
        record.reclaims,
        if record.uncertain { " uncertain" } else { "" }
    )
}
