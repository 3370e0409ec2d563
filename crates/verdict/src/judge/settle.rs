//! From an assessment to a decision: the gates between the rules and a write.

use std::time::Duration;

use swimlet_protocol::{Moment, NodeName};

use super::Judge;
use crate::assess::Assessment;
use crate::constants::{
    DECIDE_ANEW_AFTER, LEASE_FRESH, LEASE_READ_INTERVAL, LEASE_READS_MAX, WRITE_OUTCOME_WITHIN,
};
use crate::evidence::Evidence;
use crate::input::{ApiHealth, WatchHealth};
use crate::node::ReadyStatus;
use crate::output::{Decision, Notice, Output};
use crate::state::{CutOff, Node, Said, WriteState, Writing};
use crate::table::{Agent, Port};
use crate::verdict::{Rule, Verdict};

/// What stands between a ripe verdict and its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing.
    Go,
    /// It is only a matter of time.
    Wait,
    /// The Node says it already, or has no Ready condition to change.
    Stands,
    /// The Lease must be read first.
    ReadLease,
    /// Something that people should know.
    Withhold(Rule),
}

impl Judge {
    /// Applies the rules to a node and does what follows.
    pub(super) fn settle(&mut self, name: &NodeName) {
        self.lose(name);
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        let found = self.view().assess(node);
        self.reconsider(name, found.as_ref());
        let Some(found) = found else {
            self.read_lease(name, Duration::MAX);
            return;
        };
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        if needs_lease(node, &found, self.now) {
            let interval = if found.needs_silence || found.evidence.agent == Agent::Answers {
                LEASE_READ_INTERVAL
            } else {
                Duration::MAX
            };
            self.read_lease(name, interval);
        }
        if !found.ripe {
            return;
        }
        if found.verdict.reason().is_none() {
            self.conclude(name, found);
            return;
        }
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        match self.gate(node, &found) {
            Gate::Go => self.decide(name, found),
            Gate::Wait => {}
            Gate::Stands => self.note(name, found.verdict, found.rule),
            Gate::ReadLease => self.read_lease(name, LEASE_FRESH),
            Gate::Withhold(rule) => {
                self.read_lease(name, LEASE_READ_INTERVAL);
                self.say(name, Verdict::Withheld, rule, found.evidence);
            }
        }
    }

    /// Gives up what was never answered: a Lease read, a write.
    fn lose(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        if node.heartbeats.expire(now) {
            self.lease_reads = self.lease_reads.saturating_sub(1);
        }
        node.word.expire(now);
        let Some(writing) = node.writing else {
            return;
        };
        if now.since(writing.at) < WRITE_OUTCOME_WITHIN {
            return;
        }
        match writing.state {
            WriteState::Pending => {
                node.writing = Some(Writing {
                    at: now,
                    state: WriteState::Anew(now + DECIDE_ANEW_AFTER),
                    ..writing
                });
                self.stats.outcomes_lost += 1;
                self.decide_anew(name);
            }
            // The watch never showed it: what it shows instead counts.
            WriteState::Written => node.writing = None,
            WriteState::Shown | WriteState::WouldWrite | WriteState::Anew(_) => {}
        }
    }

    fn gate(&self, node: &Node, found: &Assessment) -> Gate {
        match &node.seen.ready {
            // Left to the startup grace.
            None => return Gate::Stands,
            Some(ready) if ready.status == ReadyStatus::Unknown => return Gate::Stands,
            Some(_) => {}
        }
        if let Some(writing) = node.writing
            && !self.may_decide_again(node, writing, found)
        {
            return Gate::Wait;
        }
        if !self.may_write() {
            return Gate::Wait;
        }
        if let Some(rule) = self.withheld(node, found) {
            return Gate::Withhold(rule);
        }
        let watched = self.config.profile.lease_watched();
        if node.heartbeats.fresh(self.now, watched) {
            Gate::Go
        } else {
            Gate::ReadLease
        }
    }

    /// Whether anything may be written now, whatever the node.
    pub(super) fn may_write(&self) -> bool {
        self.leader
            && self.listed
            && self.watch == WatchHealth::Fresh
            && self.api == ApiHealth::Working
            && self.now >= self.write_from
    }

    /// After a refused write, only evidence that is newer than the refusal counts.
    fn may_decide_again(&self, node: &Node, writing: Writing, found: &Assessment) -> bool {
        match writing.state {
            WriteState::Anew(from) => {
                let heard_since = node.word.at.is_some_and(|at| at > writing.at);
                self.now >= from && (found.evidence.agent != Agent::Answers || heard_since)
            }
            _ => !writing.state.blocks(),
        }
    }

    /// Why a write is withheld. Brakes 1 and 2 are lifted for a node whose own
    /// heartbeats have been silent for two observed periods: then it is not our view
    /// that is broken.
    pub(super) fn withheld(&self, node: &Node, found: &Assessment) -> Option<Rule> {
        let lifted = node.heartbeats.silent_long(self.now);
        let share = self.config.brake_share_max;
        let unknown = self.census.unknown + usize::from(!node.bears_ours());
        let [minority, beyond_share, graded] = self.switches.brakes;
        let unconfirmed = || {
            let case = node.suspicion.as_ref();
            found.verdict == Verdict::Unreachable
                && self.census.several_zones()
                && case.is_some_and(|case| {
                    let askable = self.zones_askable(node);
                    case.one_of_many && !self.view().zones_confirm(node, case, &askable)
                })
        };
        if node.seen.hold {
            Some(Rule::Hold)
        } else if self.paused {
            Some(Rule::Paused)
        } else if self.covered_by_none && node.agent.left.is_some() {
            Some(Rule::BrakeCoveredByNone)
        } else if minority && !lifted && !self.census.seen.is_majority() {
            Some(Rule::BrakeMinority)
        } else if beyond_share && !lifted && share.exceeded_by(unknown, self.census.monitored) {
            Some(Rule::BrakeShare)
        } else if graded && unconfirmed() {
            Some(Rule::BrakeGraded)
        } else {
            None
        }
    }

    /// A verdict that is written.
    fn decide(&mut self, name: &NodeName, found: Assessment) {
        let now = self.now;
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        // A number of its own even after a withdrawal: what becomes of the withdrawn one
        // must not be taken for what became of this.
        let episode = self.next_episode;
        let decision = Decision {
            node: node.seen.node.clone(),
            episode,
            verdict: found.verdict,
            evidence: found.evidence,
            rule: found.rule,
        };
        if !self.put(Output::Decide(Box::new(decision))) {
            return;
        }
        self.next_episode += 1;
        self.stats.decisions_written += 1;
        self.census.unknown += 1;
        if let Some(node) = self.world.nodes.get_mut(name) {
            node.writing = Some(Writing {
                episode,
                verdict: found.verdict,
                at: now,
                state: WriteState::Pending,
            });
        }
        self.note(name, found.verdict, found.rule);
    }

    /// A verdict that is not written.
    fn conclude(&mut self, name: &NodeName, found: Assessment) {
        if let Some(node) = self.world.nodes.get_mut(name) {
            // In observe mode nothing but the end of the evidence ends an episode.
            let ends = |writing: &mut Writing| {
                matches!(writing.state, WriteState::WouldWrite | WriteState::Anew(_))
            };
            node.writing.take_if(ends);
            if found.verdict == Verdict::MeshCutOff && node.cut_off.is_none() {
                node.cut_off = Some(CutOff { taken_back: false });
            }
        }
        self.say(name, found.verdict, found.rule, found.evidence);
    }

    /// Hands a changed verdict out, and tells people where they should know.
    fn say(&mut self, name: &NodeName, verdict: Verdict, rule: Rule, evidence: Evidence) {
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        let said = node.said;
        let same = said.verdict == verdict && (verdict != Verdict::Withheld || said.rule == rule);
        if same {
            return;
        }
        // Nodes come up unmonitored; their first answer is no news.
        let comes_up = said.verdict == Verdict::Unmonitored && verdict == Verdict::Alive;
        if self.leader && !comes_up {
            let decision = Decision {
                node: node.seen.node.clone(),
                episode: node.writing.map_or(0, |writing| writing.episode),
                verdict,
                evidence,
                rule,
            };
            if let Some(notice) = notice(name, &decision) {
                self.notice(notice);
            }
            if !self.put(Output::Decide(Box::new(decision))) {
                return;
            }
        }
        self.note(name, verdict, rule);
    }

    pub(super) fn note(&mut self, name: &NodeName, verdict: Verdict, rule: Rule) {
        let now = self.now;
        if let Some(node) = self.world.nodes.get_mut(name) {
            let since = if node.said.verdict == verdict {
                node.said.since
            } else {
                now
            };
            node.said = Said {
                verdict,
                rule,
                since,
            };
        }
    }

    /// Has the Lease read if the last read is older than `interval`.
    fn read_lease(&mut self, name: &NodeName, interval: Duration) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        let wanted = self.leader
            && self.api == ApiHealth::Working
            && !node.bears_ours()
            && node.heartbeats.due(now, interval);
        if !wanted {
            return;
        }
        if self.lease_reads >= LEASE_READS_MAX {
            self.stats.lease_reads_put_off += 1;
            return;
        }
        let node = node.seen.node.clone();
        if self.put(Output::ReadLease(node))
            && let Some(node) = self.world.nodes.get_mut(name)
        {
            node.heartbeats.ask(now);
            self.lease_reads += 1;
            self.stats.lease_reads += 1;
        }
    }
}

/// Whether a node's heartbeats matter to its case: not to one whose kubelet
/// answers, and not to a goodbye that nothing followed.
fn needs_lease(node: &Node, found: &Assessment, now: Moment) -> bool {
    if node.agent.heard.is_none() && node.suspicion.is_none() {
        return false;
    }
    match &node.suspicion {
        Some(case) => {
            found.evidence.port != Port::AnswersTls
                && (case.accusers_len() > 0 || case.dead_port_since.is_some())
        }
        None => node.word.says_failing() || node.heartbeats.doubtful(now),
    }
}

pub(super) fn notice(name: &NodeName, decision: &Decision) -> Option<Notice> {
    let node = name.clone();
    match decision.verdict {
        Verdict::AgentMissing => Some(Notice::AgentMissing { node }),
        Verdict::MeshCutOff => Some(Notice::MeshCutOff { node }),
        Verdict::Unverifiable => Some(Notice::Unverifiable {
            node,
            witnesses: decision.evidence.witnesses.len(),
            need: decision.evidence.need,
        }),
        Verdict::Withheld if matches!(decision.rule, Rule::BeingRemoved | Rule::Overtaken) => None,
        Verdict::Withheld => Some(Notice::Withheld {
            node,
            rule: decision.rule,
        }),
        Verdict::Alive
        | Verdict::Unreachable
        | Verdict::KubeletDown
        | Verdict::ApiCutOff
        | Verdict::HeartbeatSilent
        | Verdict::Left
        | Verdict::Unmonitored => None,
    }
}
