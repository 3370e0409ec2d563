//! Every scenario file with every seed it asks for, one test each.
//!
//! `SWIMLET_SIM_SEEDS=20` runs so many seeds of each instead; a failing one prints the
//! command that repeats it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use swimlet_sim::scenario::{Scenario, parse, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// The rows of docs/scenarios.md that a simulator can show.
const ROWS: [u8; 29] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 30, 31, 32, 33,
    34, 36, 37,
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let seeds: Option<u64> = std::env::var("SWIMLET_SIM_SEEDS")
        .ok()
        .map(|text| text.parse().expect("SWIMLET_SIM_SEEDS is a number"));
    let mut trials = vec![Trial::test("each_row_has_a_scenario", each_row)];
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let scenario = match read(&path) {
            Ok(scenario) => scenario,
            Err(error) => {
                trials.push(Trial::test(name, || Err(error.into())));
                continue;
            }
        };
        for seed in 1..=seeds.unwrap_or(scenario.seeds.into()) {
            let scenario = scenario.clone();
            let name = format!("{name}::seed_{seed}");
            trials.push(Trial::test(name, move || holds(&scenario, seed)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Guards that no row is forgotten.
fn each_row() -> Result<(), Failed> {
    let mut shown = BTreeSet::new();
    for path in files() {
        shown.extend(read(&path)?.numbers);
    }
    let missing: Vec<_> = ROWS.iter().filter(|row| !shown.contains(row)).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("no scenario shows {missing:?}").into())
    }
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(FOLDER).expect("the scenarios are there");
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    files
}

fn read(path: &Path) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let scenario = parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    if path.file_stem().is_some_and(|stem| *stem == *scenario.name) {
        Ok(scenario)
    } else {
        Err(format!(
            "{} names itself {:?}",
            path.display(),
            scenario.name
        ))
    }
}

fn holds(scenario: &Scenario, seed: u64) -> Result<(), Failed> {
    let outcome = run(scenario, seed).map_err(|error| error.to_string())?;
    if outcome.holds() {
        return Ok(());
    }
    let mut text = format!(
        "cargo run --release -p swimlet-sim -- run {} --seed {seed}",
        scenario.name
    );
    for failure in &outcome.failures {
        text.push_str(&format!("\n  {failure}"));
    }
    Err(text.into())
}
