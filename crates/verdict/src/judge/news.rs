//! What the API server says: Nodes, Leases, the election, and what became of writes.

use swimlet_protocol::{Moment, NodeName};

use super::Judge;
use super::mesh::open;
use crate::constants::{
    ADDRESSES_MAX, DECIDE_ANEW_AFTER, NODES_MAX, TAKEN_BACK_KEPT, TAKEN_BACK_MAX, TAKEN_BACK_WINDOW,
};
use crate::input::{ApiHealth, LeaseRead, WatchHealth, WriteOutcome};
use crate::node::{NodeRef, NodeSeen, ReadyCondition, ReadyStatus};
use crate::output::Notice;
use crate::state::{CutOff, Node, WriteState, Writing};
use crate::verdict::{Rule, Verdict};

/// What a new Ready condition says, beside the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadyNews {
    Same,
    /// The kubelet wrote: a heartbeat.
    Kubelet {
        /// Whether it says True or False: it took an Unknown back, if there was one.
        speaks: bool,
    },
    /// Our Unknown appeared.
    OursShown,
    /// Somebody else's Unknown appeared.
    OthersUnknown,
}

impl Judge {
    pub(super) fn node_seen(&mut self, mut seen: NodeSeen) {
        seen.addresses.truncate(ADDRESSES_MAX);
        let name = seen.node.name.clone();
        match self.world.nodes.get(&name) {
            Some(node) if node.seen.node == seen.node && node.seen.key == seen.key => {
                self.node_changed(&name, seen);
            }
            Some(node) => {
                let old = node.seen.node.clone();
                self.node_gone(&old);
                self.node_new(seen);
            }
            None => self.node_new(seen),
        }
    }

    fn node_new(&mut self, seen: NodeSeen) {
        if self.world.nodes.len() >= NODES_MAX {
            self.stats.nodes_overflow += 1;
            return;
        }
        let agent = self.world.members.remove(&seen.key).unwrap_or_default();
        self.world.add_sockets(seen.kubelets());
        self.world.by_key.insert(seen.key, seen.node.name.clone());
        let name = seen.node.name.clone();
        let mut node = Node::new(self.now, seen, agent);
        node.writing = ours_shown(node.seen.ready.as_ref(), self.now);
        let left = agent.left.is_some() && agent.known.is_some();
        if left {
            // It said goodbye before its Node was listed: checked directly, as any other.
            open(&mut node, self.now);
        }
        self.world.nodes.insert(name.clone(), node);
        if left {
            self.opened(&name);
        }
    }

    fn node_changed(&mut self, name: &NodeName, seen: NodeSeen) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        let news = ready_news(node.seen.ready.as_ref(), seen.ready.as_ref());
        let before = std::mem::replace(&mut node.seen, seen);
        let kubelets: Vec<_> = node.seen.kubelets().collect();
        match news {
            ReadyNews::Same => {}
            ReadyNews::OursShown => match &mut node.writing {
                Some(writing) => writing.state = WriteState::Shown,
                None => node.writing = ours_shown(node.seen.ready.as_ref(), now),
            },
            ReadyNews::OthersUnknown => {
                self.withdraw(name, Rule::Overtaken, None);
                if let Some(node) = self.world.nodes.get_mut(name) {
                    node.writing = None;
                }
            }
            ReadyNews::Kubelet { speaks } => {
                node.heartbeats.status_written(now);
                if node.suspicion.is_some() {
                    self.stats.voided += 1;
                }
                if speaks {
                    self.kubelet_spoke(name);
                }
                self.hurry();
            }
        }
        self.world.remove_sockets(before.kubelets());
        self.world.add_sockets(kubelets.into_iter());
        // A hold, a removal or a heartbeat must not wait for the next look.
        self.settle_if_waiting(name);
    }

    /// The kubelet wrote True or False. If our Unknown stood it is taken back, and
    /// whatever happens next is a new episode that needs new evidence.
    fn kubelet_spoke(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        let Some(writing) = node.writing else {
            return;
        };
        match writing.state {
            WriteState::Written | WriteState::Shown => {
                node.writing = None;
                node.floor = now;
                node.word.bar(writing.verdict);
                if let Some(case) = &mut node.suspicion {
                    case.restart_rounds(now);
                }
                let reached = node.packet.is_some_and(|packet| packet > writing.at);
                if !reached && writing.verdict == Verdict::Unreachable {
                    self.taken_back(name);
                }
            }
            WriteState::WouldWrite => {
                node.writing = None;
                node.floor = now;
                node.word.bar(writing.verdict);
            }
            // The writer's fresh read, or its precondition, voids the one on its way.
            WriteState::Pending | WriteState::Anew(_) => {}
        }
    }

    /// Our Unknown was taken back by a kubelet that no peer has reached since.
    fn taken_back(&mut self, name: &NodeName) {
        let now = self.now;
        if let Some(node) = self.world.nodes.get_mut(name) {
            node.cut_off = Some(CutOff { taken_back: true });
        }
        if self.taken_back.len() >= TAKEN_BACK_KEPT {
            self.taken_back.pop_front();
        }
        self.taken_back.push_back((now, name.clone()));
        self.stats.taken_back += 1;
        if self.leader {
            self.notice(Notice::TakenBack { node: name.clone() });
        }
    }

    pub(super) fn taken_back_lately(&self) -> bool {
        self.taken_back
            .iter()
            .filter(|(at, _)| self.now.since(*at) <= TAKEN_BACK_WINDOW)
            .count()
            >= TAKEN_BACK_MAX
    }

    pub(super) fn node_gone(&mut self, gone: &NodeRef) {
        let known = self.world.nodes.get(&gone.name);
        if known.is_none_or(|node| node.seen.node != *gone) {
            return;
        }
        self.withdraw(&gone.name, Rule::Overtaken, None);
        if let Some(node) = self.world.nodes.remove(&gone.name) {
            self.world.by_key.remove(&node.seen.key);
            self.world.remove_sockets(node.seen.kubelets());
            self.world.members.remove(&node.seen.key);
            if node.heartbeats.in_flight() {
                self.lease_reads = self.lease_reads.saturating_sub(1);
            }
            self.taken_back.retain(|(_, name)| *name != gone.name);
        }
    }

    pub(super) fn nodes_listed(&mut self) {
        self.listed = true;
        self.heartbeats_interrupted();
        self.hurry();
    }

    pub(super) fn watch_health(&mut self, health: WatchHealth) {
        if self.watch == WatchHealth::Stale && health == WatchHealth::Fresh {
            self.heartbeats_interrupted();
        }
        self.watch = health;
        self.settle_waiting();
    }

    /// An API server that is back is watched for one full detection before a write:
    /// what stood still while it was away says nothing.
    pub(super) fn api_health(&mut self, health: ApiHealth) {
        if self.api == ApiHealth::Failing && health == ApiHealth::Working {
            self.heartbeats_interrupted();
            self.api_floor = self.now;
            self.write_from = self
                .write_from
                .max(self.now + self.config.profile.detection());
        }
        self.api = health;
        self.settle_waiting();
    }

    fn heartbeats_interrupted(&mut self) {
        let now = self.now;
        for node in self.world.nodes.values_mut() {
            node.heartbeats.interrupted(now);
        }
    }

    pub(super) fn lease(&mut self, node: &NodeRef, read: LeaseRead) {
        let now = self.now;
        let Some(known) = self.world.nodes.get_mut(&node.name) else {
            return;
        };
        if known.seen.node != *node {
            return;
        }
        if known.heartbeats.in_flight() {
            self.lease_reads = self.lease_reads.saturating_sub(1);
        }
        known.heartbeats.lease_read(now, read);
        self.hurry();
    }

    /// A new leader is watched for one full detection before its first write, and
    /// takes no read or round of its time as a follower for its own.
    pub(super) fn leadership(&mut self, leads: bool) {
        if leads == self.leader {
            return;
        }
        self.leader = leads;
        self.minority_since = None;
        if leads {
            // What it found as a follower it told nobody: which brakes are on is news.
            self.brakes_on.clear();
            self.write_from = self.now + self.config.profile.detection();
            let now = self.now;
            for node in self.world.nodes.values_mut() {
                node.heartbeats.begin();
                if let Some(case) = &mut node.suspicion {
                    case.restart_rounds(now);
                }
            }
            self.hurry();
        } else {
            self.asks.clear();
            self.settle_waiting();
            for node in self.world.nodes.values_mut() {
                let ends = |writing: &mut Writing| {
                    matches!(writing.state, WriteState::Pending | WriteState::Anew(_))
                };
                node.writing.take_if(ends);
            }
        }
    }

    pub(super) fn written(&mut self, node: &NodeRef, episode: u64, outcome: WriteOutcome) {
        let now = self.now;
        let Some(known) = self.world.nodes.get_mut(&node.name) else {
            return;
        };
        if known.seen.node != *node {
            return;
        }
        if outcome == WriteOutcome::Gone {
            known.writing = None;
            self.node_gone(node);
            return;
        }
        if outcome == WriteOutcome::Written {
            known.note_episode(now);
            self.stats.episodes += 1;
        }
        // One that was withdrawn may have been written before the writer heard of it.
        let awaited = |state: WriteState| match state {
            WriteState::Pending => true,
            WriteState::Anew(_) => outcome == WriteOutcome::Written,
            WriteState::Written | WriteState::Shown | WriteState::WouldWrite => false,
        };
        let Some(writing) = known
            .writing
            .as_mut()
            .filter(|writing| writing.episode == episode && awaited(writing.state))
        else {
            return;
        };
        let would = outcome == WriteOutcome::WouldWrite;
        writing.state = match outcome {
            WriteOutcome::Written => WriteState::Written,
            WriteOutcome::WouldWrite => WriteState::WouldWrite,
            WriteOutcome::Superseded
            | WriteOutcome::Conflict
            | WriteOutcome::Failed
            | WriteOutcome::Gone => WriteState::Anew(now + DECIDE_ANEW_AFTER),
        };
        writing.at = now;
        let anew = matches!(writing.state, WriteState::Anew(_));
        if would {
            known.note_episode(now);
            self.stats.episodes += 1;
        }
        if anew {
            self.decide_anew(&node.name);
        }
    }

    /// A decision was not carried out. It is never replayed: rounds are asked anew,
    /// the Lease is read anew, and the rules are applied anew.
    pub(super) fn decide_anew(&mut self, name: &NodeName) {
        let now = self.now;
        self.stats.voided += 1;
        if let Some(node) = self.world.nodes.get_mut(name)
            && let Some(case) = &mut node.suspicion
        {
            case.restart_rounds(now);
        }
    }
}

/// A previous leader's Unknown, or our own of before a restart: to know that it is
/// taken back, should it be.
fn ours_shown(ready: Option<&ReadyCondition>, now: Moment) -> Option<Writing> {
    let ready = ready.filter(|ready| ready.ours && ready.status == ReadyStatus::Unknown)?;
    let verdict = Verdict::WRITTEN
        .into_iter()
        .find(|verdict| verdict.reason() == Some(&ready.reason));
    Some(Writing {
        episode: 0,
        verdict: verdict.unwrap_or(Verdict::Unreachable),
        at: now,
        state: WriteState::Shown,
    })
}

/// A change of status or heartbeat counts, not of the object's version.
fn ready_news(before: Option<&ReadyCondition>, after: Option<&ReadyCondition>) -> ReadyNews {
    let Some(after) = after else {
        return ReadyNews::Same;
    };
    let heartbeat_moved = before.is_none_or(|before| before.heartbeat != after.heartbeat);
    let status_changed = before.is_none_or(|before| before.status != after.status);
    match after.status {
        // The kubelet alone writes True and False.
        ReadyStatus::True | ReadyStatus::False if heartbeat_moved || status_changed => {
            ReadyNews::Kubelet { speaks: true }
        }
        ReadyStatus::True | ReadyStatus::False => ReadyNews::Same,
        ReadyStatus::Unknown if status_changed && after.ours => ReadyNews::OursShown,
        ReadyStatus::Unknown if status_changed => ReadyNews::OthersUnknown,
        // A kubelet with a stalled watch bumps its heartbeat and leaves the Unknown.
        ReadyStatus::Unknown if heartbeat_moved => ReadyNews::Kubelet { speaks: false },
        ReadyStatus::Unknown => ReadyNews::Same,
    }
}
