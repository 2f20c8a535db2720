//! Other processes: their states, their children, and signals to them.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a state that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Sends the signal to all of them. That some have ended is no error.
pub(crate) fn signal(name: &str, pids: &[u32]) -> io::Result<()> {
    // The shell's own `kill`: the program is missing on small systems, and the standard library has none.
    Command::new("sh")
        .args(["-c", "kill -s \"$@\"", "sh", name])
        .args(pids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map(drop)
}

/// Whether the process is there and has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Whether the process stands still: stopped, or ended.
pub(crate) fn stands_still(pid: u32) -> bool {
    stat(pid).is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// The processes that `parent` has started and not yet seen end.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(_, its_parent)| its_parent == parent))
        .collect()
}

/// Waits until `holds` does.
///
/// # Errors
///
/// `TimedOut` when it does not by then.
pub(crate) fn wait_until(
    within: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> io::Result<()> {
    let deadline = Instant::now() + within;
    while !holds() {
        if Instant::now() >= deadline {
            let message = format!("{what} did not come about within {within:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses, and may hold any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
