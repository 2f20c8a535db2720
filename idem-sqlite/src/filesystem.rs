//! Whether a file is on another machine.

use std::path::Path;

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

/// The name of the filesystem that `path` is on, if it is a remote one. `None` also when it cannot be found out,
/// as on systems other than Linux.
pub(crate) fn remote(path: &Path) -> Option<&'static str> {
    // A file that does not exist yet is where its directory is.
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let place = path
        .canonicalize()
        .or_else(|_| directory.canonicalize())
        .ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    remote_in(&mounts, &place)
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
40 21 0:40 / /srv/shared\\040data rw,relatime shared:9 - nfs4 host:/export rw,vers=4.2
41 40 254:1 / /srv/shared\\040data/local rw - xfs /dev/vdb rw
42 21 0:41 / /home/x rw - fuse.sshfs host: rw
";

    fn of(path: &str) -> Option<&'static str> {
        remote_in(MOUNTS, Path::new(path))
    }

    #[test]
    fn the_deepest_mount_counts() {
        assert_eq!(of("/var/lib/keys.sqlite"), None);
        assert_eq!(of("/srv/shared data/keys.sqlite"), Some("nfs4"));
        assert_eq!(of("/srv/shared data/local/keys.sqlite"), None);
        assert_eq!(of("/home/x/keys.sqlite"), Some("fuse.sshfs"));
        assert_eq!(of("/home/xy/keys.sqlite"), None);
    }

    #[test]
    fn a_list_that_makes_no_sense_is_no_reason_to_refuse() {
        assert_eq!(remote_in("", Path::new("/a")), None);
        assert_eq!(
            remote_in("nonsense\n - \n1 2 3 - nfs\n", Path::new("/a")),
            None
        );
    }
}
