//! `cargo demo`: see `--help`.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use charges::arguments::{Command, HELP, parse};
use charges::demo::{self, Ending};
use charges::listen::serve;
use charges::{provider, service};

/// A command line that cannot be carried out.
const USAGE: u8 = 2;
/// Stopped by Ctrl-C, as shells say it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let command = match parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("error: {error}\n\nSee `cargo demo --help`.");
            return ExitCode::from(USAGE);
        }
    };
    match run(command) {
        Ok(Ending::Good) => ExitCode::SUCCESS,
        Ok(Ending::Bad) => ExitCode::FAILURE,
        Ok(Ending::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(error) = source {
                eprintln!("  because: {error}");
                source = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(command: Command) -> Result<Ending, Box<dyn Error>> {
    match command {
        Command::Help => {
            let mut out = io::stdout();
            match out.write_all(HELP.as_bytes()).and_then(|()| out.flush()) {
                // Whoever closed the pipe has read enough.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
                _ => Ok(Ending::Good),
            }
        }
        Command::Story {
            keys,
            postgres,
            redis,
        } => Ok(demo::play(keys, postgres, redis).await?),
        Command::Serve { store, redis } => Ok(demo::serve(store, redis).await?),
        Command::Service {
            address,
            settings,
            lifetime,
        } => {
            service::run(address, settings, lifetime).await?;
            Ok(Ending::Good)
        }
        Command::Provider {
            address,
            ledger,
            lifetime,
        } => {
            serve(address, provider::router(&ledger)?, lifetime).await?;
            Ok(Ending::Good)
        }
    }
}
