//! What is in the file, and what becomes of it: crashes, days without a network, other processes, strange files.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not tests in the lint's eyes"
)]

mod support;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use idem_client::{
    Answer, Begun, Going, Horizon, Journal, JournalErrorKind, JournalOptions, Operation, Parked,
    Recorded, RetryPolicy, SendError, Source, Span, State, Timestamp,
};
use support::{
    DAY, Reply, Server, answer, builder, built, client, clock, directory, horizon, open, policy,
    raw,
};

fn charge(id: &str) -> Operation {
    let post = Operation::post("https://api.example/charges").key_for("charge", id);
    post.header("x-a", "1").body("amount=2500").build().unwrap()
}

fn done() -> Answer {
    Answer::new(StatusCode::CREATED, HeaderMap::new(), "ch_1")
}

async fn refused(path: &Path) -> JournalErrorKind {
    let error = Journal::open(path).await.unwrap_err();
    eprintln!("{error}");
    error.kind()
}

#[tokio::test]
async fn what_was_being_sent_goes_on_after_a_restart_with_the_same_key() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let server = Server::start(vec![Reply::Silence, answer(201, &[], "ch_1")]).await;
    let operation = server.operation();
    let clock = clock();
    {
        let journal = open(&path, &clock).await;
        let client = client(&journal);
        tokio::select! {
            biased;
            () = server.has_received(1) => {}
            sent = client.send(&operation) => panic!("{sent:?}"),
        }
        journal.close().await;
    }
    let journal = open(&path, &clock).await;
    let pending = journal.pending().await.unwrap();
    assert_eq!(
        (pending[0].state.clone(), pending[0].attempts),
        (State::Pending, 1)
    );
    let mut resumed = client(&journal)
        .resume_all(NonZeroUsize::MIN)
        .await
        .unwrap();
    let finished = resumed.remove(0).result.unwrap();
    assert_eq!(finished.source(), Source::Service);
    let requests = server.requests();
    assert_eq!(requests[0], requests[1]);

    // The program dies before it has recorded the answer.
    drop(finished);
    journal.close().await;
    let journal = open(&path, &clock).await;
    let mut resumed = client(&journal)
        .resume_all(NonZeroUsize::MIN)
        .await
        .unwrap();
    let finished = resumed.remove(0).result.unwrap();
    assert_eq!(
        (finished.source(), &finished.answer().body()[..]),
        (Source::Journal, &b"ch_1"[..])
    );
    finished.acknowledge().await.unwrap();
    assert!(
        client(&journal)
            .resume_all(NonZeroUsize::MIN)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn offline_for_longer_than_the_server_remembers_it_is_parked_and_not_sent() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let clock = clock();
    let server = Server::start(vec![answer(503, &[], ""), answer(201, &[], "ch_1")]).await;
    let operation = server.operation();
    let journal = open(&path, &clock).await;
    let once = built(builder(&journal, policy().attempts(1)));
    once.send(&operation).await.unwrap_err();
    journal.close().await;

    clock.advance(Span::from_secs(2 * 24 * 3600));
    let journal = open(&path, &clock).await;
    // A policy of a service that remembers for longer does not help what began before.
    let week = Horizon::within(7 * DAY, 7 * DAY).unwrap();
    let client = built(builder(&journal, RetryPolicy::until(week)));
    let resumed = client.resume_all(NonZeroUsize::MIN).await.unwrap();
    let parked = |result: &Result<_, SendError>| {
        matches!(
            result,
            Err(SendError::Parked {
                why: Parked::PastHorizon,
                ..
            })
        )
    };
    assert!(parked(&resumed[0].result), "{:?}", resumed[0].result);
    assert!(parked(&client.send(&operation).await));
    assert!(parked(&client.resume(operation.key()).await));
    let pending = journal.pending().await.unwrap();
    assert_eq!(pending[0].state, State::Parked(Parked::PastHorizon));
    assert_eq!(pending[0].last_outcome.as_deref(), Some("answered 503"));
    assert_eq!(server.requests().len(), 1);

    // Somebody has found out that it was not done.
    assert!(
        journal
            .unpark(operation.key(), "not charged")
            .await
            .unwrap()
    );
    let finished = client.resume(operation.key()).await.unwrap();
    assert_eq!(finished.answer().body(), "ch_1");
    assert_eq!(server.requests()[0], server.requests()[1]);
}

#[tokio::test]
async fn the_horizon_counts_from_the_first_attempt_to_the_microsecond() {
    let directory = directory();
    let clock = clock();
    let journal = open(&directory.path().join("sent.db"), &clock).await;
    let operation = charge("1");
    let recorded = journal.record(&operation, horizon()).await.unwrap();
    assert_eq!(recorded, Recorded::There(State::Pending));
    // What was never sent can wait for as long as it likes.
    clock.advance(Span::from_secs(30 * 24 * 3600));
    let Begun::Claimed(mut claim) = journal.take(operation.key()).await.unwrap() else {
        panic!("it was not taken");
    };
    assert_eq!(claim.age(), Duration::ZERO);
    let began = idem_client::Clock::now(&clock);
    let end = began + Span::from_secs(24 * 3600);
    clock.set(Timestamp::from_micros(end.as_micros() - 1));
    assert_eq!(claim.attempt().await.unwrap(), Going::On);
    assert_eq!(claim.age(), DAY - Duration::from_micros(1));
    clock.set(end);
    assert_eq!(
        claim.attempt().await.unwrap(),
        Going::Parked(Parked::PastHorizon)
    );
    drop(claim);
    let entry = journal.entry(operation.key()).await.unwrap().unwrap();
    assert_eq!(
        (entry.state, entry.attempts),
        (State::Parked(Parked::PastHorizon), 2)
    );
}

#[tokio::test]
async fn a_clock_that_was_set_back_does_not_make_an_operation_young() {
    let directory = directory();
    let clock = clock();
    let journal = open(&directory.path().join("sent.db"), &clock).await;
    let operation = charge("1");
    drop(journal.begin(&operation, horizon()).await.unwrap());
    let began = idem_client::Clock::now(&clock);
    let back = |seconds: i64| Timestamp::from_micros(began.as_micros() - seconds * 1_000_000);
    // A time server's correction.
    clock.set(back(59));
    assert!(matches!(
        journal.take(operation.key()).await.unwrap(),
        Begun::Claimed(_)
    ));
    clock.set(Timestamp::from_micros(began.as_micros() + 90_000_000));
    drop(journal.take(operation.key()).await.unwrap());
    clock.set(Timestamp::from_micros(began.as_micros() + 40_000_000));
    let Begun::Claimed(claim) = journal.take(operation.key()).await.unwrap() else {
        panic!("it was not taken");
    };
    assert_eq!(claim.age(), Duration::from_secs(90));
    drop(claim);
    // Unlike a battery that is empty. It is neither sent nor parked, for the clock may be set soon.
    clock.set(Timestamp::from_micros(0));
    let error = journal.take(operation.key()).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::ClockBehind);
    assert!(!error.to_string().contains(operation.key().as_str()));
    // New ones have nothing to fear.
    assert!(matches!(
        journal.begin(&charge("2"), horizon()).await.unwrap(),
        Begun::Claimed(_)
    ));
    clock.set(Timestamp::from_micros(began.as_micros() + 90_000_000));
    assert!(matches!(
        journal.take(operation.key()).await.unwrap(),
        Begun::Claimed(_)
    ));
}

#[tokio::test]
async fn two_journals_on_one_file_do_not_send_one_operation_at_once() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let clock = clock();
    let [one, other] = [open(&path, &clock).await, open(&path, &clock).await];
    let operation = charge("1");
    let Begun::Claimed(claim) = one.begin(&operation, horizon()).await.unwrap() else {
        panic!("it was not begun");
    };
    // However long it takes.
    clock.advance(Span::from_secs(3600));
    assert!(matches!(
        other.begin(&operation, horizon()).await.unwrap(),
        Begun::Busy
    ));
    assert!(matches!(
        other.take(operation.key()).await.unwrap(),
        Begun::Busy
    ));
    assert!(!other.close_operation(operation.key(), "").await.unwrap());
    claim.release("no answer").await.unwrap();
    let Begun::Claimed(mut claim) = other.take(operation.key()).await.unwrap() else {
        panic!("it was not released");
    };
    assert!(matches!(
        one.take(operation.key()).await.unwrap(),
        Begun::Busy
    ));
    // Whoever is closed sends nothing any more, even if it did not say so.
    other.clone().close().await;
    assert!(claim.attempt().await.is_err());
    let Begun::Claimed(claim) = one.take(operation.key()).await.unwrap() else {
        panic!("it was not taken over");
    };
    claim.answered(&done()).await.unwrap();
    let locks = || {
        let files = std::fs::read_dir(directory.path()).unwrap();
        files
            .filter(|file| {
                file.as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .contains("-owner-")
            })
            .count()
    };
    assert_eq!(locks(), 1);
    one.close().await;
    assert_eq!(locks(), 0);
}

#[tokio::test]
async fn an_attempt_of_what_is_no_longer_ones_own_is_not_made() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    let operation = charge("1");
    let Begun::Claimed(mut claim) = journal.begin(&operation, horizon()).await.unwrap() else {
        panic!("it was not begun");
    };
    raw(&path)
        .execute("UPDATE idem_client_operation SET owner = zeroblob(16)", [])
        .unwrap();
    assert_eq!(claim.attempt().await.unwrap(), Going::Gone);
    // An answer is one all the same.
    claim.answered(&done()).await.unwrap();
    assert!(matches!(
        journal.take(operation.key()).await.unwrap(),
        Begun::Answered(_)
    ));
    // But nothing is opened again by one that comes late.
    let operation = charge("2");
    let Begun::Claimed(claim) = journal.begin(&operation, horizon()).await.unwrap() else {
        panic!("it was not begun");
    };
    raw(&path)
        .execute("UPDATE idem_client_operation SET state = 'closed'", [])
        .unwrap();
    claim.answered(&done()).await.unwrap();
    let entry = journal.entry(operation.key()).await.unwrap().unwrap();
    assert_eq!(entry.state, State::Closed);
}

#[tokio::test]
async fn what_cannot_be_given_back_in_the_file_is_given_back_in_the_process() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let options = JournalOptions::new().busy_timeout(Duration::from_millis(1));
    let journal = options.open(&path).await.unwrap();
    let operation = charge("1");
    let claim = journal.begin(&operation, horizon()).await.unwrap();
    let mut other = raw(&path);
    let held = other
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .unwrap();
    drop(claim);
    // One call after the other.
    assert_eq!(journal.pending().await.unwrap().len(), 1);
    drop(held);
    let begun = journal.take(operation.key()).await.unwrap();
    assert!(matches!(begun, Begun::Claimed(_)), "{begun:?}");
}

/// The variable that makes a process of this test binary a child, and tells it the file.
const CHILD: &str = "IDEM_CLIENT_TEST_JOURNAL";

fn child(name: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn what_a_killed_process_was_sending_is_anybodys_at_once() {
    use std::io::{BufRead as _, Read as _};

    const NAME: &str = "what_a_killed_process_was_sending_is_anybodys_at_once";
    let operation = charge("1");
    if let Some(path) = std::env::var_os(CHILD) {
        let journal = Journal::open(path).await.unwrap();
        let begun = journal.begin(&operation, horizon()).await.unwrap();
        assert!(matches!(begun, Begun::Claimed(_)));
        println!("\nbegun");
        // Until it is killed; or, should the test fail, until that has ended.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let directory = directory();
    let path = directory.path().join("sent.db");
    let mut child = child(NAME, &path);
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap() == "begun"));
    // Opened beside it, and not only after it.
    let journal = Journal::open(&path).await.unwrap();
    assert!(matches!(
        journal.take(operation.key()).await.unwrap(),
        Begun::Busy
    ));
    child.kill().unwrap();
    child.wait().unwrap();
    let Begun::Claimed(claim) = journal.take(operation.key()).await.unwrap() else {
        panic!("the dead hold it");
    };
    assert_eq!(claim.operation(), &operation);
    drop(claim);
    journal.close().await;
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn each_operation_is_begun_by_one_of_several_processes() {
    use std::io::{BufRead as _, Read as _, Write as _};

    const NAME: &str = "each_operation_is_begun_by_one_of_several_processes";
    const OPERATIONS: usize = 20;
    if let Some(path) = std::env::var_os(CHILD) {
        let options = JournalOptions::new().busy_timeout(Duration::from_secs(60));
        let journal = options.open(path).await.unwrap();
        println!("\nready");
        // All at once, when the gate opens.
        std::io::stdin().read_exact(&mut [0]).unwrap();
        let mut claims = Vec::new();
        for number in 0..OPERATIONS {
            match journal
                .begin(&charge(&number.to_string()), horizon())
                .await
                .unwrap()
            {
                Begun::Claimed(claim) => {
                    println!("\nbegun {number}");
                    claims.push(claim);
                }
                other => assert!(matches!(other, Begun::Busy), "{other:?}"),
            }
        }
        println!("\nover");
        // Nobody gives anything back before all have asked for everything.
        let _ = std::io::stdin().read_exact(&mut [0]);
        return;
    }
    let directory = directory();
    let path = directory.path().join("sent.db");
    let mut children: Vec<_> = (0..4).map(|_| child(NAME, &path)).collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| std::io::BufReader::new(child.stdout.take().unwrap()).lines())
        .collect();
    for output in &mut outputs {
        assert!(output.any(|line| line.unwrap() == "ready"));
    }
    for child in &mut children {
        child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    }
    let mut begun = Vec::new();
    for output in &mut outputs {
        let lines = output.map(Result::unwrap).take_while(|line| line != "over");
        begun.extend(lines.filter_map(|line| line.strip_prefix("begun ").map(str::to_owned)));
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    let distinct: BTreeSet<_> = begun.iter().collect();
    assert_eq!(
        (begun.len(), distinct.len()),
        (OPERATIONS, OPERATIONS),
        "{begun:?}"
    );
}

#[tokio::test]
async fn a_claim_that_nobody_waits_for_is_given_back() {
    let journal = Journal::open_in_memory().await.unwrap();
    let operation = charge("1");
    for _ in 0..100 {
        let begin = journal.begin(&operation, horizon());
        // Polled once, so that it is under way, and dropped.
        tokio::select! {
            biased;
            begun = begin => drop(begun.unwrap()),
            () = std::future::ready(()) => {}
        }
    }
    assert!(matches!(
        journal.begin(&operation, horizon()).await.unwrap(),
        Begun::Claimed(_)
    ));
}

#[tokio::test]
async fn files_that_are_none_of_ours_are_refused_and_kept() {
    let directory = directory();
    for (number, sql) in [
        "CREATE TABLE account (id INTEGER PRIMARY KEY)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 7",
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{number}.db"));
        raw(&path).execute_batch(sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert_eq!(refused(&path).await, JournalErrorKind::Foreign, "{sql}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{sql}");
    }
    let path = directory.path().join("text");
    let text = b"somebody's only copy of something".repeat(100);
    std::fs::write(&path, &text).unwrap();
    assert_eq!(refused(&path).await, JournalErrorKind::Corrupt);
    assert_eq!(std::fs::read(&path).unwrap(), text);
    for path in ["", "/nowhere/sent.db", "/proc/sent.db", "/"] {
        let kind = refused(Path::new(path)).await;
        assert!(
            matches!(
                kind,
                JournalErrorKind::Misplaced | JournalErrorKind::ReadOnly
            ),
            "{path:?} {kind:?}"
        );
    }
}

#[tokio::test]
async fn a_file_of_a_later_version_is_refused_and_kept() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    journal.record(&charge("1"), horizon()).await.unwrap();
    journal.close().await;
    let later =
        "INSERT INTO idem_client_migration (version, name, applied_at) VALUES (999, 'later', 0)";
    raw(&path).execute(later, []).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(refused(&path).await, JournalErrorKind::Newer);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    raw(&path)
        .execute("DELETE FROM idem_client_migration WHERE version = 999", [])
        .unwrap();
    let journal = Journal::open(&path).await.unwrap();
    assert_eq!(journal.pending().await.unwrap().len(), 1);
}

#[tokio::test]
async fn rows_that_make_no_sense_are_an_error_and_never_absent() {
    for sql in [
        "state = 'paused'",
        "state = 'parked'",
        "state = 'parked', parked = 'bored'",
        "state = 'answered'",
        "state = 'answered', answer_status = 7, answer_headers = x'', answer_body = x'', answer_cut = 0",
        "state = 'answered', answer_status = 200, answer_headers = x'00', answer_body = x'', answer_cut = 0",
        "attempts = 5000000000",
    ] {
        let directory = directory();
        let path = directory.path().join("sent.db");
        let journal = Journal::open(&path).await.unwrap();
        let operation = charge("1");
        journal.record(&operation, horizon()).await.unwrap();
        raw(&path)
            .execute(&format!("UPDATE idem_client_operation SET {sql}"), [])
            .unwrap();
        for error in [
            journal.pending().await.map(drop).unwrap_err(),
            journal.entry(operation.key()).await.map(drop).unwrap_err(),
            journal.take(operation.key()).await.map(drop).unwrap_err(),
            journal
                .begin(&operation, horizon())
                .await
                .map(drop)
                .unwrap_err(),
            journal
                .unpark(operation.key(), "")
                .await
                .map(drop)
                .unwrap_err(),
            journal
                .close_operation(operation.key(), "")
                .await
                .map(drop)
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), JournalErrorKind::Corrupt, "{sql}: {error}");
        }
    }
}

#[tokio::test]
async fn bytes_that_were_altered_are_not_sent() {
    for sql in [
        "body = x'00'",
        "url = 'https://b.example/'",
        "headers = x''",
        "method = 'PUT'",
        "method = NULL",
    ] {
        let directory = directory();
        let path = directory.path().join("sent.db");
        let journal = Journal::open(&path).await.unwrap();
        let operation = charge("1");
        journal.record(&operation, horizon()).await.unwrap();
        raw(&path)
            .execute(&format!("UPDATE idem_client_operation SET {sql}"), [])
            .unwrap();
        let error = journal.take(operation.key()).await.unwrap_err();
        assert_eq!(error.kind(), JournalErrorKind::Corrupt, "{sql}: {error}");
    }
}

#[tokio::test]
#[cfg(unix)]
async fn only_its_user_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = directory();
    let path = directory.path().join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    journal.record(&charge("1"), horizon()).await.unwrap();
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[tokio::test]
#[cfg(unix)]
async fn a_file_that_is_gone_is_not_written_to_and_nothing_is_sent() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let journal = Journal::open(&path).await.unwrap();
    let server = Server::start(vec![]).await;
    std::fs::rename(&path, directory.path().join("away")).unwrap();
    let error = client(&journal)
        .send(&server.operation())
        .await
        .unwrap_err();
    let SendError::Journal { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), JournalErrorKind::Lost);
    // Nor when another one has its name.
    let other = Journal::open(&path).await.unwrap();
    let error = journal.begin(&charge("1"), horizon()).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Lost);
    assert!(other.pending().await.unwrap().is_empty());
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_closed_journal_says_so() {
    let journal = Journal::open_in_memory().await.unwrap();
    let clone = journal.clone();
    journal.close().await;
    let error = clone.pending().await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Closed);
    clone.close().await;
}

#[tokio::test]
async fn another_writer_is_waited_for_and_not_for_ever() {
    let directory = directory();
    let path = directory.path().join("sent.db");
    let options = JournalOptions::new().busy_timeout(Duration::from_millis(1));
    let journal = options.open(&path).await.unwrap();
    let mut other = raw(&path);
    let held = other
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .unwrap();
    let error = journal.begin(&charge("1"), horizon()).await.unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Busy);
    drop(held);
    assert!(matches!(
        journal.begin(&charge("1"), horizon()).await.unwrap(),
        Begun::Claimed(_)
    ));
}
