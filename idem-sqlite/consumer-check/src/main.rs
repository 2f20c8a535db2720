//! Builds, links and runs idem-sqlite, idem-postgres and idem-redis-cache beside sqlx with all that its users switch on.

use idem_core::{IdempotencyKey, KeyStore as _, RecordId, Scope};
use idem_postgres::PgKeyStore;
use idem_redis_cache::{Namespace, NegativeCache};
use idem_sqlite::SqliteKeyStore;

#[derive(sqlx::FromRow)]
struct Row {
    _id: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _migrations = sqlx::migrate::Migrator::DEFAULT;
    let _query = sqlx::query_as::<_, Row>("SELECT 1 AS _id").persistent(false) as sqlx::query::QueryAs<'_, sqlx::Postgres, _, _>;

    let store = SqliteKeyStore::open_in_memory().await?;
    let id = RecordId::new(Scope::new("s")?, IdempotencyKey::new("k")?);
    assert!(store.load(&id).await?.is_none());
    store.close().await;

    let pool = sqlx::PgPool::connect_lazy("postgres://localhost/none")?;
    let cached = NegativeCache::open(PgKeyStore::new(pool), "redis://127.0.0.1/", Namespace::new("n")?)?;
    println!("{:?}", cached.store());
    println!("idem-sqlite and sqlx are in one program");
    Ok(())
}
