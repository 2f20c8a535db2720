use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem_postgres::sqlx::PgConnection;
use idem_postgres::sqlx::{
    self, AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _,
};
use tokio::time::timeout;

use super::{DemoError, Ending};
use crate::listen::{Lifetime, stop_asked};
use crate::service::{Database, PostgresUrl};

/// How long the schema may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Runs something until it ends or somebody asks to stop, which is then called `stopped`. In a Postgres database, if there is
/// one, it gets a schema of its own for the records, which is gone afterwards.
pub(super) async fn until_stopped<F>(
    postgres: Option<PostgresUrl>,
    stopped: Ending,
    run: impl FnOnce(Option<Database>) -> F,
) -> Result<Ending, DemoError>
where
    F: Future<Output = Result<Ending, DemoError>>,
{
    let stop = stop_asked(Lifetime::UntilSignal)?;
    tokio::pin!(stop);
    let schema = match postgres {
        None => None,
        // Once it is connected it is not stopped before the schema is there, and known.
        Some(url) => Some(tokio::select! {
            connected = connect(&url) => Schema::create(connected?, url).await?,
            () = &mut stop => return Ok(stopped),
        }),
    };
    let ending = tokio::select! {
        ending = run(schema.as_ref().map(Schema::records)) => ending,
        () = &mut stop => Ok(stopped),
    };
    // The processes that were in it are gone by now.
    let Some(schema) = schema else { return ending };
    match (ending, schema.drop_it().await) {
        (ending, Ok(())) => ending,
        (Ok(_), Err(left)) => Err(left),
        (Err(error), Err(left)) => {
            eprintln!("{left}");
            Err(error)
        }
    }
}

/// A schema for the time of one run.
#[derive(Debug)]
struct Schema {
    url: PostgresUrl,
    name: String,
}

impl Schema {
    async fn create(mut connection: PgConnection, url: PostgresUrl) -> Result<Self, DemoError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // If it is taken all the same, the server says so.
        let name = format!(
            "charges_demo_{}_{}",
            since.unwrap_or_default().as_millis(),
            std::process::id()
        );
        // Here, and not by the service: a service that is killed while it makes it could be done after it was dropped.
        let made = execute(&mut connection, format!("CREATE SCHEMA {name}")).await;
        made.map_err(|source| DemoError::Postgres {
            database: url.to_string(),
            source,
        })?;
        Ok(Self { url, name })
    }

    fn records(&self) -> Database {
        Database::Postgres {
            url: self.url.clone(),
            schema: self.name.clone(),
        }
    }

    async fn drop_it(self) -> Result<(), DemoError> {
        let Self { url, name } = self;
        let left = |why| DemoError::SchemaLeft {
            schema: name.clone(),
            database: url.to_string(),
            why,
        };
        let dropping = async {
            let mut connection = url.connect_options().connect().await?;
            execute(&mut connection, format!("DROP SCHEMA {name} CASCADE")).await?;
            connection.close().await
        };
        match timeout(GONE_WITHIN, dropping).await {
            Ok(dropped) => dropped.map_err(|error| left(error.into())),
            Err(late) => Err(left(late.into())),
        }
    }
}

async fn connect(url: &PostgresUrl) -> Result<PgConnection, DemoError> {
    let connected = url.connect_options().connect().await;
    connected.map_err(|source| DemoError::Postgres {
        database: url.to_string(),
        source,
    })
}

/// The name in it is made of digits and underscores.
async fn execute(connection: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    connection.execute(AssertSqlSafe(sql)).await.map(drop)
}
