//! The contests. To add some: a file here that makes them, and its line in [`GROUPS`].

mod decide;
mod executor;
mod fingerprint;
mod postgres;
mod redis;
mod sqlite;
mod tower;

use crate::contest::{Contest, Fault, Place};
use crate::survey::Survey;

/// Makes the contests of one file. It is cheap: what takes time is set up by the first round.
pub(crate) type Make = fn(&Place) -> Result<Vec<Contest>, Fault>;

/// Every file of contests, in the order in which they run.
pub(crate) const GROUPS: &[(&str, Make)] = &[
    ("decide", decide::contests),
    ("fingerprint", fingerprint::contests),
    ("executor", executor::contests),
    ("sqlite", sqlite::contests),
    ("tower", tower::contests),
    ("postgres", postgres::contests),
    ("redis", redis::contests),
];

/// Makes the surveys of one file, as cheaply.
pub(crate) type MakeSurveys = fn(&Place) -> Result<Vec<Survey>, Fault>;

/// Every file of surveys, in the order in which they are made, after the contests.
pub(crate) const SURVEYS: &[MakeSurveys] = &[postgres::surveys];
