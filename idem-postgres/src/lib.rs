//! Idempotency keys in Postgres: a [`KeyStore`](idem_core::KeyStore) on the pool that the service has already.
//!
//! ```no_run
//! use idem_core::executor::{Answer, Idempotency, Outcome};
//! use idem_core::{
//!     Fingerprints, IdempotencyKey, Nulls, Operation, Profile, RecordId, Request, Response, Rules, Scope,
//! };
//! use idem_postgres::PgKeyStore;
//! use sqlx::PgPool;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PgPool::connect("postgres://localhost/shop").await?;
//! let store = PgKeyStore::new(pool);
//! store.migrate().await?; // or apply `src/migrations/*.sql` with the tool of your own
//! store.check().await?; // says now what would otherwise fail at three in the morning
//! let idempotency = Idempotency::new(store);
//!
//! let operation = Operation::new("POST /v1/charges")?;
//! let rules = Rules::new(Profile::new(1), Nulls::Distinct);
//! let fingerprint = rules.of(&operation).json(br#"{"amount":1000}"#)?.finish();
//! let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("k-1")?);
//! let request = Request::new(id, operation, Fingerprints::new(fingerprint));
//!
//! let answer = idempotency
//!     .execute(&request, |_attempt| async { Outcome::Completed(Response::new(201).body("ch_1")) })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Postgres 13 and later; tested on 15 and 18. It needs tokio, and sqlx with a runtime: the program says which, and with which
//! TLS, by the features of its own `sqlx` dependency.
//!
//! # What it costs
//!
//! A first claim, a replay, a refusal and an answer are **one statement each**, which is one round trip, and a transaction by
//! itself. A replay and a refusal write nothing, take no row lock, and wait for nobody. Only an owner that finds its record
//! changed asks a second time, to say by whom.
//!
//! What the pool sends beside it is not in that. sqlx 0.9 asks twice whether a connection lives, each time with a message
//! that has an answer and nothing else in it:
//!
//! - when it takes an idle connection out of the pool, if [`test_before_acquire`] is on, as it is by default. The call waits for
//!   that: another round trip, which adds 10 to 50 % to a replay on a local server and doubles it over a network. It finds
//!   connections that broke while they were idle; without it, the first calls after a restart of the server fail, a claim with
//!   [`Ambiguous`](idem_core::StoreErrorKind::Ambiguous), which the executor claims again. Where claims are most of what the pool
//!   does, switch it off.
//! - when a connection is given back, always. No option switches that off, and no call waits for it: it happens in a task
//!   behind the call. But the connection is not free before its answer is there, so of a pool that is used to the full, each
//!   statement takes a connection for two round trips.
//!
//! [`test_before_acquire`]: sqlx::pool::PoolOptions::test_before_acquire
//!
//! # Coalescing
//!
//! While a claim is under way, other tasks' claims wait for it to come back, and then go together in one statement; answers
//! and renewals likewise, each kind by itself. Nobody waits for a batch to fill, so a lone caller's latency is what it would be
//! anyway, and the more callers there are, the more of them share a round trip and a sync of the log. Each call still has its
//! own result: one that is refused, or that the server does not like, is sent again by itself, and a caller that is dropped takes
//! nobody with it.
//!
//! A row that somebody else holds locked does not hold up a batch. Answers and renewals pass it over, and send it by itself; a
//! renewal does not wait there either, since all renewals share one connection, and is sent again by the heartbeat. A
//! claim can meet the uncommitted row of another transaction, and then waits for at most [`PgOptions::lock_wait`], 50 ms by
//! default; so does the batch that it is in, once. For the next second that id is claimed by itself, by one caller at a time, and
//! the others are told that it is contended. [`Coalescing::Off`] switches all of it off.
//!
//! # What is durable
//!
//! An `Ok` of a write means that its transaction is committed, and so what the server's settings make of that.
//! [`PgKeyStore::check`] refuses `synchronous_commit = off` and `fsync = off`, with which a crash of the server forgets a charge
//! that was made. With **asynchronous replication** a failover does the same: what was acknowledged in the last moments is not on
//! the new primary, its keys are unused there, and a retry charges again. Use a synchronous standby
//! (`synchronous_standby_names`, with `synchronous_commit = on`), or know the risk.
//!
//! A statement whose acknowledgement is lost is [`Ambiguous`](idem_core::StoreErrorKind::Ambiguous), and each of them may be sent
//! again; the executor does so. `40001` and `40P01` are tried again here, at any isolation level that the pool may have as its
//! default. No decision goes by the text of an error.
//!
//! # Clocks
//!
//! Leases, retentions and windows go by the server's `clock_timestamp()`, read in the statement that judges by it. The clocks of
//! the services do not matter. If another server can become the primary, say by how much their clocks may be apart:
//! [`PgOptions::clock_skew`].
//!
//! # In one transaction
//!
//! Work that only writes to the same database can commit with its record, and then it happens exactly once.
//!
//! | | the claim | the work | the answer | for |
//! |---|---|---|---|---|
//! | [`Idempotency::execute`](idem_core::executor::Idempotency::execute) | commits first | no transaction | commits after it | effects elsewhere: a charge, a mail |
//! | [`PgKeyStore::execute_in_tx`] | in the same | one transaction | in the same | rows in this database |
//! | [`PgKeyStore::execute_within`] | in the same | between savepoints of the caller's | in the same | the same, as a part of something larger |
//! | [`PgKeyStore::complete_in`], [`checkpoint_in`](PgKeyStore::checkpoint_in) | commits first | the caller's transaction | in it | an effect elsewhere first, then rows |
//!
//! In the second and third nobody else sees the record before the commit, so there is no heartbeat, no lease and no checkpoint: the
//! transaction's lock is the lease. Losers of `execute_in_tx` give their connection back while they wait, so that a pool which is
//! full of duplicates of one slow request still has one for its owner. The bound on waiting is set and taken back inside the
//! statement that needs it; nothing of it is left in the caller's transaction.
//!
//! # Renewals
//!
//! have a connection of their own beside the pool, opened when the first is needed, with all that the pool was told (its hooks
//! included). Handlers that hold every connection of the pool must not lose their leases by that.
//!
//! # Behind a transaction pooler
//!
//! With PgBouncer in `pool_mode = transaction`, and anything else that gives each transaction another server connection, use
//! [`Pooling::Transaction`]: each statement is then one message, with its values in it as digits. **The ordinary mode is wrong
//! there**, not merely slower: sqlx prepares a statement in one message and executes it in the next, and if the server connection
//! changes in between, a statement of somebody else's that has the same name is carried out instead, and no error says so.
//!
//! The transactional calls work there as well. But the work's own statements are sqlx's, and what it prepares stays behind
//! on a server connection: send them with [`raw_sql`](sqlx::raw_sql), or through another pool.
//!
//! # The schema
//!
//! is in `src/migrations/`, for review. [`PgKeyStore::migrate`] takes the steps that are missing, each in one transaction, also
//! when many processes start at once; whoever uses another tool applies the files with it, and leaves the same behind.
//! [`PgOptions::schema`] and [`PgOptions::table`] put the table elsewhere, under names that are checked, since they stand in
//! statements. The user of the service needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table, and `SELECT` on the table of
//! migrations.
//!
//! # Sizes, and a hundred million keys
//!
//! A record takes about 400 bytes in the table and 150 in the indexes, and its response, which Postgres compresses and moves out of
//! the row when it is longer than 2 kB. At 10 million requests a day and a retention of 24 hours that is 6 GB; a hundred million
//! keys, which are ten such days or a tenfold rate, are some 55 GB. The table is as large as what is retained, if something sweeps
//! it: run [`Sweeper`](idem_core::executor::Sweeper), in every replica if you like. Sweepers pass each other's rows over.
//!
//! - A claim costs one descent of the primary key's index, so its time grows with the logarithm of the table as long as the upper
//!   levels of the index are in memory. The keys of one scope lie together in it, and those of a client's random keys do not:
//!   with few large tenants, most claims dirty a leaf of their own, so the index wants to be in memory, which is about 10 GB at
//!   a hundred million keys.
//! - **Every row is written twice or more**, and deleted. So `autovacuum` has to run: the table sets its thresholds at a
//!   twentieth instead of a fifth, since a fifth of a hundred million rows is hours of work at once. Give it
//!   `autovacuum_vacuum_cost_limit` and memory to keep up (`autovacuum_work_mem`: it reads all indexes again each time that
//!   its memory is full of dead rows), and look at `n_dead_tup`. A long transaction anywhere in the database, a forgotten
//!   replication slot, or a standby with `hot_standby_feedback`, keeps dead rows alive.
//! - **`fillfactor = 80`** leaves room on a row's page. A renewal and a checkpoint then change no index (they are "HOT"). An answer
//!   does: the row leaves the index of unfinished records and enters that of finished ones. Less room would save space
//!   and move renewals into other pages, and so into every index; more would keep pages half empty.
//! - **`autovacuum_analyze_scale_factor = 0.02`** takes statistics often, since a plan for a small table is a bad one for a large
//!   one. No plan for one record depends on them, though: the table **begins with a megabyte of empty pages and keeps them**
//!   (`vacuum_truncate = off`, which also keeps vacuum from locking everybody out to cut the file). Without it, a connection that
//!   planned its statements while the table lay on a few pages would read all of it for each claim, and go on so while it grows.
//!   `TRUNCATE`, `VACUUM FULL`, and a dump that is loaded into another database, lose the megabyte: after those, `ANALYZE` the
//!   table once it has grown, which has every connection plan anew.
//! - **Partition by hash of the scope** when vacuum of the one table takes too long, or its indexes do not fit into memory. The
//!   scope leads the primary key, so each statement touches one partition, and a batch a few; and the rows of one tenant stay
//!   together, so one tenant that is most of the traffic gains nothing. `src/partitions.sql` is that migration, to be reviewed,
//!   changed and run by you, best before the first record: the suite runs on its result, and so does [`PgKeyStore::migrate`].
//!   Sweeping and listing look into all partitions. Not by time: a claim would have to look into every partition for an older
//!   record of its key, and no unique index could be had.
//!
//! `idem-bench` measures with up to five million rows. What is said of a hundred million is that times a factor.
//!
//! # Other engines that speak Postgres
//!
//! The suite was run on Postgres 15 and 18, through PgBouncer 1.18, and on a partitioned table, and on nothing else. What follows
//! goes by what the others are known to do, and was not tried, so run the suite first: `IDEM_TEST_POSTGRES_URL=postgres://… cargo test -p idem-postgres
//! --test conformance coalesced`, and `each_by_itself`.
//!
//! | statement | what it relies on | why it is safe |
//! |---|---|---|
//! | claim | `INSERT … ON CONFLICT (scope, key) DO NOTHING` on the primary key, in a `WITH` beside a `SELECT` | the unique key decides who wins. The `SELECT` may be older than the decision; then neither shows anything, and the claim looks again |
//! | owner's writes, takeover, resolve | one `UPDATE` or `DELETE` by primary key, `token`, `revision` and conditions, in a `WITH` | whoever waited for the row's lock judges by the row that it finds then. What was not written is read again by another statement |
//! | batches | `unnest … WITH ORDINALITY`, `LATERAL`, `FOR NO KEY UPDATE SKIP LOCKED` | what is written was locked before, in the same statement; what was locked by others is sent by itself |
//! | sweep | `FOR UPDATE SKIP LOCKED`, a partial index | removes by key, token and revision what it has locked |
//! | all | `clock_timestamp()`, `set_config('lock_timeout', …, true)` | judged by one clock, or by the [skew](PgOptions::clock_skew) of several |
//!
//! | engine | what to do | tested |
//! |---|---|---|
//! | PgBouncer, one transaction a server connection | [`Pooling::Transaction`] | yes |
//! | Postgres, partitioned by hash of the scope | `src/partitions.sql` | yes |
//! | **Aurora**, and other services with one primary | as Postgres. Use the writer's endpoint; a reader is refused by `check`. Another server has another clock after a failover: say a [skew](PgOptions::clock_skew). Aurora's storage is shared, so a failover loses nothing there that was acknowledged; of others, ask how they replicate | no |
//! | **Citus** | distribute by `scope`: every statement for one record names it, so it is routed to one node. `FOR UPDATE` over several shards is refused, so take [`Coalescing::Off`], and remove what is expired with a statement of your own instead of the sweep | no |
//! | **YugabyteDB** | each node has a clock: set [`PgOptions::clock_skew`] to the cluster's bound. A write may fail with `40001` at any time, also at the commit, and is tried again here; with `READ COMMITTED` switched on, less often. The primary key is hashed by its first column unless it says `ASC`; either is right. The storage settings mean nothing there, and may have to be taken out of the migration | no |
//! | **CockroachDB** | the same about clocks and `40001`. It has `lock_timeout`, `SKIP LOCKED` and `ON CONFLICT`, but its advisory locks lock nothing, and it has none of the storage settings: apply a schema of your own, once. Whether its version takes the claim and the batches has to be tried; [`Coalescing::Off`] leaves the batches out | no |
//!
//! Where a row is wrong for your engine, the conformance suite shows it as a lost race, a write of a late owner or an error, and
//! not as a slow case: each of its clauses is tried by force.

mod batch;
mod calls;
mod coalesce;
mod database;
mod error;
mod hot;
mod names;
mod options;
mod row;
mod same_transaction;
mod schema;
mod settings;
mod sql;
mod statement;
mod store;
mod tx;

pub use names::InvalidName;
pub use options::{Coalescing, PgOptions, Pooling};
pub use same_transaction::{InTransactionError, JoinError, WorkError};
pub use store::PgKeyStore;
pub use tx::Tx;

/// The driver whose pool a store works on.
pub use sqlx;

/// The examples in the README are compiled by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
