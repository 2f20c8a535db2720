use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::record::Response;

/// An answer that can be kept as a [`Response`] and be read from one.
///
/// A [`Response`] is itself; [`Json`] is any value that serde knows.
pub trait Storable: Sized {
    /// The response to keep. A value that cannot be written has a response without a body: the work was done,
    /// and that must not be lost.
    fn to_response(&self) -> Response;

    /// The value in a response that was kept.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] when it holds no such value: the body was omitted, or it is the response of an error.
    fn from_response(response: Response) -> Result<Self, Unreadable>;
}

/// A stored response that is not the value which the program expects.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the stored response (code {}) does not hold the value that is expected", response.code())]
pub struct Unreadable {
    /// What is stored.
    pub response: Response,
}

impl Storable for Response {
    fn to_response(&self) -> Response {
        self.clone()
    }

    fn from_response(response: Response) -> Result<Self, Unreadable> {
        Ok(response)
    }
}

/// Any value that serde knows, kept as JSON under code 200.
///
/// ```
/// use idem_core::executor::{Json, Storable};
///
/// let stored = Json(("ch_1".to_owned(), 1000)).to_response();
/// assert_eq!(Json::<(String, u32)>::from_response(stored)?.0.1, 1000);
///
/// // `()` and `false` are values like any other.
/// assert_eq!(Json::<()>::from_response(Json(()).to_response())?, Json(()));
/// # Ok::<(), idem_core::executor::Unreadable>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned> Storable for Json<T> {
    fn to_response(&self) -> Response {
        let response = Response::new(200).header("content-type", "application/json");
        match serde_json::to_vec(&self.0) {
            Ok(json) => response.body(json),
            Err(_) => response.without_body(),
        }
    }

    fn from_response(response: Response) -> Result<Self, Unreadable> {
        let value = match response.body_ref().bytes() {
            Some(json) if response.code() == 200 => serde_json::from_slice(json).ok(),
            _ => None,
        };
        value.map(Json).ok_or(Unreadable { response })
    }
}
