//! Idempotency keys in SQLite: a [`KeyStore`](idem_core::KeyStore) in one file, without a server.
//!
//! ```
//! use idem_core::{ClaimOutcome, Expect, KeyStore as _, Response, Transition};
//! use idem_sqlite::SqliteKeyStore;
//! # use idem_core::{
//! #     Claim, Fingerprints, IdempotencyKey, Nulls, Operation, Origin, OwnerToken, Policy, Profile, RecordId,
//! #     Request, Rules, Scope,
//! # };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("idem-sqlite-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! # let operation = Operation::new("POST /v1/charges")?;
//! # let fingerprint = Rules::new(Profile::new(1), Nulls::Distinct).of(&operation).finish();
//! # let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("k-1")?);
//! # let request = Request::new(id, operation, Fingerprints::new(fingerprint));
//! # let claim =
//! #     Claim::new(request, &Policy::default(), Origin::from_bytes([1; 16]), OwnerToken::from_bytes([7; 16]));
//! let store = SqliteKeyStore::open(directory.join("keys.sqlite")).await?;
//!
//! let ClaimOutcome::Won(_) = store.claim(&claim).await? else {
//!     panic!("the file is new");
//! };
//! // The claim is on the disk. Now the card is charged, and then:
//! let complete = Transition::Complete(Response::new(201).body("{\"id\":\"ch_1\"}"));
//! store.transition(claim.id(), Expect::Owner(claim.token()), &complete).await?;
//!
//! // Whoever comes with the same key finds the answer.
//! let ClaimOutcome::Held(held) = store.claim(&claim).await? else {
//!     panic!("the key is used");
//! };
//! assert_eq!(held.record.state.response().map(Response::code), Some(201));
//! store.close().await;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is durable
//!
//! An `Ok` of a write means that it is on the disk: the database is in WAL mode with `synchronous=FULL`, so the
//! log was synced before the answer, and a loss of power does not take it back. (`fullfsync` is on as well, which
//! is what that takes on macOS.) A write that found nothing to write costs no sync, and neither does a claim of a key that
//! is held.
//!
//! When a commit fails in a way that leaves open whether the log has it, the callers are told
//! [`Ambiguous`](idem_core::StoreErrorKind::Ambiguous); when the disk is full or a lock is held, that nothing was
//! applied. [`SqliteOptions::without_durability`] gives all of this up.
//!
//! # Group commit
//!
//! A sync takes far longer than a write, and one sync serves any number of writes. So one thread does all writing: it takes
//! what is in line, carries it out in one transaction, commits, and then answers everybody. Nobody waits for a
//! batch to fill, so a lone caller's write is committed at once; and the more callers there are, the more of
//! them share a sync. Each write stands by itself all the same: one that is refused, too large, or finds a
//! corrupt row fails alone. A transaction that meets somebody else's lock is begun again as a whole.
//!
//! Claims of keys that are held have nothing to write. They are answered by readers when a commit takes long, and by the
//! writer between two looks at a lock that somebody else holds.
//!
//! The line has [a bound](SqliteOptions::queue_capacity), at which callers wait for their turn. No thread of the
//! async runtime is ever blocked, and any flavour of tokio's will do.
//!
//! # One transaction
//!
//! Effects that happen exactly once are those in the same transaction as their record. There are three ways to that, and all of
//! them leave the rows and the record together or neither:
//!
//! - [`execute_in_tx`](SqliteKeyStore::execute_in_tx) claims, works and stores the answer in one transaction of the store's
//!   own. Nobody sees the claim before the commit, so there is no lease and no heartbeat: the lock is the lease.
//! - [`execute_within`](SqliteKeyStore::execute_within) does that inside a transaction of the program's own.
//! - [`complete_in`](SqliteKeyStore::complete_in) and [`checkpoint_in`](SqliteKeyStore::checkpoint_in) let an
//!   [`Attempt`](idem_core::executor::Attempt) whose claim was committed before store its outcome or its progress in a
//!   transaction of the program's own, fenced by its token.
//!
//! The work is a plain function, because a SQLite transaction holds the one write lock of the file, and awaiting in it would hold
//! up everybody. The first of the three runs on the writer's thread, in a transaction without any other caller's writes: a
//! group commit would tie their fate to the work's. The program's own tables have to be in the same file; open it
//! [beside them](SqliteOptions::beside_other_tables), or create them after the store has. The other two are for connections
//! that the program opens itself; one whose main database is not the store's file is refused.
//!
//! **Not in an attached database.** In WAL mode the files of one transaction commit one after the other, and a crash in between
//! leaves the rows without their record, or the record without its rows. So what is to commit with the record has to be
//! in the store's own file.
//!
//! # Several processes
//!
//! may open the same file, and share its keys. A write waits for another process's for up to the
//! [busy timeout](SqliteOptions::busy_timeout), and then fails as unavailable; reads do not wait for writes. Leases and
//! retentions go by the host's clock, which is the same one for all of them.
//!
//! **The clock is the host's.** If it is set back by some time, leases that are running last up to that much longer, and a
//! crash is noticed that much later. Ages are judged up to that much too young as well: a key whose reclaim window is over
//! may still be reclaimed, and a provider that has forgotten its key is still trusted to remember it. Keep the host's clock
//! slewed, not stepped, and choose reclaim windows shorter than the provider's memory by more than the largest step
//! that may happen. A clock that is set forward ends leases early; fencing keeps the records right, but two owners may
//! work at once.
//!
//! **Not over a network.** The file has to be on a local disk: SQLite's log needs shared memory and locks that
//! network filesystems do not have. On Linux the known ones are refused. Programs on several machines need a database
//! server.
//!
//! Within a process, one [`SqliteKeyStore`] in an [`Arc`](std::sync::Arc) is better than several, which would wait for each
//! other's syncs. Do not open the file by other means than SQLite while a store is open, not even to copy it:
//! closing it again would release SQLite's locks. `VACUUM INTO` makes a copy, and so does
//! [closing the store](SqliteKeyStore::close) first.
//!
//! **Not to be deleted or replaced.** A file that is deleted, moved or replaced while a store has it open takes what it
//! knows of its keys with it, and whoever opens the path next would win them again. On Unix a store looks before each
//! batch and each read whether the file that it opened is still at its path; if not, every call fails as
//! [`Misconfigured`](idem_core::StoreErrorKind::Misconfigured) until the store is opened again. Windows does not let an
//! open file be deleted. The `-wal` and `-shm` files beside it belong to it and are as much its data; they, and files that
//! were opened [by a URI](SqliteOptions::open_uri), are not checked.
//!
//! # The schema
//!
//! is in `src/migrations/`, for review. Opening a database migrates it, in one transaction, also when several processes
//! open it at once; [`SqliteOptions::check_only`] refuses instead. A database of a newer version is refused, and
//! so is one that holds something else, unless [it is to be shared](SqliteOptions::beside_other_tables).
//!
//! # Sizes
//!
//! A record takes about 400 bytes, its two ids twice (the second time in an index), and its response. Responses of
//! up to [16 MiB](SqliteOptions::response_limit) are taken; small ones are better, since each is written twice, to the log
//! and to the file. A [sweep](idem_core::KeyStore::sweep) removes expired records a few at a time, between other
//! writes. Their space is used again, and the file does not shrink unless somebody runs `VACUUM`.

mod backoff;
mod connection;
mod error;
mod filesystem;
mod home;
mod in_transaction_error;
mod joined;
mod options;
mod place;
mod reader;
mod row;
mod same_transaction;
mod savepoint;
mod schema;
mod statement;
mod store;
mod transaction;
mod underway;
mod within;
mod work;
mod work_error;
mod working;
mod writer;
mod written;

pub use in_transaction_error::InTransactionError;
pub use joined::JoinError;
pub use options::SqliteOptions;
pub use store::SqliteKeyStore;
pub use work_error::WorkError;

/// The bindings that [`SqliteOptions::on_connect`] shows a connection of.
pub use rusqlite;

/// The examples in the README and the guide are compiled and run by the tests, so that they cannot go out of date.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/using.md")]
struct Guides;
