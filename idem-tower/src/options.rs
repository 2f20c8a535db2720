use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Response, StatusCode};
use idem_core::{Headers, Operation};

use super::replayed_headers::{self, Cookies};
use super::{Disposition, Dispositions, Problem, ProblemKind};

/// How one route is served. Every setting has a default, and can be changed for one route with
/// [`IdempotencyLayer::with_options`](crate::IdempotencyLayer::with_options).
///
/// | setting | default |
/// |---|---|
/// | key | required |
/// | methods | POST and PATCH |
/// | operation | the method and the path that the client sent |
/// | body limit | 2 MiB, as much as axum's extractors take |
/// | body timeout | 30 s for the whole body |
/// | stream after | 1 s: a response body that has not ended by then is a stream |
/// | retry hint | 1 s, the longest that a client is asked to wait |
/// | dispositions | [`Dispositions`] |
/// | service error | [`Disposition::Failed`] |
/// | replayed headers | all but those of one connection, `Date` and `Set-Cookie` |
/// | key echoed | no |
/// | problems | `application/problem+json` with a type that begins with `urn:idem:problem:` |
///
/// Lease, retention, contract, what a second sender gets, and the limit of stored bodies are a
/// [`Policy`](idem_core::Policy); nulls, excluded pointers and excluded query parameters are
/// [`Rules`](idem_core::Rules).
#[derive(Clone)]
#[must_use]
pub struct Options {
    key: KeyRule,
    methods: Vec<Method>,
    operation: Option<Arc<NameOperation>>,
    pub(crate) body_limit: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) stream_after: Duration,
    pub(crate) retry_hint: Duration,
    dispositions: Dispositions,
    pub(crate) service_error: Disposition,
    cookies: Cookies,
    is_replayed: Option<Arc<IsReplayed>>,
    pub(crate) echo: Echo,
    types: Arc<str>,
    statuses: BTreeMap<ProblemKind, StatusCode>,
    render: Option<Arc<Render>>,
}

type NameOperation = dyn Fn(&Parts) -> Operation + Send + Sync;
type IsReplayed = dyn Fn(&HeaderName) -> bool + Send + Sync;
type Render = dyn Fn(&Problem) -> Response<Bytes> + Send + Sync;

/// Whether a request without a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRule {
    Required,
    Optional,
}

/// Whether the key is sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Echo {
    Nothing,
    Key,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: KeyRule::Required,
            methods: vec![Method::POST, Method::PATCH],
            operation: None,
            body_limit: 2 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            stream_after: Duration::from_secs(1),
            retry_hint: Duration::from_secs(1),
            dispositions: Dispositions::default(),
            service_error: Disposition::Failed,
            cookies: Cookies::Dropped,
            is_replayed: None,
            echo: Echo::Nothing,
            types: "urn:idem:problem:".into(),
            statuses: BTreeMap::new(),
            render: None,
        }
    }
}

impl Options {
    /// A request without a key is refused with 400.
    pub fn key_required(mut self) -> Self {
        self.key = KeyRule::Required;
        self
    }

    /// A request without a key is handed on untouched. One with a key that is none is refused all the same.
    pub fn key_optional(mut self) -> Self {
        self.key = KeyRule::Optional;
        self
    }

    /// The methods that keys are for. Requests of any other are handed on untouched, whatever headers they have.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Names the operation of a request in another way than by its method and path, by its route's template for
    /// instance. The path still counts: it becomes a part of the fingerprint.
    ///
    /// See the [crate's documentation](crate#operations) for why the path is the default.
    pub fn operation(mut self, name: impl Fn(&Parts) -> Operation + Send + Sync + 'static) -> Self {
        self.operation = Some(Arc::new(name));
        self
    }

    /// How many bytes a request body may have.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// How long a whole request body may take to arrive.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.body_timeout = timeout;
        self
    }

    /// How long a response body may take to end. One that takes longer is a stream: it is sent on as it comes,
    /// and the record is finished without it. `text/event-stream` is one from the start.
    pub fn stream_after(mut self, time: Duration) -> Self {
        self.stream_after = time;
        self
    }

    /// The longest wait that `Retry-After` asks for, in whole seconds, rounded up. The lease of a running
    /// request may have 90 s left where its handler takes 300 ms.
    pub fn retry_hint(mut self, longest: Duration) -> Self {
        self.retry_hint = longest;
        self
    }

    /// Which status means what.
    pub fn dispositions(mut self, table: Dispositions) -> Self {
        self.dispositions = table;
        self
    }

    /// What an error of the inner service means; its caller gets the error itself, and a retry a 500 if the
    /// disposition is one that is stored.
    ///
    /// Services under axum have no errors. Under plain tower most come from middleware: if a time-out is *inside*
    /// this layer, its error is better [`Disposition::Unknown`].
    pub fn service_error(mut self, disposition: Disposition) -> Self {
        self.service_error = disposition;
        self
    }

    /// Replays `Set-Cookie` lines as well. Whoever sends the key again then gets the session of the first
    /// sender; both are of one scope, and whether that is one person is yours to know.
    pub fn replay_set_cookie(mut self) -> Self {
        self.cookies = Cookies::Kept;
        self
    }

    /// Replays only header lines whose name `is_replayed`. Those of one connection, and `Date`, are not asked
    /// about.
    pub fn replay_headers(
        mut self,
        is_replayed: impl Fn(&HeaderName) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_replayed = Some(Arc::new(is_replayed));
        self
    }

    /// Sends the `Idempotency-Key` back with every answer to a request that had one.
    pub fn echo_key(mut self) -> Self {
        self.echo = Echo::Key;
        self
    }

    /// What the type URIs of problems begin with, such as `https://api.example.com/problems/`.
    pub fn problem_types(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.types = prefix.into();
        self
    }

    /// Sends one kind of problem with another status.
    pub fn problem_status(mut self, kind: ProblemKind, status: StatusCode) -> Self {
        self.statuses.insert(kind, status);
        self
    }

    /// Writes problems in another way.
    pub fn render_problems(
        mut self,
        render: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.render = Some(Arc::new(render));
        self
    }

    pub(crate) fn key_rule(&self) -> KeyRule {
        self.key
    }

    pub(crate) fn covers(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    pub(crate) fn name_operation(&self, request: &Parts) -> Option<Operation> {
        self.operation.as_ref().map(|name| name(request))
    }

    pub(crate) fn disposition(&self, status: StatusCode) -> Disposition {
        self.dispositions.of(status)
    }

    pub(crate) fn kept(&self, headers: &HeaderMap) -> Headers {
        replayed_headers::kept(headers, self.cookies, |name| {
            self.is_replayed.as_ref().is_none_or(|wanted| wanted(name))
        })
    }

    pub(crate) fn render(&self, mut problem: Problem) -> Response<Bytes> {
        if let Some(status) = self.statuses.get(&problem.kind) {
            problem.status = *status;
        }
        match &self.render {
            Some(render) => render(&problem),
            None => problem.to_json(&self.types),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("key", &self.key)
            .field("methods", &self.methods)
            .field("body_limit", &self.body_limit)
            .field("body_timeout", &self.body_timeout)
            .field("stream_after", &self.stream_after)
            .field("retry_hint", &self.retry_hint)
            .field("dispositions", &self.dispositions)
            .field("service_error", &self.service_error)
            .field("cookies", &self.cookies)
            .field("echo", &self.echo)
            .field("types", &self.types)
            .field("statuses", &self.statuses)
            .finish_non_exhaustive()
    }
}
