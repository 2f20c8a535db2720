//! Every contest runs, in a quick run of the whole program, and its results are written as they are documented.

use std::borrow::Cow;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str], out: &Path) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_idem-bench"))
        .args(arguments)
        .arg("--out")
        .arg(out)
        .output()
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[test]
fn every_contest_that_is_listed_runs_and_is_written() {
    let out = tempfile::tempdir().unwrap();
    let listed = run(&["--list"], out.path()).unwrap();
    let listed = text(&listed.stdout);
    let names: Vec<&str> = listed
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert!(names.contains(&"decide/replay"), "{names:?}");

    let ran = run(&["--quick", "--rounds", "1"], out.path()).unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let json = std::fs::read(out.path().join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let outcomes = results["outcomes"].as_array().unwrap();
    let run: Vec<&str> = outcomes
        .iter()
        .map(|outcome| outcome["contest"].as_str().unwrap())
        .collect();
    let findings = results["findings"].as_array().unwrap();
    let surveyed = findings
        .iter()
        .map(|findings| findings["survey"].as_str().unwrap());
    let all: Vec<&str> = run.iter().copied().chain(surveyed).collect();
    assert_eq!(all, names);
    for outcome in outcomes {
        let name = outcome["contest"].as_str().unwrap();
        assert!(text(&ran.stdout).contains(name), "no table for {name}");
        let picture = out.path().join(format!("{}.svg", name.replace('/', "-")));
        assert!(picture.exists(), "no picture of {name}");
        for level in outcome["levels"].as_array().unwrap() {
            let others = level["others"].as_array().unwrap();
            let figures = others.iter().map(|other| &other["figures"]);
            for figures in std::iter::once(&level["ours"]).chain(figures) {
                assert!(figures["per_second"].as_f64().unwrap() > 0.0, "{name}");
                assert_eq!(figures["rounds"].as_array().unwrap().len(), 1, "{name}");
            }
        }
    }
}

#[test]
fn a_name_that_is_none_is_an_error() {
    let out = tempfile::tempdir().unwrap();
    let ran = run(&["--only", "no-such-contest", "--quick"], out.path()).unwrap();
    assert!(!ran.status.success());
    assert!(text(&ran.stderr).contains("--list"));
}
