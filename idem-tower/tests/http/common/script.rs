use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::response::Response;

use super::Gate;

/// What the handler does: counts its calls, stops at a gate if there is one, and answers what it was told to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    calls: AtomicUsize,
    done: AtomicUsize,
    gate: Mutex<Option<Gate>>,
    answers: Mutex<Vec<Response>>,
}

impl Script {
    /// The handler. Without an answer to give it says the number of the call.
    pub(crate) async fn run(self) -> Response {
        let call = self.0.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let gate = self.0.gate.lock().unwrap().take();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.0.done.fetch_add(1, Ordering::SeqCst);
        let answer = self.0.answers.lock().unwrap().pop();
        answer.unwrap_or_else(|| {
            let response = Response::builder().status(201).header("x-call", call);
            response.body(Body::from(format!("call {call}"))).unwrap()
        })
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// How many calls came to their end.
    pub(crate) fn done(&self) -> usize {
        self.0.done.load(Ordering::SeqCst)
    }

    /// Stops the next call.
    pub(crate) fn stop(&self) -> Gate {
        let gate = Gate::closed();
        *self.0.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// What the next call answers.
    pub(crate) fn answer(&self, response: Response) {
        self.0.answers.lock().unwrap().insert(0, response);
    }
}
