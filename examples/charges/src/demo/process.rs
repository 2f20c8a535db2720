use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::DemoError;
use crate::listen::READY;

/// A server of the demo, in a process of its own.
///
/// It is killed when this is dropped. Should the demo itself be killed, its end of the server's standard input
/// is closed, and the server stops.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    url: String,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Process {
    /// Starts this program as one of its servers, and waits until it listens.
    ///
    /// # Errors
    ///
    /// [`DemoError`] when it does not.
    pub async fn start(
        program: OsString,
        name: &'static str,
        arguments: Vec<OsString>,
    ) -> Result<Self, DemoError> {
        let mut child = Command::new(program)
            .arg(name)
            .arg("--until-input-ends")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (said, lines) = mpsc::unbounded_channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if said.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let mut process = Self {
            name,
            child,
            lines,
            url: String::new(),
        };
        match process.hears(READY).await {
            Ok(url) => process.url = url,
            Err(DemoError::Ended { name }) => {
                let said = process.last_words();
                return Err(DemoError::NotReady { name, said });
            }
            Err(silent) => return Err(silent),
        }
        process.pass_complaints_on();
        Ok(process)
    }

    /// What it said on standard error before it ended.
    fn last_words(&mut self) -> String {
        // It has closed its output, so it is ending, and has nothing more to say than why.
        let status = self.child.wait();
        let mut said = String::new();
        if let Some(mut complaints) = self.child.stderr.take() {
            // What cannot be read is not said.
            let _ = complaints.read_to_string(&mut said);
        }
        match (said.trim(), status) {
            ("", Ok(status)) => format!("it said nothing, {status}"),
            ("", Err(error)) => format!("it said nothing, {error}"),
            (said, _) => said.strip_prefix("error: ").unwrap_or(said).to_owned(),
        }
    }

    /// Has what it says on standard error from now on appear on ours.
    fn pass_complaints_on(&mut self) {
        if let Some(mut complaints) = self.child.stderr.take() {
            std::thread::spawn(move || io::copy(&mut complaints, &mut io::stderr()));
        }
    }

    /// Where it listens, such as `http://127.0.0.1:9000`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same without `http://`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap_or(&self.url)
    }

    /// Waits for a line that begins like this, and gives the rest of it.
    ///
    /// # Errors
    ///
    /// [`DemoError::Silent`] when none comes in time, [`DemoError::Ended`] when none can come any more.
    pub async fn hears(&mut self, beginning: &'static str) -> Result<String, DemoError> {
        let heard = async {
            while let Some(line) = self.lines.recv().await {
                if let Some(rest) = line.strip_prefix(beginning) {
                    return Some(rest.to_owned());
                }
            }
            None
        };
        let name = self.name;
        match timeout(PATIENCE, heard).await {
            Ok(heard) => heard.ok_or(DemoError::Ended { name }),
            Err(_) => Err(DemoError::Silent {
                name,
                expected: beginning,
            }),
        }
    }

    /// Resolves when it has ended, which it should not do by itself.
    ///
    /// # Errors
    ///
    /// [`DemoError::Ended`], always.
    pub async fn ends<T>(&mut self) -> Result<T, DemoError> {
        while self.lines.recv().await.is_some() {}
        Err(DemoError::Ended { name: self.name })
    }

    /// Kills it with SIGKILL: it cannot do anything about it.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Has it finish what it does and end.
    ///
    /// # Errors
    ///
    /// [`DemoError`] when it does not.
    pub async fn stop(mut self) -> Result<ExitStatus, DemoError> {
        drop(self.child.stdin.take());
        // Its output is closed when it ends.
        let ended = async { while self.lines.recv().await.is_some() {} };
        timeout(PATIENCE, ended)
            .await
            .map_err(|_| DemoError::Silent {
                name: self.name,
                expected: "the end of its output",
            })?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors say that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
