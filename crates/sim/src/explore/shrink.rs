//! Makes a failing scenario short: fewer faults, a smaller cluster, plainer figures, as
//! long as the same invariant is violated with the same seed.

use crate::fault::Fault;
use crate::invariants::Name;
use crate::scenario::{Event, Scenario, parse};
use crate::topology::{Network, Start, Topology};
use crate::units::Span;

/// What is left of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The shortest that was found.
    pub scenario: Scenario,
    /// How many were tried.
    pub tried: u32,
}

/// Shrinks `scenario`, which violates `name`. `violates` runs a candidate and names what
/// it violates; at most `tries` candidates are run.
pub fn shrink(
    scenario: &Scenario,
    name: Name,
    tries: u32,
    mut violates: impl FnMut(&Scenario) -> Option<Name>,
) -> Shrunk {
    let mut best = Shrunk {
        scenario: scenario.clone(),
        tried: 0,
    };
    // What one pass takes away may let another take away more.
    loop {
        let before = best.scenario.clone();
        for pass in [fewer_faults, shorter, smaller, plainer, sooner] {
            for candidate in Candidates::new(pass) {
                if best.tried >= tries {
                    return best;
                }
                let Some(shorter) = candidate(&best.scenario) else {
                    break;
                };
                if shorter == best.scenario || !is_possible(&shorter) {
                    continue;
                }
                best.tried += 1;
                if violates(&shorter) == Some(name) {
                    best.scenario = shorter;
                }
            }
        }
        if best.scenario == before {
            return best;
        }
    }
}

/// A way to make a scenario less, the `n`th of its kind; `None` after the last.
type Pass = fn(&Scenario, usize) -> Option<Scenario>;

struct Candidates {
    pass: Pass,
    next: usize,
}

impl Candidates {
    fn new(pass: Pass) -> Self {
        Self { pass, next: 0 }
    }
}

impl Iterator for Candidates {
    type Item = Box<dyn Fn(&Scenario) -> Option<Scenario>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (pass, index) = (self.pass, self.next);
        self.next += 1;
        Some(Box::new(move |scenario| pass(scenario, index)))
    }
}

/// A node that a fault names may be gone from a smaller cluster.
fn is_possible(scenario: &Scenario) -> bool {
    scenario.to_toml().is_ok_and(|text| parse(&text).is_ok())
}

/// Without half of the faults, then without each of them, the last first.
fn fewer_faults(scenario: &Scenario, index: usize) -> Option<Scenario> {
    let mut less = scenario.clone();
    let count = less.faults.len();
    match index {
        0 => less.faults.truncate(count / 2),
        1 => drop(less.faults.drain(..count / 2)),
        n => {
            let at = count.checked_sub(n - 1)?;
            less.faults.remove(at);
        }
    }
    Some(less)
}

/// A shorter run.
fn shorter(scenario: &Scenario, index: usize) -> Option<Scenario> {
    let percent = [50, 75, 90].get(index)?;
    let seconds = scenario.lasts.as_micros() / 100 * percent / 1_000_000;
    let mut less = scenario.clone();
    less.lasts = Span::from_secs(seconds.max(1));
    Some(less)
}

/// Fewer nodes.
fn smaller(scenario: &Scenario, index: usize) -> Option<Scenario> {
    let nodes = scenario.topology.nodes;
    let fewer = [nodes / 2, nodes * 3 / 4, nodes.saturating_sub(1)];
    let mut less = scenario.clone();
    less.topology.nodes = *fewer.get(index)?;
    Some(less)
}

/// Defaults in place of what was drawn.
fn plainer(scenario: &Scenario, index: usize) -> Option<Scenario> {
    let mut less = scenario.clone();
    let plain = Topology::default();
    match index {
        0 => less.network = Network::default(),
        1 => less.topology.start = Start::Formed,
        2 => less.topology.profile = plain.profile,
        3 => less.topology.in_tree_grace = plain.in_tree_grace,
        4 => less.topology.lease = plain.lease,
        5 => less.topology.zones = 1,
        6 => less.topology.aggregators = 1,
        _ => return None,
    }
    Some(less)
}

/// Faults that begin at full seconds, and end sooner.
fn sooner(scenario: &Scenario, index: usize) -> Option<Scenario> {
    let mut less = scenario.clone();
    let event = less.faults.get_mut(index / 3)?;
    match index % 3 {
        0 => event.at = Span::from_secs(event.at.as_micros() / 1_000_000),
        1 => {
            let lasts = event.lasts.map(|lasts| lasts.as_micros() / 2_000_000);
            event.lasts = lasts.map(|seconds| Span::from_secs(seconds.max(1)));
        }
        _ => plain_fault(event),
    }
    Some(less)
}

/// The plainer form of a fault, where it has one.
fn plain_fault(event: &mut Event) {
    match &mut event.what {
        Fault::Crash { returns, .. } => *returns = crate::fault::Return::Same,
        Fault::Sick { held, free, .. } => (*held, *free) = (Span::ZERO, Span::ZERO),
        Fault::Stop { over, .. } | Fault::Join { over, .. } => *over = Span::ZERO,
        _ => {}
    }
}
