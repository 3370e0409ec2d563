//! Taking back a decision that waits at the writer.
//!
//! Between a decision and its patch lies a queue, and whatever forbids a decision
//! forbids its write there as well. The newest decision about a node wins at the
//! writer, so the judge takes one back by a decision that writes nothing.

use swimlet_protocol::{Moment, NodeName};

use super::Judge;
use super::settle::notice;
use crate::assess::Assessment;
use crate::constants::DECIDE_ANEW_AFTER;
use crate::evidence::Evidence;
use crate::node::ReadyStatus;
use crate::output::{Decision, Output};
use crate::state::{Node, WriteState, Writing};
use crate::verdict::{Rule, Verdict};

impl Judge {
    /// Looks at once at every node whose decision waits at the writer: something that
    /// concerns all of them has changed.
    pub(super) fn settle_waiting(&mut self) {
        let waiting: Vec<NodeName> = self
            .world
            .nodes
            .iter()
            .filter(|(_, node)| node.decision_waits())
            .map(|(name, _)| name.clone())
            .collect();
        for name in &waiting {
            self.settle(name);
        }
    }

    /// The same for one node, if a decision about it waits.
    pub(super) fn settle_if_waiting(&mut self, name: &NodeName) {
        let waits = self.world.nodes.get(name).is_some_and(Node::decision_waits);
        if waits {
            self.settle(name);
        }
    }

    /// Takes the decision that waits at the writer back, if it would not be taken now.
    pub(super) fn reconsider(&mut self, name: &NodeName, found: Option<&Assessment>) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        let Some(writing) = node.writing.filter(|_| node.decision_waits()) else {
            return;
        };
        if let Some(found) = found
            && self.leader
            && found.ripe
            && found.verdict.reason().is_none()
        {
            // What follows says so, and that takes it back; a follower says nothing more.
            node.writing = Some(withdrawn(writing, now));
            return;
        }
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        if let Some(rule) = self.against(node, writing, found) {
            let evidence = found.map(|found| found.evidence.clone());
            self.withdraw(name, rule, evidence);
        }
    }

    /// What speaks against a decision that waits.
    fn against(&self, node: &Node, writing: Writing, found: Option<&Assessment>) -> Option<Rule> {
        let stands =
            found.filter(|found| found.ripe && found.verdict.reason() == writing.verdict.reason());
        let Some(found) = stands else {
            return Some(Rule::Overtaken);
        };
        let changeable = node
            .seen
            .ready
            .as_ref()
            .is_some_and(|ready| ready.status != ReadyStatus::Unknown);
        let overtaken = !changeable || !self.may_write();
        self.withheld(node, found)
            .or_else(|| overtaken.then_some(Rule::Overtaken))
    }

    /// Takes back what waits at the writer. Without room for the word it is tried again
    /// with the next look.
    pub(super) fn withdraw(&mut self, name: &NodeName, rule: Rule, evidence: Option<Evidence>) {
        let now = self.now;
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        let Some(writing) = node.writing.filter(|_| node.decision_waits()) else {
            return;
        };
        let decision = Decision {
            node: node.seen.node.clone(),
            episode: writing.episode,
            verdict: Verdict::Withheld,
            evidence: evidence.unwrap_or_else(|| self.view().nothing(node)),
            rule,
        };
        let told = notice(name, &decision);
        if !self.put(Output::Decide(Box::new(decision))) {
            return;
        }
        if let Some(told) = told {
            self.notice(told);
        }
        self.stats.voided += 1;
        if let Some(node) = self.world.nodes.get_mut(name) {
            node.writing = Some(withdrawn(writing, now));
            if let Some(case) = &mut node.suspicion {
                // It was asked about at leisure while the decision waited.
                case.next_round = case.next_round.min(now);
            }
        }
        self.note(name, Verdict::Withheld, rule);
    }
}

/// Its patch may have been sent before: an outcome is awaited still.
fn withdrawn(writing: Writing, now: Moment) -> Writing {
    Writing {
        at: now,
        state: WriteState::Anew(now + DECIDE_ANEW_AFTER),
        ..writing
    }
}
