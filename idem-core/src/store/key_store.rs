use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::identity::RecordId;
use crate::machine::{Claim, Expect, Transition};
use crate::record::Snapshot;

use super::{ClaimOutcome, StoreError, Swept, TransitionOutcome};

/// A database that keeps idempotency records.
///
/// A store decides nothing. It inserts, it carries out patches under their guards, and it says what it holds
/// and what time it is; what that means is decided in this crate. What it does have to get right is
/// concurrency and durability, and those are the clauses below. The conformance suite in `idem-testkit` has
/// cases for each of them, by number.
///
/// # To be correct
///
/// | clause | a store guarantees | what breaking it costs |
/// |---|---|---|
/// | K1 | `claim` is one atomic step: of any number of concurrent calls for an id at most one is `Won`; exactly one, if there was no record and no uncommitted row, no call failed and no refusal of a cache was in force | two winners: the card is charged twice. No winner: a key that nobody can use |
/// | K2 | `transition` is a compare-and-swap, and concurrent writes to one id are in one order | two takeovers of one lease, or a late owner who overwrites an answer |
/// | K3 | `Ok` means durable: it survives the process, the server's restart and a loss of power | a charge is made, its record is lost, and the retry charges again |
/// | K4 | bytes come back exactly: keys, header lines with repeats, bodies, recovery data | a client gets an answer that was never given |
/// | K5 | ids are exact: nothing is folded, normalised, trimmed or cut | one tenant is shown another's answer |
/// | K6 | a store never hides an expired record from `claim` or `load` | unknown outcomes vanish by age, and are run again |
/// | K7 | what is read comes from the primary and sees the write that it lost to. If [`Guard::admits`](crate::Guard::admits) the record that is about to be returned as `Lost`, it was read too early: write and read once more | an owner is told that it lost to itself, or a decision is made on the past |
/// | K8 | errors are typed ([`StoreErrorKind`](crate::StoreErrorKind)); an unknown stored value is `Corrupt`, never absent; only the unique violation of the record's own key is a conflict | an error taken for absence runs the work again |
/// | K9 | dropping a call's future leaves the old record or the new one, and never an open transaction, a lost connection or a held lock | a client that hangs up wedges the service |
/// | K10 | `sweep` removes at most `limit` records, all [expired](crate::Record::is_expired), each atomically and by identity (token and revision); any number of processes may sweep at once | a key that was just restarted loses its owner |
/// | K11 | no connection is held between calls; every flow works with a pool of one | a pool of waiters starves the owner they wait for |
/// | K12 | `Contended` only while somebody is, or within the documented bound was, creating or writing that id; no call waits longer than the bound for another's lock | one hot key stalls everybody |
/// | K13 | `Refused` comes from caches only, after comparing operation and fingerprint, and is out of date by at most [`KeyStore::refusal_staleness`] | a client is told to wait for something that is long done |
///
/// Every call may be sent again when its answer was lost. [`decide`](crate::decide) recognises a claim's own
/// token, and [`settle`](crate::settle) a write that was applied before.
///
/// # Cancellation
///
/// Dropping the future of any call is allowed at any await, and means that the call may or may not have been
/// applied, as for an answer that was lost (K9).
///
/// # Writing one
///
/// A database that can create-if-absent and replace-if-unchanged needs only
/// [`KeyValue`](crate::key_value::KeyValue). [`MemoryKeyStore`](crate::MemoryKeyStore) is the reference.
#[async_trait]
pub trait KeyStore: Debug + Send + Sync {
    /// Inserts the claim's [first record](Claim::first_record) if its id has none, and says who holds it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; after [`Ambiguous`](crate::StoreErrorKind::Ambiguous) the record may be there.
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError>;

    /// Carries out [`change.patch(expect)`](Transition::patch) if its guard lets it through.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; after [`Ambiguous`](crate::StoreErrorKind::Ambiguous) it may have been written.
    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError>;

    /// What is held for this id, and the store's time.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; never `Ok(None)` for a record that could not be read.
    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError>;

    /// Removes up to `limit` expired records, and counts the ones that are stuck.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; some records may have been removed.
    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError>;

    /// How out of date a [`Refused`](ClaimOutcome::Refused) can be. Zero for a store, which never refuses; a
    /// wrapper adds its own to that of the store behind it.
    fn refusal_staleness(&self) -> Duration;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        #[async_trait]
        impl<S: KeyStore + ?Sized> KeyStore for $pointer {
            async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
                (**self).claim(claim).await
            }

            async fn transition(
                &self,
                id: &RecordId,
                expect: Expect,
                change: &Transition,
            ) -> Result<TransitionOutcome, StoreError> {
                (**self).transition(id, expect, change).await
            }

            async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
                (**self).load(id).await
            }

            async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
                (**self).sweep(limit).await
            }

            fn refusal_staleness(&self) -> Duration {
                (**self).refusal_staleness()
            }
        }
    )*};
}

forward!(&S, Box<S>, Arc<S>);
