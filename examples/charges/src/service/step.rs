use idem_core::executor::{Attempt, Outcome};
use idem_core::{RecoveryPoint, Response};
use serde::Serialize;

use super::Service;
use super::gateway::Reached;
use super::pause::{Place, pause};
use super::problem::Problem;

/// Has the provider do one thing once, and gives its name for it.
///
/// Whoever runs this again after a crash either finds the checkpoint and does not call, or calls with the same
/// key and is told what was done the first time.
///
/// # Errors
///
/// The outcome to end the attempt with, when the provider did not do it, or did not say.
pub(super) async fn once(
    service: &Service,
    attempt: &Attempt,
    step: &str,
    path: &str,
    order: &impl Serialize,
) -> Result<String, Outcome<Response>> {
    if let Some(done) = checkpoint_of(attempt, step) {
        return Ok(done);
    }
    let unknown = || Outcome::Unknown(Problem::provider_silent().to_response());
    // From here on the key stays bound to this request: the provider may act on it.
    let forgotten = |_| Outcome::Unknown(Problem::outcome_unknown().to_response());
    let key = attempt.provider_key(step).map_err(forgotten)?;
    let reached = tokio::select! {
        reached = service.gateway.post(path, key, order) => reached,
        () = attempt.lease_lost() => Reached::Silent,
    };
    let id = match reached {
        Reached::Answered { status, body } if status.is_success() => match body["id"].as_str() {
            Some(id) => id.to_owned(),
            None => return Err(unknown()),
        },
        Reached::Answered { status, .. } if status.as_u16() == 429 => {
            return Err(Outcome::Retryable(Problem::provider_busy().to_response()));
        }
        // None of these says what became of the order: somebody on the way gave up (408), our own credentials
        // were refused (401), or a call with this key is still running (409, 425).
        Reached::Answered { status, .. } if matches!(status.as_u16(), 401 | 408 | 409 | 425) => {
            return Err(unknown());
        }
        // A refusal is an answer: a declined card stays declined, and the retry is told the same.
        Reached::Answered { status, body } if status.is_client_error() => {
            let code = body["error"].as_str().unwrap_or_default();
            let problem = Problem::provider_refused(status, code);
            return Err(Outcome::Completed(problem.to_response()));
        }
        Reached::Unreachable => {
            return Err(Outcome::Retryable(
                Problem::provider_unreachable().to_response(),
            ));
        }
        Reached::Answered { .. } | Reached::Silent => return Err(unknown()),
    };
    pause(service.pause_at, Place::ProviderAnswered).await;
    let done = RecoveryPoint::new(step).and_then(|point| point.with_data(id.clone()));
    if let Ok(done) = done
        && let Err(error) = attempt.checkpoint(done).await
    {
        // Completing is fenced as well and will say the same, if it is still so.
        eprintln!("a checkpoint was not stored: {error}");
    }
    pause(service.pause_at, Place::Checkpointed).await;
    Ok(id)
}

/// What an earlier attempt was told, if it got so far.
fn checkpoint_of(attempt: &Attempt, step: &str) -> Option<String> {
    let point = attempt
        .recovery_point()
        .filter(|point| point.name() == step)?;
    String::from_utf8(point.data()?.to_vec()).ok()
}
