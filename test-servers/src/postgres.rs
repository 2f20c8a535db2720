use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::watched::{Watched, without_postgres_settings};
use crate::{Unavailable, binaries, ports};

/// How long a server may take until it answers, recovery after a crash included.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// How many free ports are tried, each of which another process may take in the meantime.
const PORTS_TRIED: usize = 10;

/// The major versions of Postgres that are tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Debian 12's.
    V15,
    /// The newest.
    V18,
}

impl Version {
    /// Every one.
    pub const ALL: [Version; 2] = [Version::V15, Version::V18];

    /// 15 or 18.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Version::V15 => 15,
            Version::V18 => 18,
        }
    }
}

/// A Postgres server with a data directory of its own, which end with this value.
///
/// It is durable as in production, `fsync` and all, and listens on 127.0.0.1 and on a Unix socket. Everybody may connect
/// as the superuser `postgres`. UTF-8, locale `C.UTF-8`, 200 connections.
#[derive(Debug)]
pub struct Postgres {
    version: Version,
    programs: PathBuf,
    settings: Vec<(String, String)>,
    port: u16,
    watched: Watched,
}

impl Postgres {
    /// Starts a server and waits until it answers.
    ///
    /// The first server of a version takes about two seconds in each process, later ones a half: they begin with a
    /// copy of an empty data directory.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Missing`] where that version is not installed, [`Unavailable::Failed`] with the server's own words
    /// where it does not start.
    pub fn start(version: Version) -> Result<Self, Unavailable> {
        Self::builder(version).start()
    }

    /// A server with other settings.
    #[must_use]
    pub fn builder(version: Version) -> PostgresBuilder {
        PostgresBuilder {
            version,
            settings: Vec::new(),
        }
    }

    /// The URL of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The URL of a database of this server.
    #[must_use]
    pub fn url_for(&self, database: &str) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/{}",
            self.port,
            percent_encoded(database)
        )
    }

    /// The major version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The port on 127.0.0.1, which stays the same over [`restart`](Self::restart).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the Unix socket: what libpq takes as a host.
    #[must_use]
    pub fn socket_directory(&self) -> &Path {
        self.watched.directory()
    }

    /// The data directory.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        self.watched.directory().join("data")
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.watched.log()
    }

    /// The process id of the postmaster, unless it was stopped or killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.watched.pid()
    }

    /// Makes an empty database and returns its URL.
    ///
    /// # Errors
    ///
    /// The server's, for instance that there is one of that name.
    pub fn create_database(&self, name: &str) -> io::Result<String> {
        self.psql(
            "postgres",
            &format!("create database \"{}\"", name.replace('"', "\"\"")),
        )?;
        Ok(self.url_for(name))
    }

    /// Runs SQL through `psql` and returns what it selects: a line each row, columns parted by `|`.
    ///
    /// It waits as long as the server does not answer.
    ///
    /// # Errors
    ///
    /// What `psql` says.
    pub fn psql(&self, database: &str, sql: &str) -> io::Result<String> {
        let mut command = Command::new(self.programs.join("psql"));
        without_postgres_settings(&mut command);
        let output = command
            .args([
                "-X",
                "-q",
                "-At",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
                "-d",
                database,
                "-c",
                sql,
            ])
            .arg("-h")
            .arg(self.socket_directory())
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end_matches('\n')
            .to_owned())
    }

    /// Kills all processes of the server at once, as a crash of the host would. What it was told to sync is there after
    /// [`restart`](Self::restart), for the host lives on.
    ///
    /// # Errors
    ///
    /// When its processes do not end.
    pub fn kill(&mut self) -> io::Result<()> {
        self.watched.kill()
    }

    /// Shuts the server down in its mode "fast": sessions are ended, and the next start has nothing to recover.
    ///
    /// # Errors
    ///
    /// When it does not end within a minute.
    pub fn stop_fast(&mut self) -> io::Result<()> {
        self.watched.stop("INT")
    }

    /// Starts the server again with the same data at the same port, and waits until it answers. One that runs is shut
    /// down first.
    ///
    /// # Errors
    ///
    /// With the end of its log when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop_fast()?;
        self.launch()
    }

    /// Stops all processes of the server where they are: it accepts no connection and answers nothing, and no
    /// connection is closed.
    ///
    /// # Errors
    ///
    /// When its processes do not stop.
    pub fn pause(&mut self) -> io::Result<()> {
        self.watched.pause()
    }

    /// Lets the server go on after [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// When the signal cannot be sent.
    pub fn resume(&mut self) -> io::Result<()> {
        self.watched.resume()
    }

    fn launch(&mut self) -> io::Result<()> {
        let socket_directory = self.socket_directory().display().to_string();
        let mut arguments = vec!["-D".to_owned(), self.data_directory().display().to_string()];
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &self.port.to_string()),
            ("unix_socket_directories", &socket_directory),
            ("max_connections", "200"),
            // In the data directory, with which it is removed, and not where it would stay after a crash.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in fixed.into_iter().chain(own) {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        self.watched
            .spawn(&self.programs.join("postgres"), &arguments)?;
        let lock = self.data_directory().join("postmaster.pid");
        self.watched.wait_until_ready(STARTS_WITHIN, |watched| {
            // Its first line is the process, which may still be that of the last run, and its eighth the state. This
            // is how `pg_ctl` waits.
            let lock = fs::read_to_string(&lock).unwrap_or_default();
            let mut lines = lock.lines();
            lines.next().map(str::to_owned) == watched.pid().map(|pid| pid.to_string())
                && lines.nth(6).is_some_and(|state| state.trim() == "ready")
        })
    }
}

/// Settings of a [`Postgres`] that is to be started.
#[derive(Clone, Debug)]
pub struct PostgresBuilder {
    version: Version,
    settings: Vec<(String, String)>,
}

impl PostgresBuilder {
    /// Adds a setting of `postgresql.conf`, which wins over the usual one.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Postgres::start`].
    pub fn start(self) -> Result<Postgres, Unavailable> {
        let programs = binaries::postgres(self.version)?;
        let failed = |why: io::Error| {
            Unavailable::failed(format!("Postgres {}", self.version.number()), why)
        };

        let watched = Watched::new("postgres").map_err(failed)?;
        copy_of_template(self.version, &programs, &watched).map_err(failed)?;
        let mut postgres = Postgres {
            version: self.version,
            programs,
            settings: self.settings,
            port: 0,
            watched,
        };
        for _ in 1..PORTS_TRIED {
            postgres.port =
                ports::free_port().ok_or_else(|| failed(io::Error::other("no port is free")))?;
            match postgres.launch() {
                // Another process has taken the port since.
                Err(_) if postgres.watched.log_tail().contains("could not bind") => {}
                result => return result.map_err(failed).map(|()| postgres),
            }
        }
        Err(failed(io::Error::other(
            "every port that was free was taken at once",
        )))
    }
}

/// Makes the data directory of a server: `initdb` takes more than a second, and a copy a fraction.
fn copy_of_template(version: Version, programs: &Path, watched: &Watched) -> io::Result<()> {
    static TEMPLATES: Mutex<BTreeMap<Version, Watched>> = Mutex::new(BTreeMap::new());
    let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
    let template = match templates.get(&version) {
        Some(template) => template,
        None => {
            let mut template = Watched::new("postgres-template")?;
            let data = template.directory().join("data").display().to_string();
            let arguments = [
                "--no-sync",
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "-D",
                &data,
            ];
            template.run(&programs.join("initdb"), &arguments)?;
            templates.entry(version).or_insert(template)
        }
    };
    let output = Command::new("cp")
        .arg("-a")
        .arg(template.directory().join("data"))
        .arg(watched.directory())
        .output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr)))
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_databases_are_encoded() {
        assert_eq!(percent_encoded("a_b-1.c"), "a_b-1.c");
        assert_eq!(percent_encoded("a/b ü"), "a%2Fb%20%C3%BC");
    }
}
