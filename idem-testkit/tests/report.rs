//! What the suite says: as a table, as JSON, and to the test runner when there is no database.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};
use std::sync::Arc;

use idem_core::{ManualClock, MemoryKeyStore, Timestamp, async_trait};
use idem_testkit::{CaseVerdict, Harness, Suite, Unavailable, saboteurs};

/// A database that is down when the environment says so.
struct OnDemand;

const DOWN: &str = "IDEM_TESTKIT_TEST_DOWN";

#[async_trait]
impl Harness for OnDemand {
    type Data = Arc<MemoryKeyStore<ManualClock>>;
    type Store = Arc<MemoryKeyStore<ManualClock>>;

    async fn create(&self) -> Result<Self::Data, Unavailable> {
        if std::env::var_os(DOWN).is_some() {
            return Err(Unavailable::new("connection refused"));
        }
        let clock = ManualClock::new(Timestamp::from_micros(0));
        Ok(Arc::new(MemoryKeyStore::new(clock)))
    }

    async fn open(&self, data: &Self::Data) -> Result<Self::Store, Unavailable> {
        Ok(data.clone())
    }
}

mod on_demand {
    idem_testkit::conformance!(super::OnDemand);
}

/// Runs one of the tests above with the database down.
fn with_the_database_down(ci: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "on_demand::claim_writes_the_first_record"])
        .env(DOWN, "1")
        .env("CI", ci)
        .output()
        .unwrap()
}

#[test]
fn without_a_database_a_test_is_skipped_aloud() {
    let output = with_the_database_down("");
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let skipped = "SKIPPED claim_writes_the_first_record: \
                   the store cannot be opened: connection refused";
    assert!(said.contains(skipped), "{said}");
}

#[test]
fn without_a_database_a_test_fails_in_continuous_integration() {
    let output = with_the_database_down("true");
    assert!(!output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("connection refused"), "{said}");
}

fn saboteur(name: &str) -> saboteurs::Saboteur {
    let mut all = saboteurs::all().into_iter();
    all.find(|saboteur| saboteur.name() == name).unwrap()
}

#[test]
fn a_failure_is_explained_in_the_table_and_in_json() {
    let report = Suite::new().only("ids_").run(saboteur("keys_without_case"));
    assert!(!report.is_conformant());
    let table = report.to_string();
    let explained = "\n    scope \"acct\", key \"ABC-K\": ";
    assert!(table.contains(explained), "{table}");

    let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    let cases = json["cases"].as_array().unwrap();
    let case = cases
        .iter()
        .find(|case| case["name"] == "ids_with_case")
        .unwrap();
    assert_eq!(case["verdict"], "failed");
    assert_eq!(case["clauses"], serde_json::json!(["K5"]));
    assert!(case["explanation"].is_string() && case["millis"].is_u64());
}

#[test]
fn a_panic_of_the_store_is_a_failure_of_the_case() {
    let report = Suite::new()
        .only("transition_creates_nothing")
        .run(saboteur("panics_on_the_unexpected"));
    let CaseVerdict::Failed { explanation } = &report.cases[0].verdict else {
        panic!("{report}");
    };
    assert!(explanation.starts_with("a call panicked: no rows"));
}

#[test]
fn the_same_seed_finds_the_same_history() {
    let run = || {
        let suite = Suite::new().seed(7).shrinks(50).only("model_of_sequences");
        suite.run(saboteur("checkpoints_in_any_order"))
    };
    let (one, other) = (run(), run());
    let program = |report: &idem_testkit::Report| match &report.cases[0].verdict {
        CaseVerdict::Failed { explanation } => explanation
            .split_once("as small as it gets")
            .unwrap()
            .1
            .to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(program(&one), program(&other));
}
