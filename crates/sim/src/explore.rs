//! Random schedules of faults over random clusters, judged by the invariants alone, and
//! the shrinking of one that violates them.

mod generate;
mod shrink;

#[cfg(test)]
mod tests;

pub use generate::generate;
pub use shrink::{Shrunk, shrink};

use crate::invariants::Name;
use crate::scenario::{Outcome, Scenario, run};

/// Runs a generated scenario; which invariant it violates first, and all of what came.
///
/// # Errors
/// If no such cluster can be: a generated one can.
pub fn violated(
    scenario: &Scenario,
    seed: u64,
) -> Result<(Option<Name>, Outcome), crate::TopologyError> {
    let outcome = run(scenario, seed)?;
    let first = outcome
        .failures
        .iter()
        .find_map(|failure| failure.invariant);
    Ok((first, outcome))
}
