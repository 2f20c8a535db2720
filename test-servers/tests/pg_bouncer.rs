//! PgBouncer shares few connections to Postgres among many clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

use idem_test_servers::{PgBouncer, PoolMode, Postgres, Version, unless_missing};

fn psql(url: &str, commands: &[&str]) -> String {
    let mut command = Command::new("psql");
    command
        .args(["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", url])
        .stdin(Stdio::null());
    for sql in commands {
        command.args(["-c", sql]);
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

#[test]
fn sixteen_clients_have_two_connections_in_transaction_mode() {
    let Some(postgres) = unless_missing(Postgres::start(Version::V15)) else {
        return;
    };
    let Some(bouncer) = unless_missing(PgBouncer::start(&postgres, PoolMode::Transaction, 2))
    else {
        return;
    };
    postgres.create_database("pooled").unwrap();
    let url = bouncer.url_for("pooled");
    std::thread::scope(|threads| {
        for _ in 0..16 {
            threads.spawn(|| {
                assert_eq!(
                    psql(&url, &["select current_database()"; 8]),
                    ["pooled"; 8].join("\n")
                )
            });
        }
    });
    let used = postgres
        .psql(
            "postgres",
            "select count(*) from pg_stat_activity where datname = 'pooled'",
        )
        .unwrap();
    assert!(
        (1..=2).contains(&used.parse::<u32>().unwrap()),
        "{used} connections"
    );
}

#[test]
fn it_finds_its_postgres_again_after_a_crash() {
    let Some(mut postgres) = unless_missing(Postgres::start(Version::V15)) else {
        return;
    };
    let builder =
        PgBouncer::builder(&postgres, PoolMode::Session, 1).setting("server_login_retry", "0");
    let Some(bouncer) = unless_missing(builder.start()) else {
        return;
    };
    assert_eq!(psql(&bouncer.url(), &["select 1"]), "1");
    postgres.kill().unwrap();
    postgres.restart().unwrap();
    assert_eq!(psql(&bouncer.url(), &["select 2"]), "2");
}

#[test]
fn a_setting_that_it_refuses_is_an_error_with_its_words() {
    let Some(postgres) = unless_missing(Postgres::start(Version::V15)) else {
        return;
    };
    let started = PgBouncer::builder(&postgres, PoolMode::Statement, 1)
        .setting("pool_mode", "sometimes")
        .start();
    if let Err(idem_test_servers::Unavailable::Failed { why, .. }) = &started {
        assert!(why.contains("sometimes"), "{why}");
    } else {
        assert!(
            unless_missing(started).is_none(),
            "it took a setting that is none"
        );
    }
}
