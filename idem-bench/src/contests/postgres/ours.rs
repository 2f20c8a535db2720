use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use idem_core::{
    Claim, ClaimOutcome, Decision, Expect, Fingerprint, IdempotencyKey, KeyStore as _, Nulls,
    Operation, Origin, OwnerToken, Policy, Profile, RecordId, Request, Response, Rules, Scope,
    Transition, TransitionOutcome, decide,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions};
use sqlx::AssertSqlSafe;
use tokio::runtime::Runtime;

use super::servers::{Ping, Servers};
use super::{ANSWER, BODY, OPERATION, REPLAYED, SCOPE, key, token, warm_up};
use crate::contest::{Contestant, Fault, Plan};
use crate::load::{Caller, Round, runtime, tasks};

/// What an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    ClaimAndComplete,
    Replay,
}

/// The indexes that the table has besides its primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexes {
    /// Those of the crate's schema.
    Shipped,
    /// One on `expires_at`, of all rows.
    Plain,
}

/// `idem-postgres`, with what can be chosen.
pub(super) struct Ours {
    pub(super) name: &'static str,
    pub(super) servers: Arc<Servers>,
    pub(super) runtime: Runtime,
    pub(super) case: Case,
    pub(super) coalescing: Coalescing,
    pub(super) ping: Ping,
    pub(super) indexes: Indexes,
}

impl Ours {
    pub(super) fn new(
        servers: &Arc<Servers>,
        name: &'static str,
        case: Case,
        coalescing: Coalescing,
    ) -> Result<Self, Fault> {
        Ok(Self {
            name,
            servers: Arc::clone(servers),
            runtime: runtime()?,
            case,
            coalescing,
            ping: Ping::BeforeEachUse,
            indexes: Indexes::Shipped,
        })
    }

    fn table(&self) -> &'static str {
        match self.indexes {
            Indexes::Shipped => "idem_record",
            Indexes::Plain => "idem_plain",
        }
    }

    /// An empty table with its indexes, or with what is replayed in it.
    async fn store(&self, callers: u32) -> Result<PgKeyStore, Fault> {
        let pool = self.servers.pool(callers, self.ping).await?;
        let table = self.table();
        let store = PgOptions::new()
            .table(table)?
            .coalescing(self.coalescing)
            .build(pool);
        store.migrate().await?;
        let mut setup = format!("TRUNCATE {table};");
        if self.indexes == Indexes::Plain {
            setup.push_str(&format!(
                "DROP INDEX IF EXISTS {table}_unresolved, {table}_finished; \
                 CREATE INDEX IF NOT EXISTS {table}_expires ON {table} (expires_at);"
            ));
        }
        sqlx::raw_sql(AssertSqlSafe(setup))
            .execute(store.pool())
            .await?;
        Ok(store)
    }
}

/// So many statements under way at once, and so many calls in one.
pub(super) fn natural(in_flight: usize, batch: usize) -> Coalescing {
    let number = |number| NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN);
    Coalescing::Natural {
        in_flight: number(in_flight),
        batch: number(batch),
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let store = self.runtime.block_on(self.store(plan.callers))?;
        let callers = |first: u32| {
            (first..first + plan.callers)
                .map(|number| OurCaller::new(&store, number, self.case, Policy::default()))
                .collect::<Result<Vec<_>, Fault>>()
        };
        if self.case == Case::Replay {
            let mut filling = OurCaller::new(&store, 0, self.case, Policy::default())?;
            self.runtime.block_on(async {
                for number in 0..REPLAYED {
                    filling.claim_and_complete(number).await?;
                }
                Ok::<_, Fault>(())
            })?;
        }
        // Statements are prepared once for each connection, and planned anew the first five times.
        warm_up(&self.runtime, plan, callers(plan.callers)?)?;
        let round = tasks(&self.runtime, plan, callers(0)?);
        self.runtime.block_on(store.pool().close());
        round
    }
}

/// A caller that claims keys of its own and completes them, or that replays what caller 0 has completed.
pub(super) struct OurCaller {
    store: PgKeyStore,
    operation: Operation,
    fingerprint: Fingerprint,
    policy: Policy,
    case: Case,
    number: u32,
    next: u64,
}

impl OurCaller {
    pub(super) fn new(
        store: &PgKeyStore,
        number: u32,
        case: Case,
        policy: Policy,
    ) -> Result<Self, Fault> {
        let operation = Operation::new(OPERATION)?;
        let rules = Rules::new(Profile::new(1), Nulls::Distinct);
        Ok(Self {
            store: store.clone(),
            fingerprint: rules.of(&operation).bytes(BODY).finish(),
            operation,
            policy,
            case,
            number,
            next: 0,
        })
    }

    fn claim_of(&self, caller: u32, number: u64) -> Result<Claim, Fault> {
        let id = RecordId::new(
            Scope::new(SCOPE)?,
            IdempotencyKey::new(key(caller, number))?,
        );
        let request = Request::new(id, self.operation.clone(), self.fingerprint.into());
        let token = token(self.number, self.next);
        Ok(Claim::new(
            request,
            &self.policy,
            Origin::from_bytes(token),
            OwnerToken::from_bytes(token),
        ))
    }

    /// Claims the next key, and leaves it at that.
    pub(super) async fn claim(&mut self) -> Result<Claim, Fault> {
        self.claim_number(self.next).await
    }

    async fn claim_number(&mut self, number: u64) -> Result<Claim, Fault> {
        let claim = self.claim_of(self.number, number)?;
        self.next += 1;
        match self.store.claim(&claim).await? {
            ClaimOutcome::Won(_) => Ok(claim),
            other => Err(format!("a fresh key was not won: {other:?}").into()),
        }
    }

    async fn claim_and_complete(&mut self, number: u64) -> Result<(), Fault> {
        let claim = self.claim_number(number).await?;
        let complete = Transition::Complete(
            Response::new(201)
                .header("content-type", "application/json")
                .body(ANSWER),
        );
        let owner = Expect::Owner(claim.token());
        match self.store.transition(claim.id(), owner, &complete).await? {
            TransitionOutcome::Applied { .. } => Ok(()),
            other => Err(format!("not completed: {other:?}").into()),
        }
    }

    async fn replay(&mut self) -> Result<(), Fault> {
        let claim = self.claim_of(0, self.next % REPLAYED)?;
        self.next += 1;
        let ClaimOutcome::Held(held) = self.store.claim(&claim).await? else {
            return Err("a finished key was claimed".into());
        };
        match decide(&claim, Some(&held)) {
            Decision::Replay(response) => {
                black_box(response);
                Ok(())
            }
            other => Err(format!("not replayed: {other:?}").into()),
        }
    }
}

impl Caller for OurCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        match self.case {
            Case::ClaimAndComplete => self.claim_and_complete(self.next).await,
            Case::Replay => self.replay().await,
        }
    }
}
