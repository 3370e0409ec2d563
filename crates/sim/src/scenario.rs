//! Scenarios: what a world consists of, what goes wrong in it, and what must hold.
//!
//! A scenario is a TOML file that a person writes for an incident they had;
//! `docs/simulator.md` explains it. It is a closed world: a write that no expectation
//! speaks of fails it, and so does any of the [`crate::invariants`].

mod expect;
mod file;
mod run;
mod verify;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::topology::{Network, Topology};
use crate::units::Span;

pub use expect::{Expect, NoticeKind, Of, VerdictName};
pub use file::{ScenarioError, parse};
pub use run::{Failure, Outcome, Summary, WriteSeen, run, run_with};

/// One scenario, as its file says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: the file's, without the ending.
    pub name: String,
    /// What it shows, in a sentence or two.
    pub shows: String,
    /// Rows of docs/scenarios.md that it is a check of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<u8>,
    /// How long it runs, from the end of the start on.
    pub lasts: Span,
    /// With how many seeds the tests run it.
    #[serde(default = "one")]
    pub seeds: u32,
    /// Whether writes that no expectation speaks of are left to the invariants.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// The cluster.
    #[serde(default)]
    pub topology: Topology,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// What goes wrong, in any order.
    #[serde(default, rename = "fault", skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Event>,
    /// What must hold.
    #[serde(default, rename = "expect", skip_serializing_if = "Vec::is_empty")]
    pub expects: Vec<Expect>,
}

/// One thing that goes wrong at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// What expectations call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it begins.
    pub at: Span,
    /// How long it lasts; to the end of the run without it.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Span>,
    /// From beginning to beginning, if it happens more than once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub every: Span,
    /// How often it happens.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub times: u32,
    /// What it is.
    pub what: Fault,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_one(times: &u32) -> bool {
    *times == 1
}

fn is_zero(span: &Span) -> bool {
    *span == Span::ZERO
}

impl Scenario {
    /// One that only the invariants judge: the form in which exploration reports.
    #[must_use]
    pub fn open(name: String, topology: Topology, network: Network, lasts: Span) -> Self {
        Self {
            name,
            shows: "A schedule that was found by exploration.".to_owned(),
            numbers: Vec::new(),
            lasts,
            seeds: 1,
            open: true,
            topology,
            network,
            faults: Vec::new(),
            expects: Vec::new(),
        }
    }

    /// The scenario as a file.
    ///
    /// # Errors
    /// If a value has no form in TOML; none of ours is such.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
