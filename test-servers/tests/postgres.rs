//! Postgres starts, ends, and comes back with what was committed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use idem_test_servers::{Postgres, Version, unless_missing};

fn each_version(test: impl Fn(Postgres)) {
    for version in Version::ALL {
        if let Some(postgres) = unless_missing(Postgres::start(version)) {
            test(postgres);
        }
    }
}

/// For tests that leave the server as it is: one of each version for all of them.
fn each_shared(test: impl Fn(&Postgres)) {
    static SERVERS: [OnceLock<Option<Postgres>>; 2] = [const { OnceLock::new() }; 2];
    for (version, server) in Version::ALL.into_iter().zip(&SERVERS) {
        if let Some(postgres) = server.get_or_init(|| unless_missing(Postgres::start(version))) {
            test(postgres);
        }
    }
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn it_is_the_version_that_was_asked_for_and_durable() {
    each_shared(|postgres| {
        let version = postgres.psql("postgres", "select version()").unwrap();
        assert!(
            version.starts_with(&format!("PostgreSQL {}.", postgres.version().number())),
            "{version}"
        );
        for (setting, value) in [
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("max_connections", "200"),
            ("server_encoding", "UTF8"),
            ("listen_addresses", "127.0.0.1"),
        ] {
            assert_eq!(
                postgres
                    .psql("postgres", &format!("show {setting}"))
                    .unwrap(),
                value,
                "{setting}"
            );
        }
    });
}

#[test]
fn settings_are_taken() {
    for version in Version::ALL {
        let builder = Postgres::builder(version)
            .setting("max_connections", "17")
            .setting("work_mem", "3MB");
        let Some(postgres) = unless_missing(builder.start()) else {
            continue;
        };
        assert_eq!(
            postgres.psql("postgres", "show max_connections").unwrap(),
            "17"
        );
        assert_eq!(postgres.psql("postgres", "show work_mem").unwrap(), "3MB");
    }
}

#[test]
fn a_setting_that_the_server_refuses_is_an_error_with_its_words() {
    for version in Version::ALL {
        let started = Postgres::builder(version)
            .setting("fsync", "perhaps")
            .start();
        if let Err(idem_test_servers::Unavailable::Failed { why, .. }) = &started {
            assert!(why.contains("fsync"), "{why}");
        } else {
            assert!(
                unless_missing(started).is_none(),
                "it took a setting that is none"
            );
        }
    }
}

#[test]
fn it_does_not_run_as_root() {
    each_shared(|postgres| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", postgres.pid().unwrap())).unwrap();
        let ids = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
                .to_owned()
        };
        assert!(
            !ids("Uid:").split_whitespace().any(|id| id == "0"),
            "{status}"
        );
        assert!(
            !ids("Groups:").split_whitespace().any(|id| id == "0"),
            "{status}"
        );
    });
}

#[test]
fn two_at_once_are_apart() {
    each_shared(|first| {
        let second = Postgres::start(first.version()).unwrap();
        first
            .psql("postgres", "create table only_here (a int)")
            .unwrap();
        second
            .psql("postgres", "create table only_here (a int)")
            .unwrap();
        assert_ne!(first.port(), second.port());
    });
}

#[test]
fn databases_are_made_under_any_name() {
    each_shared(|postgres| {
        let url = postgres.create_database("Od\"d name").unwrap();
        assert_eq!(
            url,
            format!(
                "postgres://postgres@127.0.0.1:{}/Od%22d%20name",
                postgres.port()
            )
        );
        assert_eq!(
            postgres
                .psql("Od\"d name", "select current_database()")
                .unwrap(),
            "Od\"d name"
        );
        let again = postgres.create_database("Od\"d name").unwrap_err();
        assert!(again.to_string().contains("already exists"), "{again}");
    });
}

#[test]
fn what_was_committed_before_a_kill_is_there_after_the_restart() {
    each_version(|mut postgres| {
        postgres
            .psql("postgres", "create table kept (a int)")
            .unwrap();
        for round in 1..=3 {
            postgres
                .psql("postgres", &format!("insert into kept values ({round})"))
                .unwrap();
            let (url, backends) = (
                postgres.url(),
                postgres
                    .psql("postgres", "select pid from pg_stat_activity")
                    .unwrap(),
            );
            let pid = postgres.pid().unwrap().to_string();
            postgres.kill().unwrap();
            assert!(!is_alive(&pid), "the postmaster lives");
            assert!(backends.lines().count() > 3, "{backends}");
            assert!(
                !backends.lines().any(is_alive),
                "a process of the server lives: {backends}"
            );
            assert_eq!(postgres.pid(), None);
            assert!(TcpStream::connect(("127.0.0.1", postgres.port())).is_err());

            postgres.restart().unwrap();
            assert_eq!(postgres.url(), url);
            assert_eq!(
                postgres
                    .psql("postgres", "select count(*) from kept")
                    .unwrap(),
                round.to_string()
            );
        }
        let log = std::fs::read_to_string(postgres.log()).unwrap();
        assert!(
            log.contains("was interrupted"),
            "it was not killed but shut down: {log}"
        );
    });
}

#[test]
fn a_fast_stop_leaves_nothing_to_recover() {
    each_version(|mut postgres| {
        postgres.stop_fast().unwrap();
        postgres.stop_fast().unwrap();
        postgres.restart().unwrap();
        postgres.restart().unwrap();
        let log = std::fs::read_to_string(postgres.log()).unwrap();
        assert_eq!(log.matches("database system is ready").count(), 3, "{log}");
        assert!(!log.contains("was interrupted"), "{log}");
    });
}

#[test]
fn a_paused_server_is_silent_and_closes_nothing() {
    each_version(|mut postgres| {
        // The request for encryption, to which it says "no".
        let request = [0, 0, 0, 8, 4, 210, 22, 47];
        let mut answer = [0];
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", postgres.port())).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            stream.write_all(&request).unwrap();
            stream
        };
        let mut stream = ask();
        stream.set_read_timeout(None).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"N");

        postgres.pause().unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", postgres.port())).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        stream.write_all(&request).unwrap();
        let silence = stream.read_exact(&mut answer).unwrap_err();
        assert!(
            matches!(
                silence.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ),
            "{silence}"
        );

        postgres.resume().unwrap();
        stream.set_read_timeout(None).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"N");
        assert_eq!(postgres.psql("postgres", "select 1").unwrap(), "1");
    });
}

#[test]
fn a_paused_server_can_be_killed_and_dropped() {
    each_version(|mut postgres| {
        postgres.pause().unwrap();
        postgres.kill().unwrap();
        postgres.restart().unwrap();
        postgres.pause().unwrap();
        let (pid, directory) = (postgres.pid().unwrap(), postgres.data_directory());
        drop(postgres);
        assert!(!is_alive(&pid.to_string()));
        assert!(!directory.exists());
    });
}

#[test]
fn a_killed_server_leaves_no_shared_memory() {
    each_version(|mut postgres| {
        let creator = postgres.pid().unwrap().to_string();
        let segments = || {
            let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            // Key, id, permissions, size, and who made it.
            segments
                .lines()
                .filter(|segment| segment.split_whitespace().nth(4) == Some(creator.as_str()))
                .count()
        };
        assert_eq!(segments(), 1);
        postgres.kill().unwrap();
        assert_eq!(segments(), 1, "a crash would leave it to the next start");
        drop(postgres);
        assert_eq!(segments(), 0);
    });
}
