//! The command line.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt as _};
use thiserror::Error;

use crate::listen::Lifetime;
use crate::service::{Database, InvalidPostgresUrl, Keys, PostgresUrl, Settings};

/// What is asked for.
#[derive(Debug, Clone)]
pub enum Command {
    /// Say how the program is called.
    Help,
    /// Play the story.
    Story {
        /// On a service that honours the keys, or on one that ignores them.
        keys: Keys,
        /// The database of its store; a temporary SQLite file if there is none.
        postgres: Option<PostgresUrl>,
        /// The Redis in front of its store, if there is to be one.
        redis: Option<String>,
    },
    /// Keep a provider and a service running, to be tried by hand.
    Serve {
        /// The database; a temporary SQLite file if there is none.
        store: Option<Database>,
        /// The Redis in front of it, if there is to be one.
        redis: Option<String>,
    },
    /// Run the service alone.
    Service {
        /// Where to listen.
        address: SocketAddr,
        /// How to run it.
        settings: Settings,
        /// When to stop.
        lifetime: Lifetime,
    },
    /// Run the provider alone.
    Provider {
        /// Where to listen.
        address: SocketAddr,
        /// Its ledger.
        ledger: PathBuf,
        /// When to stop.
        lifetime: Lifetime,
    },
}

/// How the program is called.
pub const HELP: &str = "\
Idempotency keys, played against a running service.

Usage: cargo demo                        play the story; takes some ten seconds
       cargo demo --ignore-keys          play it on a service that ignores the keys, to see what they are for
       cargo demo --store URL            play it on that Postgres instead of SQLite
       cargo demo --redis URL            play it with that Redis in front of the store, as a negative cache
       cargo demo serve [--store STORE]  keep the service running, and print curl commands to try

The two processes that the demo starts, for use by themselves:

       cargo demo service --provider URL --store STORE [options]
       cargo demo provider --ledger PATH [options]

A store is the path of a SQLite database, or the URL of a Postgres database, such as
postgres://user@127.0.0.1:5432/shop. A password is safer in the variable PGPASSWORD: others can read command lines.

Options of the story:
  --store URL                a Postgres database [default: a temporary SQLite database]. The story works in a schema of
                             its own there, and drops it at the end

Options of serve:
  --store STORE              a SQLite database, kept afterwards, or a Postgres database, in a schema of its own that is
                             dropped at the end [default: a temporary SQLite database]
  --redis URL                a Redis in front of it, such as redis://127.0.0.1:6379

Options of service and provider:
  --listen ADDRESS           where to listen [default: 127.0.0.1:0, a free port]
  --until-input-ends         stop when standard input ends, too

Options of service:
  --provider URL             where the provider is, such as http://127.0.0.1:9000
  --store STORE              the database of the records
  --schema NAME              the schema of the records in a Postgres database, made if it is missing
                             [default: charges]
  --redis URL                a Redis in front of it, which says that a key is busy and nothing else
  --lease DURATION           how long a process that is not heard of keeps a key [default: 90s]
  --retention DURATION       how long an answer is kept [default: 24h]
  --provider-timeout DURATION  how long the provider may take [default: 10s]
  --ignore-keys              make every request an operation of its own
  --pause-at PLACE           stop and wait there to be killed: provider-answered or checkpointed

Options of provider:
  --ledger PATH              the file in which it writes down the money that it moved

A duration is a number and one of ms, s, m, h. The exit code is 0 if every operation was done once and answered
alike, 1 if not or if something failed, 2 for a command line like none of these, 130 if the story was stopped by
Ctrl-C. The others run until Ctrl-C, so for them that is the good end: 0.
";

/// Reads a command line, without the program's name.
///
/// # Errors
///
/// [`ArgumentError`] when it is none.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ArgumentError> {
    let mut parser = Parser::from_args(arguments);
    let mut given = Given::default();
    let mut command = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Value(name) if command.is_none() && name == "help" => return Ok(Command::Help),
            Arg::Value(name) if command.is_none() => {
                command = Some(name.string()?);
            }
            Arg::Long(name) => {
                let name = name.to_owned();
                given.option(&name, command.as_deref(), &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    given.command(command.as_deref())
}

#[derive(Debug, Default)]
struct Given {
    listen: Option<SocketAddr>,
    until_input_ends: bool,
    provider: Option<String>,
    store: Option<Database>,
    schema: Option<String>,
    redis: Option<String>,
    ledger: Option<PathBuf>,
    ignore_keys: bool,
    lease: Option<Duration>,
    retention: Option<Duration>,
    provider_timeout: Option<Duration>,
    pause_at: Option<crate::service::Place>,
}

impl Given {
    fn option(
        &mut self,
        name: &str,
        command: Option<&str>,
        parser: &mut Parser,
    ) -> Result<(), ArgumentError> {
        let belongs = match name {
            "listen" | "until-input-ends" => &["service", "provider"][..],
            "store" | "redis" => &["", "serve", "service"],
            "ledger" => &["provider"],
            "ignore-keys" => &["", "service"],
            "provider" | "schema" | "lease" | "retention" | "provider-timeout" | "pause-at" => {
                &["service"]
            }
            _ => &[],
        };
        let unknown = belongs.is_empty();
        if unknown || !belongs.contains(&command.unwrap_or_default()) {
            return Err(ArgumentError::NoSuchOption {
                option: name.to_owned(),
                command: command.map_or_else(|| "the story".to_owned(), str::to_owned),
            });
        }
        match name {
            "listen" => self.listen = Some(parser.value()?.parse()?),
            "until-input-ends" => self.until_input_ends = true,
            "provider" => self.provider = Some(url(parser.value()?.string()?)?),
            "store" => self.store = Some(Database::parse(parser.value()?)?),
            "schema" => self.schema = Some(parser.value()?.string()?),
            "redis" => self.redis = Some(parser.value()?.string()?),
            "ledger" => self.ledger = Some(parser.value()?.into()),
            "ignore-keys" => self.ignore_keys = true,
            "lease" => self.lease = Some(parser.value()?.parse_with(duration)?),
            "retention" => self.retention = Some(parser.value()?.parse_with(duration)?),
            "provider-timeout" => {
                self.provider_timeout = Some(parser.value()?.parse_with(duration)?);
            }
            _ => self.pause_at = Some(parser.value()?.parse()?),
        }
        Ok(())
    }

    fn command(self, name: Option<&str>) -> Result<Command, ArgumentError> {
        let keys = if self.ignore_keys {
            Keys::Ignored
        } else {
            Keys::Honoured
        };
        let address = self
            .listen
            .unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
        let lifetime = if self.until_input_ends {
            Lifetime::UntilInputEnds
        } else {
            Lifetime::UntilSignal
        };
        match name {
            None => Ok(Command::Story {
                keys,
                postgres: match self.store {
                    None => None,
                    Some(Database::Postgres { url, .. }) => Some(url),
                    Some(Database::Sqlite(_)) => return Err(ArgumentError::StoryKeepsNoFile),
                },
                redis: self.redis,
            }),
            Some("serve") => Ok(Command::Serve {
                store: self.store,
                redis: self.redis,
            }),
            Some("provider") => Ok(Command::Provider {
                address,
                ledger: self.ledger.ok_or(ArgumentError::Missing("--ledger"))?,
                lifetime,
            }),
            Some("service") => {
                let provider = self.provider.ok_or(ArgumentError::Missing("--provider"))?;
                let mut store = self.store.ok_or(ArgumentError::Missing("--store"))?;
                if let Some(name) = self.schema {
                    match &mut store {
                        Database::Postgres { schema, .. } => *schema = name,
                        Database::Sqlite(_) => return Err(ArgumentError::FileHasNoSchema),
                    }
                }
                let production = Settings::new(provider, store);
                let settings = Settings {
                    lease: self.lease.unwrap_or(production.lease),
                    retention: self.retention.unwrap_or(production.retention),
                    provider_timeout: self.provider_timeout.unwrap_or(production.provider_timeout),
                    keys,
                    pause_at: self.pause_at,
                    redis: self.redis,
                    ..production
                };
                Ok(Command::Service {
                    address,
                    settings,
                    lifetime,
                })
            }
            Some(other) => Err(ArgumentError::NoSuchCommand(other.to_owned())),
        }
    }
}

fn url(text: String) -> Result<String, ArgumentError> {
    match text.parse::<axum::http::Uri>() {
        Ok(url) if url.scheme_str() == Some("http") && url.host().is_some() => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err(ArgumentError::NotAUrl(text)),
    }
}

/// A number and its unit.
fn duration(text: &str) -> Result<Duration, NotADuration> {
    let unit = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()]
        .parse()
        .map_err(|_| NotADuration)?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => seconds(60).ok_or(NotADuration),
        "h" => seconds(3600).ok_or(NotADuration),
        _ => Err(NotADuration),
    }
}

#[derive(Debug, Error)]
#[error("a duration is a number and one of ms, s, m, h, such as 1500ms")]
struct NotADuration;

/// Why a command line cannot be carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// There is no such command.
    #[error("there is no command {0:?}")]
    NoSuchCommand(String),
    /// There is no such option here.
    #[error("there is no option --{option} for {command}")]
    NoSuchOption {
        /// The option's name.
        option: String,
        /// What it was given to.
        command: String,
    },
    /// An option must be given.
    #[error("the option {0} is missing")]
    Missing(&'static str),
    /// A text is no address of a provider.
    #[error("{0:?} is not an address such as http://127.0.0.1:9000")]
    NotAUrl(String),
    /// The story was given a file.
    #[error(
        "the story keeps no SQLite database: --store takes the URL of a Postgres database here, such as \
         postgres://user@host/database"
    )]
    StoryKeepsNoFile,
    /// A SQLite database was given a schema.
    #[error("the option --schema is for a Postgres database, and --store names a SQLite one")]
    FileHasNoSchema,
    /// A text begins like the URL of a Postgres database, and is none.
    #[error(transparent)]
    Postgres(#[from] InvalidPostgresUrl),
    /// Anything else.
    #[error(transparent)]
    Malformed(#[from] lexopt::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, ArgumentError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_story_is_what_happens_without_a_word() {
        let keys = |line| match parsed(line) {
            Ok(Command::Story {
                keys,
                postgres: None,
                redis: None,
            }) => keys,
            other => panic!("{other:?}"),
        };
        assert_eq!(keys(""), Keys::Honoured);
        assert_eq!(keys("--ignore-keys"), Keys::Ignored);
        assert!(matches!(parsed("--help"), Ok(Command::Help)));
        assert!(matches!(parsed("serve -h"), Ok(Command::Help)));
        assert!(matches!(parsed("help"), Ok(Command::Help)));
        assert!(matches!(parsed("help serve"), Ok(Command::Help)));
    }

    #[test]
    fn a_redis_goes_with_everything_that_has_a_service() {
        let url = "redis://127.0.0.1:6379";
        for line in ["", "serve", "service --provider http://p --store r.db"] {
            let redis = match parsed(&format!("{line} --redis {url}")) {
                Ok(Command::Story { redis, .. } | Command::Serve { redis, .. }) => redis,
                Ok(Command::Service { settings, .. }) => settings.redis,
                other => panic!("{other:?}"),
            };
            assert_eq!(redis.as_deref(), Some(url), "{line}");
        }
        assert!(parsed(&format!("provider --ledger l --redis {url}")).is_err());
    }

    #[test]
    fn a_postgres_goes_with_everything_that_has_a_service() {
        let url = "postgres://u@localhost/shop";
        let story = parsed(&format!("--ignore-keys --store {url}"));
        assert!(matches!(
            story,
            Ok(Command::Story {
                postgres: Some(_),
                ..
            })
        ));
        let schema = |more: &str| match parsed(&format!("{more} --store {url}")) {
            Ok(Command::Serve {
                store: Some(Database::Postgres { schema, .. }),
                ..
            }) => schema,
            Ok(Command::Service { settings, .. }) => match settings.store {
                Database::Postgres { schema, .. } => schema,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(schema("serve"), "charges");
        assert_eq!(schema("service --provider http://p"), "charges");
        assert_eq!(schema("service --provider http://p --schema mine"), "mine");
    }

    #[test]
    fn a_service_is_set_up_as_it_is_told() {
        let line = "service --listen 127.0.0.1:80 --provider http://127.0.0.1:9000/ --store r.db --lease 1500ms \
                    --retention 2h --provider-timeout 3s --pause-at checkpointed --until-input-ends";
        let Ok(Command::Service {
            address,
            settings,
            lifetime,
        }) = parsed(line)
        else {
            panic!("{:?}", parsed(line));
        };
        assert_eq!(address.port(), 80);
        assert_eq!(lifetime, Lifetime::UntilInputEnds);
        assert_eq!(settings.provider, "http://127.0.0.1:9000");
        assert!(matches!(settings.store, Database::Sqlite(path) if path.as_os_str() == "r.db"));
        assert_eq!(settings.lease, Duration::from_millis(1500));
        assert_eq!(settings.retention, Duration::from_secs(7200));
        assert_eq!(settings.provider_timeout, Duration::from_secs(3));
        assert_eq!(settings.pause_at, Some(crate::service::Place::Checkpointed));
    }

    #[test]
    fn anything_else_is_refused() {
        for line in [
            "sreve",
            "serve twice",
            "serve --store",
            "--store r.db",
            "--store postgres://host:port/shop",
            "serve --store postgresql://[",
            "serve --store postgres://host/shop --schema mine",
            "service --provider http://p --store r.db --schema mine",
            "serve --ledger l",
            "--nonsense",
            "-x",
            "service",
            "service --provider http://p",
            "service --provider nowhere --store r.db",
            "service --provider https://p --store r.db",
            "service --provider http://p --store r.db --lease 5",
            "service --provider http://p --store r.db --lease s",
            "service --provider http://p --store r.db --lease 99999999999999999999h",
            "service --provider http://p --store r.db --retention 9999999999999999999h",
            "service --provider http://p --store r.db --pause-at nowhere",
            "provider",
            "provider --ledger l --listen here",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
