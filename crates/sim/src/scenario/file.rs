//! Scenario files: parsed into what cannot be wrong, or refused with line and key.

use std::collections::BTreeSet;

use super::expect::{Expect, Of};
use super::{Event, Scenario};
use crate::fault::{Fault, Target};
use crate::topology::TopologyError;
use crate::units::Span;

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not the form; the message names line and key.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// No such cluster.
    #[error("[topology]: {0}")]
    Topology(#[from] TopologyError),
    /// A value that the form allows and the cluster does not.
    #[error("{place}: {message}")]
    Value {
        /// Where.
        place: String,
        /// What is wrong with it, and what to write instead.
        message: String,
    },
}

/// Reads a scenario.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let scenario: Scenario = toml::from_str(text)?;
    scenario.topology.check()?;
    let place = |index: usize, event: &Event| match &event.name {
        Some(name) => format!("[[fault]] {} ({name})", index + 1),
        None => format!("[[fault]] {}", index + 1),
    };
    let wrong = |place: String, message: String| Err(ScenarioError::Value { place, message });
    if scenario.lasts == Span::ZERO {
        return wrong("lasts".to_owned(), "nothing happens in no time".to_owned());
    }
    let mut names = BTreeSet::new();
    for (index, event) in scenario.faults.iter().enumerate() {
        if let Some(message) = wrong_with(&scenario, event) {
            return wrong(place(index, event), message);
        }
        if let Some(name) = &event.name
            && (name == "every" || !names.insert(name.as_str()))
        {
            let message = format!("the name {name:?} is taken; use another");
            return wrong(place(index, event), message);
        }
    }
    for (index, expect) in scenario.expects.iter().enumerate() {
        if let Some(Of::Fault(name)) = expect.of()
            && !names.contains(name.as_str())
        {
            let message = format!("no fault is named {name:?}; the names are {names:?}");
            return wrong(format!("[[expect]] {}", index + 1), message);
        }
    }
    Ok(scenario)
}

fn wrong_with(scenario: &Scenario, event: &Event) -> Option<String> {
    if event.at >= scenario.lasts {
        return Some(format!(
            "at = {}: the run ends at {}",
            event.at, scenario.lasts
        ));
    }
    if event.times == 0 {
        return Some("times = 0: leave the fault out instead".to_owned());
    }
    if event.times > 1 && event.every == Span::ZERO {
        return Some(format!(
            "times = {} without every: say from when to when",
            event.times
        ));
    }
    if event.times > 1 && event.lasts.is_none_or(|lasts| lasts > event.every) {
        return Some(format!(
            "it happens every {} and must end before it happens again: give it a shorter for",
            event.every
        ));
    }
    if let Fault::Join {
        address_of: Some(node),
        ..
    } = event.what
        && node >= scenario.topology.nodes
    {
        return Some(format!(
            "address_of = {node}: there are {} nodes at the start, counted from 0",
            scenario.topology.nodes
        ));
    }
    let targets = match &event.what {
        Fault::Cut { from, to, .. } | Fault::Loss { from, to, .. } => vec![from, to],
        other => other.target().into_iter().collect(),
    };
    targets
        .into_iter()
        .find_map(|target| wrong_with_target(scenario, target))
}

fn wrong_with_target(scenario: &Scenario, target: &Target) -> Option<String> {
    // Nodes that join later may be named.
    let joining = scenario.faults.iter().map(|event| match event.what {
        Fault::Join { count, .. } => count.saturating_mul(event.times),
        _ => 0,
    });
    let nodes = joining.fold(scenario.topology.nodes, u32::saturating_add);
    match target {
        Target::Nodes(list) | Target::Except(list) => {
            let beyond = list.iter().find(|node| **node >= nodes)?;
            Some(format!(
                "node {beyond}: there are {nodes} nodes, counted from 0"
            ))
        }
        Target::Zone(zone) if *zone >= scenario.topology.zones => Some(format!(
            "zone {zone}: there are {} zones, counted from 0",
            scenario.topology.zones
        )),
        Target::Random(count) if *count > nodes => {
            Some(format!("random = {count}: there are {nodes} nodes"))
        }
        _ => None,
    }
}

impl Expect {
    /// Which nodes it is about, if it is about nodes.
    pub(super) const fn of(&self) -> Option<&Of> {
        match self {
            Self::Written { of, .. }
            | Self::MayBeWritten { of, .. }
            | Self::WrittenAtMost { of, .. }
            | Self::Noticed { of, .. }
            | Self::Decided { of, .. }
            | Self::EndsAs { of, .. }
            | Self::ReadyBy { of, .. }
            | Self::OneMesh { of, .. }
            | Self::InTreeOnly { of }
            | Self::Suspended { of } => Some(of),
            Self::NotNoticed { .. }
            | Self::NoFalseDowns
            | Self::FalseDownsAtMost { .. }
            | Self::LeaderChangesAtMost { .. }
            | Self::TakenBackAtMost { .. }
            | Self::MembersAtMost { .. }
            | Self::InboxAtMost { .. }
            | Self::TrafficAtMost { .. } => None,
        }
    }
}
