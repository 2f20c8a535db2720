use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::account::Account;
use crate::processes;

/// How long a process may take to do what a signal tells it.
const SIGNAL_TAKES: Duration = Duration::from_secs(60);

/// How much of a server's log is quoted in an error.
const QUOTED_LINES: usize = 20;

/// A temporary directory with a process in it, which both end with this value and with this process.
///
/// A shell process does all the ending, see `watchdog.sh`, so that there is one way of it: it waits at the other side of
/// a pipe that is closed by dropping this, and that the kernel closes when this process is killed.
#[derive(Debug)]
pub(crate) struct Watched {
    directory: PathBuf,
    account: Option<Account>,
    process: Option<Child>,
    /// `None` only while it is dropped.
    pipe: Option<ChildStdin>,
    watchdog: Child,
}

impl Watched {
    /// A directory without a process.
    pub(crate) fn new(kind: &str) -> io::Result<Self> {
        let mut watchdog = Command::new("sh")
            .args(["-c", include_str!("watchdog.sh"), "sh", kind])
            .current_dir("/")
            // What a terminal sends to the tests is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It must hold nothing of the tests' own, for whoever reads that waits until all holders have ended.
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = watchdog.stdin.take();
        let mut directory = String::new();
        if let Some(stdout) = watchdog.stdout.take() {
            BufReader::new(stdout).read_line(&mut directory)?;
        }
        let directory = PathBuf::from(directory.trim_end_matches('\n'));
        if directory.as_os_str().is_empty() {
            return Err(io::Error::other(
                "no temporary directory could be made: is TMPDIR writable?",
            ));
        }
        let account = Account::for_directory(&directory).map_err(io::Error::other)?;
        let watched = Self {
            directory,
            account,
            process: None,
            pipe,
            watchdog,
        };
        watched.give(&watched.directory)?;
        Ok(watched)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Hands a file over to the account that the process runs as.
    pub(crate) fn give(&self, path: &Path) -> io::Result<()> {
        self.account.map_or(Ok(()), |account| account.give(path))
    }

    /// A command that runs as the account of the process, in its directory, and knows nothing of the caller's own
    /// database settings.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Some(account) = self.account {
            account.run(&mut command);
        }
        command
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null());
        without_postgres_settings(&mut command);
        command
    }

    /// Starts the process. What it writes goes to the log.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        &mut self,
        program: &Path,
        arguments: &[A],
    ) -> io::Result<()> {
        self.kill()?;
        let log = File::options().create(true).append(true).open(self.log())?;
        // The shell waits until the watchdog knows its id, and becomes the server then. Were this process killed in
        // between, the shell would read the end of its input and be gone.
        let mut process = self
            .command("sh")
            .args(["-c", "read -r _ && exec \"$@\" </dev/null", "sh"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let gate = process.stdin.take();
        self.tell(&process.id().to_string())?;
        self.process = Some(process);
        if let Some(mut gate) = gate {
            gate.write_all(b"go\n")?;
        }
        Ok(())
    }

    /// Starts a process and waits for its end.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &mut self,
        program: &Path,
        arguments: &[A],
    ) -> io::Result<()> {
        self.spawn(program, arguments)?;
        let status = match &mut self.process {
            Some(process) => process.wait()?,
            None => return Ok(()),
        };
        self.forget()?;
        if status.success() {
            Ok(())
        } else {
            Err(self.ended(status))
        }
    }

    /// The id of the process, unless it was ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// How the process ended, if it did.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let status = process.try_wait()?;
        if status.is_some() {
            self.forget()?;
        }
        Ok(status)
    }

    /// Waits until the process is `ready`, which is asked again and again.
    ///
    /// # Errors
    ///
    /// With the end of the log, when the process ends or takes too long.
    pub(crate) fn wait_until_ready(
        &mut self,
        within: Duration,
        mut ready: impl FnMut(&Self) -> bool,
    ) -> io::Result<()> {
        let mut ended = None;
        let result = processes::wait_until(within, "readiness", || {
            ended = self.status().transpose();
            ended.is_some() || ready(self)
        });
        match ended {
            Some(Ok(status)) => Err(self.ended(status)),
            Some(Err(error)) => Err(error),
            None => result.map_err(|error| {
                io::Error::new(error.kind(), format!("{error}\n{}", self.log_tail()))
            }),
        }
    }

    /// Ends the process and all its children at once.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if self.process.is_none() {
            return Ok(());
        }
        let family = self.stop_family()?;
        processes::signal("KILL", &family)?;
        self.reap()?;
        self.wait_for_end(&family)
    }

    /// Has the process end by a signal that it understands, and waits until it did.
    pub(crate) fn stop(&mut self, signal: &str) -> io::Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let mut family = vec![pid];
        family.extend(processes::children(pid));
        processes::signal("CONT", &family)?;
        processes::signal(signal, &[pid])?;
        processes::wait_until(SIGNAL_TAKES, "the end of the server", || {
            !processes::is_alive(pid)
        })?;
        self.reap()?;
        self.wait_for_end(&family)
    }

    /// The process and all its children stand still until [`resume`](Self::resume).
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        let family = self.stop_family()?;
        processes::signal("STOP", &family)?;
        processes::wait_until(SIGNAL_TAKES, "the pause", || {
            family.iter().all(|pid| processes::stands_still(*pid))
        })
    }

    pub(crate) fn resume(&mut self) -> io::Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let mut family = processes::children(pid);
        family.push(pid);
        processes::signal("CONT", &family)
    }

    /// The last lines that the process wrote.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The process, which no longer starts others, and those that it has started.
    fn stop_family(&mut self) -> io::Result<Vec<u32>> {
        let Some(pid) = self.pid() else {
            return Ok(Vec::new());
        };
        processes::signal("STOP", &[pid])?;
        processes::wait_until(SIGNAL_TAKES, "the stop", || processes::stands_still(pid))?;
        let mut family = processes::children(pid);
        family.push(pid);
        Ok(family)
    }

    fn reap(&mut self) -> io::Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        process.wait()?;
        self.forget()
    }

    fn wait_for_end(&self, family: &[u32]) -> io::Result<()> {
        processes::wait_until(SIGNAL_TAKES, "the end of the server's processes", || {
            !family.iter().any(|pid| processes::is_alive(*pid))
        })
    }

    /// The process has been waited for, so that its id may soon be another's.
    fn forget(&mut self) -> io::Result<()> {
        self.process = None;
        self.tell("")
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => writeln!(pipe, "{line}"),
            None => Ok(()),
        }
    }

    fn ended(&self, status: ExitStatus) -> io::Error {
        io::Error::other(format!("it ended with {status}\n{}", self.log_tail()))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // An error leaves nothing that could be done, and a drop has nobody to tell.
        let _ = self.watchdog.wait();
        if let Some(process) = &mut self.process {
            // Should somebody have killed the watchdog.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Takes the variables away by which the client library of Postgres is told where to connect.
pub(crate) fn without_postgres_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
}
