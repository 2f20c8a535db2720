use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderMap;

use crate::Operation;

/// What is about to be sent, for whoever adds its credentials.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Outgoing<'a> {
    /// The operation, byte for byte.
    pub operation: &'a Operation,
    /// The number of the attempt in this run, from 1.
    pub attempt: u32,
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

type Lines = Pin<Box<dyn Future<Output = Result<HeaderMap, BoxError>> + Send>>;

/// The caller's function that adds header lines to an attempt.
pub(crate) type Credentials = Arc<dyn Fn(Outgoing<'_>) -> Lines + Send + Sync>;
