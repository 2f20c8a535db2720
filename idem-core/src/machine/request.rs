use crate::fingerprint::Fingerprints;
use crate::identity::{Operation, RecordId};

/// A request as far as idempotency is concerned: whose key, for what, and with what meaning.
///
/// ```
/// use idem_core::{
///     Fingerprints, IdempotencyKey, Nulls, Operation, Profile, RecordId, Request, Rules, Scope,
/// };
///
/// let operation = Operation::new("POST /v1/charges")?;
/// let rules = Rules::new(Profile::new(1), Nulls::Distinct);
/// let fingerprint = rules.of(&operation).json(br#"{"amount": 1000}"#)?.finish();
///
/// let id = RecordId::new(Scope::new("acct_1")?, IdempotencyKey::new("k-1")?);
/// let request = Request::new(id, operation, Fingerprints::new(fingerprint));
/// assert_eq!(request.operation.as_str(), "POST /v1/charges");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Request {
    /// Whose key, and which.
    pub id: RecordId,
    /// What it is used for.
    pub operation: Operation,
    /// What it means, under every scheme that the caller declares.
    pub fingerprints: Fingerprints,
}

impl Request {
    /// A request from its parts.
    #[must_use]
    pub fn new(id: RecordId, operation: Operation, fingerprints: Fingerprints) -> Self {
        Self {
            id,
            operation,
            fingerprints,
        }
    }
}
