//! The negative cache in front of the Postgres store, beside the same store without it.
//!
//! Both talk over TCP to servers on this machine; Postgres syncs every commit, Redis keeps nothing. The pools are alike.
//!
//! - `redis/storm`: one key is in progress, and everybody claims it. What an operation costs is a refusal. How many of
//!   the claims reached Postgres stands in the contestant's name.
//! - `redis/first`: fresh keys are claimed and completed, for which a cache can do nothing but cost.
//! - `redis/away`: the same with an address where there is no Redis. The breaker is open before the clock starts.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Decision, Expect, Fingerprint, IdempotencyKey, KeyStore, Operation,
    Origin, OwnerToken, Policy, Profile, RecordId, Request, Response, Scheme, Scope, Snapshot,
    StoreError, Swept, Transition, TransitionOutcome, async_trait, decide,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions};
use idem_redis_cache::{BreakerState, Namespace, NegativeCache};
use idem_test_servers::{Postgres, Redis, Version};
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;

use crate::contest::{Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Caller, Round, runtime, tasks};

const ANSWER: &str = r#"{"id":"ch_1","status":"succeeded","amount":1999,"currency":"EUR"}"#;

/// More connections than this do not help a server with two cores.
const MOST_CONNECTIONS: u32 = 32;

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    let servers = Arc::new(Servers::default());
    let ours = |case, redis, coalescing| -> Result<Box<dyn Contestant>, Fault> {
        Ok(Box::new(Cached::new(&servers, case, redis, coalescing)?))
    };
    let off = Coalescing::Off;
    let on = Coalescing::default();
    let beside = |contestant, goals: &[(u32, f64)]| Other {
        role: Role::Variant,
        contestant,
        goals: goals
            .iter()
            .map(|&(callers, ratio)| Goal { callers, ratio })
            .collect(),
    };
    let writes = Length::Operations {
        full: 1500,
        quick: 40,
    };
    Ok(vec![
        Contest {
            name: "redis/storm",
            operation: "claim a key that somebody else has in progress",
            callers: vec![64, 1024],
            length: Length::Operations {
                full: 10_000,
                quick: 2048,
            },
            ours: ours(Case::Storm, Where::There, off)?,
            others: vec![
                beside(
                    ours(Case::Storm, Where::None, off)?,
                    &[(64, 3.0), (1024, 3.0)],
                ),
                beside(ours(Case::Storm, Where::None, on)?, &[]),
            ],
        },
        Contest {
            name: "redis/first",
            operation: "claim a fresh key and store its response, both synced",
            callers: vec![1, 8, 32],
            length: writes,
            ours: ours(Case::First, Where::There, off)?,
            others: vec![beside(
                ours(Case::First, Where::None, off)?,
                &[(1, 0.9), (8, 0.9), (32, 0.9)],
            )],
        },
        Contest {
            name: "redis/away",
            operation: "claim a fresh key and store its response, with a Redis that is away",
            callers: vec![1, 8],
            length: writes,
            ours: ours(Case::First, Where::Away, off)?,
            others: vec![beside(
                ours(Case::First, Where::None, off)?,
                &[(1, 0.98), (8, 0.98)],
            )],
        },
    ])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Storm,
    First,
}

/// Where the cache's Redis is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    There,
    Away,
    /// There is no cache.
    None,
}

/// The servers of all contests, started when they are first asked for.
#[derive(Default)]
struct Servers(Mutex<Option<(Postgres, Redis)>>);

impl Servers {
    fn urls(&self) -> Result<(String, String), Fault> {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (postgres, redis) = match &mut *servers {
            Some(servers) => servers,
            none => {
                let postgres = Postgres::builder(Version::V15)
                    .setting("max_wal_size", "8GB")
                    .setting("checkpoint_timeout", "1h");
                none.insert((postgres.start()?, Redis::start()?))
            }
        };
        Ok((postgres.url(), redis.url()))
    }
}

/// The store behind everything, which counts the claims that reach it: each is a statement.
#[derive(Debug)]
struct Counting {
    store: PgKeyStore,
    claims: AtomicU64,
}

#[async_trait]
impl KeyStore for Counting {
    async fn claim(&self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        self.store.claim(claim).await
    }

    async fn transition(
        &self,
        id: &RecordId,
        expect: Expect,
        change: &Transition,
    ) -> Result<TransitionOutcome, StoreError> {
        self.store.transition(id, expect, change).await
    }

    async fn load(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(id).await
    }

    async fn sweep(&self, limit: NonZeroU32) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }

    fn refusal_staleness(&self) -> Duration {
        self.store.refusal_staleness()
    }
}

struct Cached {
    servers: Arc<Servers>,
    runtime: Runtime,
    case: Case,
    redis: Where,
    coalescing: Coalescing,
    /// In the most expensive round: how many claims reached the store, of how many.
    reached: Option<(u64, u64)>,
}

impl Cached {
    fn new(
        servers: &Arc<Servers>,
        case: Case,
        redis: Where,
        coalescing: Coalescing,
    ) -> Result<Self, Fault> {
        Ok(Self {
            servers: Arc::clone(servers),
            runtime: runtime()?,
            case,
            redis,
            coalescing,
            reached: None,
        })
    }

    /// The store with an empty table, and what is in front of it.
    async fn stores(&self, callers: u32) -> Result<(Arc<Counting>, Arc<dyn KeyStore>), Fault> {
        let (postgres, redis) = self.servers.urls()?;
        let connections = callers.clamp(1, MOST_CONNECTIONS);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .acquire_timeout(Duration::from_secs(60))
            .connect(&postgres)
            .await?;
        let store = PgOptions::new().coalescing(self.coalescing).build(pool);
        store.migrate().await?;
        sqlx::raw_sql("TRUNCATE idem_record")
            .execute(store.pool())
            .await?;
        let counting = Arc::new(Counting {
            store,
            claims: AtomicU64::new(0),
        });
        let url = match self.redis {
            Where::None => return Ok((counting.clone(), counting)),
            Where::There => redis,
            Where::Away => "redis://127.0.0.1:1/".to_owned(),
        };
        let cache = NegativeCache::open(Arc::clone(&counting), &url, Namespace::new("bench")?)?;
        let ready = cache.ready(Duration::from_millis(500)).await;
        if ready != (self.redis == Where::There) {
            return Err(format!("the breaker is {:?}", cache.stats().breaker).into());
        }
        if self.redis == Where::Away && cache.stats().breaker == BreakerState::Closed {
            return Err("there is a Redis at port 1".into());
        }
        Ok((counting, Arc::new(cache)))
    }
}

impl Contestant for Cached {
    fn name(&self) -> String {
        let cache = match self.redis {
            Where::There => "cached",
            Where::Away => "cached, Redis away",
            Where::None => "no cache",
        };
        let coalescing = match self.coalescing {
            Coalescing::Off => "",
            _ => ", coalesced",
        };
        let reached = match self.reached {
            Some((reached, of)) if self.case == Case::Storm => {
                format!(" ({reached} of {of} claims reached the store)")
            }
            _ => String::new(),
        };
        format!("{cache}{coalescing}{reached}")
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let (counting, store) = self.runtime.block_on(self.stores(plan.callers))?;
        let callers = |first: u32| {
            (first..first + plan.callers)
                .map(|number| Claimant {
                    store: Arc::clone(&store),
                    case: self.case,
                    number,
                    next: 0,
                })
                .collect::<Vec<_>>()
        };
        self.runtime.block_on(async {
            // Statements are prepared once for each connection, and planned anew the first five times.
            let mut warm = Vec::new();
            for mut caller in callers(1 << 20).into_iter().take(MOST_CONNECTIONS as usize) {
                warm.push(tokio::spawn(async move {
                    for _ in 0..6 {
                        caller.claim_and_complete().await?;
                    }
                    Ok::<_, Fault>(())
                }));
            }
            for one in warm {
                one.await??;
            }
            if self.case == Case::Storm {
                let owner = claim(
                    "storm",
                    u32::MAX,
                    0,
                    Policy::builder().lease(Duration::from_secs(600)).build()?,
                )?;
                if !matches!(counting.claim(&owner).await?, ClaimOutcome::Won(_)) {
                    return Err("the key is not fresh".into());
                }
            }
            Ok::<_, Fault>(())
        })?;
        let before = counting.claims.load(Ordering::Relaxed);
        let round = tasks(&self.runtime, plan, callers(0))?;
        let reached = counting.claims.load(Ordering::Relaxed) - before;
        let worst = self.reached.is_none_or(|(worst, _)| reached > worst);
        if worst {
            self.reached = Some((reached, round.operations));
        }
        self.runtime.block_on(counting.store.pool().close());
        Ok(round)
    }
}

fn claim(key: &str, caller: u32, number: u64, policy: Policy) -> Result<Claim, Fault> {
    let mut token = [0; 16];
    token[..4].copy_from_slice(&caller.to_be_bytes());
    token[8..].copy_from_slice(&number.to_be_bytes());
    let fingerprint = Fingerprint::from_parts(Scheme::current(Profile::new(1)), [7; 32]);
    let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new(key)?);
    let request = Request::new(id, Operation::new("POST /v1/charges")?, fingerprint.into());
    Ok(Claim::new(
        request,
        &policy,
        Origin::from_bytes(token),
        OwnerToken::from_bytes(token),
    ))
}

struct Claimant {
    store: Arc<dyn KeyStore>,
    case: Case,
    number: u32,
    next: u64,
}

impl Claimant {
    async fn claim_and_complete(&mut self) -> Result<(), Fault> {
        self.next += 1;
        let key = format!("{:08x}-{:012x}", self.number, self.next);
        let claim = claim(&key, self.number, self.next, Policy::default())?;
        match self.store.claim(&claim).await? {
            ClaimOutcome::Won(_) => {}
            other => return Err(format!("a fresh key was not won: {other:?}").into()),
        }
        let complete = Transition::Complete(Response::new(201).body(ANSWER));
        let owner = Expect::Owner(claim.token());
        match self.store.transition(claim.id(), owner, &complete).await? {
            TransitionOutcome::Applied { .. } => Ok(()),
            other => Err(format!("not completed: {other:?}").into()),
        }
    }

    async fn be_refused(&mut self) -> Result<(), Fault> {
        self.next += 1;
        let claim = claim("storm", self.number, self.next, Policy::default())?;
        match self.store.claim(&claim).await? {
            ClaimOutcome::Refused { .. } => Ok(()),
            ClaimOutcome::Held(held)
                if matches!(decide(&claim, Some(&held)), Decision::Busy { .. }) =>
            {
                Ok(())
            }
            other => Err(format!("not refused: {other:?}").into()),
        }
    }
}

impl Caller for Claimant {
    async fn call(&mut self) -> Result<(), Fault> {
        match self.case {
            Case::Storm => self.be_refused().await,
            Case::First => self.claim_and_complete().await,
        }
    }
}
