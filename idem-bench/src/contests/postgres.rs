//! The Postgres store beside what one writes by hand with sqlx, beside the crate `idempotent` over a Redis, and beside
//! itself with other settings.
//!
//! All of them talk over TCP to servers on this machine, which sync every commit. The pools are alike: a connection for
//! each caller up to 32, all of them open, and with sqlx's own settings, so each use asks the connection first whether
//! it is alive. Every round begins with an empty table and with statements that are prepared.
//!
//! By hand a key is claimed by an `INSERT … ON CONFLICT DO NOTHING` and completed by an `UPDATE`, each a transaction by
//! itself, in a table with twelve columns: scope, key, operation, fingerprint, status, token, the response's three, and
//! three instants. It has a primary key and the index on `expires_at` that removing old rows needs. A row of theirs is
//! half as wide as one of ours, and no time is spent on what happens when two meet, on waiting no longer than a bound,
//! or on the terms that a record keeps. Beside them are two statements that spend it, on the table of the crate: what is
//! between those and the crate is what the crate costs, and what is between the two pairs is what the guarantees cost. The batches by hand are 64 keys from arrays, all of which are there before the
//! clock starts to run for them, and no key waits for an answer of its own.
//!
//! The rival over Redis keeps a hash of a fingerprint in 64 bits and the response, and has no lease to renew. With
//! `appendfsync always` a write is as durable as a commit is; without persistence it is gone with the server.

mod by_hand;
mod growth;
mod ours;
mod over_redis;
mod servers;
mod surveys;

use std::sync::Arc;
use std::time::Duration;

use idem_postgres::Coalescing;
use tokio::runtime::Runtime;

use self::by_hand::{ByHand, Way};
use self::ours::{Case, Indexes, Ours, natural};
use self::over_redis::OverRedis;
use self::servers::{Persistence, Ping, Servers};
use crate::contest::{Budget, Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Caller, tasks};

pub(crate) use self::surveys::surveys;

const OPERATION: &str = "POST /v1/charges";
const SCOPE: &str = "acct_1";
const BODY: &[u8] = br#"{"amount":1999,"currency":"EUR","customer":"cus_8f3k2"}"#;
const ANSWER: &str = r#"{"id":"ch_1","status":"succeeded","amount":1999,"currency":"EUR"}"#;
const HEADERS: &[u8] = b"content-type: application/json";
const FINGERPRINT: [u8; 32] = [7; 32];

/// How many keys a replay goes round.
const REPLAYED: u64 = 1000;

const CLAIM_AND_COMPLETE: &str = "claim a fresh key and store its response, both synced";
const REPLAY: &str = "find the response of a finished key";

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    let servers = Arc::new(Servers::default());
    Ok(vec![
        Contest {
            name: "postgres/claim-complete",
            operation: CLAIM_AND_COMPLETE,
            callers: vec![1, 8, 32],
            length: length(1500),
            ours: Box::new(alone(&servers, Case::ClaimAndComplete)?),
            others: vec![
                floor(
                    ByHand::new(&servers, Way::Alike)?,
                    [(1, 0.9), (8, 0.9), (32, 0.9)],
                ),
                rival(
                    ByHand::new(&servers, Way::Rows)?,
                    [(1, 0.9), (8, 0.9), (32, 0.9)],
                ),
            ],
        },
        Contest {
            name: "postgres/coalesced",
            operation: CLAIM_AND_COMPLETE,
            callers: vec![256],
            length: length(1500),
            ours: Box::new(coalesced(&servers, Case::ClaimAndComplete)?),
            others: vec![
                // Whichever of these is the fastest, it is single rows at their best.
                rival(ByHand::new(&servers, Way::Rows)?.callers(8), [(256, 3.0)]),
                rival(ByHand::new(&servers, Way::Rows)?.callers(32), [(256, 3.0)]),
                rival(ByHand::new(&servers, Way::Rows)?, [(256, 3.0)]),
                // As many keys under way.
                rival(
                    ByHand::new(&servers, Way::Batches)?.callers(4),
                    [(256, 0.6)],
                ),
                rival(OverRedis::new(&servers, Persistence::Always)?, [(256, 1.0)]),
                rival(OverRedis::new(&servers, Persistence::None)?, [(256, 0.5)]),
            ],
        },
        Contest {
            name: "postgres/lone",
            operation: CLAIM_AND_COMPLETE,
            callers: vec![1],
            length: length(1500),
            ours: Box::new(coalesced(&servers, Case::ClaimAndComplete)?),
            // At one caller the throughput is one over the latency.
            others: vec![variant(
                alone(&servers, Case::ClaimAndComplete)?,
                [(1, 1.0 / 1.1)],
            )],
        },
        Contest {
            name: "postgres/coalescing",
            operation: CLAIM_AND_COMPLETE,
            callers: vec![32, 256],
            length: length(1500),
            ours: Box::new(coalesced(&servers, Case::ClaimAndComplete)?),
            others: [
                ("one under way, 64", natural(1, 64)),
                ("one under way, 256", natural(1, 256)),
                ("two under way, 128", natural(2, 128)),
                ("four under way, 64", natural(4, 64)),
            ]
            .into_iter()
            .map(|(name, coalescing)| {
                let ours = Ours::new(&servers, name, Case::ClaimAndComplete, coalescing)?;
                Ok(variant(ours, []))
            })
            .collect::<Result<_, Fault>>()?,
        },
        Contest {
            name: "postgres/replay",
            operation: REPLAY,
            callers: vec![1, 8, 32],
            length: length(800),
            ours: Box::new(alone(&servers, Case::Replay)?),
            others: vec![floor(
                ByHand::new(&servers, Way::Select)?,
                [(1, 0.75), (8, 0.75), (32, 0.75)],
            )],
        },
        Contest {
            name: "postgres/replay-coalesced",
            operation: REPLAY,
            callers: vec![1, 8, 32],
            length: length(800),
            ours: Box::new(coalesced(&servers, Case::Replay)?),
            others: vec![floor(
                ByHand::new(&servers, Way::Select)?,
                [(1, 0.75), (8, 0.75), (32, 0.75)],
            )],
        },
        Contest {
            name: "postgres/replay-ping",
            operation: REPLAY,
            callers: vec![1, 8],
            length: length(800),
            ours: Box::new(alone(&servers, Case::Replay)?),
            others: vec![variant(
                Ours {
                    name: "without test_before_acquire",
                    ping: Ping::Never,
                    ..alone(&servers, Case::Replay)?
                },
                [],
            )],
        },
        Contest {
            name: "postgres/indexes",
            operation: CLAIM_AND_COMPLETE,
            callers: vec![8, 256],
            length: length(1500),
            ours: Box::new(coalesced(&servers, Case::ClaimAndComplete)?),
            others: vec![variant(
                Ours {
                    name: "one index on expires_at",
                    indexes: Indexes::Plain,
                    ..coalesced(&servers, Case::ClaimAndComplete)?
                },
                [(8, 0.85), (256, 0.85)],
            )],
        },
    ])
}

fn alone(servers: &Arc<Servers>, case: Case) -> Result<Ours, Fault> {
    Ours::new(servers, "idem-postgres, each alone", case, Coalescing::Off)
}

fn coalesced(servers: &Arc<Servers>, case: Case) -> Result<Ours, Fault> {
    Ours::new(
        servers,
        "idem-postgres, coalesced",
        case,
        Coalescing::default(),
    )
}

fn length(full: u64) -> Length {
    Length::Time {
        full: Duration::from_millis(full),
        quick: Duration::from_millis(20),
    }
}

fn rival<const N: usize>(contestant: impl Contestant + 'static, goals: [(u32, f64); N]) -> Other {
    other(Role::Rival, contestant, goals)
}

fn floor<const N: usize>(contestant: impl Contestant + 'static, goals: [(u32, f64); N]) -> Other {
    other(Role::Floor, contestant, goals)
}

fn variant<const N: usize>(contestant: impl Contestant + 'static, goals: [(u32, f64); N]) -> Other {
    other(Role::Variant, contestant, goals)
}

fn other<const N: usize>(
    role: Role,
    contestant: impl Contestant + 'static,
    goals: [(u32, f64); N],
) -> Other {
    Other {
        role,
        contestant: Box::new(contestant),
        goals: goals
            .map(|(callers, ratio)| Goal { callers, ratio })
            .to_vec(),
    }
}

/// As long as the UUIDs that clients use, and spread over the index as those are.
fn key(caller: u32, number: u64) -> String {
    // An odd factor makes it one to one.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (first, second, third) = (spread >> 32, spread >> 16 & 0xffff, spread & 0xffff);
    format!("{first:08x}-{second:04x}-{third:04x}-8f5a-{caller:012x}")
}

fn token(caller: u32, number: u64) -> [u8; 16] {
    let mut token = [1; 16];
    token[..4].copy_from_slice(&caller.to_be_bytes());
    token[8..].copy_from_slice(&number.to_be_bytes());
    token
}

/// Every caller a few times, which does not count. They are others than those that are measured, so that their keys are
/// fresh again.
fn warm_up<C: Caller>(runtime: &Runtime, plan: Plan, callers: Vec<C>) -> Result<(), Fault> {
    let budget = Budget::Operations(u64::from(plan.callers) * 8);
    tasks(runtime, Plan { budget, ..plan }, callers)?;
    Ok(())
}
