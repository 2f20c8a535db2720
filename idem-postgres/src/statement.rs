//! From a claim or a patch to a statement.

use idem_core::{
    AttemptColumn, Claim, Columns, Condition, EffectColumn, Filter, FinishColumn, Guard,
    NoteColumn, Patch, ReclaimsColumn, RecordId, RecoveryColumn, ResponseColumn, Selection, Span,
    UncertainColumn, Write,
};

use crate::row;
use crate::settings::{Place, Settings};
use crate::sql::{Sql, slice};

/// The records that are finished: the condition of the index `idem_record_finished`, word for word.
const FINISHED: &str =
    "(status IN ('completed', 'failed_final') OR (status = 'failed_retryable' AND NOT uncertain))";

/// The records that are not: the condition of the index `idem_record_unresolved`, word for word.
const UNRESOLVED: &str = "(status = 'in_progress' OR (status = 'failed_retryable' AND uncertain))";

/// The status of a record `r` that is looked for by its id, in a condition.
///
/// Written so that no condition on it implies that of a partial index. The planner takes such an index for nearly empty if it
/// was so when the table was last analysed, as the one of unfinished records always is, and would read all of it, with what
/// is dead in it, to find one record.
pub(crate) const STATUS: &str = "(r.status || '')";

/// That a record `r` is the one that a row of another part of the statement names, in a condition.
///
/// Each such row then looks its record up. If the scopes were compared with `=`, the index of the key could also be read from one
/// end to the other, in order to be joined; and that is what the planner does where a table had next to no rows when it was
/// last analysed.
pub(crate) fn looked_up(row: &str) -> String {
    format!(
        "r.scope = ANY (ARRAY[{row}.scope COLLATE \"C\"]) AND r.\"key\" = {row}.\"key\" COLLATE \"C\""
    )
}

/// Where the record begins in the answer to a claim, to a load, and in a list, where its scope and key come first.
pub(crate) const CLAIMED_RECORD: usize = 2;
pub(crate) const LOADED_RECORD: usize = 1;
pub(crate) const LISTED_RECORD: usize = 1;

/// A first claim if there is no record, and else the record. One row: now, whether it was won, and the record, which is null
/// if it was won, and also if somebody else won it after the statement had looked.
///
/// It looks before it inserts, so a claim of a record that is there writes nothing and waits for nobody, also not for
/// somebody who is just writing that record.
pub(crate) fn claim(settings: &Settings, place: Place, claim: &Claim) -> Sql {
    let mut sql = begin(settings, place);
    let table = settings.names.records();
    let columns = row::columns("held", settings.pooling);
    sql.push(", held AS MATERIALIZED (SELECT * FROM ")
        .push(&table)
        .push(" WHERE scope = ");
    sql.string(claim.id().scope().as_str())
        .push(" AND \"key\" = ");
    sql.string(claim.id().key().as_str());
    sql.push("), won AS (").push("INSERT INTO ").push(&table);
    sql.push(INSERTED).push(" SELECT ");
    sql.string(claim.id().scope().as_str()).push(", ");
    sql.string(claim.id().key().as_str()).push(", ");
    first_record(&mut sql, claim);
    sql.push(
        " FROM at WHERE NOT EXISTS (SELECT FROM held) ON CONFLICT (scope, \"key\") DO NOTHING \
         RETURNING true AS won) SELECT ",
    );
    sql.push(&row::instant("at.now", settings.pooling));
    sql.push(", won.won IS NOT NULL, ")
        .push(&columns)
        .push(restore(place));
    sql.push(" FROM at LEFT JOIN won ON true LEFT JOIN held ON true");
    sql
}

/// One record by its id. Now, and its columns; no row if there is none.
pub(crate) fn load(settings: &Settings, id: &RecordId) -> Sql {
    let mut sql = Sql::new(settings.pooling);
    sql.push("SELECT ")
        .push(&row::instant("clock_timestamp()", settings.pooling))
        .push(", ")
        .push(&row::columns("r", settings.pooling))
        .push(" FROM ")
        .push(&settings.names.records())
        .push(" AS r WHERE scope = ");
    sql.string(id.scope().as_str()).push(" AND \"key\" = ");
    sql.string(id.key().as_str());
    sql
}

/// Carries out a patch under its guard. One row: now, and the record's revision, which is null if the guard let nothing
/// through.
pub(crate) fn write(settings: &Settings, place: Place, id: &RecordId, patch: &Patch<'_>) -> Sql {
    let mut sql = begin(settings, place);
    match &patch.write {
        Write::Set(columns) => {
            sql.push(", written AS (");
            update(settings, &mut sql, id, &patch.guard, columns);
            sql.push(" RETURNING r.revision)");
        }
        Write::Remove => {
            sql.push(", written AS (");
            delete(settings, &mut sql, id, &patch.guard);
            sql.push(" RETURNING r.revision)");
        }
        // Both look at the same version of the row, so at most one of them finds it.
        Write::RemoveUnlessUncertain(columns) => {
            sql.push(", removed AS (");
            delete(settings, &mut sql, id, &patch.guard);
            sql.push(" AND NOT r.uncertain RETURNING r.revision), kept AS (");
            update(settings, &mut sql, id, &patch.guard, columns);
            sql.push(
                " AND r.uncertain RETURNING r.revision), written AS (SELECT revision FROM removed \
                 UNION ALL SELECT revision FROM kept)",
            );
        }
    }
    sql.push(" SELECT ")
        .push(&row::instant("at.now", settings.pooling))
        .push(", written.revision")
        .push(restore(place))
        .push(" FROM at LEFT JOIN written ON true");
    sql
}

/// Removes up to `limit` records that are expired, the longest expired ones first, and counts those that are stuck up to
/// `limit`. One row with the two numbers.
///
/// What it removes it has locked before, so that is what it saw. A record that somebody else is just writing, or
/// removing, is left to him.
pub(crate) fn sweep(settings: &Settings, limit: u32) -> Sql {
    let mut sql = begin(settings, Place::Statement);
    let table = settings.names.records();
    sql.push(", due AS MATERIALIZED (SELECT r.scope, r.\"key\", r.token, r.revision FROM ")
        .push(&table)
        .push(" AS r WHERE ")
        .push(FINISHED)
        .push(" AND r.expires_at <= (SELECT ")
        .push(&earliest(settings))
        .push(" FROM at) ORDER BY r.expires_at LIMIT ");
    sql.integer(limit.into());
    sql.push(" FOR UPDATE SKIP LOCKED), removed AS (DELETE FROM ")
        .push(&table)
        .push(" AS r USING due WHERE ")
        .push(&looked_up("due"))
        .push(
            " AND r.token = due.token AND r.revision = due.revision RETURNING true) \
             SELECT (SELECT count(*) FROM removed), ",
        )
        .push("(SELECT count(*) FROM (SELECT FROM ")
        .push(&table)
        .push(" AS r WHERE ")
        .push(UNRESOLVED)
        .push(" AND r.status = 'in_progress' AND r.locked_until <= (SELECT ")
        .push(&earliest(settings))
        .push(" FROM at) LIMIT ");
    sql.integer(limit.into());
    sql.push(") AS stuck)");
    sql
}

/// How many records there are of each status: the status, how many, how many of them are uncertain, expired, stuck, and
/// when the lease of the one was over that is stuck the longest.
pub(crate) fn count(settings: &Settings) -> Sql {
    let mut sql = Sql::new(settings.pooling);
    let earliest = earliest(settings);
    let stuck = format!("r.status = 'in_progress' AND r.locked_until <= {earliest}");
    let oldest = format!("min(r.locked_until) FILTER (WHERE {stuck})");
    sql.push(
        "WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now) SELECT r.status, count(*), ",
    )
    .push("count(*) FILTER (WHERE r.uncertain), count(*) FILTER (WHERE ")
    .push(FINISHED)
    .push(&format!(
        " AND r.expires_at <= {earliest}), count(*) FILTER (WHERE "
    ))
    .push(&stuck)
    .push("), ")
    .push(&row::instant(&oldest, settings.pooling))
    .push(" FROM at, ")
    .push(&settings.names.records())
    .push(" AS r GROUP BY r.status");
    sql
}

/// A list in the order of scope and key, from the first record after `after`: now, scope, key, and the other columns.
pub(crate) fn list(
    settings: &Settings,
    filter: &Filter,
    after: Option<&RecordId>,
    limit: u32,
) -> Sql {
    let mut sql = Sql::new(settings.pooling);
    sql.push("WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now) SELECT ")
        .push(&row::instant("at.now", settings.pooling))
        .push(", r.scope, r.\"key\", ")
        .push(&row::columns("r", settings.pooling))
        .push(" FROM at, ")
        .push(&settings.names.records())
        .push(" AS r WHERE ")
        .push(match filter.selection {
            Selection::All => "true",
            Selection::Unresolved | Selection::Stuck => UNRESOLVED,
        });
    if filter.selection == Selection::Stuck {
        sql.push(" AND r.status = 'in_progress' AND r.locked_until <= ")
            .push(&earliest(settings));
    }
    if let Some(scope) = &filter.scope {
        sql.push(" AND r.scope = ").string(scope.as_str());
    }
    if let Some(after) = after {
        sql.push(" AND (r.scope, r.\"key\") > (")
            .string(after.scope().as_str())
            .push(" COLLATE \"C\", ")
            .string(after.key().as_str())
            .push(" COLLATE \"C\")");
    }
    sql.push(" ORDER BY r.scope, r.\"key\" LIMIT ")
        .integer(limit.into());
    sql
}

/// The first record of a claim is written into these columns; the others are null.
pub(crate) const INSERTED: &str = " (scope, \"key\", operation, fingerprint_encoding, fingerprint_profile, fingerprint, \
     status, origin, token, revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, \
     created_at, effect_since, locked_at, locked_until)";

/// The values of [`INSERTED`] but for the key's.
fn first_record(sql: &mut Sql, claim: &Claim) {
    let scheme = claim.fingerprint().scheme();
    let terms = claim.terms();
    sql.string(claim.operation().as_str()).push(", ");
    sql.integer(scheme.encoding().into()).push(", ");
    sql.integer(scheme.profile().number().into()).push(", ");
    sql.bytes(claim.fingerprint().digest())
        .push(", 'in_progress', ");
    sql.bytes(claim.origin().as_bytes()).push(", ");
    sql.bytes(claim.token().as_bytes())
        .push(", 1, 1, 0, false, ");
    sql.string(terms.contract.as_str()).push(", ");
    sql.integer(micros(terms.retention)).push(", ");
    sql.integer(micros(terms.reclaim_window)).push(", ");
    sql.integer(terms.max_reclaims.into());
    sql.push(", at.now, at.now, at.now, at.now + ");
    span(sql, claim.lease());
}

/// The server's now, and how long the statement may wait for a lock. Both are found before anything else is done: what is
/// written or locked joins with this.
pub(crate) fn begin(settings: &Settings, place: Place) -> Sql {
    let mut sql = Sql::new(settings.pooling);
    sql.push("WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now, ");
    // Read before it is set: a list is evaluated from its left.
    sql.push(match place {
        Place::Statement => "",
        Place::Transaction => "current_setting('lock_timeout') AS before, ",
    });
    sql.push("set_config('lock_timeout', ");
    sql.push(&format!("'{}ms'", settings.lock_timeout().as_millis()));
    sql.push(", true) AS bound)");
    sql
}

/// What gives the caller's transaction its own bound back. A statement that is a transaction by itself takes the bound
/// with it.
fn restore(place: Place) -> &'static str {
    match place {
        Place::Statement => "",
        Place::Transaction => ", set_config('lock_timeout', at.before, true)",
    }
}

fn update(settings: &Settings, sql: &mut Sql, id: &RecordId, guard: &Guard, columns: &Columns<'_>) {
    sql.push("UPDATE ")
        .push(&settings.names.records())
        .push(" AS r SET revision = r.revision + 1");
    set_columns(sql, columns);
    sql.push(" FROM at");
    admit(settings, sql, id, guard);
}

fn delete(settings: &Settings, sql: &mut Sql, id: &RecordId, guard: &Guard) {
    sql.push("DELETE FROM ")
        .push(&settings.names.records())
        .push(" AS r USING at");
    admit(settings, sql, id, guard);
}

fn admit(settings: &Settings, sql: &mut Sql, id: &RecordId, guard: &Guard) {
    sql.push(" WHERE r.scope = ").string(id.scope().as_str());
    sql.push(" AND r.\"key\" = ").string(id.key().as_str());
    sql.push(" AND r.token = ").bytes(guard.token.as_bytes());
    if let Some(revision) = guard.revision {
        match i64::try_from(revision.as_u64()) {
            Ok(revision) => sql.push(" AND r.revision = ").integer(revision),
            // A number that no row can hold matches none.
            Err(_) => sql.push(" AND false"),
        };
    }
    sql.push(" AND ");
    let earliest = earliest(settings);
    match guard.condition {
        Condition::InProgress => drop(sql.push(&format!("{STATUS} = 'in_progress'"))),
        Condition::NewerCheckpoint { sequence } => {
            sql.push(&format!(
                "{STATUS} = 'in_progress' AND (r.recovery_attempt IS NULL OR r.recovery_attempt < r.attempt \
                 OR (r.recovery_attempt = r.attempt AND r.recovery_sequence < "
            ));
            sql.integer(sequence.into()).push("))");
        }
        Condition::Reclaimable => {
            let terms = terms(settings);
            sql.push(&format!(
                "(({STATUS} = 'in_progress' AND r.locked_until <= {earliest} AND {terms}) \
                 OR ({STATUS} = 'failed_retryable' AND (NOT r.uncertain OR {terms})))"
            ));
        }
        Condition::Expired => {
            sql.push(&format!(
                "r.expires_at <= {earliest} AND ({STATUS} IN ('completed', 'failed_final') \
                 OR ({STATUS} = 'failed_retryable' AND NOT r.uncertain))"
            ));
        }
        Condition::Resolvable => {
            let terms = terms(settings);
            sql.push(&format!(
                "(({STATUS} = 'in_progress' AND r.locked_until <= {earliest}) \
                 OR ({STATUS} = 'failed_retryable' AND r.uncertain AND NOT {terms}))"
            ));
        }
    }
}

/// The server's now, less what it may be off: what is over by that is over.
fn earliest(settings: &Settings) -> String {
    off(settings, '-')
}

/// The server's now, and what it may be off.
fn latest(settings: &Settings) -> String {
    off(settings, '+')
}

fn off(settings: &Settings, sign: char) -> String {
    match settings.skew.as_micros() {
        0 => "at.now".to_owned(),
        skew => format!("(at.now {sign} {skew} * interval '1 microsecond')"),
    }
}

/// Whether the terms allow to run uncertain work once more.
fn terms(settings: &Settings) -> String {
    format!(
        "(r.contract = 'reclaim' AND {} < r.effect_since + r.reclaim_window * interval '1 microsecond' \
         AND r.reclaims < r.max_reclaims)",
        latest(settings)
    )
}

/// What follows `SET revision = …`. On the right of each `=` is the row as it was.
fn set_columns(sql: &mut Sql, columns: &Columns<'_>) {
    if let Some(status) = columns.status {
        sql.push(", status = ").string(status.as_str());
    }
    if let Some(token) = &columns.token {
        sql.push(", token = ").bytes(token.as_bytes());
    }
    if let Some(lease) = columns.lease {
        sql.push(", locked_at = at.now, locked_until = at.now + ");
        span(sql, lease);
    }
    if let Some(claim) = columns.identity {
        identity(sql, claim);
    }
    sql.push(match columns.attempt {
        AttemptColumn::Keep => "",
        AttemptColumn::Next => ", attempt = least(r.attempt + 1, 4294967295)",
        AttemptColumn::First => ", attempt = 1",
    });
    sql.push(match columns.reclaims {
        ReclaimsColumn::Keep => "",
        ReclaimsColumn::CountIfDoubtful => {
            ", reclaims = CASE WHEN r.uncertain OR r.status = 'in_progress' \
             THEN least(r.reclaims + 1, 4294967295) ELSE r.reclaims END"
        }
        ReclaimsColumn::Zero => ", reclaims = 0",
    });
    sql.push(match columns.uncertain {
        UncertainColumn::Keep => "",
        UncertainColumn::Set => ", uncertain = true",
        UncertainColumn::SetIfInProgress => {
            ", uncertain = (r.uncertain OR r.status = 'in_progress')"
        }
        UncertainColumn::Clear => ", uncertain = false",
    });
    sql.push(match columns.effect_since {
        EffectColumn::Keep => "",
        EffectColumn::Now => ", effect_since = at.now",
        EffectColumn::NowUnlessDoubtful => {
            ", effect_since = CASE WHEN r.uncertain OR r.status = 'in_progress' \
             THEN r.effect_since ELSE at.now END"
        }
    });
    recovery(sql, &columns.recovery);
    response(sql, &columns.response);
    match columns.note {
        NoteColumn::Keep => {}
        NoteColumn::Clear => drop(sql.push(", note = NULL")),
        NoteColumn::Set(note) => drop(sql.push(", note = ").string(note.as_str())),
    }
    // A restart writes its own retention, but it does not finish, so the row's own is the right one here.
    sql.push(match columns.finish {
        FinishColumn::Keep => "",
        FinishColumn::Clear => ", finished_at = NULL, expires_at = NULL",
        FinishColumn::Now => {
            ", finished_at = at.now, expires_at = at.now + r.retention * interval '1 microsecond'"
        }
    });
}

fn identity(sql: &mut Sql, claim: &Claim) {
    let scheme = claim.fingerprint().scheme();
    let terms = claim.terms();
    sql.push(", operation = ")
        .string(claim.operation().as_str());
    sql.push(", fingerprint_encoding = ")
        .integer(scheme.encoding().into());
    sql.push(", fingerprint_profile = ")
        .integer(scheme.profile().number().into());
    sql.push(", fingerprint = ")
        .bytes(claim.fingerprint().digest());
    sql.push(", origin = ").bytes(claim.origin().as_bytes());
    sql.push(", contract = ").string(terms.contract.as_str());
    sql.push(", retention = ").integer(micros(terms.retention));
    sql.push(", reclaim_window = ")
        .integer(micros(terms.reclaim_window));
    sql.push(", max_reclaims = ")
        .integer(terms.max_reclaims.into());
    sql.push(", created_at = at.now");
}

fn recovery(sql: &mut Sql, recovery: &RecoveryColumn<'_>) {
    match recovery {
        RecoveryColumn::Keep => {}
        RecoveryColumn::Clear => {
            sql.push(
                ", recovery_name = NULL, recovery_data = NULL, recovery_attempt = NULL, recovery_sequence = NULL",
            );
        }
        RecoveryColumn::Set { point, sequence } => {
            sql.push(", recovery_name = ").string(point.name());
            sql.push(", recovery_data = ")
                .optional_bytes(slice(point.data()));
            sql.push(", recovery_sequence = ")
                .integer((*sequence).into());
            sql.push(", recovery_attempt = r.attempt");
        }
    }
}

fn response(sql: &mut Sql, response: &ResponseColumn<'_>) {
    match response {
        ResponseColumn::Keep => {}
        ResponseColumn::Clear => {
            sql.push(", response_code = NULL, response_headers = NULL, response_body = NULL");
        }
        ResponseColumn::Set(response) => {
            sql.push(", response_code = ")
                .integer(response.code().into());
            sql.push(", response_headers = ")
                .bytes(&response.headers().encode());
            sql.push(", response_body = ")
                .optional_bytes(slice(response.body_ref().bytes()));
        }
    }
}

/// A span as a length of time. A hundred years of microseconds, which is the longest, are a whole number to a `float8`.
fn span(sql: &mut Sql, span: Span) {
    sql.integer(micros(span))
        .push(" * interval '1 microsecond'");
}

/// A span is at most a hundred years, which is far from the largest integer.
pub(crate) fn micros(span: Span) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
