-- One row for each migration that this file has been through.
CREATE TABLE idem_client_migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- The processes that have this file open. Each holds a lock on a file of its own beside this one, and has ended when
-- that can be locked by another.
CREATE TABLE idem_client_owner (
    owner BLOB NOT NULL PRIMARY KEY CHECK (length(owner) = 16)
) STRICT;

-- One row for each logical operation. Instants are microseconds since 1970, spans are microseconds.
--
-- What is sent is there until the operation is closed, and what was answered until it is acknowledged. After that the
-- row stays, without both, so that nobody sends the same thing under the same key by mistake.
--
-- The words in `state` and `parked` are not listed in a CHECK: a later version may write another one, and this version
-- then refuses to read the row.
CREATE TABLE idem_client_operation (
    "key"            TEXT    NOT NULL PRIMARY KEY COLLATE BINARY,
    label            TEXT,
    digest           BLOB    NOT NULL CHECK (length(digest) = 32),
    state            TEXT    NOT NULL COLLATE BINARY,
    parked           TEXT    COLLATE BINARY,
    method           TEXT    COLLATE BINARY,
    url              TEXT    COLLATE BINARY,
    headers          BLOB,
    body             BLOB,
    horizon          INTEGER NOT NULL CHECK (horizon >= 0),
    created_at       INTEGER NOT NULL,
    -- Of the first attempt, from which the horizon counts, unless somebody let it count anew.
    first_attempt_at INTEGER,
    horizon_from     INTEGER,
    last_attempt_at  INTEGER,
    attempts         INTEGER NOT NULL CHECK (attempts >= 0),
    last_outcome     TEXT,
    -- Who sends it at the moment.
    owner            BLOB    CHECK (length(owner) = 16),
    answer_status    INTEGER,
    answer_headers   BLOB,
    answer_body      BLOB,
    answer_cut       INTEGER CHECK (answer_cut IN (0, 1)),
    finished_at      INTEGER,
    note             TEXT,
    CHECK ("key" <> ''),
    CHECK ((first_attempt_at IS NULL) = (horizon_from IS NULL)),
    CHECK ((first_attempt_at IS NULL) = (last_attempt_at IS NULL)),
    CHECK ((answer_status IS NULL) = (answer_headers IS NULL)),
    CHECK ((answer_status IS NULL) = (answer_body IS NULL)),
    CHECK ((answer_status IS NULL) = (answer_cut IS NULL))
) STRICT;

-- What is not over, in the order in which it began. Rows that are closed, which are most of them, are not in it.
CREATE INDEX idem_client_operation_open ON idem_client_operation (created_at) WHERE state <> 'closed';

-- Those, for whoever forgets them.
CREATE INDEX idem_client_operation_closed ON idem_client_operation (finished_at) WHERE state = 'closed';
