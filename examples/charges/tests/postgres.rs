//! The story with its records in Postgres: the same end, and nothing is left in the database.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod story;

use idem_test_servers::{Postgres, Version, unless_missing};
use story::{
    account, assert_it_ended_well, assert_nothing_is_left, commands, curl, process_with, run,
    signal, until,
};
use tempfile::TempDir;

const DATABASE: &str = "shop";

/// A server with an empty database, and its URL.
fn database(version: Version) -> Option<(Postgres, String)> {
    let postgres = unless_missing(Postgres::start(version))?;
    let url = postgres.create_database(DATABASE).unwrap();
    Some((postgres, url))
}

/// What is in the database that was not when it was created.
fn left_in(postgres: &Postgres) -> String {
    let sql = "SELECT nspname FROM pg_namespace WHERE oid >= 16384 UNION ALL \
               SELECT oid::regclass::text FROM pg_class WHERE oid >= 16384";
    postgres.psql(DATABASE, sql).unwrap()
}

/// How many records there are, in whichever schema.
fn records_in(postgres: &Postgres) -> String {
    let schema = "SELECT nspname FROM pg_namespace WHERE oid >= 16384";
    let schema = postgres.psql(DATABASE, schema).unwrap();
    let sql = format!("SELECT count(*) FROM \"{schema}\".idem_record");
    postgres.psql(DATABASE, &sql).unwrap()
}

fn the_story_ends_well_on(version: Version) {
    let Some((postgres, url)) = database(version) else {
        return;
    };
    let (output, directory) = run(&["--store", &url]);
    assert_it_ended_well(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("keys and answers in Postgres"), "{text}");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The records were here, and not in some file.
    let done = "SELECT xact_commit > 100 FROM pg_stat_database WHERE datname = 'shop'";
    assert_eq!(postgres.psql("postgres", done).unwrap(), "t");
    assert_eq!(left_in(&postgres), "");
    assert_nothing_is_left(directory.path());
}

#[test]
fn the_story_ends_well_on_postgres_15() {
    the_story_ends_well_on(Version::V15);
}

#[test]
fn the_story_ends_well_on_postgres_18() {
    the_story_ends_well_on(Version::V18);
}

#[test]
fn the_story_ends_badly_when_the_keys_are_ignored_and_leaves_nothing_either() {
    let Some((postgres, url)) = database(Version::V15) else {
        return;
    };
    let (output, directory) = run(&["--ignore-keys", "--store", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(account(&output, "charged too often").unwrap() >= 5);
    assert_eq!(left_in(&postgres), "");
    assert_nothing_is_left(directory.path());
}

#[test]
fn an_interrupted_story_leaves_nothing_in_the_database() {
    let Some((postgres, url)) = database(Version::V15) else {
        return;
    };
    for interrupt in ["-INT", "-TERM", "-HUP"] {
        let directory = TempDir::new().unwrap();
        let arguments = ["--store", url.as_str()];
        let (mut child, _) = until(directory.path(), &arguments, "Fifty at once");
        assert!(process_with(directory.path()).is_some());
        assert_ne!(records_in(&postgres), "0");
        signal(&child, interrupt);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{interrupt}");
        assert_eq!(left_in(&postgres), "", "{interrupt}");
        assert_nothing_is_left(directory.path());
    }
}

#[test]
fn what_serve_prints_can_be_tried_on_postgres() {
    let Some((postgres, url)) = database(Version::V15) else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let arguments = ["serve", "--store", url.as_str()];
    let (mut child, lines) = until(directory.path(), &arguments, "Ctrl-C ends it");
    let charge = &commands(&lines)[0];
    assert_eq!([curl(charge), curl(charge)], ["201", "201"]);
    assert_eq!(records_in(&postgres), "1");
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(left_in(&postgres), "");
    assert_nothing_is_left(directory.path());
}

#[test]
fn a_database_that_cannot_be_reached_is_exit_code_1_and_keeps_its_password() {
    for arguments in [&["--store"][..], &["serve", "--store"]] {
        let url = "postgres://clerk:s3cret@127.0.0.1:1/shop";
        let (output, directory) = run(&[arguments, &[url]].concat());
        assert_eq!(output.status.code(), Some(1));
        let complaint = String::from_utf8_lossy(&output.stderr);
        let expected = "error: there is no place for the records in the Postgres database shop on 127.0.0.1:1\n";
        assert!(complaint.starts_with(expected), "{complaint}");
        assert!(complaint.contains("refused"), "{complaint}");
        assert!(!complaint.contains("s3cret"), "{complaint}");
        assert_nothing_is_left(directory.path());
    }
}
