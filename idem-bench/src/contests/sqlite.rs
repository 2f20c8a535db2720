//! The SQLite store beside what one writes by hand with rusqlite: a transaction for each statement, and the same
//! durability, on the same file system.
//!
//! By hand there are two ways, and both are here: all threads share one connection behind a mutex, or each has its
//! own and they meet at the file's write lock. Their table has what a key needs and no more, and no index but the
//! primary key, so a row of theirs is cheaper than one of ours.
//!
//! Every round begins with a file of its own whose log has its full length already. While a log still grows, syncing
//! it also syncs its length, which takes several times as long; whoever is the first to have it grown would win by
//! that, and in a server it is over in the first second.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_core::{
    Claim, ClaimOutcome, Decision, Expect, Fingerprint, IdempotencyKey, KeyStore as _, Nulls,
    Operation, Origin, OwnerToken, Policy, Profile, RecordId, Request, Response, Rules, Scope,
    Transition, TransitionOutcome, decide,
};
use idem_sqlite::rusqlite::{Connection, TransactionBehavior};
use idem_sqlite::{SqliteKeyStore, SqliteOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::contest::{Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Caller, Round, runtime, tasks, threads};

const OPERATION: &str = "POST /v1/charges";
const SCOPE: &str = "acct_1";
const BODY: &[u8] = br#"{"amount":1999,"currency":"EUR","customer":"cus_8f3k2"}"#;
const ANSWER: &str = r#"{"id":"ch_1","status":"succeeded","amount":1999,"currency":"EUR"}"#;
const CALLERS: [u32; 3] = [1, 8, 64];

/// How many keys a replay goes round.
const REPLAYED: u64 = 1000;

pub(crate) fn contests(place: &Place) -> Result<Vec<Contest>, Fault> {
    let goals = || {
        [(1, 0.85), (64, 10.0)]
            .map(|(callers, ratio)| Goal { callers, ratio })
            .to_vec()
    };
    let by_hand = |way| ByHand {
        place: place.directory.clone(),
        way,
    };
    let length = |full| Length::Time {
        full: Duration::from_millis(full),
        quick: Duration::from_millis(20),
    };
    let write = Contest {
        name: "sqlite/claim-complete",
        operation: "claim a fresh key and store its response, both synced",
        callers: CALLERS.to_vec(),
        length: length(1500),
        ours: Box::new(Ours::new(place, Case::ClaimAndComplete)?),
        others: vec![
            Other {
                role: Role::Rival,
                contestant: Box::new(by_hand(Way::OneConnection)),
                goals: goals(),
            },
            Other {
                role: Role::Rival,
                contestant: Box::new(by_hand(Way::ConnectionEach)),
                goals: goals(),
            },
        ],
    };
    let replay = Contest {
        name: "sqlite/replay",
        operation: "find the response of a finished key",
        callers: CALLERS.to_vec(),
        length: length(400),
        ours: Box::new(Ours::new(place, Case::Replay)?),
        others: vec![Other {
            role: Role::Floor,
            contestant: Box::new(Select {
                place: place.directory.clone(),
            }),
            goals: Vec::new(),
        }],
    };
    Ok(vec![write, replay])
}

/// As long as the UUIDs that clients use.
fn key(caller: u32, number: u64) -> String {
    format!("{caller:08x}-9c6d-4b0e-8f5a-{number:012x}")
}

/// An empty database, its log at full length.
struct Database {
    file: PathBuf,
    /// The log is removed with the last connection, so there is one until the round is over.
    _keeps_log: Connection,
    _directory: TempDir,
}

impl Database {
    fn new(place: &Path) -> Result<Self, Fault> {
        let directory = tempfile::tempdir_in(place)?;
        let file = directory.path().join("keys.sqlite");
        let connection = Connection::open(&file)?;
        // More than the thousand pages after which SQLite begins the log again.
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; CREATE TABLE filling (bytes BLOB); \
             INSERT INTO filling VALUES (randomblob(6000000)); DROP TABLE filling; \
             PRAGMA wal_checkpoint(RESTART)",
        )?;
        for entry in directory.path().read_dir()? {
            File::open(entry?.path())?.sync_all()?;
        }
        Ok(Self {
            file,
            _keeps_log: connection,
            _directory: directory,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    ClaimAndComplete,
    Replay,
}

struct Ours {
    place: PathBuf,
    runtime: Runtime,
    case: Case,
}

impl Ours {
    fn new(place: &Place, case: Case) -> Result<Self, Fault> {
        Ok(Self {
            place: place.directory.clone(),
            runtime: runtime()?,
            case,
        })
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        "idem-sqlite".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let database = Database::new(&self.place)?;
        let operation = Operation::new(OPERATION)?;
        let rules = Rules::new(Profile::new(1), Nulls::Distinct);
        let fingerprint = rules.of(&operation).bytes(BODY).finish();
        let open = |options: SqliteOptions| {
            self.runtime
                .block_on(options.open(&database.file))
                .map(Arc::new)
        };
        if self.case == Case::Replay {
            // Nobody needs these to be on the disk, and it takes far longer than the round.
            let store = open(SqliteOptions::new().without_durability())?;
            let mut filling = OurCaller {
                store: Arc::clone(&store),
                operation: operation.clone(),
                fingerprint,
                case: self.case,
                number: 0,
                next: 0,
            };
            self.runtime.block_on(async {
                for number in 0..REPLAYED {
                    filling.claim_and_complete(number).await?;
                }
                store.close().await;
                Ok::<_, Fault>(())
            })?;
        }
        let store = open(SqliteOptions::new())?;
        let caller = |number| OurCaller {
            store: Arc::clone(&store),
            operation: operation.clone(),
            fingerprint,
            case: self.case,
            number,
            next: 0,
        };
        let round = tasks(&self.runtime, plan, (0..plan.callers).map(caller).collect());
        self.runtime.block_on(store.close());
        round
    }
}

struct OurCaller {
    store: Arc<SqliteKeyStore>,
    operation: Operation,
    fingerprint: Fingerprint,
    case: Case,
    number: u32,
    next: u64,
}

impl OurCaller {
    fn claim(&self, caller: u32, number: u64) -> Result<Claim, Fault> {
        let id = RecordId::new(
            Scope::new(SCOPE)?,
            IdempotencyKey::new(key(caller, number))?,
        );
        let request = Request::new(id, self.operation.clone(), self.fingerprint.into());
        // Whoever replays is somebody else than whoever claimed, and by hand the token is as cheap.
        let token = token(self.number, self.next);
        Ok(Claim::new(
            request,
            &Policy::default(),
            Origin::from_bytes(token),
            OwnerToken::from_bytes(token),
        ))
    }

    async fn claim_and_complete(&mut self, number: u64) -> Result<(), Fault> {
        let claim = self.claim(self.number, number)?;
        self.next += 1;
        let ClaimOutcome::Won(_) = self.store.claim(&claim).await? else {
            return Err("a fresh key was held".into());
        };
        let complete = Transition::Complete(
            Response::new(201)
                .header("content-type", "application/json")
                .body(ANSWER),
        );
        let owner = Expect::Owner(claim.token());
        match self.store.transition(claim.id(), owner, &complete).await? {
            TransitionOutcome::Applied { .. } => Ok(()),
            other => Err(format!("not completed: {other:?}").into()),
        }
    }

    async fn replay(&mut self) -> Result<(), Fault> {
        let claim = self.claim(0, self.next % REPLAYED)?;
        self.next += 1;
        let ClaimOutcome::Held(held) = self.store.claim(&claim).await? else {
            return Err("a finished key was claimed".into());
        };
        match decide(&claim, Some(&held)) {
            Decision::Replay(response) => {
                black_box(response);
                Ok(())
            }
            other => Err(format!("not replayed: {other:?}").into()),
        }
    }
}

impl Caller for OurCaller {
    async fn call(&mut self) -> Result<(), Fault> {
        match self.case {
            Case::ClaimAndComplete => self.claim_and_complete(self.next).await,
            Case::Replay => self.replay().await,
        }
    }
}

fn token(caller: u32, number: u64) -> [u8; 16] {
    let mut token = [1; 16];
    token[..4].copy_from_slice(&caller.to_be_bytes());
    token[8..].copy_from_slice(&number.to_be_bytes());
    token
}

/// How threads share a database by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    OneConnection,
    ConnectionEach,
}

struct ByHand {
    place: PathBuf,
    way: Way,
}

impl Contestant for ByHand {
    fn name(&self) -> String {
        match self.way {
            Way::OneConnection => "rusqlite, one connection".to_owned(),
            Way::ConnectionEach => "rusqlite, a connection each".to_owned(),
        }
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let database = Database::new(&self.place)?;
        let shared = Arc::new(Mutex::new(open(&database.file)?));
        let callers = (0..plan.callers)
            .map(|caller| {
                let connection = match self.way {
                    Way::OneConnection => Arc::clone(&shared),
                    Way::ConnectionEach => Arc::new(Mutex::new(open(&database.file)?)),
                };
                let mut next = 0;
                Ok(move || {
                    let key = key(caller, next);
                    next += 1;
                    let connection = || connection.lock().unwrap_or_else(PoisonError::into_inner);
                    claim_by_hand(&mut connection(), &key, token(caller, next))?;
                    // Another thread may have the connection between the two, as when work is done meanwhile.
                    complete_by_hand(&mut connection(), &key, token(caller, next))
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        threads(plan, callers)
    }
}

fn open(file: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open(file)?;
    // Longer than a round, so that nobody has to begin again.
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         CREATE TABLE IF NOT EXISTS keys (scope TEXT NOT NULL, key TEXT NOT NULL, operation TEXT NOT NULL, \
         fingerprint BLOB NOT NULL, status INTEGER NOT NULL, token BLOB NOT NULL, created_at INTEGER NOT NULL, \
         expires_at INTEGER, code INTEGER, headers BLOB, body BLOB, PRIMARY KEY (scope, key)) STRICT",
    )?;
    Ok(connection)
}

fn claim_by_hand(connection: &mut Connection, key: &str, token: [u8; 16]) -> Result<(), Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let claimed = transaction
        .prepare_cached(
            "INSERT INTO keys (scope, key, operation, fingerprint, status, token, created_at) \
             VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6) ON CONFLICT DO NOTHING",
        )?
        .execute((SCOPE, key, OPERATION, [7_u8; 32], token, now()))?;
    transaction.commit()?;
    match claimed {
        1 => Ok(()),
        _ => Err("a fresh key was held".into()),
    }
}

fn complete_by_hand(connection: &mut Connection, key: &str, token: [u8; 16]) -> Result<(), Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let completed = transaction
        .prepare_cached(
            "UPDATE keys SET status = 1, code = 201, headers = ?1, body = ?2, expires_at = ?3 \
             WHERE scope = ?4 AND key = ?5 AND token = ?6 AND status = 0",
        )?
        .execute((
            b"content-type: application/json".as_slice(),
            ANSWER.as_bytes(),
            now() + 86_400_000_000,
            SCOPE,
            key,
            token,
        ))?;
    transaction.commit()?;
    match completed {
        1 => Ok(()),
        _ => Err("the key was somebody else's".into()),
    }
}

/// Microseconds since 1970.
fn now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX))
}

/// Each thread with a connection and a prepared statement of its own: no queue, no other thread, no decision.
struct Select {
    place: PathBuf,
}

impl Contestant for Select {
    fn name(&self) -> String {
        "SELECT, a connection each".to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let database = Database::new(&self.place)?;
        let mut filling = open(&database.file)?;
        // Nobody needs these to be on the disk, and it takes far longer than the round.
        filling.execute_batch("PRAGMA synchronous = OFF")?;
        for number in 0..REPLAYED {
            claim_by_hand(&mut filling, &key(0, number), token(0, number))?;
            complete_by_hand(&mut filling, &key(0, number), token(0, number))?;
        }
        drop(filling);
        let callers = (0..plan.callers)
            .map(|_| {
                let connection = open(&database.file)?;
                let mut next = 0;
                Ok(move || {
                    select(&connection, &key(0, next % REPLAYED))?;
                    next += 1;
                    Ok(())
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        threads(plan, callers)
    }
}

fn select(connection: &Connection, key: &str) -> Result<(), Fault> {
    let row: (i64, Vec<u8>, i64, Vec<u8>, Vec<u8>) = connection
        .prepare_cached(
            "SELECT status, fingerprint, code, headers, body FROM keys WHERE scope = ?1 AND key = ?2",
        )?
        .query_row((SCOPE, key), |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
            ))
        })?;
    black_box(row);
    Ok(())
}
