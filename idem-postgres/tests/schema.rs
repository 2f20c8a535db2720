//! How the tables come to be there, and what is found out before the first request.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use idem_core::{
    ClaimOutcome, IdempotencyKey, KeyStore as _, RecoveryPoint, Response, Scope, StoreError,
    StoreErrorKind, Transition, TransitionOutcome,
};
use idem_postgres::{PgKeyStore, PgOptions, Pooling};
use idem_test_servers::{PgBouncer, PoolMode, Postgres, Version, unless_missing};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor as _, PgPool, Row as _};
use tools::{Database, claim, lease, own_server, owner, soon, win};

const RECORDS: &str = include_str!("../src/migrations/0001_records.sql");
const PARTITIONS: &str = include_str!("../src/partitions.sql");

/// As many programs as are started at once, each with a connection of its own, in one schema that nobody has made.
async fn migrate_at_once(pools: impl Iterator<Item = PgPool>, pooling: Pooling) {
    let tasks: Vec<_> = pools
        .enumerate()
        .map(|(number, pool)| {
            let options = PgOptions::new()
                .schema("Money")
                .unwrap()
                // Two services share the schema, each with a table.
                .table(format!("Keys_{}", number % 2))
                .unwrap()
                .pooling(pooling);
            tokio::spawn(async move {
                let store = options.build(pool);
                store.migrate().await?;
                store.check().await?;
                // Whoever is done first may be at work while the others are still at it.
                store.claim(&claim(&format!("k-{number}"))).await
            })
        })
        .collect();
    for task in tasks {
        let claimed = soon(task).await.unwrap();
        assert!(matches!(claimed, Ok(ClaimOutcome::Won(_))), "{claimed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_programs_migrate_at_once() {
    let Some(database) = Database::new("twenty_at_once") else {
        return;
    };
    migrate_at_once((0..20).map(|_| database.pool(1)), Pooling::Session).await;
    let steps = "SELECT (SELECT count(*) FROM \"Money\".\"Keys_0_migration\") + \
                 (SELECT count(*) FROM \"Money\".\"Keys_1_migration\")";
    assert_eq!(database.number(steps).await, 2);
    let keys = "SELECT count(*) FROM \"Money\".\"Keys_0\"";
    assert_eq!(database.number(keys).await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_programs_migrate_at_once_behind_a_pooler() {
    if Database::new("twenty_pooled").is_none() {
        return;
    }
    let Some(server) = own_server() else { return };
    let pooler = PgBouncer::start(server, PoolMode::Transaction, 2);
    let Some(pooler) = unless_missing(pooler) else {
        return;
    };
    let pools = (0..20).map(|_| {
        PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy(&pooler.url_for("twenty_pooled"))
            .unwrap()
    });
    migrate_at_once(pools, Pooling::Transaction).await;
}

/// What a check or a migration found.
fn refused(found: Result<(), StoreError>) -> String {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn tables_that_do_not_fit_are_found_out() {
    let Some(database) = Database::new("tables_that_do_not_fit") else {
        return;
    };
    let store = PgKeyStore::new(database.pool(2));
    assert!(refused(store.check().await).contains("is not there"));
    // And a claim says the same.
    let error = store.claim(&claim("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("run `migrate`"), "{error}");

    store.migrate().await.unwrap();
    store.check().await.unwrap();

    database
        .run("UPDATE idem_record_migration SET version = 0")
        .await;
    let older = refused(store.check().await);
    assert!(older.contains("has schema version 0"), "{older}");

    database
        .run("UPDATE idem_record_migration SET version = 99")
        .await;
    let newer = refused(store.check().await);
    assert!(newer.contains("newer program"), "{newer}");
    assert_eq!(refused(store.migrate().await), newer);

    database
        .run("UPDATE idem_record_migration SET version = 1")
        .await;
    store.check().await.unwrap();
    database
        .run("ALTER TABLE idem_record DROP COLUMN reclaims")
        .await;
    let altered = refused(store.check().await);
    assert!(altered.contains("column"), "{altered}");
    database
        .run("ALTER TABLE idem_record ADD reclaims bigint NOT NULL DEFAULT 0; ALTER TABLE idem_record DROP CONSTRAINT idem_record_pkey")
        .await;
    let keyless = refused(store.check().await);
    assert!(keyless.contains("unique"), "{keyless}");
}

#[tokio::test]
async fn a_server_that_forgets_is_found_out() {
    let Some(database) = Database::new("a_server_that_forgets") else {
        return;
    };
    database
        .store(PgOptions::new(), 1)
        .await
        .check()
        .await
        .unwrap();
    let pool = |settings: &[(&str, &str)]| {
        let options = database.connect_options().options(settings.iter().copied());
        PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(options)
    };
    let off = PgKeyStore::new(pool(&[("synchronous_commit", "off")]));
    let said = refused(off.check().await);
    assert!(said.contains("synchronous_commit is off"), "{said}");
    let forgone = PgOptions::new().without_durability();
    let off = pool(&[("synchronous_commit", "off")]);
    forgone.build(off).check().await.unwrap();
    // A program that may only read cannot claim.
    let read_only = PgKeyStore::new(pool(&[("default_transaction_read_only", "on")]));
    assert!(read_only.check().await.is_err());
}

/// One without `fsync`, which then becomes a standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_the_one_is_found_out() {
    let started = Postgres::builder(Version::V15)
        .setting("fsync", "off")
        .start();
    let Some(mut postgres) = unless_missing(started) else {
        return;
    };
    let pool = |url: &str| {
        PgPoolOptions::new()
            .max_connections(2)
            .connect_lazy(url)
            .unwrap()
    };
    let store = PgKeyStore::new(pool(&postgres.url()));
    store.migrate().await.unwrap();
    let said = refused(store.check().await);
    assert!(said.contains("fsync is off"), "{said}");

    let sql =
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    postgres.psql("postgres", sql).unwrap();
    let options = || PgOptions::new().without_durability();
    for pooling in [Pooling::Session, Pooling::Transaction] {
        let latin = options()
            .pooling(pooling)
            .build(pool(&postgres.url_for("latin")));
        latin.migrate().await.unwrap();
        let said = refused(latin.check().await);
        assert!(said.contains("encoding is LATIN1"), "{said}");
    }

    store.pool().close().await;
    let url = postgres.url();
    tokio::task::block_in_place(|| {
        postgres.stop_fast().unwrap();
        std::fs::write(postgres.data_directory().join("standby.signal"), "").unwrap();
        postgres.restart().unwrap();
    });
    let standby = options().build(pool(&url));
    for error in [
        standby.check().await.unwrap_err(),
        standby.claim(&claim("k")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("standby"), "{error}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_found_out() {
    let Some(database) = Database::new("rights_that_are_missing") else {
        return;
    };
    database
        .run("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN")
        .await;
    let options = || PgOptions::new().schema("money").unwrap();
    let owner_of_all = options().build(database.pool(1));
    let clerk = options().build(
        PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(database.connect_options().username("clerk")),
    );
    // He may not make the schema, and says so.
    refused(clerk.migrate().await);
    owner_of_all.migrate().await.unwrap();
    refused(clerk.check().await);
    let grants = [
        "USAGE ON SCHEMA money",
        "SELECT ON money.idem_record_migration",
        "SELECT ON money.idem_record",
        "INSERT ON money.idem_record",
        "UPDATE ON money.idem_record",
    ];
    for grant in grants {
        database.run(&format!("GRANT {grant} TO clerk")).await;
        let said = refused(clerk.check().await);
        assert!(said.contains("right"), "after {grant}: {said}");
    }
    database
        .run("GRANT DELETE ON money.idem_record TO clerk")
        .await;
    // Nothing more is needed.
    clerk.migrate().await.unwrap();
    clerk.check().await.unwrap();
    win(&clerk, &claim("k")).await;
    database.run("DROP OWNED BY clerk; DROP ROLE clerk").await;
}

/// Columns, constraints, indexes and settings, as the catalogue has them.
async fn shape(database: &Database) -> Vec<String> {
    let sql = "SELECT format('%s.%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
               l.collname, pg_get_expr(d.adbin, d.adrelid)) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
               LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_attrdef d ON d.adrelid = c.oid \
               AND d.adnum = a.attnum WHERE c.relname LIKE 'idem%' AND c.relkind = 'r' AND a.attnum > 0 \
               UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid \
               WHERE c.relname LIKE 'idem%' \
               UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint \
               WHERE conrelid::regclass::text LIKE 'idem%' \
               UNION ALL SELECT relname || ' ' || reloptions::text FROM pg_class WHERE relname LIKE 'idem%' \
               AND reloptions IS NOT NULL \
               UNION ALL SELECT format('%s %s', version, name) FROM idem_record_migration ORDER BY 1";
    let mut connection = database.connection().await;
    let rows = connection.fetch_all(sql).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_files_leave_the_same_behind_as_migrate() {
    let (Some(by_call), Some(by_file)) = (Database::new("by_call"), Database::new("by_file"))
    else {
        return;
    };
    by_call.store(PgOptions::new(), 1).await;
    own_server().unwrap().psql("by_file", RECORDS).unwrap();
    let shape_of_call = shape(&by_call).await;
    assert!(shape_of_call.len() > 40, "{shape_of_call:?}");
    assert_eq!(shape_of_call, shape(&by_file).await);
    let store = PgKeyStore::new(by_file.pool(1));
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(shape_of_call, shape(&by_file).await);
    win(&store, &claim("k")).await;
}

/// A migration of the user's: the records are the same, and so is what can be done with them.
#[tokio::test]
async fn a_table_that_is_put_into_partitions_keeps_its_records() {
    let Some(database) = Database::new("put_into_partitions") else {
        return;
    };
    let store = database.store(PgOptions::new(), 2).await;
    let (answered, running) = (claim("answered"), claim("running"));
    for claim in [&answered, &running] {
        win(&store, claim).await;
    }
    let change = Transition::Complete(Response::new(201).body("before"));
    let done = store.transition(answered.id(), owner(&answered), &change);
    assert!(matches!(done.await, Ok(TransitionOutcome::Applied { .. })));
    let before = store.load(answered.id()).await.unwrap().unwrap().record;

    let server = own_server().unwrap();
    let name = "put_into_partitions";
    server.psql(name, PARTITIONS).unwrap();
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'idem_record'::regclass";
    assert_eq!(database.number(partitions).await, 8);
    let room = "SELECT min(pg_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'idem_record'::regclass";
    assert!(database.number(room).await > 700 * 1024);

    // The same store goes on.
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    let after = store.load(answered.id()).await.unwrap().unwrap().record;
    assert_eq!(after, before);
    let done = store.transition(running.id(), owner(&running), &change);
    assert!(matches!(done.await, Ok(TransitionOutcome::Applied { .. })));
    assert!(matches!(
        store.claim(&claim("running")).await,
        Ok(ClaimOutcome::Held(_))
    ));
    win(&store, &claim("new")).await;
}

/// Names with capitals are other names than those without.
#[tokio::test]
async fn names_keep_their_case() {
    let Some(database) = Database::new("names_keep_their_case") else {
        return;
    };
    let options = |schema: &str, table: &str| {
        PgOptions::new()
            .schema(schema)
            .unwrap()
            .table(table)
            .unwrap()
    };
    let mut stores = Vec::new();
    for (schema, table) in [
        ("Money", "Keys"),
        ("Money", "keys"),
        ("money", "Keys"),
        ("money", "keys"),
    ] {
        let store = options(schema, table).build(database.pool(1));
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        stores.push(store);
    }
    for store in &stores {
        win(store, &claim("k")).await;
    }
    // The words of the language are names like any other.
    let store = options("select", "table").build(database.pool(1));
    store.migrate().await.unwrap();
    win(&store, &claim("k")).await;
}

/// Bytes are bytes: none of them ends a text, and no JSON is read on the way.
#[tokio::test]
async fn answers_come_back_byte_for_byte() {
    let Some(database) = Database::new("byte_for_byte") else {
        return;
    };
    // What would hold a NUL in a column of text cannot be made.
    assert!(IdempotencyKey::new("a\0b").is_err());
    assert!(Scope::new("a\0b").is_err());
    let every: Vec<u8> = (0..=255).collect();
    let json = b"{ \"b\" :1.0,\n\t\"a\":1e0, \"a\" : 10E-1,\"n\":9007199254740993 , \"u\":\"\\u0041\\/\xc3\xa9\" }  \n".to_vec();
    for (name, pooling) in [
        ("session", Pooling::Session),
        ("text", Pooling::Transaction),
    ] {
        let store = database.store(PgOptions::new().pooling(pooling), 2).await;
        for (index, body) in [every.clone(), json.clone(), vec![0; 3], Vec::new()]
            .into_iter()
            .enumerate()
        {
            let claim = claim(&format!("{name}-{index}"));
            win(&store, &claim).await;
            let point = RecoveryPoint::new("p")
                .unwrap()
                .with_data(body.clone())
                .unwrap();
            let change = Transition::Checkpoint {
                point: point.clone(),
                sequence: 1,
                lease: lease(),
            };
            for change in [
                change,
                Transition::Complete(
                    Response::new(200)
                        .header("x-\0-name", body.clone())
                        .header("x-\0-name", "second")
                        .body(body.clone()),
                ),
            ] {
                let done = store.transition(claim.id(), owner(&claim), &change).await;
                assert!(
                    matches!(done, Ok(TransitionOutcome::Applied { .. })),
                    "{done:?}"
                );
                let held = store.load(claim.id()).await.unwrap().unwrap();
                assert_eq!(held.record.recovery.as_ref().unwrap().point, point);
                if let Transition::Complete(response) = &change {
                    assert_eq!(held.record.state.response(), Some(response));
                }
            }
        }
    }
}

/// What roles and databases set for their connections is theirs, and changes no answer.
#[tokio::test]
async fn the_settings_of_a_connection_change_nothing() {
    let Some(database) = Database::new("settings_of_a_connection") else {
        return;
    };
    database
        .run(
            "ALTER DATABASE settings_of_a_connection SET bytea_output = 'escape'; \
             ALTER DATABASE settings_of_a_connection SET standard_conforming_strings = off; \
             ALTER DATABASE settings_of_a_connection SET datestyle = 'German, DMY'; \
             ALTER DATABASE settings_of_a_connection SET timezone = 'Asia/Kathmandu'; \
             ALTER DATABASE settings_of_a_connection SET intervalstyle = 'sql_standard'; \
             ALTER DATABASE settings_of_a_connection SET client_encoding = 'LATIN1'; \
             ALTER DATABASE settings_of_a_connection SET lock_timeout = '1h'",
        )
        .await;
    for (name, pooling) in [
        ("session", Pooling::Session),
        ("text", Pooling::Transaction),
    ] {
        let store = database.store(PgOptions::new().pooling(pooling), 2).await;
        store.check().await.unwrap();
        let claim = claim(&format!("{name}\\'"));
        let won = win(&store, &claim).await;
        let every: Vec<u8> = (0..=255).collect();
        let response = Response::new(200).header("x-é", "ü").body(every);
        let change = Transition::Complete(response.clone());
        let done = store.transition(claim.id(), owner(&claim), &change).await;
        assert!(
            matches!(done, Ok(TransitionOutcome::Applied { .. })),
            "{done:?}"
        );
        let held = store.load(claim.id()).await.unwrap().unwrap();
        assert_eq!(held.record.state.response(), Some(&response));
        assert_eq!(held.record.locked_at, won.record.locked_at);
        assert_eq!(held.record.token, claim.token());
    }
}
