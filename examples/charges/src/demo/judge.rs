use axum::body::Bytes;

use crate::provider::{Entry, Kind};

/// One thing that the client wants done once, and what it was told about it.
///
/// It goes by its description, which the provider writes into its ledger, and not by its key: keys are what is
/// on trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What the client calls it.
    pub description: String,
    /// How often the card is to be charged for it: once, or, if it is declined, not at all.
    pub due: usize,
    /// How many requests were sent for it.
    pub requests: usize,
    /// The answers that say what came of it. That it is still running, say, is none of these.
    pub answers: Vec<Answered>,
}

/// One answer, as far as it must be the same for everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl Answered {
    /// Whether an answer with this status says what came of the request. Any other asks the client to do
    /// something: to wait, or to correct itself.
    #[must_use]
    pub fn is_final(status: u16) -> bool {
        matches!(status, 200..=299 | 402)
    }
}

/// What the ledger and the client's memory say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How many operations there were.
    pub operations: usize,
    /// How many of them are not to be charged, their card being declined.
    pub declined: usize,
    /// How many requests were sent for them.
    pub requests: usize,
    /// How many charges the provider's ledger holds.
    pub charges: usize,
    /// What was charged more often than it should: operations, and charges that belong to none.
    pub too_often: Vec<String>,
    /// Operations without a charge or without an answer, and answers that name a charge which is not there.
    pub lost: Vec<String>,
    /// Operations with two different answers.
    pub answered_differently: Vec<String>,
    /// What did not go as the story has it.
    pub surprises: Vec<String>,
}

impl Verdict {
    /// Whether everything was done once and answered alike.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let Self {
            too_often,
            lost,
            answered_differently,
            surprises,
            ..
        } = self;
        [too_often, lost, answered_differently, surprises]
            .iter()
            .all(|found| found.is_empty())
    }
}

/// Compares what was wanted and told with what the ledger holds.
#[must_use]
pub fn judge(operations: &[Operation], ledger: &[Entry], surprises: Vec<String>) -> Verdict {
    let mut verdict = Verdict {
        operations: operations.len(),
        declined: operations
            .iter()
            .filter(|operation| operation.due == 0)
            .count(),
        requests: operations.iter().map(|operation| operation.requests).sum(),
        charges: charges(ledger).count(),
        too_often: Vec::new(),
        lost: Vec::new(),
        answered_differently: Vec::new(),
        surprises,
    };
    for operation in operations {
        let name = || operation.description.clone();
        let charged = charges(ledger)
            .filter(|entry| entry.description == operation.description)
            .count();
        if charged > operation.due {
            verdict.too_often.push(name());
        }
        let unfounded = operation.answers.iter().any(|answer| {
            charge_of(answer).is_some_and(|id| {
                !charges(ledger)
                    .any(|entry| entry.id == id && entry.description == operation.description)
            })
        });
        if charged < operation.due || operation.answers.is_empty() || unfounded {
            verdict.lost.push(name());
        }
        if operation.answers.windows(2).any(|pair| pair[0] != pair[1]) {
            verdict.answered_differently.push(name());
        }
    }
    let known = |entry: &Entry| {
        operations
            .iter()
            .any(|operation| operation.description == entry.description)
    };
    let strays = charges(ledger).filter(|entry| !known(entry));
    verdict
        .too_often
        .extend(strays.map(|entry| entry.id.clone()));
    verdict
}

fn charges(ledger: &[Entry]) -> impl Iterator<Item = &Entry> {
    ledger.iter().filter(|entry| entry.kind == Kind::Charge)
}

/// The charge that an answer says was made.
fn charge_of(answer: &Answered) -> Option<String> {
    if !(200..300).contains(&answer.status) {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    Some(body["id"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, description: &str) -> Entry {
        Entry {
            id: id.to_owned(),
            account: "acct_acme".to_owned(),
            kind: Kind::Charge,
            amount: 2500,
            currency: "eur".to_owned(),
            source: "tok_visa".to_owned(),
            description: description.to_owned(),
            key: format!("key of {id}"),
        }
    }

    fn created(id: &str) -> Answered {
        Answered {
            status: 201,
            body: format!("{{\"id\":\"{id}\"}}").into(),
        }
    }

    fn declined() -> Answered {
        Answered {
            status: 402,
            body: "{}".into(),
        }
    }

    fn operation(description: &str, due: usize, answers: &[Answered]) -> Operation {
        Operation {
            description: description.to_owned(),
            due,
            requests: answers.len(),
            answers: answers.to_vec(),
        }
    }

    fn good() -> (Vec<Operation>, Vec<Entry>) {
        let operations = vec![
            operation("order 1", 1, &[created("ch_1"), created("ch_1")]),
            operation("order 2", 1, &[created("ch_2")]),
            operation("order 3", 0, &[declined(), declined()]),
        ];
        (
            operations,
            vec![entry("ch_1", "order 1"), entry("ch_2", "order 2")],
        )
    }

    #[test]
    fn once_and_alike_is_good() {
        let (operations, mut ledger) = good();
        ledger.push(Entry {
            kind: Kind::Refund,
            ..entry("re_3", "order 1")
        });
        let verdict = judge(&operations, &ledger, Vec::new());
        assert!(verdict.is_good(), "{verdict:?}");
        assert_eq!(
            (verdict.operations, verdict.requests, verdict.charges),
            (3, 5, 2)
        );
    }

    #[test]
    fn a_second_charge_is_seen() {
        let (operations, mut ledger) = good();
        ledger.push(entry("ch_3", "order 2"));
        let verdict = judge(&operations, &ledger, Vec::new());
        assert_eq!(verdict.too_often, ["order 2"]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_charge_of_a_declined_card_is_seen() {
        let (operations, mut ledger) = good();
        ledger.push(entry("ch_3", "order 3"));
        assert_eq!(
            judge(&operations, &ledger, Vec::new()).too_often,
            ["order 3"]
        );
    }

    #[test]
    fn a_charge_that_nobody_ordered_is_seen() {
        let (operations, mut ledger) = good();
        ledger.push(entry("ch_3", "order 9"));
        assert_eq!(judge(&operations, &ledger, Vec::new()).too_often, ["ch_3"]);
    }

    #[test]
    fn a_charge_that_is_not_in_the_ledger_is_seen() {
        let (operations, mut ledger) = good();
        ledger.pop();
        let verdict = judge(&operations, &ledger, Vec::new());
        assert_eq!(verdict.lost, ["order 2"]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn an_operation_without_an_answer_is_seen() {
        let (mut operations, ledger) = good();
        operations[1].answers.clear();
        let verdict = judge(&operations, &ledger, Vec::new());
        assert_eq!(verdict.lost, ["order 2"]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn an_answer_that_names_another_charge_is_seen() {
        let (mut operations, ledger) = good();
        for wrong in [created("ch_1"), created("ch_9"), created("")] {
            operations[1].answers = vec![wrong];
            assert_eq!(judge(&operations, &ledger, Vec::new()).lost, ["order 2"]);
        }
    }

    #[test]
    fn two_answers_are_seen() {
        let (mut operations, ledger) = good();
        operations[2].answers[1].body = "{ }".into();
        let verdict = judge(&operations, &ledger, Vec::new());
        assert_eq!(verdict.answered_differently, ["order 3"]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_surprise_is_not_good() {
        let (operations, ledger) = good();
        let verdict = judge(&operations, &ledger, vec!["scene 1".to_owned()]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn what_only_asks_the_client_to_do_something_is_not_final() {
        for (status, is_final) in [
            (201, true),
            (402, true),
            (400, false),
            (409, false),
            (422, false),
            (429, false),
            (504, false),
        ] {
            assert_eq!(Answered::is_final(status), is_final, "{status}");
        }
    }
}
