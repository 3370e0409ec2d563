//! Invariants about what is written to Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use swimlet_protocol::Moment;
use swimlet_verdict::{Rule, Verdict};

use super::{
    ANSWER_ARRIVES_WITHIN, Checker, Facts, Found, HOLD_SEEN_WITHIN, INNOCENT_FOR, Name, PATIENCE,
    PAUSE_SEEN_WITHIN, WRITTEN_WITHIN, does_kubelet_work, held_throughout, is_innocent, is_well,
    last_held, persistence,
};
use crate::fault::{Fault, Part, Return};
use crate::record::{FaultId, MemberId, NodeId, Record, What};
use crate::units::Span;

/// Evidence counts from a probe's sending; what it answers is on its way for so long.
const IN_FLIGHT: Duration = Duration::from_millis(250);

/// A Node without a status report of its own is reported by its Lease.
fn heartbeat_period(facts: &dyn Facts) -> Duration {
    let topology = facts.topology();
    if topology.lease == Span::ZERO {
        topology.status_report.duration()
    } else {
        (topology.lease.duration() / 4).min(topology.status_report.duration())
    }
}

pub(super) struct Answering;

impl Checker for Answering {
    fn record(&mut self, facts: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        let What::Written { node, verdict, .. } = record.what else {
            return;
        };
        let Some(answered) = facts.last_answer(node) else {
            return;
        };
        let silent = record.at.since(answered) + IN_FLIGHT;
        let persistence = persistence(facts.topology().profile);
        // What a node says that hears nobody is no answer, and one that loses most of its
        // packets may go unheard by all who ask.
        let from = answered.min(record.at.before(ANSWER_ARRIVES_WITHIN));
        let answers = held_throughout(facts.history(node), from, record.at, |truth| {
            is_innocent(truth)
        });
        if verdict == Verdict::Unreachable && silent < persistence && answers {
            let text = format!(
                "node {} was written as unreachable {silent:?} after a packet of it arrived; \
                 it takes {persistence:?} of silence",
                node.0
            );
            found.add(Name::Answering, text);
        }
    }
}

pub(super) struct Innocent;

impl Checker for Innocent {
    fn record(&mut self, facts: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        let What::Written { node, verdict, .. } = record.what else {
            return;
        };
        let history = facts.history(node);
        let from = record.at.before(INNOCENT_FOR);
        if held_throughout(history, from, record.at, is_innocent) {
            let text = format!(
                "node {} was written as {verdict}, and nothing was wrong with it for {INNOCENT_FOR:?}",
                node.0
            );
            found.add(Name::Innocent, text);
        }
    }
}

pub(super) struct Patience;

impl Checker for Patience {
    fn record(&mut self, facts: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        let What::Written { node, verdict, .. } = record.what else {
            return;
        };
        if !matches!(verdict, Verdict::KubeletDown | Verdict::ApiCutOff) {
            return;
        }
        let history = facts.history(node);
        let at = record.at.before(ANSWER_ARRIVES_WITHIN);
        let worked = last_held(history, at, |truth| {
            is_well(truth) && does_kubelet_work(truth)
        });
        if let Some(worked) = worked
            && record.at.since(worked) < PATIENCE
        {
            let text = format!(
                "node {} was written as {verdict} {:?} after its kubelet last worked; in-tree \
                 takes {PATIENCE:?} at least",
                node.0,
                record.at.since(worked)
            );
            found.add(Name::Patience, text);
        }
    }
}

pub(super) struct Fresh;

impl Checker for Fresh {
    fn record(&mut self, _: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        if let What::Written {
            node,
            evidence_began,
            kubelet_wrote: Some(kubelet_wrote),
            ..
        } = record.what
            && evidence_began <= kubelet_wrote
        {
            let text = format!(
                "node {} was written on evidence that began {:?} before its kubelet last wrote",
                node.0,
                kubelet_wrote.since(evidence_began)
            );
            found.add(Name::Fresh, text);
        }
    }
}

/// Who wrote last about each node, and on evidence from when; nothing once somebody else
/// wrote. Bounded by nodes.
#[derive(Default)]
pub(super) struct Once {
    ours: BTreeMap<NodeId, MemberId>,
    evidence: BTreeMap<NodeId, Moment>,
    /// Nodes that come back as other Node objects.
    replaced: BTreeSet<NodeId>,
}

impl Checker for Once {
    fn record(&mut self, _: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        match record.what {
            What::FaultBegan {
                fault:
                    Fault::Crash {
                        returns: Return::Replaced,
                        ..
                    },
                ref nodes,
                ..
            } => self.replaced.extend(nodes),
            What::Booted { node } if self.replaced.contains(&node) => {
                self.ours.remove(&node);
            }
            What::Written {
                by,
                node,
                evidence_began,
                ..
            } => {
                if let Some(before) = self.ours.insert(node, by) {
                    let text = format!(
                        "node {} was written by member {} over the Unknown of member {}",
                        node.0, by.0, before.0
                    );
                    found.add(Name::Once, text);
                }
                if self.evidence.insert(node, evidence_began) == Some(evidence_began) {
                    let text = format!("node {} was written twice on one evidence", node.0);
                    found.add(Name::Once, text);
                }
            }
            What::TakenBack { node, .. } | What::Removed { node } | What::Added { node } => {
                self.ours.remove(&node);
            }
            _ => {}
        }
    }
}

/// Since when writes are paused, and which nodes are held.
#[derive(Default)]
pub(super) struct Obedient {
    pauses: BTreeMap<FaultId, Moment>,
    holds: BTreeMap<FaultId, (Moment, BTreeSet<NodeId>)>,
}

impl Checker for Obedient {
    fn record(&mut self, _: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        match &record.what {
            What::FaultBegan { id, fault, nodes } => match fault {
                Fault::Pause => {
                    self.pauses.insert(*id, record.at);
                }
                Fault::Hold { .. } => {
                    let nodes = nodes.iter().copied().collect();
                    self.holds.insert(*id, (record.at, nodes));
                }
                _ => {}
            },
            What::FaultEnded { id } => {
                self.pauses.remove(id);
                self.holds.remove(id);
            }
            What::Written { node, .. } => {
                let is_paused = |since: &Moment| record.at.since(*since) > PAUSE_SEEN_WITHIN;
                if self.pauses.values().any(is_paused) {
                    let text = format!("node {} was written while writes were paused", node.0);
                    found.add(Name::Obedient, text);
                }
                let is_held = |(since, nodes): &(Moment, BTreeSet<NodeId>)| {
                    record.at.since(*since) > HOLD_SEEN_WITHIN && nodes.contains(node)
                };
                if self.holds.values().any(is_held) {
                    let text = format!("node {} was written while it was on hold", node.0);
                    found.add(Name::Obedient, text);
                }
            }
            _ => {}
        }
    }
}

/// Which nodes are dead since when, and which of them were written or explained.
#[derive(Default)]
pub(super) struct Complete {
    dead: BTreeMap<NodeId, Moment>,
    settled: BTreeSet<NodeId>,
    /// When something last happened that a decision may have had to wait for.
    disturbed: Moment,
    /// Faults that keep a decision from being made or carried out as long as they last.
    hindering: BTreeSet<FaultId>,
}

impl Checker for Complete {
    fn record(&mut self, facts: &dyn Facts, record: &Record, _: &mut Found<'_>) {
        match &record.what {
            What::FaultBegan { id, fault, .. } => {
                self.disturbed = record.at;
                if hinders(fault) {
                    self.hindering.insert(*id);
                }
            }
            What::FaultEnded { id } => {
                self.disturbed = record.at;
                self.hindering.remove(id);
            }
            What::Leads { .. }
            | What::Follows { .. }
            | What::StepsDown { .. }
            | What::Started { .. }
            | What::Stopped { .. }
            | What::Added { .. } => self.disturbed = record.at,
            What::Crashed { node } => {
                let had_agent = facts
                    .history(*node)
                    .iter()
                    .rev()
                    .any(|(at, truth)| *at < record.at && truth.agent);
                if had_agent && facts.agent_of(*node).is_some() {
                    self.dead.insert(*node, record.at);
                    self.settled.remove(node);
                }
            }
            What::Booted { node } | What::Removed { node } => {
                self.dead.remove(node);
            }
            What::Written { node, .. } | What::InTree { node } => {
                self.settled.insert(*node);
            }
            What::Decided { node, decision, .. } => {
                let explains = matches!(
                    decision.verdict,
                    Verdict::Withheld | Verdict::Unverifiable | Verdict::MeshCutOff
                ) || decision.rule == Rule::BeingRemoved;
                if explains {
                    self.settled.insert(*node);
                }
            }
            _ => {}
        }
    }

    fn look(&mut self, facts: &dyn Facts, found: &mut Found<'_>) {
        if !facts.is_led() || !self.hindering.is_empty() {
            self.disturbed = facts.now();
            return;
        }
        let bound = WRITTEN_WITHIN + heartbeat_period(facts) * 2;
        let overdue = |since: &Moment| facts.now().since((*since).max(self.disturbed)) > bound;
        let late: Vec<NodeId> = self
            .dead
            .iter()
            .filter(|(node, since)| overdue(since) && !self.settled.contains(node))
            .map(|(node, _)| *node)
            .collect();
        for node in late {
            self.settled.insert(node);
            let text = format!(
                "node {} lost its power, and {bound:?} after the last disturbance it was \
                 neither written, nor did a decision say why not",
                node.0
            );
            found.add(Name::Complete, text);
        }
    }
}

/// Whether decisions may wait for this to end.
fn hinders(fault: &Fault) -> bool {
    match fault {
        Fault::ApiDown | Fault::ApiSlow { .. } | Fault::WatchLag { .. } | Fault::Roll { .. } => {
            true
        }
        // What a leader cannot do, and a quorum of zones that cannot be asked.
        Fault::Partition { .. } | Fault::Weather { .. } | Fault::Pause => true,
        Fault::Cut { .. } => true,
        Fault::Loss { .. } | Fault::Sick { .. } | Fault::Liar { .. } | Fault::Mtu { .. } => true,
        Fault::Freeze { part, .. } | Fault::Stop { part, .. } => {
            matches!(part, Part::Aggregator | Part::Host | Part::Agent)
        }
        Fault::Slow { .. } | Fault::Starve { .. } | Fault::RestartLoop { .. } => true,
        Fault::Crash { .. }
        | Fault::Kubelet { .. }
        | Fault::ClockStep { .. }
        | Fault::Join { .. }
        | Fault::Remove { .. }
        | Fault::Hold { .. } => false,
    }
}
