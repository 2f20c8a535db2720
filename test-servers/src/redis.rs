use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::certificates::Certificates;
use crate::watched::Watched;
use crate::{Unavailable, binaries, ports, processes};

const STARTS_WITHIN: Duration = Duration::from_secs(60);
const PORTS_TRIED: usize = 10;

/// When Redis syncs its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before every answer to a write.
    Always,
    /// Once a second.
    EverySecond,
    /// When the kernel likes to.
    No,
}

/// What is said to it how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Tls,
    Cluster,
}

/// A Redis server with a directory of its own, which end with this value.
///
/// It persists nothing unless told to.
#[derive(Debug)]
pub struct Redis {
    program: PathBuf,
    options: Vec<(String, String)>,
    cli: Cli,
    kind: Kind,
    watched: Watched,
}

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Missing`] where it is not installed, [`Unavailable::Failed`] where it does not start.
    pub fn start() -> Result<Self, Unavailable> {
        Self::builder().start()
    }

    /// Starts a replica of `primary`, read-only as replicas are, and waits until it has the primary's data.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_replica(primary: &Redis) -> Result<Self, Unavailable> {
        let replica = Self::builder().replica_of(primary).start()?;
        processes::wait_until(STARTS_WITHIN, "the link to the primary", || {
            replica
                .cli(&["INFO", "replication"])
                .is_ok_and(|info| info.contains("master_link_status:up"))
        })
        .map_err(|why| Unavailable::failed("a replica of Redis", why))?;
        Ok(replica)
    }

    /// A server with other options.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder {
            options: Vec::new(),
            port: None,
            kind: Kind::Plain,
        }
    }

    /// Its URL, which begins with `rediss:` where it has TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.kind == Kind::Tls {
            "rediss"
        } else {
            "redis"
        };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// The certificate, as PEM, of the authority that a client must trust, where it has TLS.
    #[must_use]
    pub fn certificate_authority(&self) -> Option<&Path> {
        self.cli.certificate_authority.as_deref()
    }

    /// The port on 127.0.0.1, which stays the same over [`restart`](Self::restart).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.cli.port
    }

    /// Its process id, unless it was stopped or killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.watched.pid()
    }

    /// Runs one command through `redis-cli` and returns what that prints.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached or answers with an error.
    pub fn cli(&self, command: &[&str]) -> io::Result<String> {
        self.cli.run(command)
    }

    /// Kills the server at once.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub fn kill(&mut self) -> io::Result<()> {
        self.watched.kill()
    }

    /// Starts the server again in the same directory at the same port, and waits until it answers. One that runs is
    /// shut down first.
    ///
    /// # Errors
    ///
    /// With the end of its log when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.watched.stop("TERM")?;
        self.launch()
    }

    /// Stops the server where it is: the kernel still accepts connections for it, and nothing is answered or closed.
    ///
    /// # Errors
    ///
    /// When it does not stop.
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
        let directory = self.watched.directory().display().to_string();
        let port = self.port().to_string();
        let port_option = if self.kind == Kind::Tls {
            "tls-port"
        } else {
            "port"
        };
        let fixed = [
            (port_option, port.as_str()),
            ("bind", "127.0.0.1"),
            ("dir", &directory),
            ("save", ""),
        ];
        let own = self
            .options
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let mut arguments = Vec::new();
        for (name, value) in fixed.into_iter().chain(own) {
            arguments.push(format!("--{name}"));
            // An option with several values takes them as arguments of their own, and "" as one.
            if value.is_empty() {
                arguments.push(String::new());
            }
            arguments.extend(value.split_whitespace().map(str::to_owned));
        }
        self.watched.spawn(&self.program, &arguments)?;
        let cli = &self.cli;
        self.watched.wait_until_ready(STARTS_WITHIN, |watched| {
            // Any other server would say PONG, should it have taken the port meanwhile. Only this one has this id.
            let id = watched
                .pid()
                .map(|pid| format!("process_id:{pid}"))
                .unwrap_or_default();
            cli.run(&["INFO"]).is_ok_and(|info| {
                let says = |line: &str| info.lines().any(|said| said.trim_end() == line);
                says(&id) && says("loading:0")
            })
        })?;
        if self.kind == Kind::Cluster {
            self.own_every_slot()
        } else {
            Ok(())
        }
    }

    fn make_certificates(&mut self, openssl: &Path) -> io::Result<()> {
        let made = Certificates::make(openssl, self.watched.directory())?;
        let files = [
            ("tls-ca-cert-file", &made.authority),
            ("tls-cert-file", &made.server),
            ("tls-key-file", &made.server_key),
        ];
        for (option, file) in files {
            self.watched.give(file)?;
            self.options
                .push((option.to_owned(), file.display().to_string()));
        }
        self.cli.certificate_authority = Some(made.authority);
        Ok(())
    }

    /// A node remembers its slots over a restart, and is not ready as soon as it answers.
    fn own_every_slot(&self) -> io::Result<()> {
        if !self
            .cli(&["CLUSTER", "INFO"])?
            .contains("cluster_slots_assigned:16384")
        {
            self.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        }
        processes::wait_until(STARTS_WITHIN, "the cluster", || {
            self.cli(&["CLUSTER", "INFO"])
                .is_ok_and(|info| info.contains("cluster_state:ok"))
        })
    }
}

/// Options of a [`Redis`] that is to be started.
#[derive(Clone, Debug)]
pub struct RedisBuilder {
    options: Vec<(String, String)>,
    port: Option<u16>,
    kind: Kind,
}

impl RedisBuilder {
    /// Adds an option of `redis.conf`, which wins over the usual one. Several values are parted by spaces.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((name.into(), value.into()));
        self
    }

    /// Keeps every write in an append-only file.
    #[must_use]
    pub fn append_only(self, fsync: AppendFsync) -> Self {
        let fsync = match fsync {
            AppendFsync::Always => "always",
            AppendFsync::EverySecond => "everysec",
            AppendFsync::No => "no",
        };
        self.option("appendonly", "yes")
            .option("appendfsync", fsync)
    }

    /// Bounds the memory, and says what goes when it is full: `noeviction`, `allkeys-lru` and so on.
    #[must_use]
    pub fn max_memory(self, bytes: u64, policy: &str) -> Self {
        self.option("maxmemory", bytes.to_string())
            .option("maxmemory-policy", policy)
    }

    /// Makes it a replica. [`Redis::start_replica`] waits for the data as well.
    #[must_use]
    pub fn replica_of(self, primary: &Redis) -> Self {
        self.option("replicaof", format!("127.0.0.1 {}", primary.port()))
    }

    /// The port, for instance that of a server which was dropped. Without it a free one is taken.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Makes it a cluster of one node, which has all slots. Not together with [`tls`](Self::tls).
    #[must_use]
    pub fn cluster(mut self) -> Self {
        self.kind = Kind::Cluster;
        self.option("cluster-enabled", "yes")
            .option("cluster-announce-ip", "127.0.0.1")
    }

    /// Has it speak TLS and nothing else, with a certificate for 127.0.0.1 and localhost of an authority that is made for
    /// it: see [`Redis::certificate_authority`]. Clients need no certificate. Not together with
    /// [`cluster`](Self::cluster).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.kind = Kind::Tls;
        self.option("port", "0").option("tls-auth-clients", "no")
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start(self) -> Result<Redis, Unavailable> {
        let program = binaries::program("IDEM_TEST_REDIS_SERVER", "redis-server", "redis-server")?;
        let failed = |why: io::Error| Unavailable::failed("Redis", why);

        let openssl = match self.kind {
            Kind::Tls => Some(binaries::program(
                "IDEM_TEST_OPENSSL",
                "openssl",
                "openssl",
            )?),
            Kind::Plain | Kind::Cluster => None,
        };

        let watched = Watched::new("redis").map_err(failed)?;
        let cli = Cli {
            program: binaries::beside(&program, "redis-cli"),
            port: 0,
            certificate_authority: None,
        };
        let mut redis = Redis {
            program,
            options: self.options,
            cli,
            kind: self.kind,
            watched,
        };
        if let Some(openssl) = openssl {
            redis.make_certificates(&openssl).map_err(failed)?;
        }
        if redis.kind == Kind::Cluster {
            // The other one by default is too high to be handed out.
            let port =
                ports::free_port().ok_or_else(|| failed(io::Error::other("no port is free")))?;
            redis
                .options
                .push(("cluster-port".to_owned(), port.to_string()));
        }
        for _ in 1..PORTS_TRIED {
            redis.cli.port = self
                .port
                .or_else(ports::free_port)
                .ok_or_else(|| failed(io::Error::other("no port is free")))?;
            match redis.launch() {
                // Another process has taken the port since.
                Err(_)
                    if self.port.is_none()
                        && redis.watched.log_tail().contains("already in use") => {}
                result => return result.map_err(failed).map(|()| redis),
            }
        }
        Err(failed(io::Error::other(
            "every port that was free was taken at once",
        )))
    }
}

/// How `redis-cli` reaches the server.
#[derive(Debug)]
struct Cli {
    program: PathBuf,
    port: u16,
    /// There with TLS.
    certificate_authority: Option<PathBuf>,
}

impl Cli {
    fn run(&self, command: &[&str]) -> io::Result<String> {
        let mut cli = Command::new(&self.program);
        cli.args(["-e", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(authority) = &self.certificate_authority {
            cli.args(["--tls", "--sni", "localhost", "--cacert"])
                .arg(authority);
        }
        let output = cli.args(command).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            return Err(io::Error::other(
                String::from_utf8_lossy(&said).trim().to_owned(),
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end_matches('\n')
            .to_owned())
    }
}
