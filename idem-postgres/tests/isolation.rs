//! The conformance suite on pools whose transactions are of another isolation level than the server's usual one, and what is
//! done again there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod tools;

use idem_core::{
    Claim, ClaimOutcome, KeyStore as _, RecordId, Span, StoreError, TransitionOutcome, async_trait,
};
use idem_postgres::{Coalescing, PgKeyStore, PgOptions};
use idem_testkit::{Foreign, Harness, Missing, OpenWrite, Unavailable};
use sqlx::Executor as _;
use sqlx::postgres::PgPoolOptions;
use support::{Schema, Server, Setup};
use tools::{Database, brief_claim, claim, complete, in_line, number, owner, renew, soon, win};

/// A setup whose transactions are of this level, if nobody says otherwise.
struct Isolated {
    setup: Setup,
    level: &'static str,
}

const fn level(level: &'static str, coalescing: fn() -> Coalescing) -> Isolated {
    Isolated {
        setup: Setup {
            server: Server::Shared,
            coalescing,
            table: None,
            shape: support::Shape::Whole,
            connections: 6,
            skew: Span::ZERO,
        },
        level,
    }
}

impl Isolated {
    fn store(&self, data: &Schema, connections: u32) -> PgKeyStore {
        let options = (*data.pool(1).connect_options()).clone();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(options.options([("default_transaction_isolation", self.level)]));
        self.setup.options(data).build(pool)
    }
}

#[async_trait]
impl Harness for Isolated {
    type Data = Schema;
    type Store = PgKeyStore;

    async fn create(&self) -> Result<Schema, Unavailable> {
        let data = Schema::new(self.setup.server, self.setup.table)?;
        let store = self.store(&data, 1);
        store.migrate().await.map_err(Unavailable::new)?;
        let mut connection = store.pool().acquire().await.map_err(Unavailable::new)?;
        let sql =
            "SELECT 1::bigint WHERE current_setting('transaction_isolation') = 'read committed'";
        let usual = connection.fetch_all(sql).await.map_err(Unavailable::new)?;
        assert!(usual.is_empty(), "the level was not set");
        drop(connection);
        store.pool().close().await;
        Ok(data)
    }

    async fn open(&self, data: &Schema) -> Result<PgKeyStore, Unavailable> {
        Ok(self.store(data, self.setup.connections))
    }

    async fn destroy(&self, data: &Schema) {
        self.setup.destroy(data).await;
    }

    async fn open_with_one_connection(&self, data: &Schema) -> Result<PgKeyStore, Missing> {
        Ok(self.store(data, 1))
    }

    async fn corrupt(&self, data: &Schema, id: &RecordId) -> Result<(), Missing> {
        self.setup.corrupt(data, id).await
    }

    async fn interfere(
        &self,
        data: &Schema,
        write: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        self.setup.interfere(data, write).await
    }
}

mod repeatable_read {
    idem_testkit::conformance!(super::level("repeatable read", super::Coalescing::default));
}

mod serializable {
    idem_testkit::conformance!(super::level("serializable", super::Coalescing::default));
}

/// A statement that has looked at the table before it met somebody else's lock is refused by the server when the lock is
/// gone. It is sent again, and its caller is told what it then finds.
#[tokio::test]
async fn a_write_that_the_server_undoes_is_done_again() {
    for level in ["repeatable read", "serializable"] {
        let name = format!("done_again_{}", level.replace(' ', "_"));
        let Some(database) = Database::new(&name) else {
            return;
        };
        for coalescing in [Coalescing::default(), Coalescing::Off] {
            let options = database.connect_options();
            let pool = PgPoolOptions::new()
                .max_connections(4)
                .connect_lazy_with(options.options([("default_transaction_isolation", level)]));
            let store = PgOptions::new()
                .coalescing(coalescing)
                .lock_wait(tools::SOON)
                .build(pool);
            store.migrate().await.unwrap();
            let key = |what: &str| match coalescing {
                Coalescing::Off => format!("{what}-alone"),
                _ => what.to_owned(),
            };

            // Its row is renewed by somebody else meanwhile, and still its own.
            let renewed = claim(&key("renewed"));
            win(&store, &renewed).await;
            let outcome = meanwhile(&database, &store, &renewed, "revision = revision + 1").await;
            assert!(
                matches!(outcome, Ok(TransitionOutcome::Applied { .. })),
                "{outcome:?}"
            );

            // Its row is taken over meanwhile.
            let taken = brief_claim(&key("taken"));
            win(&store, &taken).await;
            let take = "token = decode('ffffffffffffffffffffffffffffffff', 'hex'), revision = revision + 1";
            let outcome = meanwhile(&database, &store, &taken, take).await;
            let Ok(TransitionOutcome::Lost(Some(held))) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(*held.record.token.as_bytes(), [0xff; 16]);

            // Somebody else's first claim commits meanwhile.
            let raced = claim(&key("raced"));
            let mut other = database.connection().await;
            other.execute("BEGIN").await.unwrap();
            let winner = claim(&key("raced"));
            support::insert(&mut other, "idem_record", &winner).await;
            let claiming = {
                let (store, raced) = (store.clone(), raced.clone());
                in_line(async move { store.claim(&raced).await })
            };
            database.until_waiting(1).await;
            other.execute("COMMIT").await.unwrap();
            let outcome = soon(claiming).await.unwrap();
            let Ok(ClaimOutcome::Held(held)) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(held.record.token, winner.token());
            assert_eq!(number(&mut other, "SELECT 1::bigint").await, 1);
        }
    }
}

/// What an owner's answer comes to while somebody else changes its row.
async fn meanwhile(
    database: &Database,
    store: &PgKeyStore,
    claim: &Claim,
    set: &str,
) -> Result<TransitionOutcome, StoreError> {
    let mut other = database.connection().await;
    let key = claim.id().key().as_str();
    let sql = format!("BEGIN; UPDATE idem_record SET {set} WHERE \"key\" = '{key}'");
    other
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)))
        .await
        .unwrap();
    // The first is alone, and the others travel together.
    let change = || [complete("x"), renew(), renew()];
    let mut writing: Vec<_> = change()
        .into_iter()
        .map(|change| {
            let (store, claim) = (store.clone(), claim.clone());
            in_line(async move { store.transition(claim.id(), owner(&claim), &change).await })
        })
        .collect();
    database.until_waiting(1).await;
    other.execute("COMMIT").await.unwrap();
    let finished = writing.remove(0);
    for renewing in writing {
        // Before the answer, or after it, or it has met the lock, for which it does not wait.
        let renewed = soon(renewing).await.unwrap();
        assert!(
            matches!(
                renewed,
                Ok(TransitionOutcome::Applied { .. }
                    | TransitionOutcome::Lost(Some(_))
                    | TransitionOutcome::Contended { .. })
            ),
            "{renewed:?}"
        );
    }
    soon(finished).await.unwrap()
}
