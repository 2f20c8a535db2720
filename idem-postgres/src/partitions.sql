-- The table of records in partitions, by hash of the scope. A migration of your own, for when one table has become too large
-- for its vacuum or its indexes: this crate does not run it, and works on with what it leaves. Change the number of partitions,
-- in both places, before you do; changing it later means to write every row again.
--
-- It is one transaction, during which nobody can claim anything. Records that are there already are copied, so on a large
-- table that takes long: do it early, or after the records that matter have expired.

BEGIN;

LOCK TABLE idem_record IN ACCESS EXCLUSIVE MODE;
ALTER TABLE idem_record RENAME TO idem_record_whole;

-- The same columns, constraints and indexes, primary key included. The settings of storage are for each partition.
CREATE TABLE idem_record (LIKE idem_record_whole INCLUDING ALL) PARTITION BY HASH (scope);

DO $$
BEGIN
    FOR number IN 0..7 LOOP
        EXECUTE format(
            'CREATE TABLE idem_record_%s PARTITION OF idem_record FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (
                fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
                autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off)',
            number, number);
    END LOOP;
END
$$;

-- A megabyte of room in each partition, for what it is good for in the table as it was: 384 rows for each of them, of as many
-- scopes, so that their hashes spread them.
INSERT INTO idem_record (scope, "key", operation, fingerprint_encoding, fingerprint_profile, fingerprint, status, origin, token,
    revision, attempt, reclaims, uncertain, contract, retention, reclaim_window, max_reclaims, created_at, effect_since, locked_at,
    locked_until, note)
SELECT 'room ' || number, 'room', 'room', 0, 0, decode(repeat('00', 32), 'hex'), 'room', decode(repeat('00', 16), 'hex'),
    decode(repeat('00', 16), 'hex'), 1, 1, 0, false, 'room', 0, 0, 0, 'epoch', 'epoch', 'epoch', 'epoch', repeat('.', 1600)
FROM generate_series(1, 384 * 8) AS number;

DELETE FROM idem_record WHERE status = 'room';

INSERT INTO idem_record SELECT * FROM idem_record_whole;
DROP TABLE idem_record_whole;

COMMIT;
