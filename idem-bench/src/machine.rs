use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::contest::Fault;

/// What a measurement depends on besides the code.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    /// Of the directory that databases are put in.
    pub(crate) file_system: String,
    /// The median time to write a page to a file there and have it synced.
    pub(crate) fdatasync_nanos: u64,
    /// How many threads wanted a core before the first contest, on average over a minute. More than a little
    /// above zero means that the figures are not only about what is measured.
    pub(crate) load: String,
    /// The commit that is checked out where this was built, and whether files differ from it.
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn look(directory: &Path) -> Result<Self, Fault> {
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu: cpu().unwrap_or_else(unknown),
            kernel: first_line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            file_system: file_system(directory).unwrap_or_else(unknown),
            fdatasync_nanos: u64::try_from(fdatasync(directory)?.as_nanos()).unwrap_or(u64::MAX),
            load: first_line("/proc/loadavg")
                .and_then(|line| line.split(' ').next().map(str::to_owned))
                .unwrap_or_else(unknown),
            commit: commit().unwrap_or_else(unknown),
        })
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The type of the mount that the directory is under: the one with the longest path that leads to it.
fn file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
            directory.starts_with(point).then_some((point, kind))
        })
        .max_by_key(|(point, _)| point.len())
        .map(|(_, kind)| kind.to_owned())
}

fn fdatasync(directory: &Path) -> Result<Duration, Fault> {
    let mut file = File::create(directory.join("fdatasync"))?;
    let mut times = Vec::new();
    for _ in 0..51 {
        file.write_all(&[1; 4096])?;
        let started = Instant::now();
        file.sync_data()?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        // The sources that this was built from, wherever it is run.
        let mut command = Command::new("git");
        command.args(["-C", env!("CARGO_MANIFEST_DIR")]);
        let output = command.args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() {
        head
    } else {
        format!("{head} with changes")
    })
}
