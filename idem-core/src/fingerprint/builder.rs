use std::borrow::Cow;
use std::fmt;

use super::body::Reading;
use super::encoder::Encoder;
use super::json::Document;
use super::pairs::Pairs;
use super::{Fingerprint, FingerprintError, Rules, Scheme};
use crate::Operation;

/// A request that is being described, to be read under one set of [`Rules`].
///
/// It begins with [`Rules::of`] and ends with [`FingerprintBuilder::finish`]. What is not said is absent. A
/// query or a body that is said twice replaces the one before.
///
/// ```
/// use idem_core::{Nulls, Operation, Profile, Rules};
///
/// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
/// let refund = Operation::new("POST /v1/charges/{charge}/refunds")?;
/// let fingerprint = rules
///     .of(&refund)
///     .path_parameter("charge", "ch_3MmlLr")
///     .query("expand=balance")
///     .body(Some("application/json"), None, br#"{"amount":500}"#)
///     .finish();
/// assert_eq!(fingerprint.scheme(), rules.scheme());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `Debug` shows the scheme and the operation, and nothing that the client sent.
#[derive(Clone)]
#[must_use]
pub struct FingerprintBuilder<'a> {
    rules: &'a Rules,
    operation: &'a Operation,
    path: Pairs<'a>,
    query: Query<'a>,
    body: Body<'a>,
}

impl<'a> FingerprintBuilder<'a> {
    pub(super) fn new(rules: &'a Rules, operation: &'a Operation) -> Self {
        Self {
            rules,
            operation,
            path: Pairs::default(),
            query: Query::Pairs(Pairs::default()),
            body: Body::Absent,
        }
    }

    /// Adds a path parameter, after decoding. The order of different names does not matter; of one name's
    /// values it does.
    pub fn path_parameter(mut self, name: &'a str, value: &'a str) -> Self {
        self.path.push(name.as_bytes(), value.as_bytes());
        self
    }

    /// Sets the query: what follows the `?`, not decoded.
    ///
    /// It is read as `application/x-www-form-urlencoded`, byte by byte: `a` is `a=`, the order of different
    /// names does not matter, and the order of one name's values does. A query without parameters, and one
    /// whose parameters are all excluded, is the same as none.
    ///
    /// A query with a malformed escape, such as `%zz`, counts as its exact bytes, from which nothing is
    /// excluded: readers do not agree on what it means, and this one does not guess.
    ///
    /// ```
    /// # use idem_core::{Nulls, Operation, Profile, Rules};
    /// let rules = Rules::new(Profile::new(1), Nulls::Distinct).exclude_query("utm_source");
    /// let charge = Operation::new("POST /v1/charges")?;
    /// let with = |query| rules.of(&charge).query(query).finish();
    /// assert_eq!(with("utm_source=mail&a=x+y&b"), with("b=&a=x%20y"));
    /// assert_ne!(with("dry_run=1"), with(""));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn query(mut self, query: &'a str) -> Self {
        self.query = match Pairs::parse(query.as_bytes()) {
            Ok(pairs) => Query::Pairs(pairs.without(&self.rules.excluded_query)),
            Err(_) => Query::Raw(query.as_bytes()),
        };
        self
    }

    /// Sets a JSON body.
    ///
    /// The order of members does not matter, that of elements does. White space, escapes and the spelling of
    /// numbers do not matter: `1`, `1.0` and `10e-1` are equal, and no two different values are, whatever
    /// their size. Strings are compared character by character, without normalisation.
    ///
    /// # Errors
    ///
    /// [`FingerprintError::Json`] when the text has no one meaning,
    /// [`FingerprintError::PointerUnmatched`] when a required pointer names nothing in it.
    pub fn json(self, text: &'a [u8]) -> Result<Self, FingerprintError> {
        self.document(Cow::Borrowed(text))
    }

    /// Sets a body to the JSON that a value serialises to: the same fingerprint as that text would have.
    ///
    /// Beware of what is lost on the way to JSON: `serde_json` writes a float that is infinite or not a
    /// number as `null`.
    ///
    /// ```
    /// # use idem_core::{Nulls, Operation, Profile, Rules};
    /// #[derive(serde::Serialize)]
    /// struct Charge {
    ///     amount: u64,
    /// }
    ///
    /// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    /// let charge = Operation::new("charge")?;
    /// assert_eq!(
    ///     rules.of(&charge).typed(&Charge { amount: 500 })?.finish(),
    ///     rules.of(&charge).json(br#"{"amount":500}"#)?.finish(),
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FingerprintError::Unserializable`] when the value does not serialise to JSON, and those of
    /// [`FingerprintBuilder::json`].
    #[cfg(feature = "executor")]
    pub fn typed(self, value: &(impl serde::Serialize + ?Sized)) -> Result<Self, FingerprintError> {
        let text = serde_json::to_vec(value).map_err(FingerprintError::Unserializable)?;
        self.document(Cow::Owned(text))
    }

    /// Sets a body of `application/x-www-form-urlencoded`, read like a query, of which nothing is excluded.
    /// A form without fields differs from no body.
    ///
    /// # Errors
    ///
    /// [`FingerprintError::Form`] when a `%` is not followed by two hexadecimal digits.
    pub fn form(mut self, text: &'a [u8]) -> Result<Self, FingerprintError> {
        self.body = Body::Form(Pairs::parse(text)?);
        Ok(self)
    }

    /// Sets a body that counts byte for byte. One of no bytes differs from no body.
    pub fn bytes(mut self, bytes: &'a [u8]) -> Self {
        self.body = Body::Bytes(BYTES, bytes);
        self
    }

    /// Sets the body of an HTTP request, read as its header fields say. It always has a fingerprint.
    ///
    /// 1. An empty body is no body: HTTP does not tell the two apart.
    /// 2. With a `Content-Encoding` other than `identity`, the exact bytes count.
    /// 3. `application/json` and any `+json` type is read like [`FingerprintBuilder::json`].
    /// 4. `application/x-www-form-urlencoded` is read like [`FingerprintBuilder::form`].
    /// 5. Of anything else, and where 3 or 4 is an error or the `charset` is not UTF-8, the exact bytes count.
    ///
    /// Bodies that are read in different ways are different, and so is a body that could not be read from one
    /// that was not to be. The header fields themselves do not count beyond that.
    ///
    /// ```
    /// # use idem_core::{Nulls, Operation, Profile, Rules};
    /// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
    /// let charge = Operation::new("POST /v1/charges")?;
    /// let json = |body| rules.of(&charge).body(Some("application/json"), None, body).finish();
    /// assert_eq!(json(br#"{"amount":5.0}"#), json(br#"{ "amount": 5 }"#));
    /// assert_ne!(json(br#"{"amount":5"#), json(br#"{ "amount": 5"#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn body(
        mut self,
        content_type: Option<&str>,
        content_encoding: Option<&str>,
        bytes: &'a [u8],
    ) -> Self {
        self.body = if bytes.is_empty() {
            Body::Absent
        } else {
            match Reading::of(content_type, content_encoding) {
                Reading::Json => match self.rules.read_json(Cow::Borrowed(bytes)) {
                    Ok(document) => Body::Json(document),
                    Err(_) => Body::Bytes(JSON_AS_BYTES, bytes),
                },
                Reading::Form => match Pairs::parse(bytes) {
                    Ok(pairs) => Body::Form(pairs),
                    Err(_) => Body::Bytes(FORM_AS_BYTES, bytes),
                },
                Reading::Opaque => Body::Bytes(BYTES, bytes),
                Reading::Coded => Body::Bytes(CODED_BYTES, bytes),
            }
        };
        self
    }

    /// The fingerprint of the request.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        let scheme = self.rules.scheme();
        let mut encoder = Encoder::new();
        encoder.raw(MAGIC);
        encoder.raw(&Scheme::ENCODING.to_be_bytes());
        encoder.raw(&scheme.profile().number().to_be_bytes());
        encoder.bytes(self.operation.as_str().as_bytes());
        self.path.encode(&mut encoder);
        self.query.encode(&mut encoder);
        self.body.encode(&mut encoder);
        Fingerprint::from_parts(scheme, encoder.finish())
    }

    fn document(mut self, text: Cow<'a, [u8]>) -> Result<Self, FingerprintError> {
        self.body = Body::Json(self.rules.read_json(text)?);
        Ok(self)
    }
}

impl fmt::Debug for FingerprintBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintBuilder")
            .field("scheme", &self.rules.scheme())
            .field("operation", self.operation)
            .finish_non_exhaustive()
    }
}

impl Rules {
    fn read_json<'a>(&self, text: Cow<'a, [u8]>) -> Result<Document<'a>, FingerprintError> {
        let mut document = Document::parse(text, self.nulls)?;
        document.exclude(&self.exclusions)?;
        Ok(document)
    }
}

const MAGIC: &[u8] = b"idem/fingerprint";

const QUERY_PAIRS: u8 = 0x00;
const QUERY_RAW: u8 = 0x01;

const ABSENT: u8 = 0x00;
const JSON: u8 = 0x01;
const FORM: u8 = 0x02;
const BYTES: u8 = 0x03;
const CODED_BYTES: u8 = 0x04;
const JSON_AS_BYTES: u8 = 0x05;
const FORM_AS_BYTES: u8 = 0x06;

#[derive(Clone)]
enum Query<'a> {
    Pairs(Pairs<'a>),
    Raw(&'a [u8]),
}

impl Query<'_> {
    fn encode(self, encoder: &mut Encoder) {
        match self {
            Self::Pairs(pairs) => {
                encoder.byte(QUERY_PAIRS);
                pairs.encode(encoder);
            }
            Self::Raw(bytes) => {
                encoder.byte(QUERY_RAW);
                encoder.bytes(bytes);
            }
        }
    }
}

#[derive(Clone)]
enum Body<'a> {
    Absent,
    Json(Document<'a>),
    Form(Pairs<'a>),
    /// Bytes, and the tag that says why they were not read.
    Bytes(u8, &'a [u8]),
}

impl Body<'_> {
    fn encode(self, encoder: &mut Encoder) {
        match self {
            Self::Absent => encoder.byte(ABSENT),
            Self::Json(document) => {
                encoder.byte(JSON);
                document.encode(encoder);
            }
            Self::Form(pairs) => {
                encoder.byte(FORM);
                pairs.encode(encoder);
            }
            Self::Bytes(tag, bytes) => {
                encoder.byte(tag);
                encoder.bytes(bytes);
            }
        }
    }
}
