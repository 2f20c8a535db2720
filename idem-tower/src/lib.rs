//! Idempotency keys for HTTP: a [tower] layer that runs a request once, and gives every retry its answer.
//!
//! A client that does not know whether its request succeeded sends it again with the same `Idempotency-Key`.
//! The layer claims the key in a store before the handler is called, stores the handler's response, and answers
//! whoever comes again. What a key means is decided in [`idem_core`]; here is what it means over HTTP.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::body::Body;
//! use axum::http::Request;
//! use axum::routing::post;
//! use idem_core::executor::Idempotency;
//! use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, Scope, SystemClock};
//! use idem_tower::IdempotencyLayer;
//! use tower::ServiceExt as _;
//!
//! let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
//! let layer = IdempotencyLayer::builder(idempotency, Rules::new(Profile::new(1), Nulls::Distinct))
//!     .single_scope(Scope::new("our only tenant")?)
//!     .build();
//! let app = Router::new().route("/charges", post(|| async { "charged" })).layer(layer);
//!
//! let request = || {
//!     let request = Request::post("/charges").header("idempotency-key", "8e03978e-40d5");
//!     request.body(Body::from("amount=1000"))
//! };
//! let first = app.clone().oneshot(request()?).await?;
//! let again = app.oneshot(request()?).await?;
//! assert_eq!(first.headers().get("idempotent-replayed"), None);
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! # What a request gets
//!
//! | request | answer |
//! |---|---|
//! | no key, and the route requires one | 400 |
//! | a key that is malformed, empty, too long, or sent twice | 400 |
//! | the first | the handler's response, unchanged |
//! | again, the same request | stored status, headers and body bytes, with `Idempotent-Replayed: true` |
//! | again, and the body was too large to keep, or a stream | stored status and headers, a body that says so, `Idempotent-Replayed: true` |
//! | again, while the first is running | 409 with `Retry-After`; or the first one's answer, under [`OnBusy::Wait`](idem_core::OnBusy) |
//! | with another operation or payload | 422 |
//! | nobody knows whether it was done | 409 without `Retry-After` |
//! | the record is of another version of the service | 503 with `Retry-After` |
//! | the outcome could not be stored in time | 503 with `Retry-After` |
//! | body over the limit, too slow, broken off | 413, 408, 400; never claimed |
//! | the scope function refuses | its own answer; never claimed |
//! | the store cannot be reached | 503 with `Retry-After`; the handler is not called |
//! | another method than POST and PATCH | whatever the handler says: the layer is not there |
//!
//! What the layer has to say itself is `application/problem+json`, a [`Problem`], whose types never change.
//! All of it can be changed for each route: see [`Options`].
//!
//! # What a response means
//!
//! The status of a response says what becomes of the key ([`Dispositions`]), unless the handler says so itself
//! ([`Disposition`], [`Attempt::dispose`]). Only what is completed, or failed for good, is stored and replayed.
//! A handler that panics has failed for good: its retries are told so, with the 500 that the first one got, and
//! the process lives.
//!
//! - The headers of a response replay as well, in order, with their repeats, and byte for byte: all but those of one
//!   connection, `Date`, and `Set-Cookie`, which a service has to
//!   [ask for](Options::replay_set_cookie). Trailers do not replay.
//! - A body over the [limit](idem_core::Policy::response_limit) reaches its own client whole, and so does a
//!   stream, as it comes. Retries learn that the work was done, and what they cannot have again.
//! - The outcome is stored before the response is sent. If it cannot be stored in time the client is told to come
//!   back, and storing goes on.
//!
//! # Clients that hang up
//!
//! A client that hangs up, or a time-out around the layer, does not cancel a handler that was called: it goes on
//! in the background, its outcome is stored, and the retry finds it. A request whose handler was not called yet
//! is forgotten, and its key given back. At shutdown, [`IdempotencyLayer::drain`] waits for what is in the
//! background, and says what was left.
//!
//! A time-out *inside* the layer is another matter: it cuts the handler, and nobody knows how far it got. Its 408
//! or 504 is therefore [`Disposition::Unknown`].
//!
//! # Where the layer goes
//!
//! 1. *Inside* authentication and authorization. A replay does not reach the handler, so whatever decides that this
//!    caller may see this answer has to come before. The [scope](Builder::scope) comes from what they found out.
//! 2. *Inside* compression of responses, and *outside* of whatever else changes a response: what is replayed is
//!    what the layer saw.
//! 3. Once. A layer that meets a request which another one has claimed lets it pass.
//!
//! # Operations
//!
//! A key is bound to an operation: by default the method and the path, as the client sent them. In axum that is the
//! path before nested routers took off their prefixes, so `/v1/charges` and `/v2/charges` are two.
//!
//! The template of the route (`/charges/{id}`) would make shorter lists of operations, and was not chosen, since
//! it is the server's and not the client's: where a parameter is renamed, or a route moves into another router, every
//! retry from before the deployment would be refused as a different request. It is also known to some layers only,
//! depending on where they stand. A service that wants it says so, and the path then counts as a part of the
//! fingerprint:
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::extract::MatchedPath;
//! use http::request::Parts;
//! use idem_core::Operation;
//! use idem_tower::Options;
//!
//! fn template(request: &Parts) -> Operation {
//!     let path = request.extensions.get::<MatchedPath>().map_or("elsewhere", |path| path.as_str());
//!     let name = format!("{} {path}", request.method);
//!     Operation::new(name).unwrap_or_else(|_| Operation::new("too long").expect("a constant"))
//! }
//!
//! let options = Options::default().operation(template);
//! # let _ = options;
//! # }
//! ```
//!
//! # Fingerprints
//!
//! Two requests are the same if operation, query and body mean the same under the
//! [`Rules`](idem_core::Rules) of the layer. The content type decides how a body is read: JSON by its values,
//! a form by its fields, anything else, and whatever does not parse, byte for byte. A body with a
//! `Content-Encoding` counts byte for byte too. How the body was framed, and over which version of HTTP it came,
//! makes no difference. Other headers do not count.
//!
//! # Transactions of the handler
//!
//! A handler that writes its business rows and the record in one transaction of its own says so with
//! [`Disposition::Joined`]. The layer then stores nothing: it reads the record back and sends what the transaction
//! committed, or, if it did not commit, tells the client to send the same request again.
//!
//! So it does not matter whether the handler heard how its commit ended: if that fails, it says `Joined` as well, and the
//! record says the rest. What failed *before* the commit is undone, and [`Disposition::Retryable`] lets the retry run at once
//! instead of after the lease. The example `axum_postgres` is such a service, whole.
//!
//! # CORS
//!
//! A browser shows a script neither header unless it is told to: pass [`EXPOSED_HEADERS`] to
//! `tower_http::cors::CorsLayer::expose_headers`, and allow `idempotency-key` as a request header.
//!
//! # What can be watched
//!
//! Every keyed request that is admitted has a [`tracing`] span `idempotency` at level INFO, with the fields `record`
//! (a hash of scope and key), `operation`, `attempt` and `answer`. With the feature `metrics`, every answer of the
//! layer is counted in `idem_http_answers_total`, whose label `answer` is `fresh`, `replayed`, `refused`, or the
//! [name](ProblemKind::name) of a problem. Keys and bodies reach neither.
//!
//! # Features
//!
//! - `axum` (default): [`Attempt`] as an extractor, [`Disposition`] as a part of a response, and the path before
//!   nested routers. Do not switch it off in a service that uses axum.
//! - `metrics`: counts answers with the [`metrics`](https://docs.rs/metrics) facade.
//!
//! [tower]: https://docs.rs/tower

mod attempt;
mod builder;
mod capture;
mod caught;
mod detached;
mod disposition;
mod exchange;
mod frame;
mod future;
mod key_header;
mod layer;
mod operation;
mod options;
mod problem;
mod read;
mod refusal;
mod replayed_headers;
mod reply;
mod request_body;
mod response_body;
mod running;
mod service;
mod told;
mod work;

use http::HeaderName;

pub use attempt::Attempt;
#[cfg(feature = "axum")]
pub use attempt::NoAttempt;
pub use builder::{Builder, HasScope, NoScope};
pub use disposition::{Disposition, Dispositions};
pub use future::ResponseFuture;
pub use key_header::{InvalidKeyHeader, key_of};
pub use layer::IdempotencyLayer;
pub use options::Options;
pub use problem::{Problem, ProblemKind};
pub use refusal::Refusal;
pub use request_body::RequestBody;
pub use response_body::ResponseBody;
pub use running::{Drained, Left};
pub use service::IdempotencyService;

/// The request header field that names an operation, and the response header field in which it can be sent back.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The response header field of an answer that is not the first: `true`.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The response header fields that scripts in browsers have to be shown.
pub const EXPOSED_HEADERS: [HeaderName; 3] = [
    IDEMPOTENCY_KEY,
    IDEMPOTENT_REPLAYED,
    http::header::RETRY_AFTER,
];

/// The counter of answers, with the label `answer`.
#[cfg(feature = "metrics")]
pub const ANSWERS_TOTAL: &str = "idem_http_answers_total";

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../docs/http.md")]
struct Guide;
