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
    autovacuum_analyze_scale_factor = 0.02
);

-- The two indexes share the rows between them, by whether the outcome is known. Queries repeat the condition word for
-- word, since that is how the planner finds out that an index covers them.

-- For the records that are stuck. A renewal changes nothing in it, and so needs no new entry in any index.
CREATE INDEX idem_record_unresolved ON idem_record (created_at)
    WHERE status = 'in_progress' OR (status = 'failed_retryable' AND uncertain);

-- For the sweeper. Records that it may not remove are not in its way.
CREATE INDEX idem_record_finished ON idem_record (expires_at)
    WHERE status IN ('completed', 'failed_final') OR (status = 'failed_retryable' AND NOT uncertain);
