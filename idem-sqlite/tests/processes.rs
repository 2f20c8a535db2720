//! Several processes on one file, and processes that are killed.
//!
//! Each child is this test binary again, told by the environment which part it plays. Parents and children speak in
//! lines over pipes, so nothing here waits for a length of time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers as well"
)]

mod support;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::Arc;

use idem_core::executor::{Answer, Begin, Idempotency, Outcome};
use idem_core::{
    ClaimOutcome, Expect, KeyStore, Policy, Request, Response, Transition, TransitionOutcome,
};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use support::{claim, directory, runtime};

/// Marks a child's lines among those that the test harness writes around them.
const MARK: &str = "child: ";

fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The line may begin in the middle of one of the harness's.
    writeln!(out, "\n{MARK}{line}").unwrap();
    out.flush().unwrap();
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(name: &str, role: &str, arguments: &[&str]) -> Self {
        let mut child = support::child(name, role, arguments).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            stdin,
            lines,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
        self.stdin.flush().unwrap();
    }

    /// The child's next line; `None` when it has ended.
    fn hear(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix(MARK)?.to_owned()))
    }

    /// Everything that the child still says, and that it ends well.
    fn finish(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.hear() {
            lines.push(line);
        }
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

/// Starts so many children, and lets them go when all are ready.
fn start_together(count: usize, name: &str, role: &str, arguments: &[&str]) -> Vec<Peer> {
    let mut peers: Vec<_> = (0..count)
        .map(|number| {
            let number = number.to_string();
            let arguments: Vec<_> = arguments.iter().copied().chain([&*number]).collect();
            Peer::start(name, role, &arguments)
        })
        .collect();
    for peer in &mut peers {
        assert_eq!(peer.hear().as_deref(), Some("ready"));
    }
    for peer in &mut peers {
        peer.tell("go");
    }
    peers
}

fn role() -> Option<String> {
    std::env::var(support::ROLE).ok()
}

const KEYS: u64 = 1000;
const TASKS: u64 = 64;

#[test]
fn four_processes_one_file() {
    const NAME: &str = "four_processes_one_file";
    if role().is_some() {
        return contender();
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let peers = start_together(4, NAME, "contender", &[path.to_str().unwrap()]);
    let mut winners = HashMap::<String, u32>::new();
    for peer in peers {
        for won in peer.finish() {
            *winners.entry(won).or_default() += 1;
        }
    }
    assert_eq!(winners.len() as u64, KEYS);
    assert!(winners.values().all(|winners| *winners == 1));
    let completed: i64 = support::raw(&path)
        .query_row(
            "SELECT count(*) FROM idem_record WHERE status = 'completed'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(completed, KEYS.cast_signed());
    assert_eq!(support::integrity(&path), "ok");
}

/// Sixteen tasks in four processes want each key, four of them in this one. Whoever wins completes it. An error fails
/// the child.
fn contender() {
    let process: u64 = support::arguments()[1].parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async move {
        say("ready");
        hear();
        let store = Arc::new(
            SqliteKeyStore::open(support::first_argument())
                .await
                .unwrap(),
        );
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let store = store.clone();
                tokio::spawn(async move {
                    for key in (0..KEYS).filter(|key| key % 16 == task % 16) {
                        let token = ((process * TASKS) + task) * KEYS + key;
                        if let Some(won) =
                            claim_and_complete(&store, &format!("k{key}"), token).await
                        {
                            say(won);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        store.close().await;
    });
}

async fn claim_and_complete(store: &SqliteKeyStore, key: &str, token: u64) -> Option<String> {
    let claim = claim(key, token);
    match store.claim(&claim).await.unwrap() {
        ClaimOutcome::Held(_) => return None,
        ClaimOutcome::Won(_) => {}
        other => panic!("{other:?}"),
    }
    let complete = Transition::Complete(Response::new(200).body(key.to_owned()));
    let owner = Expect::Owner(claim.token());
    let completed = store
        .transition(claim.id(), owner, &complete)
        .await
        .unwrap();
    assert!(matches!(completed, TransitionOutcome::Applied { .. }));
    Some(key.to_owned())
}

#[test]
fn two_processes_claim_one_key_a_thousand_times() {
    const NAME: &str = "two_processes_claim_one_key_a_thousand_times";
    if role().is_some() {
        return runtime().block_on(async {
            let process: u64 = support::arguments()[1].parse().unwrap();
            let store = SqliteKeyStore::open(support::first_argument())
                .await
                .unwrap();
            say("ready");
            hear();
            for round in 0..1000 {
                let claim = claim(format!("k{round}"), round * 2 + process);
                let line = match store.claim(&claim).await.unwrap() {
                    ClaimOutcome::Won(_) => "won",
                    ClaimOutcome::Held(_) => "held",
                    other => panic!("{other:?}"),
                };
                say(line);
                // The next round begins when both are done with this one.
                hear();
            }
        });
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let mut peers = start_together(2, NAME, "claimant", &[path.to_str().unwrap()]);
    let mut wins = [0_u32; 2];
    for round in 0..1000 {
        let said: Vec<_> = peers.iter_mut().map(|peer| peer.hear().unwrap()).collect();
        let winner = said.iter().position(|line| line == "won");
        wins[winner.unwrap_or_else(|| panic!("nobody won round {round}"))] += 1;
        assert_eq!(said.iter().filter(|line| *line == "won").count(), 1);
        for peer in &mut peers {
            peer.tell("next");
        }
    }
    for peer in peers {
        peer.finish();
    }
    // If one of them always came first, they have not met.
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
}

#[test]
fn processes_that_open_a_new_file_at_once_migrate_it_once() {
    const NAME: &str = "processes_that_open_a_new_file_at_once_migrate_it_once";
    if role().is_some() {
        return runtime().block_on(async {
            say("ready");
            hear();
            let number: u64 = support::arguments()[1].parse().unwrap();
            let store = SqliteKeyStore::open(support::first_argument())
                .await
                .unwrap();
            let key = format!("k{number}");
            assert!(claim_and_complete(&store, &key, number).await.is_some());
            store.close().await;
        });
    }
    let directory = directory();
    for round in 0..12 {
        let path = directory.path().join(format!("{round}.sqlite"));
        let peers = start_together(6, NAME, "migrator", &[path.to_str().unwrap()]);
        for peer in peers {
            peer.finish();
        }
        let counts: (u32, u32) = support::raw(&path)
            .query_row(
                "SELECT (SELECT count(*) FROM idem_migration), (SELECT count(*) FROM idem_record)",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!(counts, (1, 6));
    }
}

#[test]
fn what_was_acknowledged_survives_a_hundred_kills() {
    const NAME: &str = "what_was_acknowledged_survives_a_hundred_kills";
    if role().is_some() {
        return victim();
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let mut acknowledged = Vec::new();
    for round in 0_usize..100 {
        let number = round.to_string();
        let mut peer = Peer::start(NAME, "victim", &[path.to_str().unwrap(), &number]);
        // Killed after another number of acknowledgements each time, somewhere in the middle of what comes next.
        for _ in 0..1 + round * 7 % 40 {
            acknowledged.push(peer.hear().expect("the victim ended by itself"));
        }
        peer.child.kill().unwrap();
        // What it said before it died counts.
        while let Some(line) = peer.hear() {
            acknowledged.push(line);
        }
        peer.child.wait().unwrap();
        assert_all_there(
            &path,
            &acknowledged[acknowledged.len().saturating_sub(200)..],
        );
    }
    assert_all_there(&path, &acknowledged);
    // Sixteen at a time, and at least one before each kill.
    assert!(acknowledged.len() > 1000, "{}", acknowledged.len());
    runtime().block_on(async {
        let store = SqliteKeyStore::open(&path).await.unwrap();
        assert!(claim_and_complete(&store, "after", 1).await.is_some());
    });
}

/// Claims and completes on sixteen tasks until it is killed, and says what was acknowledged, after it was.
fn victim() {
    let round = support::arguments().swap_remove(1);
    runtime().block_on(async move {
        let store = Arc::new(
            SqliteKeyStore::open(support::first_argument())
                .await
                .unwrap(),
        );
        let tasks: Vec<_> = (0_u64..16)
            .map(|task| {
                let (store, round) = (store.clone(), round.clone());
                tokio::spawn(async move {
                    for number in 0_u64.. {
                        let claim = claim(format!("{round}-{task}-{number}"), number);
                        let key = claim.id().key().as_str();
                        let won = store.claim(&claim).await.unwrap();
                        assert!(matches!(won, ClaimOutcome::Won(_)));
                        say(format_args!("in_progress {key}"));
                        let complete = Transition::Complete(Response::new(200).body(vec![1; 700]));
                        let owner = Expect::Owner(claim.token());
                        store
                            .transition(claim.id(), owner, &complete)
                            .await
                            .unwrap();
                        say(format_args!("completed {key}"));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn assert_all_there(path: &Path, acknowledged: &[String]) {
    let connection: Connection = support::raw(path);
    let mut find = connection
        .prepare("SELECT status FROM idem_record WHERE scope = 'acct_1' AND \"key\" = ?1")
        .unwrap();
    for line in acknowledged {
        let (status, key) = line.split_once(' ').unwrap();
        let stored: String = find
            .query_row([key], |row| row.get(0))
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        // A claim that was acknowledged may have been completed before the kill.
        assert!(
            stored == status || stored == "completed",
            "{line}: {stored}"
        );
    }
    drop(find);
    drop(connection);
    assert_eq!(support::integrity(path), "ok");
}

const CREATE_ROWS: &str = "CREATE TABLE rows (key TEXT PRIMARY KEY)";

fn request_of(key: &str, process: u64) -> Request {
    claim(key, process).request().clone()
}

/// Work in one transaction: a row of the program's own, and the record.
async fn write_row(store: &SqliteKeyStore, key: &str, process: u64) -> Answer<Response> {
    let row = key.to_owned();
    let (request, policy) = (request_of(key, process), Policy::default());
    let worked = store.execute_in_tx(&request, &policy, move |tx, _| {
        tx.execute("INSERT INTO rows VALUES (?1)", [&row])?;
        Ok::<_, rusqlite::Error>(Outcome::Completed(Response::new(200).body(row.clone())))
    });
    worked.await.unwrap()
}

#[test]
fn two_processes_do_the_work_of_each_key_once() {
    const NAME: &str = "two_processes_do_the_work_of_each_key_once";
    if role().is_some() {
        return runtime().block_on(async {
            let process: u64 = support::arguments()[1].parse().unwrap();
            let store = SqliteKeyStore::open(support::first_argument())
                .await
                .unwrap();
            say("ready");
            hear();
            for round in 0..300 {
                // A second row of the same key would be a violation, and so an error.
                match write_row(&store, &format!("k{round}"), process).await {
                    Answer::Fresh(_) => say("fresh"),
                    Answer::Replayed(_) => say("replayed"),
                    other => panic!("{other:?}"),
                }
                // The next round begins when both are done with this one.
                hear();
            }
        });
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    support::raw(&path).execute_batch(CREATE_ROWS).unwrap();
    let shared = SqliteOptions::new().beside_other_tables();
    runtime().block_on(async { shared.open(&path).await.unwrap().close().await });
    let mut peers = start_together(2, NAME, "worker", &[path.to_str().unwrap()]);
    let mut wins = [0_u32; 2];
    for round in 0..300 {
        let said: Vec<_> = peers.iter_mut().map(|peer| peer.hear().unwrap()).collect();
        assert_eq!(
            said.iter().filter(|line| *line == "fresh").count(),
            1,
            "round {round}: {said:?}"
        );
        wins[usize::from(said[1] == "fresh")] += 1;
        for peer in &mut peers {
            peer.tell("next");
        }
    }
    for peer in peers {
        peer.finish();
    }
    // If one of them always came first, they have not met.
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
    assert_eq!(rows_and_records(&path).len(), 300);
}

/// The keys of the rows, each of which has a completed record, as every completed record has a row.
fn rows_and_records(path: &Path) -> Vec<String> {
    let connection = support::raw(path);
    let keys = |sql| -> Vec<String> {
        let mut prepared = connection.prepare(sql).unwrap();
        let keys = prepared.query_map([], |row| row.get(0)).unwrap();
        keys.map(Result::unwrap).collect()
    };
    let rows = keys("SELECT key FROM rows ORDER BY key");
    assert_eq!(
        rows,
        keys("SELECT \"key\" FROM idem_record ORDER BY \"key\"")
    );
    assert_eq!(
        rows,
        keys("SELECT \"key\" FROM idem_record WHERE status = 'completed' ORDER BY \"key\"")
    );
    rows
}

#[test]
fn a_kill_leaves_both_the_row_and_the_record_or_neither() {
    const NAME: &str = "a_kill_leaves_both_the_row_and_the_record_or_neither";
    match role().as_deref() {
        Some("middle") => return runtime().block_on(killed_in_the_middle()),
        Some(_) => return runtime().block_on(killed_anywhere()),
        None => {}
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let place = path.to_str().unwrap();
    support::raw(&path).execute_batch(CREATE_ROWS).unwrap();
    let shared = SqliteOptions::new().beside_other_tables();
    runtime().block_on(async { shared.open(&path).await.unwrap().close().await });

    // In the middle of the work, when the row is written.
    let mut peer = Peer::start(NAME, "middle", &[place]);
    assert_eq!(peer.hear().as_deref(), Some("written"));
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    assert_eq!(rows_and_records(&path), Vec::<String>::new());

    let mut acknowledged = Vec::new();
    for round in 0_usize..30 {
        let number = round.to_string();
        let mut peer = Peer::start(NAME, "anywhere", &[place, &number]);
        for _ in 0..1 + round * 7 % 20 {
            acknowledged.push(peer.hear().expect("the victim ended by itself"));
        }
        peer.child.kill().unwrap();
        while let Some(line) = peer.hear() {
            acknowledged.push(line);
        }
        peer.child.wait().unwrap();
        let there = rows_and_records(&path);
        assert!(acknowledged.iter().all(|key| there.contains(key)));
    }
    // The key of the one that was killed in the middle is as good as new.
    runtime().block_on(async {
        let store = SqliteKeyStore::open(&path).await.unwrap();
        assert!(matches!(
            write_row(&store, "middle", 99).await,
            Answer::Fresh(_)
        ));
    });
    assert_eq!(support::integrity(&path), "ok");
}

async fn killed_in_the_middle() {
    let store = SqliteKeyStore::open(support::first_argument())
        .await
        .unwrap();
    let (request, policy) = (request_of("middle", 1), Policy::default());
    let work = store.execute_in_tx(&request, &policy, |tx, _| {
        tx.execute("INSERT INTO rows VALUES ('middle')", [])?;
        say("written");
        // Until it is killed.
        hear();
        Ok::<_, rusqlite::Error>(Outcome::Completed(Response::new(200)))
    });
    drop(work.await);
}

/// One after the other, as fast as it can, until it is killed, and says what was acknowledged, after it was.
async fn killed_anywhere() {
    let arguments = support::arguments();
    let store = SqliteKeyStore::open(&arguments[0]).await.unwrap();
    for number in 0_u64.. {
        let key = format!("{}-{number}", arguments[1]);
        assert!(matches!(
            write_row(&store, &key, number).await,
            Answer::Fresh(_)
        ));
        say(key);
    }
}

/// What a child does on a connection of its own: begins, writes a row and the outcome, and commits or not.
async fn with_its_own_connection(role: &str) {
    let arguments = support::arguments();
    let store = Arc::new(SqliteKeyStore::open(&arguments[0]).await.unwrap());
    let request = request_of(role, 1);
    let mut mine = support::raw(Path::new(&arguments[0]));
    let executor = Idempotency::new(store.clone());
    // Claimed before, where the outcome joins.
    let execution = match role.starts_with("within") {
        true => None,
        false => match executor.begin(&request).await.unwrap() {
            Begin::Execute(execution) => Some(execution),
            other => panic!("{other:?}"),
        },
    };
    let tx = mine
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let row = |tx: &Connection| tx.execute("INSERT INTO rows VALUES (?1)", [role]);
    match &execution {
        None => {
            let work = |tx: &Connection, _: &_| {
                row(tx)?;
                Ok::<_, rusqlite::Error>(Outcome::Completed(Response::new(200)))
            };
            let told = store.execute_within(&tx, &request, &Policy::default(), work);
            assert!(matches!(told, Ok(Answer::Fresh(_))), "{told:?}");
        }
        Some(execution) => {
            row(&tx).unwrap();
            let response = Response::new(200);
            store
                .complete_in(&tx, &execution.attempt(), &response)
                .unwrap();
        }
    }
    if role.ends_with("committed") {
        tx.commit().unwrap();
        say("written");
        hear();
    } else {
        say("written");
        hear();
        drop(tx);
    }
}

#[test]
fn a_kill_in_a_transaction_of_the_programs_leaves_both_or_neither() {
    const NAME: &str = "a_kill_in_a_transaction_of_the_programs_leaves_both_or_neither";
    if let Some(role) = role() {
        return runtime().block_on(with_its_own_connection(&role));
    }
    let directory = directory();
    let path = directory.path().join("keys.sqlite");
    let place = path.to_str().unwrap();
    support::raw(&path).execute_batch(CREATE_ROWS).unwrap();
    let shared = SqliteOptions::new().beside_other_tables();
    runtime().block_on(async { shared.open(&path).await.unwrap().close().await });
    for (role, status) in [
        ("within", None),
        ("within committed", Some("completed")),
        // The claim was committed before, and its lease runs.
        ("joined", Some("in_progress")),
        ("joined committed", Some("completed")),
    ] {
        let mut peer = Peer::start(NAME, role, &[place]);
        assert_eq!(peer.hear().as_deref(), Some("written"), "{role}");
        peer.child.kill().unwrap();
        peer.child.wait().unwrap();
        let connection = support::raw(&path);
        let rows: i64 = connection
            .query_row("SELECT count(*) FROM rows WHERE key = ?1", [role], |row| {
                row.get(0)
            })
            .unwrap();
        let found: Option<String> = connection
            .query_row(
                "SELECT status FROM idem_record WHERE \"key\" = ?1",
                [role],
                |row| row.get(0),
            )
            .optional()
            .unwrap();
        let is_committed = i64::from(role.ends_with("committed"));
        assert_eq!((rows, found.as_deref()), (is_committed, status), "{role}");
    }
    assert_eq!(support::integrity(&path), "ok");
}
