use idem_postgres::{Coalescing, PgKeyStore, PgOptions};
use sqlx::{AssertSqlSafe, PgPool};

use super::servers::{Ping, Servers};
use crate::contest::Fault;

/// Rows that are made in one statement.
const AT_ONCE: u64 = 250_000;

/// What a table is filled with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling {
    pub(super) completed: Completed,
    /// The number of the first row. Rows of different numbers have different keys.
    pub(super) first: u64,
    pub(super) rows: u64,
    /// Every so manieth row is in progress, spread over the whole table, and a tenth of those is stuck. None at zero.
    pub(super) in_progress_every: u64,
}

/// When the completed rows expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completed {
    /// Some time tomorrow.
    Live,
    /// Some time yesterday.
    Expired,
}

/// A store whose table is empty.
pub(super) async fn empty(
    servers: &Servers,
    table: &str,
    connections: u32,
    coalescing: Coalescing,
) -> Result<PgKeyStore, Fault> {
    let pool = servers.pool(connections, Ping::BeforeEachUse).await?;
    let store = PgOptions::new()
        .table(table)?
        .coalescing(coalescing)
        .build(pool);
    store.migrate().await?;
    run(store.pool(), &format!("TRUNCATE {table}")).await?;
    Ok(store)
}

/// Puts rows into a table. Nobody has vacuumed or analysed it then.
pub(super) async fn fill(pool: &PgPool, table: &str, filling: Filling) -> Result<(), Fault> {
    let expires = match filling.completed {
        // Not within the day: making the rows takes minutes.
        Completed::Live => "now() + (2 * 86400 - n % 86400) * interval '1 s'",
        Completed::Expired => "now() - (n % 86400) * interval '1 s'",
    };
    let every = filling.in_progress_every;
    let in_progress = match every {
        0 => "false".to_owned(),
        _ => format!("n % {every} = 0"),
    };
    let stuck = every.max(1) * 10;
    let mut first = filling.first;
    let end = filling.first + filling.rows;
    while first < end {
        let last = (end - 1).min(first + AT_ONCE - 1);
        let sql = format!(
            "INSERT INTO {table} (scope, \"key\", operation, fingerprint_encoding, fingerprint_profile, fingerprint, \
             status, origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, \
             max_reclaims, created_at, effect_since, locked_at, locked_until, finished_at, expires_at, response_code, \
             response_headers, response_body) \
             SELECT 'acct_' || n % 1000, md5(n::text)::uuid::text, 'POST /v1/charges', 1, 1, \
             decode(md5(n::text) || md5(n::text), 'hex'), \
             CASE WHEN {in_progress} THEN 'in_progress' ELSE 'completed' END, decode(md5(n::text), 'hex'), \
             decode(md5(n::text), 'hex'), 2, 1, 0, false, 'reclaim', 86400000000, 72000000000, 10, at, at, at, \
             CASE WHEN {in_progress} AND n % {stuck} <> 0 THEN now() + interval '1 day' ELSE at + interval '90 s' END, \
             CASE WHEN {in_progress} THEN NULL ELSE at END, CASE WHEN {in_progress} THEN NULL ELSE {expires} END, \
             CASE WHEN {in_progress} THEN NULL ELSE 201 END, CASE WHEN {in_progress} THEN NULL ELSE '\\x00'::bytea END, \
             CASE WHEN {in_progress} THEN NULL ELSE decode(repeat('7b', 66), 'hex') END \
             FROM (SELECT n, now() - interval '2 days' + n % 86400 * interval '1 s' AS at \
             FROM generate_series({first}, {last}) AS n) AS numbered"
        );
        run(pool, &sql).await?;
        first = last + 1;
    }
    Ok(())
}

/// What autovacuum and the checkpointer would do in time.
pub(super) async fn settle(pool: &PgPool, table: &str) -> Result<(), Fault> {
    run(pool, &format!("VACUUM (ANALYZE) {table}")).await?;
    run(pool, "CHECKPOINT").await
}

/// Statements that were written here.
pub(super) async fn run(pool: &PgPool, sql: &str) -> Result<(), Fault> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
    Ok(())
}

/// How many bytes the table has, its indexes left out, and how many they have.
pub(super) async fn sizes(pool: &PgPool, table: &str) -> Result<(i64, i64), Fault> {
    let sizes = sqlx::query_as(
        "SELECT pg_table_size($1::text::regclass), pg_indexes_size($1::text::regclass)",
    )
    .bind(table)
    .fetch_one(pool)
    .await?;
    Ok(sizes)
}

/// Where the log ends.
pub(super) async fn wal(pool: &PgPool) -> Result<i64, Fault> {
    let end = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        .fetch_one(pool)
        .await?;
    Ok(end)
}
