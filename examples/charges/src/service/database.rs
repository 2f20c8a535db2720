use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use idem_core::KeyStore;
use idem_postgres::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use idem_postgres::{PgKeyStore, PgOptions};
use idem_sqlite::SqliteKeyStore;
use thiserror::Error;

use super::ServiceError;

/// Where the records are.
#[derive(Debug, Clone)]
pub enum Database {
    /// In a SQLite file.
    Sqlite(PathBuf),
    /// In a schema of a Postgres database. The service makes both it and the table if they are missing.
    Postgres {
        /// The database.
        url: PostgresUrl,
        /// The schema.
        schema: String,
    },
}

/// The schema of the records, if no other is named.
const SCHEMA: &str = "charges";

/// How long a request waits for a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

impl Database {
    /// A Postgres database for what begins as its URL does, and a SQLite file for anything else.
    ///
    /// # Errors
    ///
    /// [`InvalidPostgresUrl`] for a URL that is none.
    pub fn parse(text: OsString) -> Result<Self, InvalidPostgresUrl> {
        match text.to_str().filter(|text| PostgresUrl::is_meant(text)) {
            None => Ok(Self::Sqlite(text.into())),
            Some(url) => Ok(Self::Postgres {
                url: PostgresUrl::parse(url)?,
                schema: SCHEMA.to_owned(),
            }),
        }
    }

    /// The options with which another process finds the same.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let option = |name: &str, value: &OsStr| [name.into(), value.to_owned()];
        match self {
            Self::Sqlite(path) => option("--store", path.as_os_str()).into(),
            Self::Postgres { url, schema } => {
                let store = option("--store", url.text.as_ref());
                let schema = option("--schema", schema.as_ref());
                [store, schema].concat()
            }
        }
    }

    /// What it is called.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres { .. } => "Postgres",
        }
    }

    /// Opens it, with its tables in the version that this program needs.
    pub(super) async fn open(&self) -> Result<Open, ServiceError> {
        match self {
            Self::Sqlite(path) => Ok(Open::Sqlite(Arc::new(SqliteKeyStore::open(path).await?))),
            Self::Postgres { url, schema } => {
                let pool = PgPoolOptions::new()
                    .acquire_timeout(CONNECTS_WITHIN)
                    .connect_lazy_with(url.connect_options());
                let store = PgOptions::new().schema(schema)?.build(pool);
                store.migrate().await?;
                store.check().await?;
                Ok(Open::Postgres(store))
            }
        }
    }
}

/// Without a password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres { url, schema } => write!(f, "the schema {schema} of {url}"),
        }
    }
}

/// A store that is open.
#[derive(Debug)]
pub(super) enum Open {
    Sqlite(Arc<SqliteKeyStore>),
    Postgres(PgKeyStore),
}

impl Open {
    pub(super) fn store(&self) -> Arc<dyn KeyStore> {
        match self {
            Self::Sqlite(store) => store.clone(),
            Self::Postgres(store) => Arc::new(store.clone()),
        }
    }

    pub(super) async fn close(self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.pool().close().await,
        }
    }
}

/// The address of a Postgres database. It shows its password to nobody.
#[derive(Clone)]
pub struct PostgresUrl {
    text: String,
    options: Box<PgConnectOptions>,
}

impl PostgresUrl {
    fn is_meant(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }

    /// The address that is written so.
    ///
    /// # Errors
    ///
    /// [`InvalidPostgresUrl`] if it is none.
    pub fn parse(text: &str) -> Result<Self, InvalidPostgresUrl> {
        let options = text.parse();
        Ok(Self {
            text: text.to_owned(),
            options: Box::new(options.map_err(|error| InvalidPostgresUrl(Box::new(error)))?),
        })
    }

    /// How to connect.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        (*self.options).clone()
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        let user = options.get_username();
        let database = options.get_database().unwrap_or(user);
        write!(f, "the Postgres database {database} on ")?;
        match options.get_socket() {
            Some(socket) => write!(f, "{}", socket.display()),
            None => write!(f, "{}:{}", options.get_host(), options.get_port()),
        }
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

/// A text that begins like the URL of a Postgres database, and is none.
#[derive(Debug, Error)]
#[error("the URL of the Postgres database is not like postgres://user@host:5432/database")]
pub struct InvalidPostgresUrl(#[source] Box<dyn Error + Send + Sync>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_shown_the_password() {
        let text = "postgres://clerk:s3cret@db.example:6000/shop?sslmode=disable";
        let database = Database::parse(text.into()).unwrap();
        let shown = format!("{database} {database:?} {database:#?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("the Postgres database shop on db.example:6000"));
        let arguments = ["--store", text, "--schema", "charges"];
        assert_eq!(database.arguments(), arguments);
        let error = Database::parse("postgres://clerk:s3cret@db:port/shop".into()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }

    #[test]
    fn what_is_no_url_of_postgres_is_a_file() {
        for path in ["records.db", "./postgres:", "postgres/records.db"] {
            let database = Database::parse(path.into()).unwrap();
            assert!(
                matches!(&database, Database::Sqlite(file) if file.as_os_str() == path),
                "{database:?}"
            );
        }
    }
}
