use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

/// What a handler gets to see of a request, whatever its body is.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Payload {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let content_type = request.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok().map(str::to_owned));
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(axum::response::IntoResponse::into_response)?;
        Ok(Self { content_type, body })
    }
}
