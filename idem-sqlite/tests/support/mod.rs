//! What the tests of this crate share.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use idem_core::{
    Claim, Fingerprints, IdempotencyKey, Nulls, Operation, Origin, OwnerToken, Policy, Profile,
    Record, RecordId, RecordRow, Request, Rules, Scope,
};
use rusqlite::Connection;
use tempfile::TempDir;

/// A directory on the disk that the build is on, since a temporary one may be in memory and never syncs.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn id(key: impl AsRef<str>) -> RecordId {
    RecordId::new(
        Scope::new("acct_1").unwrap(),
        IdempotencyKey::new(key).unwrap(),
    )
}

pub(crate) fn token(number: u64) -> OwnerToken {
    OwnerToken::from_bytes(u128::from(number).to_be_bytes())
}

pub(crate) fn claim_of(id: RecordId, number: u64, policy: &Policy) -> Claim {
    let operation = Operation::new("POST /v1/charges").unwrap();
    let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    let fingerprint = rules.of(&operation).finish();
    let request = Request::new(id, operation, Fingerprints::new(fingerprint));
    let origin = Origin::from_bytes((u128::from(number) << 64).to_be_bytes());
    Claim::new(request, policy, origin, token(number))
}

pub(crate) fn claim(key: impl AsRef<str>, number: u64) -> Claim {
    claim_of(id(key), number, &Policy::default())
}

/// Puts a record into the table as it is, past everything that the store would say about it.
pub(crate) fn put(connection: &Connection, record: &Record) {
    let row = RecordRow::from(record);
    let values: [(&str, &dyn rusqlite::ToSql); 31] = [
        ("scope", &row.id.scope().as_str()),
        ("key", &row.id.key().as_str()),
        ("operation", &row.operation),
        ("fingerprint_encoding", &row.fingerprint_encoding),
        ("fingerprint_profile", &row.fingerprint_profile),
        ("fingerprint", &row.fingerprint),
        ("status", &row.status),
        ("origin", &row.origin),
        ("token", &row.token),
        ("revision", &row.revision),
        ("attempt", &row.attempt),
        ("reclaims", &row.reclaims),
        ("uncertain", &row.uncertain),
        ("recovery_name", &row.recovery_name),
        ("recovery_data", &row.recovery_data.as_deref()),
        ("recovery_attempt", &row.recovery_attempt),
        ("recovery_sequence", &row.recovery_sequence),
        ("response_code", &row.response_code),
        ("response_headers", &row.response_headers.as_deref()),
        ("response_body", &row.response_body.as_deref()),
        ("note", &row.note),
        ("contract", &row.contract),
        ("retention", &row.retention),
        ("reclaim_window", &row.reclaim_window),
        ("max_reclaims", &row.max_reclaims),
        ("created_at", &row.created_at),
        ("effect_since", &row.effect_since),
        ("locked_at", &row.locked_at),
        ("locked_until", &row.locked_until),
        ("finished_at", &row.finished_at),
        ("expires_at", &row.expires_at),
    ];
    let names: Vec<_> = values
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let places: Vec<_> = (1..=values.len())
        .map(|index| format!("?{index}"))
        .collect();
    let sql = format!(
        "INSERT OR REPLACE INTO idem_record ({}) VALUES ({})",
        names.join(", "),
        places.join(", ")
    );
    let values = rusqlite::params_from_iter(values.iter().map(|(_, value)| *value));
    connection
        .prepare_cached(&sql)
        .unwrap()
        .execute(values)
        .unwrap();
}

/// A connection of somebody else's to the same file.
pub(crate) fn raw(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection
        .busy_timeout(std::time::Duration::from_secs(10))
        .unwrap();
    connection
}

pub(crate) fn integrity(path: &Path) -> String {
    raw(path)
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap()
}

/// The variable that tells a process of this test binary that it is a child, and which.
pub(crate) const ROLE: &str = "IDEM_SQLITE_TEST_ROLE";
const ARGUMENTS: &str = "IDEM_SQLITE_TEST_ARGUMENTS";

/// This test binary again, as the child that the test `name` is when it is given a role.
pub(crate) fn child(name: &str, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    as_child(&mut command, name, role, arguments);
    command
}

/// Adds to a command that ends in this test binary what makes it that child.
pub(crate) fn as_child(command: &mut Command, name: &str, role: &str, arguments: &[&str]) {
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ARGUMENTS, arguments.join("\n"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
}

pub(crate) fn arguments() -> Vec<String> {
    std::env::var(ARGUMENTS)
        .unwrap_or_default()
        .split('\n')
        .map(str::to_owned)
        .collect()
}

pub(crate) fn first_argument() -> PathBuf {
    arguments().swap_remove(0).into()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
