//! Records as bytes and as columns: what is written comes back exactly, and what is damaged is never taken for
//! something else.
//!
//! The format of key-value entries is fixed here by a second encoder that shares no code with the first: a
//! change of the format breaks stored data, and so it breaks these tests.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is all test code, also outside of the test functions"
)]

mod machine;

use std::error::Error as _;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use idem_core::key_value::{self, Entry, KeyValue, KeyValueStore};
use idem_core::{
    Applied, Body, Claim, Headers, IdempotencyKey, KeyStore as _, Moment, Note, Origin, Policy,
    Record, RecordId, Request, Scope, Span, StoreError, StoreErrorKind, Timestamp,
    TransitionOutcome, async_trait,
};
use proptest::collection::vec;
use proptest::prelude::*;

use machine::arbitrary;
use machine::{at, charge, fingerprint, origin, token};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn headers_come_back_line_for_line(headers in arbitrary::headers()) {
        let encoded = headers.encode();
        prop_assert_eq!(&encoded, &encoded_headers(&headers));
        prop_assert_eq!(Headers::decode(encoded), Ok(headers));
    }

    #[test]
    fn damaged_headers_are_refused_or_are_other_headers(headers in arbitrary::headers(), more in 1_usize..9) {
        let encoded = headers.encode();
        for end in 0..encoded.len() {
            prop_assert!(Headers::decode(encoded.slice(..end)).is_err(), "cut at {}", end);
        }
        let longer = [&encoded[..], &[0; 8][..more.min(8)]].concat();
        prop_assert!(Headers::decode(longer.into()).is_err());
        for damaged in damages(&encoded) {
            if let Ok(other) = Headers::decode(damaged.clone()) {
                prop_assert_eq!(other.encode(), damaged);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_as_headers_without_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = Headers::decode(bytes.clone().into());
        let _ = Headers::decode([&[1, 0, 0, 0], &bytes[..]].concat().into());
    }

    #[test]
    fn an_entry_comes_back_as_the_record_it_was(record in arbitrary::record()) {
        let store = holding(&record);
        let held = ready(store.load(&record.id)).unwrap().unwrap().record;
        prop_assert_eq!(&*held, &record);

        let removable = record.is_finished().then(|| record.state.finish().unwrap().expires_at);
        prop_assert_eq!(key_value::expires_at(&store.database().value()), Ok(removable));
    }

    /// Whatever a store writes over a record is the entry of the record that `apply` makes.
    #[test]
    fn an_entry_is_written_in_the_one_format(
        (record, (expect, change)) in arbitrary::record().prop_flat_map(|record| {
            let write = arbitrary::write_to(&record);
            (Just(record), write)
        }),
        now in arbitrary::timestamp(),
    ) {
        let store = holding(&record);
        *store.database().now.lock().unwrap() = now;
        let outcome = ready(store.transition(&record.id, expect, &change)).unwrap();
        match record.apply(expect, &change, Moment::exact(now)) {
            // A restart keeps the id of what it restarts, so a claim of another id is a mistake of this test.
            Ok(Applied::Changed(next)) => {
                prop_assert_eq!(store.database().value(), encoded(&next));
                let applied = TransitionOutcome::Applied { revision: next.revision, now };
                prop_assert_eq!(outcome, applied);
            }
            Ok(Applied::Removed) => prop_assert_eq!(store.database().entry(), None),
            _ => {
                prop_assert_eq!(store.database().value(), encoded(&record));
                prop_assert!(matches!(outcome, TransitionOutcome::Lost(Some(_))), "{:?}", outcome);
            }
        }
    }

    #[test]
    fn a_first_claim_is_written_in_the_one_format(id in arbitrary::id(), now in arbitrary::timestamp()) {
        let store = KeyValueStore::new(OneEntry::new(None, now));
        let claim = claim(id.clone());
        ready(store.claim(&claim)).unwrap();
        let entry = store.database().entry().unwrap();
        prop_assert_eq!(entry, (encoded_key(&id), encoded(&claim.first_record(now))));
    }

    #[test]
    fn ids_that_differ_have_keys_that_differ(one in arbitrary::id(), cut in 0_usize..24) {
        // The same characters, divided in another place.
        let text = format!("{}{}", one.scope().as_str(), one.key().as_str());
        let Some((scope, key)) = text.split_at_checked(cut) else {
            return Ok(());
        };
        let (Ok(scope), Ok(key)) = (Scope::new(scope), IdempotencyKey::new(key)) else {
            return Ok(());
        };
        let other = RecordId::new(scope, key);
        prop_assert_eq!(key_of(&one) == key_of(&other), one == other);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_of_an_entry_is_an_error(record in arbitrary::record()) {
        let whole = encoded(&record);
        for end in 0..whole.len() {
            let loaded = load(&record.id, whole.slice(..end));
            prop_assert!(loaded.is_err(), "cut at {}: {:?}", end, loaded);
        }
        let longer: Bytes = [&whole[..], &[0]].concat().into();
        prop_assert!(load(&record.id, longer).is_err());
    }

    /// A byte that changed makes an error, or the entry of another record: nothing is ever skipped over.
    #[test]
    fn every_damaged_byte_is_an_error_or_another_record(mut record in arbitrary::record()) {
        // A NUL in a note is read as a space, so that no note is ever unfit to be shown: without spaces of its
        // own the note is another one then.
        record.note = record.note.map(|note| Note::new(note.as_str().replace(' ', "_")));
        let whole = encoded(&record);
        for (position, damaged) in damages(&whole).enumerate() {
            let _ = key_value::expires_at(&damaged);
            match load(&record.id, damaged.clone()) {
                Ok(other) => {
                    prop_assert_ne!(&other, &record, "damage {} was not noticed", position);
                    if other.note == record.note {
                        prop_assert_eq!(encoded(&other), damaged, "damage {} was repaired", position);
                    }
                }
                Err(error) => {
                    prop_assert!(error.kind() == StoreErrorKind::Corrupt, "{:?}", error);
                }
            }
        }
    }
}

#[test]
fn any_bytes_are_read_as_an_entry_without_panic() {
    let id = machine::id();
    for length in 0..40 {
        for byte in [0, 1, 2, 0x7f, 0xff] {
            let garbage = Bytes::from(vec![byte; length]);
            assert!(load(&id, garbage.clone()).is_err());
            let _ = key_value::expires_at(&garbage);
        }
    }
}

#[test]
fn an_error_about_an_entry_says_nothing_of_its_content() {
    let id = RecordId::new(
        Scope::new("SECRET-scope").unwrap(),
        IdempotencyKey::new("SECRET-key").unwrap(),
    );
    let mut record = claim(id.clone()).first_record(at(0));
    record.note = Some(Note::new("SECRET-note"));
    let whole = encoded(&record);
    for damaged in damages(&whole) {
        let Err(error) = load(&id, damaged) else {
            continue;
        };
        let mut said = format!("{error} {error:?}");
        let mut source = error.source();
        while let Some(error) = source {
            said += &format!(" {error} {error:?}");
            source = error.source();
        }
        assert!(!said.contains("SECRET"), "{said}");
    }
}

/// A database of one entry, for a clock that stands still.
#[derive(Debug)]
struct OneEntry {
    entry: Mutex<Option<(Vec<u8>, Bytes)>>,
    now: Mutex<Timestamp>,
}

impl OneEntry {
    fn new(entry: Option<(Vec<u8>, Bytes)>, now: Timestamp) -> Self {
        Self {
            entry: Mutex::new(entry),
            now: Mutex::new(now),
        }
    }

    fn entry(&self) -> Option<(Vec<u8>, Bytes)> {
        self.entry.lock().unwrap().clone()
    }

    fn value(&self) -> Bytes {
        self.entry().unwrap().1
    }
}

#[async_trait]
impl KeyValue for OneEntry {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let entry = self.entry();
        Ok(entry
            .filter(|(held, _)| held == key)
            .map(|(_, value)| value))
    }

    async fn create(&self, key: &[u8], value: Bytes) -> Result<bool, StoreError> {
        let mut entry = self.entry.lock().unwrap();
        let absent = entry.is_none();
        if absent {
            *entry = Some((key.to_vec(), value));
        }
        Ok(absent)
    }

    async fn replace_if(&self, key: &[u8], old: &[u8], new: Bytes) -> Result<bool, StoreError> {
        assert!(*old == self.value(), "nobody else writes");
        *self.entry.lock().unwrap() = Some((key.to_vec(), new));
        Ok(true)
    }

    async fn remove_if(&self, _: &[u8], old: &[u8]) -> Result<bool, StoreError> {
        assert!(*old == self.value(), "nobody else writes");
        *self.entry.lock().unwrap() = None;
        Ok(true)
    }

    async fn scan(&self, _: Option<&[u8]>, _: NonZeroU32) -> Result<Vec<Entry>, StoreError> {
        Ok(Vec::new())
    }

    async fn scan_expired(&self, _: Timestamp, _: NonZeroU32) -> Result<Vec<Entry>, StoreError> {
        Ok(Vec::new())
    }

    async fn moment(&self) -> Result<Moment, StoreError> {
        Ok(Moment::exact(*self.now.lock().unwrap()))
    }
}

/// The result of a future that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("there is nothing to wait for"),
    }
}

fn holding(record: &Record) -> KeyValueStore<OneEntry> {
    let entry = (encoded_key(&record.id), encoded(record));
    KeyValueStore::new(OneEntry::new(Some(entry), at(0)))
}

fn load(id: &RecordId, value: Bytes) -> Result<Record, StoreError> {
    let store = KeyValueStore::new(OneEntry::new(Some((encoded_key(id), value)), at(0)));
    ready(store.load(id)).map(|snapshot| (*snapshot.unwrap().record).clone())
}

fn claim(id: RecordId) -> Claim {
    let request = Request::new(id, charge(), fingerprint(1, 1).into());
    Claim::new(request, &Policy::default(), origin(1), token(1))
}

/// The key under which the store keeps an id.
fn key_of(id: &RecordId) -> Vec<u8> {
    let store = KeyValueStore::new(OneEntry::new(None, at(0)));
    ready(store.claim(&claim(id.clone()))).unwrap();
    store.database().entry().unwrap().0
}

/// Every value of every byte would take too long: one bit at each end, all bits, and zero.
fn damages(whole: &Bytes) -> impl Iterator<Item = Bytes> {
    (0..whole.len()).flat_map(move |position| {
        let byte = whole[position];
        let others = [byte ^ 1, byte ^ 0x80, !byte, 0];
        others
            .into_iter()
            .filter(move |other| *other != byte)
            .map(move |other| {
                let mut damaged = whole.to_vec();
                damaged[position] = other;
                damaged.into()
            })
    })
}

fn encoded_key(id: &RecordId) -> Vec<u8> {
    let scope = id.scope().as_str();
    let mut key = vec![u8::try_from(scope.len()).unwrap()];
    key.extend(scope.bytes());
    key.extend(id.key().as_str().bytes());
    key
}

fn encoded_headers(headers: &Headers) -> Bytes {
    let mut out = vec![1];
    out.extend(u32::try_from(headers.len()).unwrap().to_be_bytes());
    for (name, value) in headers.iter() {
        put_bytes(&mut out, name);
        put_bytes(&mut out, value);
    }
    out.into()
}

/// Version 1 of an entry: the version, when it may be removed, and the columns in order. Numbers are 64 bits,
/// big-endian; texts and bytes stand behind a length of 32 bits; what may be absent, behind a flag.
fn encoded(record: &Record) -> Bytes {
    let mut out = vec![1];
    let finish = record.state.finish();
    let removable = finish.filter(|_| record.is_finished());
    put_option(&mut out, removable, |out, finish| {
        put_time(out, finish.expires_at)
    });
    put_bytes(&mut out, record.id.scope().as_str().as_bytes());
    put_bytes(&mut out, record.id.key().as_str().as_bytes());
    put_bytes(&mut out, record.operation.as_str().as_bytes());
    let scheme = record.fingerprint.scheme();
    put_number(&mut out, scheme.encoding());
    put_number(&mut out, scheme.profile().number());
    put_bytes(&mut out, record.fingerprint.digest());
    put_bytes(&mut out, record.status().as_str().as_bytes());
    put_bytes(&mut out, Origin::as_bytes(&record.origin));
    put_bytes(&mut out, record.token.as_bytes());
    put_number(&mut out, i64::try_from(record.revision.as_u64()).unwrap());
    put_number(&mut out, record.attempt.as_u32());
    put_number(&mut out, record.reclaims);
    out.push(u8::from(record.uncertain));
    let recovery = record.recovery.as_ref();
    put_option(&mut out, recovery, |out, recovery| {
        put_bytes(out, recovery.point.name().as_bytes())
    });
    let data = recovery.and_then(|recovery| recovery.point.data());
    put_option(&mut out, data, |out, data| put_bytes(out, data));
    put_option(&mut out, recovery, |out, recovery| {
        put_number(out, recovery.attempt.as_u32())
    });
    put_option(&mut out, recovery, |out, recovery| {
        put_number(out, recovery.sequence)
    });
    let response = record.state.response();
    put_option(&mut out, response, |out, response| {
        put_number(out, response.code())
    });
    put_option(&mut out, response, |out, response| {
        put_bytes(out, &encoded_headers(response.headers()))
    });
    let body = response.and_then(|response| match response.body_ref() {
        Body::Bytes(bytes) => Some(bytes),
        Body::Omitted => None,
    });
    put_option(&mut out, body, |out, body| put_bytes(out, body));
    put_option(&mut out, record.note.as_ref(), |out, note| {
        put_bytes(out, note.as_str().as_bytes())
    });
    put_bytes(&mut out, record.terms.contract.as_str().as_bytes());
    put_span(&mut out, record.terms.retention);
    put_span(&mut out, record.terms.reclaim_window);
    put_number(&mut out, record.terms.max_reclaims);
    put_time(&mut out, record.created_at);
    put_time(&mut out, record.effect_since);
    put_time(&mut out, record.locked_at);
    put_time(&mut out, record.locked_until);
    put_option(&mut out, finish, |out, finish| {
        put_time(out, finish.finished_at)
    });
    put_option(&mut out, finish, |out, finish| {
        put_time(out, finish.expires_at)
    });
    out.into()
}

fn put_number(out: &mut Vec<u8>, number: impl Into<i64>) {
    out.extend(number.into().to_be_bytes());
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    put_number(out, time.as_micros());
}

fn put_span(out: &mut Vec<u8>, span: Span) {
    put_number(out, i64::try_from(span.as_micros()).unwrap());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend(bytes);
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}
