//! Throwaway servers for tests: [`Postgres`], [`PgBouncer`] and [`Redis`].
//!
//! Each server has a temporary directory and a free port of its own on 127.0.0.1, runs as an unprivileged user when the
//! tests run as root, and is gone, with its directory, when its value is dropped. It is also gone when the process that
//! started it is killed, whatever the signal: a small shell process stands beside every server, notices that its parent
//! has ended, and clears up.
//!
//! ```no_run
//! use idem_test_servers::{Postgres, Version, unless_missing};
//!
//! // None, with a loud line on stderr, where Postgres is not installed; a panic under `CI=true`.
//! let Some(mut postgres) = unless_missing(Postgres::start(Version::V15)) else { return };
//! println!("{}", postgres.url());
//! postgres.kill().unwrap(); // every one of its processes, at once: what a crash of the host leaves behind
//! postgres.restart().unwrap(); // the same data at the same port
//! ```
//!
//! [`FaultProxy`] is a link to a server that can be broken in many ways.
//!
//! A test that needs no server of its own takes the one that all tests of a process share: [`shared_postgres`] and
//! [`shared_redis`]. Those use the servers at `IDEM_TEST_POSTGRES_URL` and `IDEM_TEST_REDIS_URL` where these are set,
//! which the program `with-servers` does for the command that it runs.
//!
//! | variable | means | else |
//! |---|---|---|
//! | `IDEM_TEST_POSTGRES_15_BIN` | the directory with `postgres` and `initdb` 15 | `/usr/lib/postgresql/15/bin`, then `PATH` |
//! | `IDEM_TEST_POSTGRES_18_BIN` | the same for 18 | `/usr/lib/postgresql/18/bin`, then `PATH` |
//! | `IDEM_TEST_PGBOUNCER` | the program `pgbouncer` | `PATH` |
//! | `IDEM_TEST_REDIS_SERVER` | the program `redis-server`, beside which `redis-cli` is looked for first | `PATH` |
//! | `IDEM_TEST_OPENSSL` | the program `openssl`, for servers with TLS | `PATH` |
//!
//! Every call blocks its thread until it is done. In asynchronous tests that is no harm before the test begins; later,
//! `tokio::task::spawn_blocking` keeps the runtime moving.
//!
//! It is for Unix. The processes of a server are found through `/proc`; without it only the first one is.

mod account;
mod binaries;
mod certificates;
mod fault_proxy;
mod pg_bouncer;
mod ports;
mod postgres;
mod processes;
mod redis;
mod shared;
mod unavailable;
mod watched;

pub use fault_proxy::{Direction, Fault, FaultProxy};
pub use pg_bouncer::{PgBouncer, PgBouncerBuilder, PoolMode};
pub use postgres::{Postgres, PostgresBuilder, Version};
pub use redis::{AppendFsync, Redis, RedisBuilder};
pub use shared::{shared_postgres, shared_redis};
pub use unavailable::{Unavailable, unless_missing};
