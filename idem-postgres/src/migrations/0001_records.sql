-- The records. Whoever runs this file with a tool of his own leaves the same behind as `migrate` does: it says itself that it
-- was here. It is one transaction.

-- One row for each migration that these tables have been through.
CREATE TABLE IF NOT EXISTS idem_record_migration (
    version    bigint      NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO idem_record_migration (version, name) VALUES (1, 'records');

-- One row for each idempotency key. Instants are the server's, spans are microseconds.
--
-- The two halves of the key are compared byte for byte, whatever the database's collation is: a record that is found
-- under another spelling of its key belongs to somebody else. The scope comes first, so that a tenant's keys lie
-- together, and so that the table can be partitioned by hash of the scope.
--
-- Headers and bodies are bytes. A JSON column would give back another text than it was given.
--
-- There is no CHECK. Postgres reads the expression of each anew in every statement that writes, and the dozen that would say
-- what a record is cost a third of a claim. Whoever reads a row checks all of that, and refuses the row as corrupt.
CREATE TABLE idem_record (
    scope                text        COLLATE "C" NOT NULL,
    "key"                text        COLLATE "C" NOT NULL,
    operation            text        COLLATE "C" NOT NULL,
    fingerprint_encoding bigint      NOT NULL,
    fingerprint_profile  bigint      NOT NULL,
    fingerprint          bytea       NOT NULL,
    status               text        COLLATE "C" NOT NULL,
    origin               bytea       NOT NULL,
    token                bytea       NOT NULL,
    revision             bigint      NOT NULL,
    attempt              bigint      NOT NULL,
    reclaims             bigint      NOT NULL,
    uncertain            boolean     NOT NULL,
    contract             text        COLLATE "C" NOT NULL,
    retention            bigint      NOT NULL,
    reclaim_window       bigint      NOT NULL,
    max_reclaims         bigint      NOT NULL,
    created_at           timestamptz NOT NULL,
    effect_since         timestamptz NOT NULL,
    locked_at            timestamptz NOT NULL,
    locked_until         timestamptz NOT NULL,
    finished_at          timestamptz,
    expires_at           timestamptz,
    recovery_name        text        COLLATE "C",
    recovery_attempt     bigint,
    recovery_sequence    bigint,
    note                 text,
    response_code        bigint,
    response_headers     bytea,
    recovery_data        bytea,
    response_body        bytea,
    PRIMARY KEY (scope, "key")
) WITH (
    -- Every row is written once or twice after it was inserted. The room lets a renewal, and often an answer, stay on the
    -- page of the row.
    fillfactor = 80,
    -- Rows go as fast as they come, so the dead ones are cleared away at a twentieth of the table, and not at a fifth: of a
    -- large table a fifth is a lot. Statistics follow, so that no plan is made for a table that has long grown.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    -- To cut empty pages off the end of the file, vacuum locks everybody out, and the next rows would add them again.
    vacuum_truncate = off
);

-- Room. Of a table that lies on a few pages it is cheaper to read all than to look into an index, and so a connection that
-- plans its statements while the table is young would read all of it for each record, and go on so while it grows, until the
-- statistics are next taken. So the table begins with a megabyte of pages, which it keeps: to read all of it is never the
-- cheaper way to one record, nor to a batch of them. The rows that made the pages are gone before anybody could see them, and
-- none of them is in an index beside that of the key.
INSERT INTO idem_record (scope, "key", operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, origin, token,
    revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, created_at, effect_since, locked_at,
    locked_until, note)
SELECT 'room ' || number, 'room', 'room', 0, 0, decode(repeat('00', 32), 'hex'), 'room', decode(repeat('00', 16), 'hex'),
    decode(repeat('00', 16), 'hex'), 1, 1, 0, false, 'room', 0, 0, 0, 'epoch', 'epoch', 'epoch', 'epoch', repeat('.', 1600)
FROM generate_series(1, 384) AS number;

DELETE FROM idem_record WHERE status = 'room';

-- The two indexes share the rows between them, by whether the outcome is known. Queries repeat the condition word for
-- word, since that is how the planner finds out that an index covers them.

-- For the records that are stuck. A renewal changes nothing in it, and so needs no new entry in any index.
CREATE INDEX idem_record_unresolved ON idem_record (created_at)
    WHERE status = 'in_progress' OR (status = 'failed_retryable' AND uncertain);

-- For the sweeper. Records that it may not remove are not in its way.
CREATE INDEX idem_record_finished ON idem_record (expires_at)
    WHERE status IN ('completed', 'failed_final') OR (status = 'failed_retryable' AND NOT uncertain);
