use std::fmt::Write;
use std::fs;
use std::io;
use std::time::Duration;

use crate::watched::Watched;
use crate::{Postgres, Unavailable, binaries, ports};

const STARTS_WITHIN: Duration = Duration::from_secs(30);
const PORTS_TRIED: usize = 10;

/// For how long a client has a connection of PgBouncer to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// Until it disconnects.
    Session,
    /// Until its transaction ends.
    Transaction,
    /// Until its statement ends.
    Statement,
}

/// A PgBouncer in front of a [`Postgres`], which ends with this value.
///
/// It takes a thousand clients. It may outlive its Postgres, and finds it again after a restart.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    watched: Watched,
}

impl PgBouncer {
    /// Starts one with at most `pool_size` connections to each database.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Missing`] where it is not installed, [`Unavailable::Failed`] where it does not start.
    pub fn start(
        postgres: &Postgres,
        mode: PoolMode,
        pool_size: usize,
    ) -> Result<Self, Unavailable> {
        Self::builder(postgres, mode, pool_size).start()
    }

    /// One with other settings.
    #[must_use]
    pub fn builder(postgres: &Postgres, mode: PoolMode, pool_size: usize) -> PgBouncerBuilder {
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
        };
        let settings = [
            ("listen_addr", "127.0.0.1"),
            ("unix_socket_dir", ""),
            // Everybody is the user that the line of the databases names.
            ("auth_type", "any"),
            ("pool_mode", mode),
            ("default_pool_size", &pool_size.to_string()),
            ("max_client_conn", "1000"),
            // Clients send it at the start of a session, and PgBouncer refuses what it cannot keep for each of them.
            ("ignore_startup_parameters", "extra_float_digits"),
        ];
        PgBouncerBuilder {
            server: postgres.port(),
            settings: settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
        }
    }

    /// The URL of the database `postgres`, through PgBouncer.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The URL of a database, through PgBouncer.
    #[must_use]
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.watched.pid()
    }
}

/// Settings of a [`PgBouncer`] that is to be started.
#[derive(Clone, Debug)]
pub struct PgBouncerBuilder {
    server: u16,
    settings: Vec<(String, String)>,
}

impl PgBouncerBuilder {
    /// Adds a setting of `pgbouncer.ini`, which wins over the usual one.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    ///
    /// As [`PgBouncer::start`].
    pub fn start(self) -> Result<PgBouncer, Unavailable> {
        let program = binaries::program("IDEM_TEST_PGBOUNCER", "pgbouncer", "pgbouncer")?;
        let failed = |why: io::Error| Unavailable::failed("PgBouncer", why);

        let mut watched = Watched::new("pgbouncer").map_err(failed)?;
        let configuration = watched.directory().join("pgbouncer.ini");
        for _ in 1..PORTS_TRIED {
            let port =
                ports::free_port().ok_or_else(|| failed(io::Error::other("no port is free")))?;
            fs::write(&configuration, self.configuration(port)).map_err(failed)?;
            watched.give(&configuration).map_err(failed)?;
            watched.spawn(&program, &[&configuration]).map_err(failed)?;
            let up = |watched: &Watched| watched.log_tail().contains("process up");
            match watched.wait_until_ready(STARTS_WITHIN, up) {
                Err(_) if watched.log_tail().contains("in use") => {}
                result => return result.map_err(failed).map(|()| PgBouncer { port, watched }),
            }
        }
        Err(failed(io::Error::other(
            "every port that was free was taken at once",
        )))
    }

    fn configuration(&self, port: u16) -> String {
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_port = {port}\n",
            self.server
        );
        for (name, value) in &self.settings {
            let _ = writeln!(text, "{name} = {value}");
        }
        text
    }
}
