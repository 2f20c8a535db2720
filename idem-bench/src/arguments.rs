use std::path::PathBuf;

use lexopt::ValueExt as _;

use crate::contest::{Fault, Pace};
use crate::survey::{Duration, Survey};

/// What was asked for on the command line.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) only: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) out: PathBuf,
    pub(crate) pace: Pace,
    pub(crate) long: bool,
    pub(crate) list: bool,
    pub(crate) help: bool,
}

pub(crate) const USAGE: &str = "\
usage: idem-bench [OPTIONS]

Measures the idem crates, each operation in turns with its floor or a rival.

  --only NAME    only contests whose name begins with NAME; may be given again
  --rounds N     counted rounds of each contestant, after one to warm up (default 9; quick 2)
  --quick        rounds of milliseconds: shows that everything runs, and measures nothing
  --long         also what takes minutes and gigabytes
  --out DIR      where results go, and on whose file system databases are put (default bench-results)
  --list         show the contests and stop
  --help         show this and stop
";

impl Arguments {
    pub(crate) fn parse() -> Result<Self, Fault> {
        let mut parsed = Self {
            only: Vec::new(),
            rounds: 0,
            out: PathBuf::from("bench-results"),
            pace: Pace::Full,
            long: false,
            list: false,
            help: false,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                lexopt::Arg::Long("only") => parsed.only.push(parser.value()?.string()?),
                lexopt::Arg::Long("rounds") => parsed.rounds = parser.value()?.parse()?,
                lexopt::Arg::Long("out") => parsed.out = parser.value()?.into(),
                lexopt::Arg::Long("quick") => parsed.pace = Pace::Quick,
                lexopt::Arg::Long("long") => parsed.long = true,
                lexopt::Arg::Long("list") => parsed.list = true,
                lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => parsed.help = true,
                other => return Err(other.unexpected().into()),
            }
        }
        if parsed.rounds == 0 {
            parsed.rounds = match parsed.pace {
                Pace::Full => 9,
                Pace::Quick => 2,
            };
        }
        Ok(parsed)
    }

    pub(crate) fn selects(&self, contest: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| contest.starts_with(name))
    }

    pub(crate) fn selects_survey(&self, survey: &Survey) -> bool {
        (self.long || survey.duration == Duration::Short) && self.selects(survey.name)
    }
}
