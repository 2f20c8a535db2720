//! What a client is told.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body;
use idem_core::executor::Answer;
use idem_core::{Body as KeptBody, Headers, Response as Kept, StoreError};

use super::replayed_headers::{describes_the_body, restore, status};
use super::reply::Reply;
use super::{IDEMPOTENT_REPLAYED, Options, Problem, ProblemKind, ResponseBody};

/// A response, and in one word what it is.
pub(crate) struct Told<R: Body> {
    name: &'static str,
    response: Response<ResponseBody<R>>,
}

impl<R: Body<Data = Bytes>> Told<R> {
    pub(crate) fn problem(problem: Problem, options: &Options) -> Self {
        Self {
            name: problem.kind.name(),
            response: whole(options.render(problem)),
        }
    }

    /// The scope function's own answer.
    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self {
            name: "refused",
            response: whole(response),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Counts it, where answers are counted.
    pub(crate) fn counted(self) -> Self {
        #[cfg(feature = "metrics")]
        metrics::counter!(super::ANSWERS_TOTAL, "answer" => self.name).increment(1);
        self
    }

    pub(crate) fn into_response(self) -> Response<ResponseBody<R>> {
        self.response
    }
}

/// An answer of the executor as one of HTTP.
///
/// # Errors
///
/// The inner service's own error, when it failed for this request.
pub(crate) fn told<R, E>(
    answer: Result<Answer<Reply<R, E>>, StoreError>,
    options: &Options,
) -> Result<Told<R>, E>
where
    R: Body<Data = Bytes>,
{
    let soon = options.retry_hint;
    let problem = |problem| Ok(Told::problem(problem, options));
    match answer {
        Ok(Answer::Fresh(reply)) => fresh(reply, options),
        Ok(Answer::Replayed(Reply::Kept(kept)) | Answer::Unreadable(kept)) => {
            Ok(replayed(kept, options))
        }
        // What was replayed was read from the store, so it is no other reply than a kept one.
        Ok(Answer::Replayed(reply)) => fresh(reply, options),
        Ok(Answer::Busy { remaining }) => {
            let wait = remaining.as_duration().min(soon);
            problem(Problem::new(ProblemKind::Busy).retry_after(wait))
        }
        Ok(Answer::Mismatch(mismatch)) => problem(Problem::mismatch(mismatch)),
        Ok(Answer::Incomparable { .. }) => {
            problem(Problem::new(ProblemKind::OtherVersion).retry_after(soon))
        }
        Ok(Answer::OutcomeUnknown) => problem(Problem::new(ProblemKind::OutcomeUnknown)),
        Ok(Answer::NotYetStored) => {
            problem(Problem::new(ProblemKind::NotYetStored).retry_after(soon))
        }
        Err(_) => problem(Problem::new(ProblemKind::StoreUnavailable).retry_after(soon)),
    }
}

fn fresh<R, E>(reply: Reply<R, E>, options: &Options) -> Result<Told<R>, E>
where
    R: Body<Data = Bytes>,
{
    let response = match reply {
        Reply::Fresh { parts, body, .. } => Response::from_parts(parts, body.into_body()),
        Reply::Kept(kept) => restored(kept, options),
        Reply::Failed { error, .. } => return Err(error.into_inner()),
    };
    Ok(Told {
        name: "fresh",
        response,
    })
}

fn replayed<R: Body<Data = Bytes>>(kept: Kept, options: &Options) -> Told<R> {
    let mut response = restored(kept, options);
    let headers = response.headers_mut();
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    Told {
        name: "replayed",
        response,
    }
}

/// A kept response as one of HTTP, byte for byte; or what can be said where its body was not kept.
fn restored<R: Body<Data = Bytes>>(kept: Kept, options: &Options) -> Response<ResponseBody<R>> {
    let (code, lines, body) = kept.into_parts();
    let Some(status) = status(code) else {
        return whole(options.render(Problem::new(ProblemKind::NoHttpAnswer)));
    };
    match body {
        KeptBody::Bytes(body) => {
            let mut response = Response::new(body);
            *response.status_mut() = status;
            restore(&lines, &mut response);
            whole(response)
        }
        KeptBody::Omitted => {
            let mut problem = Problem::new(ProblemKind::BodyNotKept);
            problem.status = status;
            let mut response = options.render(problem);
            let of_the_problem = std::mem::take(response.headers_mut());
            restore(&without_the_body(&lines), &mut response);
            set(response.headers_mut(), &of_the_problem);
            whole(response)
        }
    }
}

/// The lines that do not describe a body which is no longer there.
fn without_the_body(lines: &Headers) -> Headers {
    lines
        .iter()
        .filter(|(name, _)| !describes_the_body(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Puts lines in the place of those of the same names.
fn set(headers: &mut HeaderMap, lines: &HeaderMap) {
    for name in lines.keys() {
        headers.remove(name);
        for value in lines.get_all(name) {
            // Fails only where there are more lines than a response can have.
            let _ = headers.try_append(name.clone(), value.clone());
        }
    }
}

fn whole<R: Body>(response: Response<Bytes>) -> Response<ResponseBody<R>> {
    response.map(|body| ResponseBody::whole(body, None))
}
