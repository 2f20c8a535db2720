//! From a plain key-value database to a whole [`KeyStore`](crate::KeyStore).
//!
//! A database that can create a key if it is absent and replace a value if it is unchanged has all that is
//! needed. It implements [`KeyValue`], some fifty lines, and [`KeyValueStore`] does the rest.

mod codec;
mod key_value;
mod key_value_store;

pub use codec::{MalformedEntry, expires_at};
pub use key_value::{Entry, KeyValue};
pub use key_value_store::KeyValueStore;
