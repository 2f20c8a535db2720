//! From a claim or a patch to a statement.
//!
//! A patch has few shapes, and the text of its statement depends on the shape alone: every value is bound. So
//! the text is the key under which the connection keeps the prepared statement, and it is built in a buffer that
//! is used again.

use std::fmt::Write as _;

use idem_core::{
    AttemptColumn, Claim, Columns, Condition, EffectColumn, FinishColumn, Guard, NoteColumn,
    ReclaimsColumn, RecordId, RecoveryColumn, ResponseColumn, Revision, Span, Timestamp,
    UncertainColumn,
};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, params_from_iter};

use crate::row::columns;
use crate::written;

/// One record by its id. Here and everywhere the table is named with its database: a temporary one of the same name would
/// come first otherwise.
pub(crate) const LOAD: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM main.idem_record WHERE scope = ?1 AND \"key\" = ?2"
);

/// A first claim. Only the record's own key may be a conflict; any other violation is an error.
pub(crate) const CLAIM: &str = "INSERT INTO main.idem_record (scope, \"key\", operation, \
     fingerprint_encoding, fingerprint_profile, fingerprint, status, origin, token, revision, attempt, reclaims, \
     uncertain, contract, retention, reclaim_window, max_reclaims, created_at, effect_since, locked_at, locked_until) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'in_progress', ?7, ?8, 1, 1, 0, 0, ?9, ?10, ?11, ?12, ?13, ?13, ?13, ?14) \
     ON CONFLICT (scope, \"key\") DO NOTHING";

/// The records that are finished.
macro_rules! finished {
    () => {
        "(status IN ('completed', 'failed_final') OR (status = 'failed_retryable' AND NOT uncertain))"
    };
}

/// The records that are not.
macro_rules! unresolved {
    () => {
        "(status = 'in_progress' OR (status = 'failed_retryable' AND uncertain))"
    };
}

/// Whether the terms allow to run uncertain work once more. The sum is capped as a timestamp is: SQLite would
/// make a floating-point number of one that does not fit.
macro_rules! terms {
    () => {
        "(contract = 'reclaim' AND ?1 < min(effect_since + reclaim_window, 9223372036854775807) \
         AND reclaims < max_reclaims)"
    };
}

/// How far a record has come and when that ends: the two expressions of the index `idem_record_due`, word for word. The
/// first is 0 for what is finished and 2 for what is in progress.
macro_rules! stage {
    () => {
        "CASE status WHEN 'completed' THEN 0 WHEN 'failed_final' THEN 0 WHEN 'failed_retryable' THEN uncertain \
         WHEN 'in_progress' THEN 2 END"
    };
}
macro_rules! due {
    () => {
        "coalesce(expires_at, locked_until)"
    };
}

/// Removes up to `?2` records that are expired at `?1`, the longest expired ones first. One statement under the
/// write lock finds and removes them, so what it removes is what it saw.
pub(crate) const SWEEP: &str = concat!(
    "DELETE FROM main.idem_record WHERE rowid IN (SELECT rowid FROM main.idem_record WHERE ",
    stage!(),
    " = 0 AND ",
    due!(),
    " <= ?1 ORDER BY ",
    due!(),
    " LIMIT ?2)"
);

/// How many records are stuck at `?1`, counted up to `?2`.
pub(crate) const STUCK: &str = concat!(
    "SELECT count(*) FROM (SELECT 1 FROM main.idem_record WHERE ",
    stage!(),
    " = 2 AND ",
    due!(),
    " <= ?1 LIMIT ?2)"
);

/// How many records there are of each status, and among them at `?1`: uncertain ones, expired ones, stuck ones,
/// and the end of the oldest stuck one's lease.
pub(crate) const COUNT: &str = concat!(
    "SELECT status, count(*), sum(uncertain), sum(",
    finished!(),
    " AND expires_at <= ?1), sum(status = 'in_progress' AND locked_until <= ?1), min(locked_until) \
     FROM main.idem_record GROUP BY status"
);

/// A list, from the first record after `(?1, ?2)`, or from the beginning if they are null. `?3` is the limit,
/// `?4` the scope and `?5` the time; the unused ones are mentioned so that all are bound.
macro_rules! list {
    ($selection:expr) => {
        concat!(
            "SELECT ",
            columns!(),
            ", scope, \"key\" FROM main.idem_record WHERE ",
            $selection,
            " AND (?1 IS NULL OR (scope, \"key\") > (?1, ?2)) AND (?4 IS NULL OR scope = ?4) \
             AND ?5 IS NOT NULL ORDER BY scope, \"key\" LIMIT ?3"
        )
    };
}

pub(crate) const LIST_ALL: &str = list!("TRUE");
pub(crate) const LIST_UNRESOLVED: &str = list!(unresolved!());
pub(crate) const LIST_STUCK: &str = list!(concat!(
    unresolved!(),
    " AND status = 'in_progress' AND locked_until <= ?5"
));

/// A statement that is being written: its text, and its values in order.
#[derive(Debug)]
pub(crate) struct Statement<'text, 'value> {
    text: &'text mut String,
    values: Vec<ToSqlOutput<'value>>,
    /// Whether it returns the revision, or has the function that is told of it.
    returns: bool,
}

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One of the store's, which has the functions of this crate.
    Ours,
    /// One of the program's.
    Callers,
}

impl<'text, 'value> Statement<'text, 'value> {
    /// Changes the columns of the row that the guard lets it change.
    pub(crate) fn update(
        text: &'text mut String,
        id: &'value RecordId,
        now: Timestamp,
        guard: &'value Guard,
        columns: &'value Columns<'value>,
        whose: Whose,
    ) -> Self {
        let verb = match whose {
            Whose::Ours => {
                "UPDATE main.idem_record SET revision = idem_written(min(revision + 1, 9223372036854775807))"
            }
            Whose::Callers => {
                "UPDATE main.idem_record SET revision = min(revision + 1, 9223372036854775807)"
            }
        };
        let mut statement = Self::begin(text, verb, id, now);
        statement.columns(now, columns);
        statement.guard(guard);
        match whose {
            Whose::Ours => statement.returns = false,
            Whose::Callers => statement.text.push_str(" RETURNING revision"),
        }
        statement
    }

    /// Removes the row, if the guard and `only` let it.
    pub(crate) fn delete(
        text: &'text mut String,
        id: &'value RecordId,
        now: Timestamp,
        guard: &'value Guard,
        only: Removable,
    ) -> Self {
        let mut statement = Self::begin(text, "DELETE FROM main.idem_record", id, now);
        statement.guard(guard);
        statement.text.push_str(match only {
            Removable::Any => " RETURNING revision",
            Removable::Certain => " AND NOT uncertain RETURNING revision",
        });
        statement
    }

    /// Carries it out. The revision of the row that was written, or `None` if there was none to write.
    pub(crate) fn run(self, connection: &Connection) -> rusqlite::Result<Option<Revision>> {
        if !self.returns {
            let changed = connection
                .prepare_cached(self.text)?
                .execute(params_from_iter(self.values))?;
            return Ok((changed > 0).then(written::last));
        }
        let mut prepared = connection.prepare_cached(self.text)?;
        let mut rows = prepared.query(params_from_iter(self.values))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let revision: i64 = row.get(0)?;
        // To the end: a statement that is left in the middle is open until it is used again.
        while rows.next()?.is_some() {}
        Ok(Some(Revision::new(u64::try_from(revision).unwrap_or(0))))
    }

    /// The first four parameters are in every statement: now, scope, key, and the guard's token.
    fn begin(text: &'text mut String, verb: &str, id: &'value RecordId, now: Timestamp) -> Self {
        text.clear();
        text.push_str(verb);
        let mut values = Vec::with_capacity(24);
        values.push(integer(now.as_micros()));
        values.push(string(id.scope().as_str()));
        values.push(string(id.key().as_str()));
        Self {
            text,
            values,
            returns: true,
        }
    }

    fn guard(&mut self, guard: &'value Guard) {
        self.text
            .push_str(" WHERE scope = ?2 AND \"key\" = ?3 AND token = ");
        self.bind(blob(guard.token.as_bytes()));
        if let Some(revision) = guard.revision {
            self.text.push_str(" AND revision = ");
            // A number that no row can hold matches none: nothing equals null.
            self.bind(i64::try_from(revision.as_u64()).map_or(NULL, integer));
        }
        self.text.push_str(" AND ");
        match guard.condition {
            Condition::InProgress => self.text.push_str("status = 'in_progress'"),
            Condition::NewerCheckpoint { sequence } => {
                self.text.push_str(
                    "status = 'in_progress' AND (recovery_attempt IS NULL OR recovery_attempt < attempt \
                     OR (recovery_attempt = attempt AND recovery_sequence < ",
                );
                self.bind(integer(sequence.into()));
                self.text.push_str("))");
            }
            Condition::Reclaimable => self.text.push_str(concat!(
                "((status = 'in_progress' AND locked_until <= ?1 AND ",
                terms!(),
                ") OR (status = 'failed_retryable' AND (NOT uncertain OR ",
                terms!(),
                ")))"
            )),
            Condition::Expired => self
                .text
                .push_str(concat!("expires_at <= ?1 AND ", finished!())),
            Condition::Resolvable => self.text.push_str(concat!(
                "((status = 'in_progress' AND locked_until <= ?1) \
                 OR (status = 'failed_retryable' AND uncertain AND NOT ",
                terms!(),
                "))"
            )),
        }
    }

    /// What follows `SET`. On the right of each `=` is the row as it was.
    fn columns(&mut self, now: Timestamp, columns: &'value Columns<'value>) {
        if let Some(status) = columns.status {
            self.set("status", string(status.as_str()));
        }
        if let Some(token) = &columns.token {
            self.set("token", blob(token.as_bytes()));
        }
        if let Some(lease) = columns.lease {
            self.text.push_str(", locked_at = ?1");
            self.set("locked_until", integer((now + lease).as_micros()));
        }
        if let Some(claim) = columns.identity {
            self.identity(claim);
        }
        self.text.push_str(match columns.attempt {
            AttemptColumn::Keep => "",
            AttemptColumn::Next => ", attempt = min(attempt + 1, 4294967295)",
            AttemptColumn::First => ", attempt = 1",
        });
        self.text.push_str(match columns.reclaims {
            ReclaimsColumn::Keep => "",
            ReclaimsColumn::CountIfDoubtful => {
                ", reclaims = CASE WHEN uncertain OR status = 'in_progress' \
                 THEN min(reclaims + 1, 4294967295) ELSE reclaims END"
            }
            ReclaimsColumn::Zero => ", reclaims = 0",
        });
        self.text.push_str(match columns.uncertain {
            UncertainColumn::Keep => "",
            UncertainColumn::Set => ", uncertain = 1",
            UncertainColumn::SetIfInProgress => {
                ", uncertain = (uncertain OR status = 'in_progress')"
            }
            UncertainColumn::Clear => ", uncertain = 0",
        });
        self.text.push_str(match columns.effect_since {
            EffectColumn::Keep => "",
            EffectColumn::Now => ", effect_since = ?1",
            EffectColumn::NowUnlessDoubtful => {
                ", effect_since = CASE WHEN uncertain OR status = 'in_progress' \
                 THEN effect_since ELSE ?1 END"
            }
        });
        self.recovery(&columns.recovery);
        self.response(&columns.response);
        match columns.note {
            NoteColumn::Keep => {}
            NoteColumn::Clear => self.text.push_str(", note = NULL"),
            NoteColumn::Set(note) => self.set("note", string(note.as_str())),
        }
        // A restart writes its own retention, but it does not finish, so the row's own is the right one here.
        self.text.push_str(match columns.finish {
            FinishColumn::Keep => "",
            FinishColumn::Clear => ", finished_at = NULL, expires_at = NULL",
            FinishColumn::Now => {
                ", finished_at = ?1, expires_at = min(?1 + retention, 9223372036854775807)"
            }
        });
    }

    fn identity(&mut self, claim: &'value Claim) {
        let scheme = claim.fingerprint().scheme();
        let terms = claim.terms();
        self.set("operation", string(claim.operation().as_str()));
        self.set("fingerprint_encoding", integer(scheme.encoding().into()));
        self.set(
            "fingerprint_profile",
            integer(scheme.profile().number().into()),
        );
        self.set("fingerprint", blob(claim.fingerprint().digest()));
        self.set("origin", owned(claim.origin().as_bytes()));
        self.set("contract", string(terms.contract.as_str()));
        self.set("retention", span(terms.retention));
        self.set("reclaim_window", span(terms.reclaim_window));
        self.set("max_reclaims", integer(terms.max_reclaims.into()));
        self.text.push_str(", created_at = ?1");
    }

    fn recovery(&mut self, recovery: &'value RecoveryColumn<'value>) {
        match recovery {
            RecoveryColumn::Keep => {}
            RecoveryColumn::Clear => self.text.push_str(
                ", recovery_name = NULL, recovery_data = NULL, recovery_attempt = NULL, recovery_sequence = NULL",
            ),
            RecoveryColumn::Set { point, sequence } => {
                self.set("recovery_name", string(point.name()));
                self.set("recovery_data", point.data().map_or(NULL, |data| blob(data)));
                self.set("recovery_sequence", integer((*sequence).into()));
                self.text.push_str(", recovery_attempt = attempt");
            }
        }
    }

    fn response(&mut self, response: &ResponseColumn<'value>) {
        match response {
            ResponseColumn::Keep => {}
            ResponseColumn::Clear => self
                .text
                .push_str(", response_code = NULL, response_headers = NULL, response_body = NULL"),
            ResponseColumn::Set(response) => {
                self.set("response_code", integer(response.code().into()));
                let headers = Vec::from(response.headers().encode());
                self.set("response_headers", ToSqlOutput::Owned(Value::Blob(headers)));
                let body = response.body_ref().bytes();
                self.set("response_body", body.map_or(NULL, |body| blob(body)));
            }
        }
    }

    fn set(&mut self, column: &str, value: ToSqlOutput<'value>) {
        self.text.push_str(", ");
        self.text.push_str(column);
        self.text.push_str(" = ");
        self.bind(value);
    }

    fn bind(&mut self, value: ToSqlOutput<'value>) {
        self.values.push(value);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "?{}", self.values.len());
    }
}

/// Which rows a removal may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removable {
    /// Whatever the guard admits.
    Any,
    /// Of those, the ones that are not uncertain.
    Certain,
}

/// Inserts the first record of this claim. Whether it did.
pub(crate) fn claim(
    connection: &Connection,
    claim: &Claim,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let scheme = claim.fingerprint().scheme();
    let terms = claim.terms();
    let inserted = connection.prepare_cached(CLAIM)?.execute((
        string(claim.id().scope().as_str()),
        string(claim.id().key().as_str()),
        string(claim.operation().as_str()),
        scheme.encoding(),
        scheme.profile().number(),
        blob(claim.fingerprint().digest()),
        blob(claim.origin().as_bytes()),
        blob(claim.token().as_bytes()),
        string(terms.contract.as_str()),
        span(terms.retention),
        span(terms.reclaim_window),
        terms.max_reclaims,
        now.as_micros(),
        (now + claim.lease()).as_micros(),
    ))?;
    Ok(inserted == 1)
}

const NULL: ToSqlOutput<'static> = ToSqlOutput::Owned(Value::Null);

fn integer<'value>(number: i64) -> ToSqlOutput<'value> {
    ToSqlOutput::Owned(Value::Integer(number))
}

/// A span is at most a hundred years, which is far from the largest integer.
fn span<'value>(span: Span) -> ToSqlOutput<'value> {
    integer(i64::try_from(span.as_micros()).unwrap_or(i64::MAX))
}

fn string(text: &str) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
}

fn blob(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Blob(bytes))
}

fn owned<'value>(bytes: &[u8]) -> ToSqlOutput<'value> {
    ToSqlOutput::Owned(Value::Blob(bytes.to_vec()))
}
