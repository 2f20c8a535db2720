//! Whether a file is on another machine.

use std::path::Path;

use super::{JournalError, JournalErrorKind};

/// Filesystems that are on another machine, by the names that Linux has for them. A filesystem that is not here
/// is taken for a local one.
const REMOTE: [&str; 14] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs2",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
];

/// Refuses a file that is on another machine. Where that cannot be found out, as on systems other than Linux, it is not.
pub(crate) fn refuse_remote(path: &Path) -> Result<(), JournalError> {
    match std::fs::read_to_string("/proc/self/mountinfo") {
        Ok(mounts) => refuse_remote_in(&mounts, path),
        Err(_) => Ok(()),
    }
}

fn refuse_remote_in(mounts: &str, path: &Path) -> Result<(), JournalError> {
    // A file that does not exist yet is where its directory is.
    let place = path
        .canonicalize()
        .or_else(|_| path.parent().unwrap_or(path).canonicalize())
        .unwrap_or_else(|_| path.to_owned());
    match remote_in(mounts, &place) {
        None => Ok(()),
        Some(kind) => Err(JournalError::new(
            JournalErrorKind::Misplaced,
            format!(
                "the journal is on a network filesystem ({kind}), whose locks nobody can rely on; put it on a local disk"
            ),
        )),
    }
}

/// Looks the place up in the kernel's list: `… mount-point options [tags] - type …`, where later lines cover
/// earlier ones.
fn remote_in(mounts: &str, place: &Path) -> Option<&'static str> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((mount, source)) = line.split_once(" - ") else {
            continue;
        };
        let Some(point) = mount.split(' ').nth(4).map(unescape) else {
            continue;
        };
        let Some(kind) = source.split(' ').next() else {
            continue;
        };
        let depth = Path::new(&point).components().count();
        if place.starts_with(&point) && found.is_none_or(|(deepest, _)| depth >= deepest) {
            found = Some((depth, kind));
        }
    }
    let (_, kind) = found?;
    REMOTE.into_iter().find(|remote| *remote == kind)
}

/// The kernel writes white space and the backslash of a path as three octal digits.
fn unescape(point: &str) -> String {
    point
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 21 0:40 / /nowhere/shared\\040data rw,relatime shared:9 - nfs4 host:/export rw,vers=4.2
41 40 254:1 / /nowhere/shared\\040data/local rw - xfs /dev/vdb rw
42 21 0:41 / /nowhere/x rw - fuse.sshfs host: rw
";

    fn is_refused(mounts: &str, path: &str) -> bool {
        match refuse_remote_in(mounts, Path::new(path)) {
            Ok(()) => false,
            Err(error) => error.kind() == JournalErrorKind::Misplaced,
        }
    }

    #[test]
    fn the_deepest_mount_counts() {
        for (path, expected) in [
            ("/var/lib/sent.db", false),
            ("/nowhere/shared data/sent.db", true),
            ("/nowhere/shared data/local/sent.db", false),
            ("/nowhere/x/sent.db", true),
            ("/nowhere/xy/sent.db", false),
        ] {
            assert_eq!(is_refused(MOUNTS, path), expected, "{path}");
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_is_no_reason_to_refuse() {
        assert!(!is_refused("", "/a"));
        assert!(!is_refused("nonsense\n - \n1 2 3 - nfs\n", "/a"));
    }
}
