//! Measurements of the idem crates, each beside its floor or a rival in the same run.

mod arguments;
mod contest;
mod contests;
mod load;
mod machine;
mod measure;
mod plot;
mod report;
mod survey;

use std::fs;
use std::process::ExitCode;

use arguments::{Arguments, USAGE};
use contest::{Fault, Place};
use machine::Machine;
use report::Report;
use survey::Findings;

fn main() -> ExitCode {
    match Arguments::parse().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("idem-bench: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Fault> {
    if arguments.help {
        print!("{USAGE}");
        return Ok(());
    }
    fs::create_dir_all(&arguments.out)?;
    // Beside the results, so that `--out` also chooses the file system that is measured.
    let scratch = tempfile::tempdir_in(&arguments.out)?;
    let place = Place {
        directory: scratch.path().to_path_buf(),
    };
    if arguments.list {
        return list(arguments, &place);
    }
    let mut report = Report::new(Machine::look(&place.directory)?, arguments);
    print!("{}", report.head());
    for (_, make) in contests::GROUPS {
        for mut contest in make(&place)? {
            if !arguments.selects(contest.name) {
                continue;
            }
            let outcome =
                measure::measure(&mut contest, arguments.rounds, arguments.pace, |what| {
                    eprintln!("measuring {what}")
                })?;
            print!("\n{}", report::table(&outcome));
            report.outcomes.push(outcome);
        }
    }
    for make in contests::SURVEYS {
        for mut survey in make(&place)? {
            if !arguments.selects_survey(&survey) {
                continue;
            }
            eprintln!("measuring {}", survey.name);
            let findings = Findings {
                survey: survey.name,
                what: survey.what,
                figures: (survey.run)(arguments.rounds, arguments.pace)?,
            };
            print!("\n{}", report::findings(&findings));
            report.findings.push(findings);
        }
    }
    if report.outcomes.is_empty() && report.findings.is_empty() {
        return Err("no contest has such a name; `--list` shows them".into());
    }
    report.finish();
    for outcome in &report.outcomes {
        let name = outcome.contest.replace('/', "-");
        fs::write(
            arguments.out.join(format!("{name}.svg")),
            plot::draw(outcome),
        )?;
    }
    let json = arguments.out.join("results.json");
    fs::write(&json, serde_json::to_vec_pretty(&report)?)?;
    println!("\n{}\nwritten to {}", report.verdict(), json.display());
    Ok(())
}

fn list(arguments: &Arguments, place: &Place) -> Result<(), Fault> {
    for (_, make) in contests::GROUPS {
        for contest in make(place)? {
            if arguments.selects(contest.name) {
                println!("{:28} {}", contest.name, contest.operation);
            }
        }
    }
    for make in contests::SURVEYS {
        for survey in make(place)? {
            if arguments.selects_survey(&survey) {
                println!("{:28} {}", survey.name, survey.what);
            }
        }
    }
    Ok(())
}
