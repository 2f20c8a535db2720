//! The key-value adapter over a database that is not all well.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the verdict")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use idem_core::key_value::{self, Entry, KeyValue, KeyValueStore};
use idem_core::{
    Claim, Expect, Fingerprints, IdempotencyKey, KeyStore, Moment, Nulls, Operation, Origin,
    OwnerToken, Policy, Profile, RecordId, Request, Response, Rules, Scope, StoreError,
    StoreErrorKind, Timestamp, Transition, async_trait,
};

#[derive(Debug, Default, Clone)]
struct Map(Arc<Mutex<BTreeMap<Vec<u8>, Bytes>>>);

#[async_trait]
impl KeyValue for Map {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.0.lock().unwrap().get(key).cloned())
    }

    async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError> {
        let mut map = self.0.lock().unwrap();
        let absent = !map.contains_key(key);
        if absent {
            map.insert(key.to_vec(), value);
        }
        Ok(absent)
    }

    async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError> {
        let mut map = self.0.lock().unwrap();
        let unchanged = map.get(key).is_some_and(|held| held == old);
        if unchanged {
            map.insert(key.to_vec(), new);
        }
        Ok(unchanged)
    }

    async fn remove_if(&self, key: &[u8], old: &[u8]) -> Result<bool, StoreError> {
        let mut map = self.0.lock().unwrap();
        let unchanged = map.get(key).is_some_and(|held| held == old);
        if unchanged {
            map.remove(key);
        }
        Ok(unchanged)
    }

    async fn scan(
        &self,
        after: Option<&[u8]>,
        limit: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError> {
        let map = self.0.lock().unwrap();
        let after = |key: &[u8]| after.is_none_or(|after| key > after);
        let entries = map
            .iter()
            .filter(|(key, _)| after(key))
            .map(|(key, value)| Entry {
                key: key.clone().into(),
                value: value.clone(),
            });
        Ok(entries.take(limit.get() as usize).collect())
    }

    async fn scan_expired(
        &self,
        by: Timestamp,
        limit: NonZeroU32,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.scan(None, NonZeroU32::MAX).await?;
        // What cannot be read may be due.
        entries.retain(|entry| match key_value::expires_at(&entry.value) {
            Ok(expires) => expires.is_some_and(|at| at <= by),
            Err(_) => true,
        });
        entries.truncate(limit.get() as usize);
        Ok(entries)
    }

    async fn moment(&self) -> Result<Moment, StoreError> {
        Ok(Moment::exact(Timestamp::from_micros(1_000_000)))
    }
}

fn claim(key: &str) -> Claim {
    let policy = Policy::builder().retention(Duration::ZERO).build().unwrap();
    let operation = Operation::new("POST /v1/charges").unwrap();
    let fingerprint = Rules::new(Profile::new(1), Nulls::Distinct)
        .of(&operation)
        .finish();
    let id = RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new(key).unwrap(),
    );
    let request = Request::new(id, operation, Fingerprints::new(fingerprint));
    Claim::new(
        request,
        &policy,
        Origin::from_bytes([1; 16]),
        OwnerToken::from_bytes([2; 16]),
    )
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_does_not_keep_the_others_from_being_swept() {
    let map = Map::default();
    let store = KeyValueStore::new(map.clone());
    for key in ["a", "b", "c"] {
        let claim = claim(key);
        store.claim(&claim).await.unwrap();
        let complete = Transition::Complete(Response::new(204));
        store
            .transition(claim.id(), Expect::Owner(claim.token()), &complete)
            .await
            .unwrap();
    }
    let first = map.0.lock().unwrap().keys().next().unwrap().clone();
    let newer = Bytes::from_static(b"\xffwritten by a newer version");
    map.0.lock().unwrap().insert(first.clone(), newer);

    let error = store
        .sweep(NonZeroU32::new(100).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let left: Vec<_> = map.0.lock().unwrap().keys().cloned().collect();
    assert_eq!(left, [first]);
}
