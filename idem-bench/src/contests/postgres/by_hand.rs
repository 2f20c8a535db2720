use std::hint::black_box;
use std::sync::Arc;

use idem_postgres::PgKeyStore;
use sqlx::{PgPool, Row as _};
use tokio::runtime::Runtime;

use super::servers::{Ping, Servers};
use super::{ANSWER, FINGERPRINT, HEADERS, OPERATION, REPLAYED, SCOPE, key, token, warm_up};
use crate::contest::{Budget, Contestant, Fault, Plan};
use crate::load::{Caller, Round, runtime, tasks};

/// The usual columns, the usual key, and the index that removing old rows needs.
const TABLE: &str = "\
    DROP TABLE IF EXISTS keys; \
    CREATE TABLE keys (scope text NOT NULL, key text NOT NULL, operation text NOT NULL, fingerprint bytea NOT NULL, \
    status text NOT NULL, token bytea NOT NULL, created_at timestamptz NOT NULL, locked_until timestamptz NOT NULL, \
    expires_at timestamptz, code int, headers bytea, body bytea, PRIMARY KEY (scope, key)); \
    CREATE INDEX keys_expires_at ON keys (expires_at)";

const CLAIM: &str = "\
    INSERT INTO keys (scope, key, operation, fingerprint, status, token, created_at, locked_until) \
    VALUES ($1, $2, $3, $4, 'in_progress', $5, now(), now() + interval '90 s') ON CONFLICT DO NOTHING";

const COMPLETE: &str = "\
    UPDATE keys SET status = 'completed', code = $4, headers = $5, body = $6, expires_at = now() + interval '24 h' \
    WHERE scope = $1 AND key = $2 AND token = $3 AND status = 'in_progress'";

const CLAIM_MANY: &str = "\
    INSERT INTO keys (scope, key, operation, fingerprint, status, token, created_at, locked_until) \
    SELECT scope, key, operation, fingerprint, 'in_progress', token, now(), now() + interval '90 s' \
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[]) \
    AS item (scope, key, operation, fingerprint, token) ON CONFLICT DO NOTHING RETURNING key";

const COMPLETE_MANY: &str = "\
    UPDATE keys SET status = 'completed', code = item.code, headers = item.headers, body = item.body, \
    expires_at = now() + interval '24 h' \
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::int[], $5::bytea[], $6::bytea[]) \
    AS item (scope, key, token, code, headers, body) \
    WHERE keys.scope = item.scope AND keys.key = item.key AND keys.token = item.token AND keys.status = 'in_progress' \
    RETURNING keys.key";

/// What the crate's own two statements do, on its own table: a claim that finds the record or creates it and waits for nobody
/// for longer than a bound, and an answer that says by whose clock it was stored and which revision it is.
const CLAIM_ALIKE: &str = "\
    WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now, set_config('lock_timeout', '25ms', true)), \
    held AS MATERIALIZED (SELECT * FROM idem_record WHERE scope = $1 AND key = $2), \
    won AS (INSERT INTO idem_record (scope, key, operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, \
    origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, created_at, \
    effect_since, locked_at, locked_until) \
    SELECT $1, $2, $3, 1, 1, $4, 'in_progress', $5, $5, 1, 1, 0, false, 'reclaim', 86400000000, 72000000000, 10, at.now, \
    at.now, at.now, at.now + interval '90 s' FROM at WHERE NOT EXISTS (SELECT FROM held) \
    ON CONFLICT (scope, key) DO NOTHING RETURNING true AS won) \
    SELECT at.now, won.won IS NOT NULL AS won, held.* FROM at LEFT JOIN won ON true LEFT JOIN held ON true";

const COMPLETE_ALIKE: &str = "\
    WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now, set_config('lock_timeout', '25ms', true)), \
    written AS (UPDATE idem_record AS r SET revision = r.revision + 1, status = 'completed', response_code = $4, \
    response_headers = $5, response_body = $6, finished_at = at.now, \
    expires_at = at.now + r.retention * interval '1 microsecond' FROM at \
    WHERE r.scope = $1 AND r.key = $2 AND r.token = $3 AND (r.status || '') = 'in_progress' RETURNING r.revision) \
    SELECT at.now, written.revision FROM at LEFT JOIN written ON true";

const SELECT: &str = "\
    SELECT status, fingerprint, code, headers, body FROM keys WHERE scope = $1 AND key = $2";

/// What is written by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// An `INSERT` and an `UPDATE` for each key.
    Rows,
    /// The same, each of which does all that the crate's own does, on the crate's own table.
    Alike,
    /// An `INSERT` and an `UPDATE` for each 64 keys, from arrays.
    Batches,
    /// Nothing but the `SELECT` that finds a finished row by its primary key.
    Select,
}

/// How many keys are in a batch.
const BATCH: u32 = 64;

/// Statements on sqlx, as one writes them without this project.
pub(super) struct ByHand {
    servers: Arc<Servers>,
    runtime: Runtime,
    way: Way,
    /// How many callers there are, whatever the plan says.
    callers: Option<u32>,
}

impl ByHand {
    pub(super) fn new(servers: &Arc<Servers>, way: Way) -> Result<Self, Fault> {
        Ok(Self {
            servers: Arc::clone(servers),
            runtime: runtime()?,
            way,
            callers: None,
        })
    }

    pub(super) fn callers(mut self, callers: u32) -> Self {
        self.callers = Some(callers);
        self
    }

    /// The plan as this contestant carries it out: a batch is one call of a caller.
    fn own(&self, plan: Plan) -> Plan {
        let callers = self.callers.unwrap_or(plan.callers);
        match (self.way, plan.budget) {
            (Way::Batches, Budget::Operations(all)) => Plan {
                callers,
                budget: Budget::Operations(all.div_ceil(BATCH.into())),
            },
            (_, budget) => Plan { callers, budget },
        }
    }
}

impl Contestant for ByHand {
    fn name(&self) -> String {
        let callers = self
            .callers
            .map_or(String::new(), |callers| format!(", {callers} callers"));
        match self.way {
            Way::Rows => format!("sqlx, two plain statements{callers}"),
            Way::Alike => "sqlx, the same two statements".to_owned(),
            Way::Batches => format!("sqlx, {BATCH} keys a statement{callers}"),
            Way::Select => "sqlx, SELECT by primary key".to_owned(),
        }
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let plan = self.own(plan);
        let pool = self.runtime.block_on(async {
            let pool = self.servers.pool(plan.callers, Ping::BeforeEachUse).await?;
            sqlx::raw_sql(TABLE).execute(&pool).await?;
            if self.way == Way::Alike {
                PgKeyStore::new(pool.clone()).migrate().await?;
                sqlx::raw_sql("TRUNCATE idem_record").execute(&pool).await?;
            }
            if self.way == Way::Select {
                for number in 0..REPLAYED {
                    claim_and_complete(&pool, 0, number).await?;
                }
            }
            Ok::<_, Fault>(pool)
        })?;
        let callers = |first: u32| {
            (first..first + plan.callers)
                .map(|number| HandCaller {
                    pool: pool.clone(),
                    way: self.way,
                    number,
                    next: 0,
                })
                .collect()
        };
        warm_up(&self.runtime, plan, callers(plan.callers))?;
        let round = tasks(&self.runtime, plan, callers(0));
        self.runtime.block_on(pool.close());
        let mut round = round?;
        if self.way == Way::Batches {
            round.operations *= u64::from(BATCH);
        }
        Ok(round)
    }
}

struct HandCaller {
    pool: PgPool,
    way: Way,
    number: u32,
    next: u64,
}

impl Caller for HandCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        let next = self.next;
        self.next += 1;
        match self.way {
            Way::Rows => claim_and_complete(&self.pool, self.number, next).await,
            Way::Alike => claim_and_complete_alike(&self.pool, self.number, next).await,
            Way::Batches => claim_and_complete_many(&self.pool, self.number, next).await,
            Way::Select => select(&self.pool, next % REPLAYED).await,
        }
    }
}

async fn claim_and_complete(pool: &PgPool, caller: u32, number: u64) -> Result<(), Fault> {
    let (key, token) = (key(caller, number), token(caller, number));
    let claimed = sqlx::query(CLAIM)
        .bind(SCOPE)
        .bind(&key)
        .bind(OPERATION)
        .bind(&FINGERPRINT[..])
        .bind(&token[..])
        .execute(pool)
        .await?;
    let completed = sqlx::query(COMPLETE)
        .bind(SCOPE)
        .bind(&key)
        .bind(&token[..])
        .bind(201)
        .bind(HEADERS)
        .bind(ANSWER.as_bytes())
        .execute(pool)
        .await?;
    match (claimed.rows_affected(), completed.rows_affected()) {
        (1, 1) => Ok(()),
        _ => Err("a fresh key was held".into()),
    }
}

async fn claim_and_complete_alike(pool: &PgPool, caller: u32, number: u64) -> Result<(), Fault> {
    let (key, token) = (key(caller, number), token(caller, number));
    let claimed = sqlx::query(CLAIM_ALIKE)
        .bind(SCOPE)
        .bind(&key)
        .bind(OPERATION)
        .bind(&FINGERPRINT[..])
        .bind(&token[..])
        .fetch_one(pool)
        .await?;
    let completed = sqlx::query(COMPLETE_ALIKE)
        .bind(SCOPE)
        .bind(&key)
        .bind(&token[..])
        .bind(201_i64)
        .bind(HEADERS)
        .bind(ANSWER.as_bytes())
        .fetch_one(pool)
        .await?;
    match (claimed.try_get("won")?, completed.try_get("revision")?) {
        (true, Some(2_i64)) => Ok(()),
        _ => Err("a fresh key was held".into()),
    }
}

async fn claim_and_complete_many(pool: &PgPool, caller: u32, number: u64) -> Result<(), Fault> {
    let numbers = || (0..u64::from(BATCH)).map(|place| number * u64::from(BATCH) + place);
    let many = usize::try_from(BATCH)?;
    let keys: Vec<String> = numbers().map(|number| key(caller, number)).collect();
    let tokens: Vec<[u8; 16]> = numbers().map(|number| token(caller, number)).collect();
    let tokens: Vec<&[u8]> = tokens.iter().map(<[u8; 16]>::as_slice).collect();
    let claimed = sqlx::query(CLAIM_MANY)
        .bind(vec![SCOPE; many])
        .bind(&keys)
        .bind(vec![OPERATION; many])
        .bind(vec![&FINGERPRINT[..]; many])
        .bind(&tokens)
        .fetch_all(pool)
        .await?;
    let completed = sqlx::query(COMPLETE_MANY)
        .bind(vec![SCOPE; many])
        .bind(&keys)
        .bind(&tokens)
        .bind(vec![201; many])
        .bind(vec![HEADERS; many])
        .bind(vec![ANSWER.as_bytes(); many])
        .fetch_all(pool)
        .await?;
    if claimed.len() == many && completed.len() == many {
        Ok(())
    } else {
        Err("a fresh key was held".into())
    }
}

type Finished = (String, Vec<u8>, i32, Vec<u8>, Vec<u8>);

async fn select(pool: &PgPool, number: u64) -> Result<(), Fault> {
    let row: Finished = sqlx::query_as(SELECT)
        .bind(SCOPE)
        .bind(key(0, number))
        .fetch_one(pool)
        .await?;
    black_box(row);
    Ok(())
}
