//! What the judge wants known, as Events: about one Node on that Node, about many on our Lease.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use swimlet_protocol::NodeName;
use swimlet_verdict::{Brake, Notice};
use tokio::sync::watch;

use super::{EventSink, Note};
use crate::election::ElectionConfig;
use crate::roster::Roster;

/// Times that a brake's change is told within the time in which others are told once: it may
/// well go on and off and on again, and the last word should be the true one. A brake that
/// flutters is silenced all the same.
const BRAKE_TOLD_MAX: u32 = 5;

/// Where notices are handed in. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Announcer {
    sink: EventSink,
    roster: Arc<Roster>,
    namespace: Arc<str>,
    lease: Arc<str>,
    lease_uid: watch::Receiver<Option<Arc<str>>>,
}

/// On which object an Event is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About<'a> {
    Node(&'a NodeName),
    Cluster,
}

impl Announcer {
    pub(crate) fn new(
        sink: EventSink,
        roster: Arc<Roster>,
        election: &ElectionConfig,
        lease_uid: watch::Receiver<Option<Arc<str>>>,
    ) -> Self {
        Self {
            sink,
            roster,
            namespace: Arc::from(election.namespace.as_str()),
            lease: Arc::from(election.lease.as_str()),
            lease_uid,
        }
    }

    /// Makes an Event of a notice. One about a Node that is gone is about nothing.
    pub(crate) fn announce(&self, notice: &Notice) {
        let (about, note) = event_of(notice);
        match about {
            About::Cluster => self.sink.cluster(self.lease(), note),
            About::Node(name) => {
                if let Some(node) = self.roster.find(name) {
                    self.sink.remark(&node, note);
                }
            }
        }
    }

    fn lease(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            name: Some(self.lease.to_string()),
            namespace: Some(self.namespace.to_string()),
            uid: self.lease_uid.borrow().as_deref().map(str::to_owned),
            ..ObjectReference::default()
        }
    }
}

fn event_of(notice: &Notice) -> (About<'_>, Note) {
    match notice {
        Notice::BrakeOn { brake } => (About::Cluster, brake_on(*brake)),
        Notice::BrakeOff { brake } => (About::Cluster, brake_off(*brake)),
        Notice::CoveredByNone { left } => {
            let text = format!(
                "{left} agents left within minutes, so their nodes are covered by none and \
                 nothing is written for them. If this is no uninstall, bring the DaemonSet back."
            );
            (
                About::Cluster,
                warning("CoveredByNone", "WithholdWrites", text),
            )
        }
        Notice::ApiCutOffMany { nodes } => {
            let text = format!(
                "{nodes} nodes say that they do not reach the API server: it is taken for the \
                 control plane's fault, and nothing is written for it."
            );
            (
                About::Cluster,
                warning("ApiServerUnreachable", "WithholdWrites", text),
            )
        }
        Notice::AgentMissing { node } => {
            let text = "The kubelet answers, the swimlet agent does not: the node is checked \
                        directly, from a distance and more slowly. Look at the agent's pod.";
            (
                About::Node(node),
                warning("AgentMissing", "CheckDirectly", text.to_owned()),
            )
        }
        Notice::MeshCutOff { node } => {
            let text = "No peer reaches this node, and its kubelet reaches the API server: Ready \
                        is left as it is. Look at the network between the nodes.";
            (
                About::Node(node),
                warning("CutOffFromPeers", "WithholdUnknown", text.to_owned()),
            )
        }
        Notice::TakenBack { node } => {
            let text = "The kubelet took Ready=Unknown back, and no peer has reached the node \
                        since. Look at the network between the nodes.";
            (
                About::Node(node),
                warning("UnknownTakenBack", "WithholdUnknown", text.to_owned()),
            )
        }
        Notice::Unverifiable {
            node,
            witnesses,
            need,
        } => {
            let text = format!(
                "The node is silent, but only {witnesses} of the {need} hosts that are needed \
                 found it so over a path that had worked: Ready is left as it is."
            );
            (
                About::Node(node),
                warning("Unverifiable", "WithholdUnknown", text),
            )
        }
        Notice::Withheld { node, rule } => {
            let text = format!("Ready would be set to Unknown, and is not: {rule}.");
            let note = warning("UnknownWithheld", "WithholdUnknown", text);
            (About::Node(node), note.told_apart_by(rule.as_str(), 1))
        }
    }
}

fn brake_on(brake: Brake) -> Note {
    let text = match brake {
        Brake::Minority => {
            "Half or fewer of the nodes with an agent are seen alive: it may be this aggregator \
             that is cut off. Only nodes whose own heartbeats are silent too are written."
        }
        Brake::Share => {
            "More nodes than the configured share would bear an Unknown of ours. Only nodes whose \
             own heartbeats are silent too are written."
        }
        Brake::Graded => {
            "Many nodes fell within a minute: each needs the word of every other zone before it \
             is written."
        }
        Brake::CoveredByNone => {
            "The agents left within minutes: nothing is written for the nodes that they left."
        }
    };
    let text = format!("The brake {} is on. {text}", brake.as_str());
    warning("BrakeOn", "WithholdWrites", text).told_apart_by(brake.as_str(), BRAKE_TOLD_MAX)
}

fn brake_off(brake: Brake) -> Note {
    let text = format!("The brake {} is off: writes go on.", brake.as_str());
    normal("BrakeOff", "ResumeWrites", text).told_apart_by(brake.as_str(), BRAKE_TOLD_MAX)
}

fn warning(reason: &'static str, action: &'static str, note: String) -> Note {
    Note {
        kind: "Warning",
        reason,
        action,
        note,
        same: String::new(),
        told_max: 1,
    }
}

fn normal(reason: &'static str, action: &'static str, note: String) -> Note {
    Note {
        kind: "Normal",
        ..warning(reason, action, note)
    }
}

impl Note {
    /// Figures change and make no news: only this and the reason tell one from another.
    fn told_apart_by(self, same: &str, told_max: u32) -> Self {
        Self {
            same: same.to_owned(),
            told_max,
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
