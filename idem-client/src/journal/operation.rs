use std::fmt;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use idem_core::IdempotencyKey;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::headers;
use crate::{derived_key, key_header, key_of_random};

/// One logical operation: a request, byte for byte, and the key that it is sent under as often as it has to be.
///
/// The key is, in this order: the caller's own ([`key`](OperationBuilder::key)), one that is derived from the caller's name for
/// the operation ([`key_for`](OperationBuilder::key_for)), or a random one, made here and once. With a random one, only the
/// journal knows after a crash what was begun; with one of the others the program can also just do the same again.
///
/// Everything in it goes into the journal and is compared when the key comes again. So what is secret or changes from one
/// attempt to the next does not belong here: authorization, dates, traces. It is added to each attempt when it is sent.
///
/// ```
/// use idem_client::{Operation, derived_key};
///
/// let charge = Operation::post("https://api.example/v1/charges")
///     .key_for("charge", "order-4711")
///     .header("content-type", "application/json")
///     .body(r#"{"amount": 2500}"#)
///     .build()?;
/// assert_eq!(*charge.key(), derived_key("charge", "order-4711"));
/// assert_eq!(charge.headers()["idempotency-key"], charge.key().as_str());
///
/// let refused = Operation::post("https://api.example/").header("authorization", "Bearer …").build();
/// assert!(refused.is_err());
/// # Ok::<(), idem_client::InvalidOperation>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Operation {
    key: IdempotencyKey,
    label: Option<String>,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Operation {
    /// Begins a POST to this URL.
    pub fn post(url: impl Into<String>) -> OperationBuilder {
        Self::builder(Method::POST, url)
    }

    /// Begins a request with this method to this URL.
    pub fn builder(method: Method, url: impl Into<String>) -> OperationBuilder {
        OperationBuilder {
            method,
            url: url.into(),
            key: None,
            label: None,
            key_header: HeaderName::from_static("idempotency-key"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            invalid: None,
        }
    }

    /// What a journal has kept of one.
    pub(crate) fn restored(
        key: IdempotencyKey,
        label: Option<String>,
        method: Method,
        url: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Self {
        Self {
            key,
            label,
            method,
            url,
            headers,
            body,
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// What the caller calls it.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The header lines that every attempt sends, that of the key among them.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The SHA-256 of what is sent, by which the journal knows it even when it has forgotten it.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let lines = headers::encode(&self.headers);
        let mut hash = Sha256::new();
        for part in [
            self.method.as_str().as_bytes(),
            self.url.as_bytes(),
            &lines,
            &self.body,
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// Shows neither the key nor what is sent.
impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("key", &self.key)
            .field("label", &self.label)
            .field("method", &self.method)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish_non_exhaustive()
    }
}

/// An [`Operation`] in the making.
#[must_use]
pub struct OperationBuilder {
    method: Method,
    url: String,
    key: Option<IdempotencyKey>,
    label: Option<String>,
    key_header: HeaderName,
    headers: HeaderMap,
    body: Bytes,
    invalid: Option<InvalidOperation>,
}

impl OperationBuilder {
    /// The caller's own key, which wins over any other.
    pub fn key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// The key that is derived from what is done and to what, unless the caller has a key: see
    /// [`derived_key`]. It is the label as well, unless there is one.
    pub fn key_for(mut self, purpose: &str, id: &str) -> Self {
        self.key.get_or_insert_with(|| derived_key(purpose, id));
        self.label.get_or_insert_with(|| format!("{purpose} {id}"));
        self
    }

    /// What the caller calls it. People see it in the journal; it is not sent.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The header field of the key, where it is not `Idempotency-Key`.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key_header = name;
        self
    }

    /// One more header line.
    pub fn header<N, V>(mut self, name: N, value: V) -> Self
    where
        HeaderName: TryFrom<N>,
        HeaderValue: TryFrom<V>,
    {
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => {
                self.headers.append(name, value);
            }
            (Ok(name), Err(_)) => self.fail(InvalidOperation::HeaderValue { name }),
            (Err(_), _) => self.fail(InvalidOperation::HeaderName),
        }
        self
    }

    /// The body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The operation.
    ///
    /// # Errors
    ///
    /// [`InvalidOperation`] when it could not be sent, or holds what must not be kept.
    pub fn build(mut self) -> Result<Operation, InvalidOperation> {
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        let url: Uri = self.url.parse().map_err(|_| InvalidOperation::Url)?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || self.url.contains('#') {
            return Err(InvalidOperation::Url);
        }
        if url
            .authority()
            .is_none_or(|host| host.as_str().contains('@'))
        {
            return Err(InvalidOperation::Secret {
                what: "a password in the URL".to_owned(),
            });
        }
        if self.headers.contains_key(&self.key_header) {
            return Err(InvalidOperation::KeyAsHeader);
        }
        let secret = |(name, value): &(&HeaderName, &HeaderValue)| {
            value.is_sensitive() || [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(name)
        };
        if let Some((name, _)) = self.headers.iter().find(secret) {
            let what = format!("the header field {name}");
            return Err(InvalidOperation::Secret { what });
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                let mut random = [0; 16];
                getrandom::fill(&mut random)
                    .map_err(|error| InvalidOperation::NoRandomness(Box::new(error)))?;
                key_of_random(random)
            }
        };
        self.headers.insert(self.key_header, key_header(&key));
        Ok(Operation {
            key,
            label: self.label,
            method: self.method,
            url: self.url,
            headers: self.headers,
            body: self.body,
        })
    }

    fn fail(&mut self, invalid: InvalidOperation) {
        self.invalid.get_or_insert(invalid);
    }
}

/// Shows neither the key nor what is sent.
impl fmt::Debug for OperationBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationBuilder")
            .field("key", &self.key)
            .field("label", &self.label)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// Why an [`Operation`] cannot be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// The URL is none, or none of `http` or `https`, or has a fragment.
    #[error(
        "the URL is not one that a request can be sent to: it needs http or https, a host, and no fragment"
    )]
    Url,
    /// A name is none of a header field.
    #[error("a header field has a name that is none")]
    HeaderName,
    /// A value is none of a header field.
    #[error("the header field {name} has a value that cannot be sent")]
    HeaderValue {
        /// The header field.
        name: HeaderName,
    },
    /// The header field of the key was set by hand.
    #[error("the key is a header line of its own; set it with `key`")]
    KeyAsHeader,
    /// It holds a secret, which would be kept in a file.
    #[error(
        "{what} would be kept in the journal; let the client add it to each attempt with `credentials`"
    )]
    Secret {
        /// What it is. Not its value.
        what: String,
    },
    /// The system gave no random bytes for a key.
    #[error("the system gave no random numbers for a key")]
    NoRandomness(#[source] Box<dyn std::error::Error + Send + Sync>),
}
