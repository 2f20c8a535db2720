//! A server behind the layer, a store that can be stopped at each call, and clients.

mod gate;
mod script;
mod server;
mod store;
mod wire;

pub(crate) use gate::Gate;
pub(crate) use script::Script;
pub(crate) use server::{Server, builder, serve};
pub(crate) use store::TestStore;
pub(crate) use wire::{Reply, Request, raw, send_raw};
