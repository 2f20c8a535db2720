//! The smallest store that there can be: one key, one clock, no concurrency.

use idem_core::{
    Applied, Claim, Decision, Expect, Moment, OwnerToken, Record, Rejected, Snapshot, Span,
    Timestamp, Transition, Verdict, decide,
};

/// What is held for one key, and what time it is.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) held: Option<Record>,
    pub(crate) now: Timestamp,
}

impl Cell {
    /// An unused key.
    pub(crate) fn unused(now: Timestamp) -> Self {
        Self { held: None, now }
    }

    /// Lets so many microseconds pass.
    pub(crate) fn wait(&mut self, micros: i64) {
        self.now = Timestamp::from_micros(self.now.as_micros() + micros);
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let record = self.held.clone()?;
        Some(Snapshot::new(record, self.now))
    }

    /// The record, which has to be there.
    #[track_caller]
    pub(crate) fn record(&self) -> &Record {
        self.held.as_ref().unwrap()
    }

    /// What the claim means now, carried out at once.
    #[track_caller]
    pub(crate) fn claim(&mut self, claim: &Claim) -> Decision {
        let decision = decide(claim, self.snapshot().as_ref());
        match &decision {
            Decision::Claim => self.held = Some(claim.first_record(self.now)),
            Decision::Restart(swap) | Decision::TakeOver(swap) => {
                let applied = self.apply(swap.expect, &swap.change).unwrap();
                assert!(matches!(applied, Applied::Changed(_)), "{applied:?}");
            }
            _ => {}
        }
        decision
    }

    /// Claims for somebody who must be let run.
    #[track_caller]
    pub(crate) fn run(&mut self, claim: &Claim) -> Decision {
        let decision = self.claim(claim);
        assert!(decision.runs(), "{decision:?}");
        decision
    }

    pub(crate) fn apply(
        &mut self,
        expect: Expect,
        change: &Transition,
    ) -> Result<Applied, Rejected> {
        let Some(held) = &self.held else {
            return Err(Rejected::Lost);
        };
        let applied = held.apply(expect, change, Moment::exact(self.now))?;
        match &applied {
            Applied::Changed(next) => self.held = Some((**next).clone()),
            Applied::Removed => self.held = None,
            Applied::Unchanged => {}
        }
        Ok(applied)
    }

    /// A write by whoever has, or had, this token.
    pub(crate) fn own(
        &mut self,
        token: OwnerToken,
        change: &Transition,
    ) -> Result<Applied, Rejected> {
        self.apply(Expect::Owner(token), change)
    }

    /// A verdict by a reconciler that has just looked at the record.
    pub(crate) fn resolve(
        &mut self,
        verdict: Verdict,
        token: OwnerToken,
    ) -> Result<Applied, Rejected> {
        let expect = Expect::unchanged(self.record());
        let note = idem_core::Note::new("reconciler");
        let change = Transition::Resolve {
            verdict,
            token,
            note,
        };
        self.apply(expect, &change)
    }

    /// Lets the lease of whoever owns the record run out.
    pub(crate) fn crash(&mut self) {
        let lease: Span = self.record().locked_until.since(self.now);
        self.now = self.now + lease;
    }
}
