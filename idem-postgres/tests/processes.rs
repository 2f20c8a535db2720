//! Many processes that start at once on a database in which nothing is yet.
//!
//! Each child is this test binary again, told by the environment that it is one. Parent and children speak in lines over pipes,
//! so nothing here waits for a length of time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use idem_postgres::PgKeyStore;
use sqlx::PgPool;
use tools::{Database, claim, win};

const PROCESSES: usize = 20;

/// What tells a process that it is a child, and which database it is to start on.
const URL: &str = "IDEM_POSTGRES_TEST_CHILD_URL";
const NUMBER: &str = "IDEM_POSTGRES_TEST_CHILD_NUMBER";

/// What a child says when it has begun. The test harness writes other lines around it.
const READY: &str = "child: ready";

#[test]
fn twenty_processes_migrate_at_once() {
    const NAME: &str = "twenty_processes_migrate_at_once";
    if let Ok(url) = std::env::var(URL) {
        return child(&url);
    }
    let Some(database) = Database::new(NAME) else {
        return;
    };
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
                .env(URL, &database.url)
                .env(NUMBER, number.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line == READY);
        assert!(ready, "a child ended before it began");
    }
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    runtime().block_on(async {
        let steps = "SELECT count(*) FROM idem_record_migration";
        assert_eq!(database.number(steps).await, 1);
        let keys = "SELECT count(*) FROM idem_record";
        assert_eq!(database.number(keys).await, PROCESSES as i64);
    });
}

/// Makes the tables, finds them as they have to be, and uses them.
fn child(url: &str) {
    runtime().block_on(async {
        let pool = PgPool::connect(url).await.unwrap();
        // The line may begin in the middle of one of the harness's.
        println!("\n{READY}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let store = PgKeyStore::new(pool);
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        // Whoever is done first is at work while the others are still at it.
        win(&store, &claim(&std::env::var(NUMBER).unwrap())).await;
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
