//! `swimlet-sim explore`.

use std::time::{Duration, Instant};

use swimlet_sim::explore::{generate, shrink, violated};
use swimlet_sim::invariants::Name;
use swimlet_sim::scenario::Scenario;

use super::output::{progress, say};
use super::{CliError, Verdict, args};

/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(30);

pub(super) fn explore(args: &args::Explore) -> Result<Verdict, CliError> {
    let started = now();
    let time = Duration::from_secs(args.minutes * 60);
    let mut told = started;
    let mut verdict = Verdict::Holds;
    let (mut runs, mut simulated) = (0_u64, Duration::ZERO);
    for seed in args.seed.. {
        if now().duration_since(started) >= time {
            break;
        }
        let scenario = generate(seed);
        let (name, _) = violated(&scenario, seed).map_err(input)?;
        runs += 1;
        simulated += scenario.lasts.duration();
        if let Some(name) = name {
            verdict = Verdict::Fails;
            tell(&scenario, seed, name, args.tries)?;
            if !args.go_on {
                break;
            }
        }
        if now().duration_since(told) >= TELL_EVERY {
            told = now();
            progress(&format!("{runs} schedules, the last with seed {seed}"));
        }
    }
    say(&format!(
        "{runs} schedules from seed {} on, {} simulated hours in {} s: {}",
        args.seed,
        simulated.as_secs() / 3_600,
        now().duration_since(started).as_secs(),
        match verdict {
            Verdict::Holds => "no invariant was violated",
            Verdict::Fails => "invariants were violated",
        }
    ))?;
    Ok(verdict)
}

/// Shrinks a violation and prints it as a file that one can run.
fn tell(scenario: &Scenario, seed: u64, name: Name, tries: u32) -> Result<(), CliError> {
    progress(&format!("seed {seed} violates {name}; it is being shrunk"));
    let shrunk = shrink(scenario, name, tries, |candidate| {
        violated(candidate, seed).ok().and_then(|(name, _)| name)
    });
    let (_, outcome) = violated(&shrunk.scenario, seed).map_err(input)?;
    let text = shrunk.scenario.to_toml().map_err(input)?;
    let failures: Vec<_> = outcome
        .failures
        .iter()
        .map(|failure| format!("# {failure}"))
        .collect();
    say(&format!(
        "# seed {seed} violates {name}; kept in a file, this repeats it:\n\
         # cargo run --release -p swimlet-sim -- run FILE --seed {seed}\n{}\n{text}",
        failures.join("\n")
    ))
}

fn input(error: impl std::fmt::Display) -> CliError {
    CliError::Input(error.to_string())
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long to explore is told in the time of the one who waits"
)]
fn now() -> Instant {
    Instant::now()
}
