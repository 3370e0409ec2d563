//! `swimlet-sim run`.

use std::path::{Path, PathBuf};

use swimlet_sim::scenario::{Outcome, Scenario, parse, run_with};
use swimlet_sim::{Record, What};

use super::output::{complain, say};
use super::{CliError, Verdict, args};

/// The scenarios that come with the simulator.
pub(super) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

pub(super) fn run(args: &args::Run) -> Result<Verdict, CliError> {
    let path = find(&args.file);
    let scenario = read(&path)?;
    let mut verdict = Verdict::Holds;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let show = |record: &Record| {
            if args.trace && (args.views || !is_view(record)) {
                // A closed pipe shows when the outcome is said.
                drop(say(&shown(record)));
            }
        };
        let outcome =
            run_with(&scenario, seed, show).map_err(|error| CliError::Input(error.to_string()))?;
        if !outcome.holds() {
            verdict = Verdict::Fails;
        }
        if args.json {
            let line = serde_json::to_string(&outcome)
                .map_err(|error| CliError::Input(error.to_string()))?;
            say(&line)?;
        } else {
            say(&told(&outcome))?;
        }
        if !outcome.holds() {
            complain(&repeat(&args.file, &outcome));
        }
    }
    Ok(verdict)
}

/// A file, or one of ours by its name.
fn find(file: &Path) -> PathBuf {
    let ours = Path::new(FOLDER).join(file).with_extension("toml");
    if !file.exists() && ours.exists() {
        return ours;
    }
    file.to_owned()
}

pub(super) fn read(path: &Path) -> Result<Scenario, CliError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CliError::Input(format!("{}: {error}", path.display()).trim_end().to_owned())
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    parse(&text).map_err(|error| wrong(&error))
}

fn is_view(record: &Record) -> bool {
    matches!(record.what, What::Held { .. } | What::Accused { .. })
}

fn shown(record: &Record) -> String {
    let seconds = record.at.as_micros() / 1_000_000;
    let micros = record.at.as_micros() % 1_000_000;
    format!("{seconds:>5}.{micros:06} {:?}", record.what)
}

/// What came of a run, for people.
fn told(outcome: &Outcome) -> String {
    let state = if outcome.holds() { "holds" } else { "FAILS" };
    let summary = &outcome.summary;
    let mut text = format!(
        "{} with seed {}: {state} (trace {})",
        outcome.scenario, outcome.seed, outcome.trace_hash
    );
    for failure in &outcome.failures {
        text.push_str(&format!("\n  {failure}"));
    }
    for write in &summary.writes {
        text.push_str(&format!(
            "\n  {}: node {} written as {} by member {}",
            write.at, write.node.0, write.verdict, write.by.0
        ));
    }
    text.push_str(&format!(
        "\n  {} writes, {} taken back, {} by in-tree, {} false Downs, {} changes of leader",
        summary.writes.len(),
        summary.taken_back,
        summary.in_tree,
        summary.false_downs,
        summary.leaders
    ));
    if !summary.notices.is_empty() {
        text.push_str(&format!("\n  notices: {:?}", summary.notices));
    }
    text
}

/// The command that repeats a run.
fn repeat(file: &Path, outcome: &Outcome) -> String {
    format!(
        "{} does not hold with seed {}; to repeat it: cargo run --release -p swimlet-sim -- run {} --seed {}",
        outcome.scenario,
        outcome.seed,
        file.display(),
        outcome.seed
    )
}
