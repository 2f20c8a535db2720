//! The cases, a file for each topic. The list of them is in `registry.rs`.

pub(crate) mod bytes;
pub(crate) mod cancel;
pub(crate) mod checkpoint;
pub(crate) mod claim;
pub(crate) mod contention;
pub(crate) mod decision;
pub(crate) mod durability;
pub(crate) mod expiry;
pub(crate) mod flow;
pub(crate) mod ids;
pub(crate) mod late_owner;
pub(crate) mod lost_answer;
pub(crate) mod model;
pub(crate) mod race;
pub(crate) mod reclaim;
pub(crate) mod refusal;
pub(crate) mod resolve;
pub(crate) mod sweep;
pub(crate) mod time;
pub(crate) mod transition;
