//! The executor over the store in memory, beside the crate `idempotent` over its own.
//!
//! An operation is what a server does around its handler, from the text of the key to the answer. Both sides parse
//! the key, take the fingerprint of the same body byte for byte, claim, call a handler, and store its response; or find the response, compare the fingerprint, and hand out a copy.
//!
//! The handler has its response ready at once, which is all that the rival's own code is about. A real one awaits
//! something, and then ours keeps its lease alive meanwhile, so there is a contest in which the handler gives way to
//! other tasks once. In the `digested` ones the fingerprint was taken beforehand.
//!
//! The rival has no lease, no heartbeat, no scope and no fencing of a late owner beyond a random number, and its
//! fingerprint is a fast hash of 64 bits, so it has less to do. It is measured as its documentation shows it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use idem_core::executor::{Answer, Idempotency, Outcome};
use idem_core::{
    Fingerprint, IdempotencyKey, MemoryKeyStore, Nulls, Operation, Profile, RecordId, Request,
    Response, Rules, Scope, SystemClock,
};
use idempotent::entry::ExistingEntry;
use idempotent::fingerprint::{DefaultFingerprintStrategy, FingerprintStrategy as _};
use idempotent::store::memory::MemoryStore;
use idempotent::store::{IdempotencyStore as _, InsertResult};
use idempotent::{CachedResponse, IdempotencyEntry, Metadata};
use tokio::runtime::Runtime;

use crate::contest::{Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Caller, Round, runtime, tasks};

const OPERATION: &str = "POST /v1/charges";
const BODY: &[u8] = br#"{"amount":1999,"currency":"EUR","customer":"cus_8f3k2","source":"tok_visa","capture":true}"#;
const ANSWER: &[u8] = br#"{"id":"ch_1","status":"succeeded","amount":1999,"currency":"EUR"}"#;

/// How many keys a replay goes round.
const REPLAYED: usize = 1024;

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    let first = Length::Operations {
        full: 50_000,
        quick: 500,
    };
    let replay = Length::default_time();
    Ok(vec![
        contest("executor/first", FIRST, first, Case::First, Digest::Taken)?,
        contest(
            "executor/first-awaiting",
            FIRST,
            first,
            Case::FirstAwaiting,
            Digest::Taken,
        )?,
        contest(
            "executor/first-digested",
            FIRST,
            first,
            Case::First,
            Digest::Given,
        )?,
        contest(
            "executor/replay",
            REPLAY,
            replay,
            Case::Replay,
            Digest::Taken,
        )?,
        contest(
            "executor/replay-digested",
            REPLAY,
            replay,
            Case::Replay,
            Digest::Given,
        )?,
    ])
}

const FIRST: &str = "claim a fresh key, run a handler, store its response";
const REPLAY: &str = "find the response of a finished key";

fn contest(
    name: &'static str,
    operation: &'static str,
    length: Length,
    case: Case,
    digest: Digest,
) -> Result<Contest, Fault> {
    let goal = |callers| Goal {
        callers,
        ratio: 1.0,
    };
    Ok(Contest {
        name,
        operation,
        callers: vec![1, 32],
        length,
        ours: Box::new(Ours {
            runtime: runtime()?,
            case,
            digest,
        }),
        others: vec![Other {
            role: Role::Rival,
            contestant: Box::new(Rival {
                runtime: runtime()?,
                case,
                digest,
            }),
            goals: vec![goal(1), goal(32)],
        }],
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    First,
    /// With a handler that is not ready when it is polled first.
    FirstAwaiting,
    Replay,
}

impl Case {
    /// What the handler does before it answers.
    async fn work(self) {
        if self == Self::FirstAwaiting {
            tokio::task::yield_now().await;
        }
    }
}

/// Whether taking the fingerprint of the body is a part of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digest {
    Taken,
    Given,
}

/// The texts of the keys that each caller uses, made before the clock starts.
fn keys(plan: Plan, case: Case) -> Vec<Arc<[String]>> {
    let of_caller = |caller: u32| {
        let number = match case {
            Case::Replay => REPLAYED as u64,
            Case::First | Case::FirstAwaiting => {
                plan.operations_per_caller().unwrap_or(REPLAYED as u64)
            }
        };
        // As long as the UUIDs that clients use.
        (0..number)
            .map(|key| format!("{caller:08x}-9c6d-4b0e-8f5a-{key:012x}"))
            .collect()
    };
    match case {
        Case::First | Case::FirstAwaiting => (0..plan.callers).map(of_caller).collect(),
        // All callers replay the same keys.
        Case::Replay => vec![of_caller(0); plan.callers as usize],
    }
}

struct Ours {
    runtime: Runtime,
    case: Case,
    digest: Digest,
}

struct OurCaller {
    idempotency: Idempotency<MemoryKeyStore<SystemClock>>,
    rules: Arc<Rules>,
    operation: Operation,
    digest: Option<Fingerprint>,
    case: Case,
    keys: Arc<[String]>,
    next: usize,
}

impl Contestant for Ours {
    fn name(&self) -> String {
        "idem-core".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let _guard = self.runtime.enter();
        let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
        let rules = Arc::new(Rules::new(Profile::new(1), Nulls::Distinct));
        let operation = Operation::new(OPERATION)?;
        let digest = rules.of(&operation).bytes(BODY).finish();
        let callers: Vec<_> = keys(plan, self.case)
            .into_iter()
            .map(|keys| OurCaller {
                idempotency: idempotency.clone(),
                rules: Arc::clone(&rules),
                operation: operation.clone(),
                digest: (self.digest == Digest::Given).then_some(digest),
                case: self.case,
                keys,
                next: 0,
            })
            .collect();
        if let (Case::Replay, Some(caller)) = (self.case, callers.first()) {
            self.runtime.block_on(async {
                for key in caller.keys.iter() {
                    let _ = caller.execute(key).await?;
                }
                Ok::<_, Fault>(())
            })?;
        }
        tasks(&self.runtime, plan, callers)
    }
}

impl OurCaller {
    async fn execute(&self, key: &str) -> Result<Answer<Response>, Fault> {
        let fingerprint = match self.digest {
            Some(digest) => digest,
            None => self.rules.of(&self.operation).bytes(BODY).finish(),
        };
        let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new(key)?);
        let request = Request::new(id, self.operation.clone(), fingerprint.into());
        let handler =
            |_| async { Outcome::Completed(Response::new(201).body(Bytes::from_static(ANSWER))) };
        Ok(self.idempotency.execute(&request, handler).await?)
    }
}

impl Caller for OurCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        let key = &self.keys[self.next % self.keys.len()];
        self.next += 1;
        match (self.case, self.execute(key).await?) {
            (Case::First | Case::FirstAwaiting, Answer::Fresh(response))
            | (Case::Replay, Answer::Replayed(response)) => {
                black_box(response);
                Ok(())
            }
            (_, other) => Err(format!("unexpected answer {other:?}").into()),
        }
    }
}

struct Rival {
    runtime: Runtime,
    case: Case,
    digest: Digest,
}

struct RivalCaller {
    store: Arc<MemoryStore>,
    digest: Option<idempotent::Fingerprint>,
    case: Case,
    keys: Arc<[String]>,
    next: usize,
}

enum RivalAnswer {
    Fresh(CachedResponse),
    Replayed(CachedResponse),
}

/// As long as our default retention.
const KEPT: Duration = Duration::from_secs(24 * 3600);

impl Contestant for Rival {
    fn name(&self) -> String {
        "idempotent 0.3.0".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let _guard = self.runtime.enter();
        // A place in the queue for every caller and a sweep that does not come within a round are to its advantage.
        let store = Arc::new(MemoryStore::new(1024, Duration::from_secs(3600)));
        let digest = DefaultFingerprintStrategy.compute(OPERATION, BODY);
        let callers: Vec<_> = keys(plan, self.case)
            .into_iter()
            .map(|keys| RivalCaller {
                store: Arc::clone(&store),
                digest: (self.digest == Digest::Given).then_some(digest),
                case: self.case,
                keys,
                next: 0,
            })
            .collect();
        if let (Case::Replay, Some(caller)) = (self.case, callers.first()) {
            self.runtime.block_on(async {
                for key in caller.keys.iter() {
                    caller.execute(key).await?;
                }
                Ok::<_, Fault>(())
            })?;
        }
        tasks(&self.runtime, plan, callers)
    }
}

impl RivalCaller {
    async fn execute(&self, key: &str) -> Result<RivalAnswer, Fault> {
        let fingerprint = match self.digest {
            Some(digest) => digest,
            None => DefaultFingerprintStrategy.compute(OPERATION, BODY),
        };
        let key = idempotent::IdempotencyKey::new(key)?;
        let entry = IdempotencyEntry::new(fingerprint, KEPT);
        match self.store.try_insert(&key, entry.clone()).await? {
            InsertResult::Claimed { fencing_token } => {
                self.case.work().await;
                let response = CachedResponse {
                    status_code: 201,
                    metadata: Metadata::default(),
                    body: Bytes::from_static(ANSWER),
                };
                let completed = entry.complete(response.clone());
                self.store.complete(&key, completed, fencing_token).await?;
                Ok(RivalAnswer::Fresh(response))
            }
            InsertResult::Exists(ExistingEntry::Completed(entry)) => {
                if !entry.fingerprint_matches(fingerprint) {
                    return Err("another fingerprint".into());
                }
                Ok(RivalAnswer::Replayed(entry.into_response()))
            }
            InsertResult::Exists(ExistingEntry::Processing(_)) => Err("busy".into()),
        }
    }
}

impl Caller for RivalCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        let key = &self.keys[self.next % self.keys.len()];
        self.next += 1;
        match (self.case, self.execute(key).await?) {
            (Case::First | Case::FirstAwaiting, RivalAnswer::Fresh(response))
            | (Case::Replay, RivalAnswer::Replayed(response)) => {
                black_box(response);
                Ok(())
            }
            _ => Err("a fresh key was known, or a known one fresh".into()),
        }
    }
}
