//! What a decision rests on.

use std::fmt::Write as _;
use std::time::Duration;

use swimlet_protocol::{MemberKey, Moment, NodeName, Zone};

use crate::node::{Lifecycle, ReadyCondition};
use crate::table::{Agent, Heartbeats, Port};

/// What a decision rests on, for the writer, for people and for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// When it began: no answer, and no heartbeat, was seen after it.
    pub began: Moment,
    /// For how long it had stood when the decision was taken.
    pub stood: Duration,
    /// The Ready condition as the judge saw it last.
    pub ready: Option<ReadyCondition>,
    /// What the agent did.
    pub agent: Agent,
    /// What the kubelet's port did.
    pub port: Port,
    /// What the heartbeats did.
    pub heartbeats: Heartbeats,
    /// For how long the heartbeats were watched and did not move.
    pub heartbeats_silent: Duration,
    /// Who could not reach it over a path that had worked, one a host, in a stable order.
    pub witnesses: Vec<Witness>,
    /// How many hosts had to be among them.
    pub need: usize,
    /// Full rounds of verification that found it silent.
    pub rounds: u32,
    /// Why it was taken for weak, if it was.
    pub weakness: Option<Weakness>,
    /// Lifecycle conditions that stood on the Node.
    pub lifecycle: Vec<Lifecycle>,
}

/// Someone who could not reach a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Witness {
    /// Its zone, by the API server's word.
    pub zone: Zone,
    /// The Node it runs on; `None` for an aggregator whose host is unknown.
    pub host: Option<NodeName>,
    /// Its key in the mesh.
    pub member: MemberKey,
    /// Whether it is an aggregator.
    pub aggregator: bool,
}

/// What makes evidence weak: silent heartbeats are needed besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weakness {
    /// Witnesses of one zone only, in a cluster of several.
    OneZone,
    /// Only the agent's or only the kubelet's path had worked before.
    OnePath,
    /// Many nodes fell within a minute in a cluster of one zone.
    ManyAtOnce,
    /// Two of our Unknowns were taken back lately.
    TakenBackLately,
}

impl Evidence {
    /// One sentence or two for people: the condition's message, and the Event's.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = match (self.agent, self.port) {
            (Agent::Answers, _) => format!(
                "The node's agent answers; for {} its kubelet, by the agent's checks or by its \
                 heartbeats, has not worked or not reached the API server.",
                seconds(self.stood)
            ),
            (_, Port::Refuses | Port::AcceptsOnly) => format!(
                "The host answers, its kubelet has not for {}.",
                seconds(self.stood)
            ),
            (_, Port::AnswersTls) => "The node's kubelet answers, its agent does not.".to_owned(),
            (_, Port::Silent | Port::NeverReachable) => {
                format!("No packet from this host for {}.", seconds(self.stood))
            }
        };
        self.tell_witnesses(&mut text);
        match self.heartbeats {
            Heartbeats::Moving => text.push_str(" A heartbeat was seen since."),
            Heartbeats::Silent => text.push_str(" No heartbeat was seen since."),
            Heartbeats::None => {}
        }
        if let Some(lifecycle) = self.lifecycle.first() {
            let _ = write!(text, " The Node carries {}.", lifecycle.as_str());
        }
        text
    }

    fn tell_witnesses(&self, text: &mut String) {
        /// Names in a message; the count tells of the rest.
        const NAMED_MAX: usize = 6;
        if self.witnesses.is_empty() {
            return;
        }
        let zones: std::collections::BTreeSet<&Zone> = self
            .witnesses
            .iter()
            .map(|witness| &witness.zone)
            .filter(|zone| !zone.is_unknown())
            .collect();
        let _ = write!(text, " Not reached by {} hosts", self.witnesses.len());
        if zones.len() > 1 {
            let _ = write!(text, " in {} zones", zones.len());
        }
        let names: Vec<String> = self
            .witnesses
            .iter()
            .take(NAMED_MAX)
            .map(Witness::name)
            .collect();
        let _ = write!(text, " ({}", names.join(", "));
        if self.witnesses.len() > NAMED_MAX {
            text.push_str(", …");
        }
        let _ = write!(text, ") in {} rounds.", self.rounds);
    }
}

impl Witness {
    fn name(&self) -> String {
        match (&self.host, self.aggregator) {
            (Some(host), false) => host.to_string(),
            (Some(host), true) => format!("the aggregator on {host}"),
            (None, true) => "an aggregator".to_owned(),
            (None, false) => format!("member {:?}", self.member),
        }
    }
}

fn seconds(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}
