//! The decision alone, beside the least that any decision has to do: compare two digests, and copy the response if
//! that is what it comes to.

use std::hint::black_box;
use std::time::Duration;

use idem_core::{
    Applied, Claim, Expect, IdempotencyKey, Moment, Nulls, Operation, Origin, OwnerToken, Policy,
    Profile, Record, RecordId, Request, Response, Rules, Scope, Snapshot, Timestamp, Transition,
    decide,
};

use crate::contest::{Contest, Contestant, Fault, Length, Other, Place, Plan, Role};
use crate::load::{Round, repeat};

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    let held = claim(1)?;
    let running = held.first_record(CLAIMED);
    let response = Response::new(201)
        .header("content-type", "application/json")
        .body(r#"{"id":"ch_1","status":"succeeded"}"#);
    let complete = Transition::Complete(response);
    let done = Moment::exact(CLAIMED + Policy::default().heartbeat());
    let Applied::Changed(completed) =
        running.apply(Expect::Owner(held.token()), &complete, done)?
    else {
        return Err("a completion that changes nothing".into());
    };
    let over = running.locked_until;
    Ok(vec![
        contest("decide/replay", "decide to replay", *completed, done.now)?,
        contest(
            "decide/busy",
            "decide that it is busy",
            running.clone(),
            done.now,
        )?,
        contest("decide/take-over", "decide to take over", running, over)?,
    ])
}

const CLAIMED: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// How many calls are timed together: one takes a few times as long as reading the clock does.
const TOGETHER: u32 = 64;

fn contest(
    name: &'static str,
    operation: &'static str,
    record: Record,
    now: Timestamp,
) -> Result<Contest, Fault> {
    let claim = claim(2)?;
    let snapshot = Snapshot::new(record, now);
    let floor = Floor {
        one: *claim.fingerprint().digest(),
        other: *snapshot.record.fingerprint.digest(),
        response: snapshot.record.state.response().cloned(),
    };
    Ok(Contest {
        name,
        operation,
        callers: vec![1],
        length: Length::Time {
            full: Duration::from_millis(100),
            quick: Duration::from_millis(1),
        },
        ours: Box::new(Ours { claim, snapshot }),
        others: vec![Other {
            role: Role::Floor,
            contestant: Box::new(floor),
            goals: Vec::new(),
        }],
    })
}

fn claim(attempt: u8) -> Result<Claim, Fault> {
    let operation = Operation::new("POST /v1/charges")?;
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let fingerprint = rules.of(&operation).json(br#"{"amount":1999}"#)?.finish();
    let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("order-4711")?);
    Ok(Claim::new(
        Request::new(id, operation, fingerprint.into()),
        &Policy::default(),
        Origin::from_bytes([attempt; 16]),
        OwnerToken::from_bytes([attempt; 16]),
    ))
}

struct Ours {
    claim: Claim,
    snapshot: Snapshot,
}

impl Contestant for Ours {
    fn name(&self) -> String {
        "decide".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        repeat(plan, TOGETHER, || {
            black_box(decide(
                black_box(&self.claim),
                black_box(Some(&self.snapshot)),
            ));
        })
    }
}

struct Floor {
    one: [u8; 32],
    other: [u8; 32],
    response: Option<Response>,
}

impl Contestant for Floor {
    fn name(&self) -> String {
        match self.response {
            Some(_) => "compare digests, copy response".to_owned(),
            None => "compare digests".to_owned(),
        }
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        repeat(plan, TOGETHER, || {
            if black_box(&self.one) == black_box(&self.other) {
                black_box(black_box(&self.response).clone());
            }
        })
    }
}
