//! Every saboteur is caught, every case catches one, and the honest store is not accused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_testkit::saboteurs::{self, Saboteur};
use idem_testkit::{Case, CaseVerdict, Clause, Suite};

mod honest {
    idem_testkit::conformance!(idem_testkit::saboteurs::honest());
}

mod honest_cache {
    idem_testkit::conformance!(idem_testkit::saboteurs::honest_cache());
}

/// The part of the documentation that this test keeps true.
const TABLE: &str = include_str!("../saboteurs.md");

/// How many cases a row of the table names, unless a case would be named nowhere then.
const NAMED: usize = 3;

/// What this case catches depends on how its calls happen to fall, so no row relies on it that has others.
const BY_CHANCE: &str = "model_of_histories";

/// A race that is caught nine times in ten is not always caught the first time.
const TRIES: u32 = 5;

/// Not patient, since many saboteurs hang; and content with a failure of any size.
fn suite() -> Suite {
    Suite::new().patience(Duration::from_millis(400)).shrinks(0)
}

fn catches(case: &'static Case, saboteur: Saboteur) -> bool {
    let report = suite().run_case(&Arc::new(saboteur), case);
    matches!(report.verdict, CaseVerdict::Failed { .. })
}

#[test]
fn the_honest_store_skips_only_what_is_about_caches() {
    for (store, not_about_it) in [
        (
            saboteurs::honest(),
            vec!["refusal_only_of_the_same_request", "refusal_is_soon_over"],
        ),
        (saboteurs::honest_cache(), vec!["refusal_never_by_a_store"]),
    ] {
        let report = Suite::new().run(store);
        assert!(report.is_conformant(), "{report}");
        let skipped: Vec<_> = report.skipped().map(|case| case.name).collect();
        assert_eq!(skipped, not_about_it);
    }
}

#[test]
fn every_clause_has_a_case() {
    for clause in Clause::ALL {
        let about_it = Case::all()
            .iter()
            .filter(|case| case.clauses().contains(clause));
        assert!(about_it.count() > 0, "no case is about {clause}");
    }
}

/// Each row of the table is run again: whoever is said to be caught is caught, by whoever is said to catch.
///
/// `IDEM_TESTKIT_REWRITE=1` in the environment runs every case over every saboteur instead, which takes some
/// minutes, and writes the table anew.
#[test]
fn every_saboteur_is_caught_and_every_case_catches_one() {
    if std::env::var_os("IDEM_TESTKIT_REWRITE").is_some() {
        rewrite();
        return;
    }
    let rows = rows(TABLE);
    for saboteur in saboteurs::all() {
        let row = rows.get(saboteur.name());
        let (breaks, cases) =
            row.unwrap_or_else(|| panic!("{} is not in the table", saboteur.name()));
        assert_eq!(*breaks, saboteur.breaks(), "the table is out of date");
        assert!(!cases.is_empty(), "{} is caught by nobody", saboteur.name());
    }
    assert_eq!(
        rows.len(),
        saboteurs::all().len(),
        "the table has too many rows"
    );
    let named: BTreeSet<&str> = rows
        .values()
        .flat_map(|(_, cases)| cases.iter().copied())
        .collect();
    let all: BTreeSet<&str> = Case::all().iter().map(Case::name).collect();
    assert_eq!(
        named, all,
        "the table does not name every case, or names others"
    );

    let work = saboteurs::all().into_iter().flat_map(|saboteur| {
        let cases = rows[saboteur.name()].1.clone();
        cases.into_iter().map(move |case| (saboteur, case))
    });
    let escaped = at_once(work, |(saboteur, case)| {
        let case = Case::named(case).unwrap();
        let caught = (0..TRIES).any(|_| catches(case, saboteur));
        (!caught).then(|| format!("{} by {}", saboteur.name(), case.name()))
    });
    let escaped: Vec<_> = escaped.into_iter().flatten().collect();
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}

/// What the table says: for each saboteur what it does, and which cases catch it.
fn rows(table: &str) -> BTreeMap<&str, (&str, Vec<&str>)> {
    table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            let names = cells[2].split('`').skip(1).step_by(2).collect();
            (cells[0].trim_end_matches('`'), (cells[1], names))
        })
        .collect()
}

fn rewrite() {
    let caught = at_once(saboteurs::all(), |saboteur| {
        let report = suite().run(saboteur);
        let failed: Vec<&'static str> = report
            .failed()
            .map(|case| case.name)
            // Whoever catches it by luck alone is not to be relied on.
            .filter(|case| (0..8).all(|_| catches(Case::named(case).unwrap(), saboteur)))
            .collect();
        eprintln!("{}: {}", saboteur.name(), failed.len());
        (saboteur, failed)
    });
    let escaped: Vec<_> = caught
        .iter()
        .filter(|(_, cases)| cases.is_empty())
        .collect();
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
    let catches: BTreeMap<&str, usize> = Case::all()
        .iter()
        .map(|case| {
            let caught = caught
                .iter()
                .filter(|(_, cases)| cases.contains(&case.name()));
            (case.name(), caught.count())
        })
        .collect();
    let idle: Vec<_> = catches.iter().filter(|(_, caught)| **caught == 0).collect();
    assert!(idle.is_empty(), "these cases catch nobody: {idle:?}");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("saboteurs.md");
    std::fs::write(path, table(&caught, &catches)).unwrap();
}

fn table(caught: &[(Saboteur, Vec<&'static str>)], catches: &BTreeMap<&str, usize>) -> String {
    // Those first that catch the fewest: they are about this very thing.
    let mut named: Vec<Vec<&str>> = caught
        .iter()
        .map(|(_, cases)| {
            let mut cases = cases.clone();
            cases.sort_by_key(|case| (*case == BY_CHANCE, catches[case]));
            cases.truncate(NAMED);
            cases
        })
        .collect();
    for case in Case::all() {
        if !named.iter().any(|names| names.contains(&case.name())) {
            let catching = caught.iter().enumerate();
            let catching = catching.filter(|(_, (_, cases))| cases.contains(&case.name()));
            let (index, _) = catching
                .min_by_key(|(index, (_, cases))| match case.name() {
                    // Most likely it catches those that everybody catches.
                    BY_CHANCE => (0, usize::MAX - cases.len()),
                    _ => (named[*index].len(), cases.len()),
                })
                .unwrap();
            named[index].push(case.name());
        }
    }
    let mut text = format!(
        "\n{} saboteurs, and {} cases to catch them. At least three of those that catch each, if there are as many:\n\n\
         | saboteur | what it does | caught by |\n|---|---|---|\n",
        caught.len(),
        Case::all().len()
    );
    for ((saboteur, cases), names) in caught.iter().zip(&named) {
        let shown: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let more = match cases.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (name, breaks) = (saboteur.name(), saboteur.breaks());
        writeln!(text, "| `{name}` | {breaks} | {}{more} |", shown.join(", ")).unwrap();
    }
    text
}

/// Does all of this work, as much of it at once as there are processors, and gives the results in order.
fn at_once<W: Send, R: Send>(
    work: impl IntoIterator<Item = W>,
    of: impl Fn(W) -> R + Sync,
) -> Vec<R> {
    let work: Vec<W> = work.into_iter().collect();
    let waiting = Mutex::new(work.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().next();
                    let Some((index, item)) = next else {
                        return;
                    };
                    let result = of(item);
                    done.lock().unwrap().insert(index, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}
