-- One row for each migration that this file has been through.
CREATE TABLE idem_migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- One row for each idempotency key. Instants are microseconds since 1970, spans are microseconds.
--
-- NOT NULL on both halves of the primary key matters: SQLite lets NULL into the primary key of an ordinary
-- table, and two NULLs are never equal, so a key could be there twice. Text is compared byte for byte, which
-- is said here although it is the default, because a record that is found under another spelling of its key
-- belongs to somebody else.
--
-- The table keeps its rowid. Without one, rows with their responses would be spread over the table in the order of
-- the keys, and a batch of new keys would write twice the pages; measured with 64 callers, that halves the rate.
--
-- The words in `status` and `contract` are not listed in a CHECK: a later version may write another one, and
-- this version then refuses to read the row.
CREATE TABLE idem_record (
    scope                TEXT    NOT NULL COLLATE BINARY,
    "key"                TEXT    NOT NULL COLLATE BINARY,
    operation            TEXT    NOT NULL COLLATE BINARY,
    fingerprint_encoding INTEGER NOT NULL,
    fingerprint_profile  INTEGER NOT NULL,
    fingerprint          BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    status               TEXT    NOT NULL COLLATE BINARY,
    origin               BLOB    NOT NULL CHECK (length(origin) = 16),
    token                BLOB    NOT NULL CHECK (length(token) = 16),
    revision             INTEGER NOT NULL,
    attempt              INTEGER NOT NULL CHECK (attempt >= 1),
    reclaims             INTEGER NOT NULL CHECK (reclaims >= 0),
    uncertain            INTEGER NOT NULL CHECK (uncertain IN (0, 1)),
    contract             TEXT    NOT NULL COLLATE BINARY,
    retention            INTEGER NOT NULL CHECK (retention >= 0),
    reclaim_window       INTEGER NOT NULL CHECK (reclaim_window >= 0),
    max_reclaims         INTEGER NOT NULL CHECK (max_reclaims >= 0),
    created_at           INTEGER NOT NULL,
    effect_since         INTEGER NOT NULL,
    locked_at            INTEGER NOT NULL,
    locked_until         INTEGER NOT NULL,
    finished_at          INTEGER,
    expires_at           INTEGER,
    recovery_name        TEXT,
    recovery_attempt     INTEGER,
    recovery_sequence    INTEGER,
    note                 TEXT,
    response_code        INTEGER,
    response_headers     BLOB,
    recovery_data        BLOB,
    response_body        BLOB,
    PRIMARY KEY (scope, "key"),
    CHECK (scope <> '' AND "key" <> ''),
    CHECK ((finished_at IS NULL) = (expires_at IS NULL)),
    CHECK ((response_code IS NULL) = (response_headers IS NULL)),
    CHECK ((recovery_name IS NULL) = (recovery_attempt IS NULL)),
    CHECK ((recovery_name IS NULL) = (recovery_sequence IS NULL))
) STRICT;

-- Every row once: the finished ones by when they expire, for the sweeper; after them failures with an unknown outcome;
-- and last what is in progress, by when its lease is over, for whoever looks for what is stuck. A row of a status that
-- this version does not know is nowhere in those.
--
-- It is one index and not one for each, because a record that is finished moves from the end of this one to just before
-- it, which is one page where retentions are alike. Queries repeat the expressions word for word, since that is how
-- SQLite finds out that an index has them.
CREATE INDEX idem_record_due ON idem_record (
    CASE status WHEN 'completed' THEN 0 WHEN 'failed_final' THEN 0 WHEN 'failed_retryable' THEN uncertain
        WHEN 'in_progress' THEN 2 END,
    coalesce(expires_at, locked_until)
);
