use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Whom a server runs as when the tests run as root, which Postgres and PgBouncer refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account that shall own what is in `directory`, which this process has just made; `None` is this process's
    /// own.
    pub(crate) fn for_directory(directory: &Path) -> Result<Option<Self>, String> {
        let owner = fs::metadata(directory)
            .map_err(|error| error.to_string())?
            .uid();
        if owner != 0 {
            return Ok(None);
        }
        let accounts =
            fs::read_to_string("/etc/passwd").map_err(|error| format!("/etc/passwd: {error}"))?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| Self::named(name, &accounts))
            .map(Some)
            .ok_or_else(|| {
                "as root, a server needs an account `postgres` or `nobody` to run as".to_owned()
            })
    }

    pub(crate) fn run(self, command: &mut Command) {
        // The supplementary groups go as well: the standard library drops them with the user.
        command.uid(self.uid).gid(self.gid);
    }

    pub(crate) fn give(self, path: &Path) -> std::io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
    }

    fn named(name: &str, accounts: &str) -> Option<Self> {
        let mut fields = accounts
            .lines()
            .map(|line| line.split(':'))
            .find(|fields| fields.clone().next() == Some(name))?;
        let uid = fields.nth(2)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Self { uid, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_from_its_own_line() {
        let accounts = "postgresql:x:1:2::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/bash\n";
        assert_eq!(
            Account::named("postgres", accounts),
            Some(Account { uid: 101, gid: 104 })
        );
        assert_eq!(Account::named("nobody", accounts), None);
    }
}
