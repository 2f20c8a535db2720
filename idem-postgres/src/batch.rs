//! Many claims, answers or renewals in one statement.
//!
//! The items come as arrays, one for each column, and are numbered. Each item finds its row by the primary key, whatever the
//! planner thinks of the table: a subselect with a limit cannot be turned into a join of whole tables, and what is written is
//! [looked up](looked_up).

use idem_core::{Claim, OwnerToken, RecordId, Response, Span, Status};

use crate::row;
use crate::settings::{Place, Settings};
use crate::sql::{Sql, slice};
use crate::statement::{INSERTED, STATUS, begin, looked_up, micros};

/// Many claims. A row for each item whose record was found: the item's number from 1, now, false, the record, and two nulls.
/// And a row for each that was won: null, now, true, nulls for the record, and the scope and the key. An `INSERT` returns what it
/// has written, and not what for; to join that with the items here would be to compare each with every other one.
///
/// Of several items with one id, `first` says which one may insert. Of an id that somebody won after the statement had looked
/// there is no row.
pub(crate) fn claim(settings: &Settings, claims: &[(&Claim, bool)]) -> Sql {
    let mut sql = begin(settings, Place::Statement);
    let table = settings.names.records();
    let items = || claims.iter().map(|(claim, _)| *claim);
    sql.push(", item AS MATERIALIZED (SELECT * FROM unnest(");
    sql.strings(items().map(|claim| claim.id().scope().as_str()))
        .push(", ");
    sql.strings(items().map(|claim| claim.id().key().as_str()))
        .push(", ");
    sql.booleans(claims.iter().map(|(_, first)| *first))
        .push(", ");
    sql.strings(items().map(|claim| claim.operation().as_str()))
        .push(", ");
    sql.integers(items().map(|claim| claim.fingerprint().scheme().encoding().into()))
        .push(", ");
    sql.integers(items().map(|claim| claim.fingerprint().scheme().profile().number().into()))
        .push(", ");
    sql.byte_strings(items().map(|claim| claim.fingerprint().digest().as_slice()))
        .push(", ");
    sql.tokens(items().map(|claim| *claim.origin().as_bytes()))
        .push(", ");
    sql.tokens(items().map(|claim| *claim.token().as_bytes()))
        .push(", ");
    sql.strings(items().map(|claim| claim.terms().contract.as_str()))
        .push(", ");
    sql.integers(items().map(|claim| micros(claim.terms().retention)))
        .push(", ");
    sql.integers(items().map(|claim| micros(claim.terms().reclaim_window)))
        .push(", ");
    sql.integers(items().map(|claim| claim.terms().max_reclaims.into()))
        .push(", ");
    sql.integers(items().map(|claim| micros(claim.lease())));
    sql.push(
        ") WITH ORDINALITY AS item (scope, \"key\", first, operation, fingerprint_encoding, fingerprint_profile, \
         fingerprint, origin, token, contract, retention, reclaim_window, max_reclaims, lease, number)), \
         held AS MATERIALIZED (SELECT item.number, r.* FROM item CROSS JOIN LATERAL (SELECT * FROM ",
    );
    sql.push(&table).push(
        " AS r WHERE r.scope = item.scope COLLATE \"C\" AND r.\"key\" = item.\"key\" COLLATE \"C\" LIMIT 1) AS r), \
         won AS (INSERT INTO ",
    );
    sql.push(&table).push(INSERTED).push(
        " SELECT item.scope, item.\"key\", item.operation, item.fingerprint_encoding, item.fingerprint_profile, \
         item.fingerprint, 'in_progress', item.origin, item.token, 1, 1, 0, false, item.contract, item.retention, \
         item.reclaim_window, item.max_reclaims, at.now, at.now, at.now, \
         at.now + item.lease * interval '1 microsecond' FROM at, item \
         WHERE item.first AND NOT EXISTS (SELECT FROM held WHERE held.number = item.number) \
         ORDER BY item.scope COLLATE \"C\", item.\"key\" COLLATE \"C\" \
         ON CONFLICT (scope, \"key\") DO NOTHING RETURNING scope, \"key\") SELECT held.number, ",
    );
    let now = row::instant("at.now", settings.pooling);
    sql.push(&now)
        .push(", false, ")
        .push(&row::columns("held", settings.pooling))
        .push(", NULL::text, NULL::text FROM at, held UNION ALL SELECT NULL, ")
        .push(&now)
        .push(", true, ")
        .push(&row::no_columns())
        .push(", won.scope, won.\"key\" FROM at, won");
    sql
}

/// What an owner says at the end, with an answer that is to be stored.
#[derive(Debug, Clone)]
pub(crate) struct Finish<'a> {
    pub(crate) id: &'a RecordId,
    pub(crate) token: OwnerToken,
    pub(crate) status: Status,
    pub(crate) response: &'a Response,
}

/// Many answers. A row for each one that was written: the item's number from 1, now, and the record's revision.
///
/// A row that somebody else holds locked is passed over, so nobody waits for anybody, and no two batches for each other.
pub(crate) fn finish(settings: &Settings, items: &[Finish<'_>]) -> Sql {
    let mut sql = owners(
        settings,
        items.iter().map(|item| item.id),
        items.iter().map(|item| item.token),
    );
    sql.push(", ");
    sql.strings(items.iter().map(|item| item.status.as_str()))
        .push(", ");
    sql.integers(items.iter().map(|item| item.response.code().into()))
        .push(", ");
    let headers: Vec<_> = items
        .iter()
        .map(|item| item.response.headers().encode())
        .collect();
    sql.byte_strings(headers.iter().map(|headers| &**headers))
        .push(", ");
    sql.optional_byte_strings(
        items
            .iter()
            .map(|item| slice(item.response.body_ref().bytes())),
    );
    write(
        settings,
        sql,
        "status, response_code, response_headers, response_body",
        "status = item.status, response_code = item.response_code, response_headers = item.response_headers, \
         response_body = item.response_body, finished_at = at.now, \
         expires_at = at.now + r.retention * interval '1 microsecond'",
    )
}

/// Many renewals, answered as [`finish`] is.
pub(crate) fn renew(settings: &Settings, items: &[(&RecordId, OwnerToken, Span)]) -> Sql {
    let mut sql = owners(
        settings,
        items.iter().map(|(id, _, _)| *id),
        items.iter().map(|(_, token, _)| *token),
    );
    sql.push(", ");
    sql.integers(items.iter().map(|(_, _, lease)| micros(*lease)));
    write(
        settings,
        sql,
        "lease",
        "locked_at = at.now, locked_until = at.now + item.lease * interval '1 microsecond'",
    )
}

fn owners<'a>(
    settings: &Settings,
    ids: impl Iterator<Item = &'a RecordId> + Clone,
    tokens: impl Iterator<Item = OwnerToken>,
) -> Sql {
    let mut sql = begin(settings, Place::Statement);
    sql.push(", item AS MATERIALIZED (SELECT * FROM unnest(");
    sql.strings(ids.clone().map(|id| id.scope().as_str()))
        .push(", ");
    sql.strings(ids.map(|id| id.key().as_str())).push(", ");
    sql.tokens(tokens.map(|token| *token.as_bytes()));
    sql
}

/// The rest of a batch of owners' writes, after the arrays: what the arrays after the first three are called, and what is set.
///
/// What is found and locked carries its item along. Joined to the items once more, each would be compared with every other
/// one: the planner expects ten.
fn write(settings: &Settings, mut sql: Sql, columns: &str, set: &str) -> Sql {
    let table = settings.names.records();
    sql.push(") WITH ORDINALITY AS item (scope, \"key\", token, ")
        .push(columns)
        .push(
            ", number)), mine AS MATERIALIZED (SELECT item.* FROM item CROSS JOIN LATERAL (SELECT FROM ",
        )
        .push(&table)
        .push(
            " AS r WHERE r.scope = item.scope COLLATE \"C\" AND r.\"key\" = item.\"key\" COLLATE \"C\" \
             AND r.token = item.token AND ",
        )
        .push(STATUS)
        .push(" = 'in_progress' LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS r) UPDATE ")
        .push(&table)
        .push(" AS r SET revision = r.revision + 1, ")
        .push(set)
        .push(" FROM at, mine AS item WHERE ")
        .push(&looked_up("item"))
        .push(" AND r.token = item.token AND ")
        .push(STATUS)
        .push(" = 'in_progress' RETURNING item.number, ")
        .push(&row::instant("at.now", settings.pooling))
        .push(", r.revision");
    sql
}
