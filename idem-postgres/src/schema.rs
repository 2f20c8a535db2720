//! The tables: whether they are there, in which version, and how they get there.

use std::error::Error;

use idem_core::{
    Claim, Expect, Fingerprints, IdempotencyKey, Nulls, Operation, Policy, Profile, RecordId,
    Request, Rules, Scope, StoreError, StoreErrorKind, Transition,
};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use crate::database::{Database, Lane, pause};
use crate::error::{self, Effect, code};
use crate::names::{Names, quote};
use crate::options::Durability;
use crate::settings::Place;
use crate::sql::Sql;
use crate::{row, statement};

/// One step of the schema. Steps are only ever added.
struct Migration {
    version: i64,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    sql: include_str!("migrations/0001_records.sql"),
}];

/// What this version needs.
const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The oldest server that has everything that is used, as it numbers itself.
const OLDEST_SERVER: i64 = 130_000;

/// How often a step is tried that somebody else was just taking as well.
const TRIES: u32 = 8;

const READING: &str = "reading the version of the schema";
const MIGRATING: &str = "migrating the schema";
const CHECKING: &str = "checking the server";

/// Takes the steps that are missing.
///
/// A step is one message, and so one transaction that is there as a whole or not at all, also if this call is dropped, and
/// also behind a pooler. Everybody who takes it at once waits for the first, and then finds that it was taken: the steps say
/// so themselves in a table with a primary key.
pub(crate) async fn migrate(database: &Database) -> Result<(), StoreError> {
    let names = &database.settings.names;
    let mut tries = 0;
    loop {
        let version = version(database).await?.unwrap_or(0);
        refuse_newer(names, version)?;
        let Some(step) = MIGRATIONS.iter().find(|step| step.version > version) else {
            return Ok(());
        };
        let Err(error) = take(database, step).await? else {
            tries = 0;
            continue;
        };
        tries += 1;
        // Somebody else was faster: a row, a table, or a name in the catalogue is there already. Or the two met otherwise.
        let was_met = matches!(
            code(&error).as_deref(),
            Some("23505" | "42P07" | "42710" | "42P06" | "40001" | "40P01" | "55P03")
        );
        if !was_met || tries > TRIES {
            return Err(error::sent(MIGRATING, Effect::Write, error).into());
        }
        tokio::time::sleep(pause(tries)).await;
    }
}

async fn take(
    database: &Database,
    step: &Migration,
) -> Result<Result<(), sqlx::Error>, StoreError> {
    let names = &database.settings.names;
    // In one message, all statements are one transaction.
    let mut text = format!("SELECT pg_advisory_xact_lock({}); ", lock_of(names));
    if let Some(schema) = missing_schema(database).await? {
        text.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {}; ", quote(&schema)));
    }
    text.push_str(&names.apply(step.sql));
    let mut connection = database.acquire(Lane::Shared, MIGRATING).await?;
    let taken = sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut *connection)
        .await;
    Ok(taken.map(drop))
}

/// Whether this program can work with what is there.
pub(crate) async fn check(database: &Database, durability: Durability) -> Result<(), StoreError> {
    let names = &database.settings.names;
    match version(database).await? {
        None => {
            return Err(StoreError::misconfigured(format!(
                "the table {} is not there, or was not made by this crate; run `migrate`, apply the files in \
                 `src/migrations/`, or check schema, table name and search_path",
                names.display()
            )));
        }
        Some(version) if version < VERSION => {
            return Err(StoreError::misconfigured(format!(
                "the table {} has schema version {version}, and this program needs {VERSION}; run `migrate`, or apply \
                 the later files in `src/migrations/`",
                names.display()
            )));
        }
        Some(version) => refuse_newer(names, version)?,
    }
    server(database, durability).await?;
    columns(database).await
}

async fn server(database: &Database, durability: Durability) -> Result<(), StoreError> {
    let row = one_row(database, CHECKING, || {
        let mut sql = Sql::new(database.settings.pooling);
        sql.push(
            "SELECT current_setting('server_version_num')::bigint, current_setting('server_encoding'), \
             current_setting('synchronous_commit') = 'off', coalesce(current_setting('fsync', true), 'on') = 'off', \
             pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'",
        );
        sql
    })
    .await?;
    let read = |error| StoreError::from(error::sent(CHECKING, Effect::Read, error));
    let version: i64 = row.try_get(0).map_err(read)?;
    let encoding: &str = row.try_get(1).map_err(read)?;
    let forgets: bool = row.try_get(2).map_err(read)?;
    let unsynced: bool = row.try_get(3).map_err(read)?;
    let is_standby: bool = row.try_get(4).map_err(read)?;
    let is_read_only: bool = row.try_get(5).map_err(read)?;
    if version < OLDEST_SERVER {
        return Err(StoreError::misconfigured(
            "the server is older than Postgres 13, which is the oldest that is supported",
        ));
    }
    if encoding != "UTF8" {
        return Err(StoreError::misconfigured(format!(
            "the database's encoding is {encoding}, which cannot hold every scope; use one with UTF8"
        )));
    }
    if is_standby {
        return Err(StoreError::unavailable(
            "the server is a standby; keys are claimed on the primary, and read there too",
        ));
    }
    if is_read_only {
        return Err(StoreError::unavailable(
            "transactions are read-only here; set default_transaction_read_only to off for this database user",
        ));
    }
    if durability == Durability::Required && (forgets || unsynced) {
        let setting = if forgets {
            "synchronous_commit"
        } else {
            "fsync"
        };
        return Err(StoreError::misconfigured(format!(
            "{setting} is off: after a crash the server may have forgotten a charge that was made, and the retry makes it \
             again; set it to on for this database user, or say `without_durability`"
        )));
    }
    Ok(())
}

/// A table that was altered by hand is found out now, and not by the first request.
async fn columns(database: &Database) -> Result<(), StoreError> {
    let read = database.read(Lane::Shared, CHECKING, || {
        let mut sql = Sql::new(database.settings.pooling);
        sql.push("SELECT r.scope, r.\"key\", ")
            .push(&row::columns("r", database.settings.pooling))
            .push(" FROM ")
            .push(&database.settings.names.records())
            .push(" AS r LIMIT 0");
        sql
    });
    read.await?;
    // Planned, and not carried out: a right that is missing is found out, and so is the unique index that claims rely on.
    let claim = nobodys_claim()?;
    let release = Transition::Release.patch(Expect::Owner(claim.token()))?;
    let settings = &database.settings;
    let claiming = || statement::claim(settings, Place::Statement, &claim).explained();
    database.read(Lane::Shared, CHECKING, claiming).await?;
    // It writes or removes, so it takes the right to both.
    let releasing =
        || statement::write(settings, Place::Statement, claim.id(), &release).explained();
    database
        .read(Lane::Shared, CHECKING, releasing)
        .await
        .map(drop)
}

/// A claim that is never made.
fn nobodys_claim() -> Result<Claim, StoreError> {
    fn invalid(error: impl Error + Send + Sync + 'static) -> StoreError {
        StoreError::of_kind(StoreErrorKind::Misuse, "making a claim").because(error)
    }
    let operation = Operation::new("check").map_err(invalid)?;
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let fingerprint = rules.of(&operation).finish();
    let scope = Scope::new("idem").map_err(invalid)?;
    let key = IdempotencyKey::new("check").map_err(invalid)?;
    let id = RecordId::new(scope, key);
    let request = Request::new(id, operation, Fingerprints::new(fingerprint));
    Claim::fresh(request, &Policy::default())
}

/// The version of the tables, if they are there.
async fn version(database: &Database) -> Result<Option<i64>, StoreError> {
    let names = &database.settings.names;
    let read = |error| StoreError::from(error::sent(READING, Effect::Read, error));
    let row = one_row(database, READING, || {
        let mut sql = Sql::new(database.settings.pooling);
        sql.push("SELECT to_regclass(").string(&names.migrations());
        sql.push(") IS NOT NULL");
        sql
    })
    .await?;
    if !row.try_get::<bool, _>(0).map_err(read)? {
        return Ok(None);
    }
    let row = one_row(database, READING, || {
        let mut sql = Sql::new(database.settings.pooling);
        sql.push("SELECT max(version) FROM ")
            .push(&names.migrations());
        sql
    })
    .await?;
    row.try_get(0).map_err(read)
}

/// The schema that was named, if it is not there. To create one that is there takes rights that are not needed then.
async fn missing_schema(database: &Database) -> Result<Option<String>, StoreError> {
    let Some(schema) = database.settings.names.schema() else {
        return Ok(None);
    };
    let row = one_row(database, READING, || {
        let mut sql = Sql::new(database.settings.pooling);
        sql.push("SELECT to_regnamespace(").string(&quote(schema));
        sql.push(") IS NULL");
        sql
    })
    .await?;
    let is_missing = row
        .try_get(0)
        .map_err(|error| StoreError::from(error::sent(READING, Effect::Read, error)))?;
    Ok(if is_missing {
        Some(schema.to_owned())
    } else {
        None
    })
}

async fn one_row(
    database: &Database,
    doing: &'static str,
    sql: impl Fn() -> Sql + Send,
) -> Result<PgRow, StoreError> {
    let rows = database.read(Lane::Shared, doing, sql).await?;
    let row = rows.into_iter().next();
    row.ok_or_else(|| StoreError::corrupt(format!("{doing}, which the server gave no answer to")))
}

/// The number of the lock that everybody takes who migrates these tables.
fn lock_of(names: &Names) -> i64 {
    // FNV-1a: the same number in every build, which `Hash` does not promise.
    let hash = names
        .migrations()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    i64::from_be_bytes(hash.to_be_bytes())
}

fn refuse_newer(names: &Names, version: i64) -> Result<(), StoreError> {
    if version <= VERSION {
        return Ok(());
    }
    Err(StoreError::misconfigured(format!(
        "the table {} has schema version {version}, and this program knows none after {VERSION}; use a newer program",
        names.display()
    )))
}
