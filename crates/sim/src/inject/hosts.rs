//! Faults at hosts and processes.

use super::{KUBELET_BOOTS, PODS_BOOT, SEEDS_LOOKED_UP};
use crate::fault::{Part, Return};
use crate::host::Stalled;
use crate::process::Local;
use crate::record::{MemberId, NodeId, What};
use crate::units::Span;
use crate::world::{Event, World};

// Hosts.
impl World {
    /// Everything on a host stops, without a packet.
    pub(crate) fn power_off(&mut self, node: NodeId) {
        let host = self.host_mut(node);
        if !host.power {
            return;
        }
        host.power = false;
        host.boot += 1;
        host.held.clear();
        host.stalled.clear();
        self.powered.remove(node);
        self.tell(What::Crashed { node });
        self.stop_on(&[node], Part::Host, false);
        self.note_truth(node);
    }

    /// A host boots: its kubelet first, its pods some seconds later.
    pub(super) fn boot(&mut self, node: NodeId, returns: Return) {
        if self.host(node).power {
            return;
        }
        if returns != Return::Same {
            let address = self.new_address();
            self.move_host(node, address);
            self.look_up_seeds(node);
        }
        if returns == Return::Replaced {
            self.delete_object(node);
            let host = self.host_mut(node);
            host.registers = true;
            host.life += 1;
        }
        let host = self.host_mut(node);
        host.power = true;
        let boot = host.boot;
        self.powered.insert(node);
        self.tell(What::Booted { node });
        let kubelet = KUBELET_BOOTS + self.net.random(KUBELET_BOOTS);
        let pods = PODS_BOOT + self.net.random(PODS_BOOT);
        let now = self.now();
        self.queue
            .push(now + kubelet, Event::StartKubelet { node, boot });
        for member in self.members_on(&[node], Part::Host) {
            let delay = pods + self.net.random(KUBELET_BOOTS);
            self.queue.push(now + delay, Event::Start { member, boot });
        }
        self.note_truth(node);
    }

    /// An aggregator's host has another address: every member's next look at the headless
    /// Service shows it.
    fn look_up_seeds(&mut self, node: NodeId) {
        if self.host(node).aggregator.is_none() {
            return;
        }
        for member in (0..self.members()).map(MemberId) {
            let wait = self.net.random(SEEDS_LOOKED_UP);
            self.after(member, wait, Local::Seeds);
        }
    }

    /// The machine and its Node object go.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.power_off(node);
        self.delete_object(node);
        self.tell(What::Removed { node });
        self.note_truth(node);
    }

    pub(super) fn freeze(&mut self, nodes: &[NodeId], part: Part) {
        for node in nodes {
            match part {
                Part::Host => self.host_mut(*node).frozen += 1,
                Part::Kubelet => self.host_mut(*node).kubelet.frozen += 1,
                Part::Agent | Part::Aggregator => {}
            }
        }
        if matches!(part, Part::Agent | Part::Aggregator) {
            self.each_member(nodes, part, |process| process.frozen += 1);
        }
    }

    pub(super) fn thaw(&mut self, nodes: &[NodeId], part: Part) {
        for node in nodes {
            match part {
                Part::Host => self.host_mut(*node).frozen -= 1,
                Part::Kubelet => self.host_mut(*node).kubelet.frozen -= 1,
                Part::Agent | Part::Aggregator => {}
            }
        }
        if matches!(part, Part::Agent | Part::Aggregator) {
            self.each_member(nodes, part, |process| process.frozen -= 1);
        }
        for member in self.members_on(nodes, part) {
            self.resume_later(member);
        }
    }

    pub(super) fn sicken(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.host_mut(*node).sick += 1;
        }
    }

    /// What was held goes on its way, in order.
    pub(super) fn well(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            let host = self.host_mut(*node);
            host.sick = host.sick.saturating_sub(1);
            if host.sick > 0 {
                continue;
            }
            let held = std::mem::take(&mut host.held);
            let stalled = std::mem::take(&mut host.stalled);
            for (from, to, packet) in held {
                if self.host_of(from) == *node {
                    self.send(from, to, packet);
                } else {
                    self.arrive(from, to, packet);
                }
            }
            for stalled in stalled {
                match stalled {
                    Stalled::Check(check) => self.syn(check),
                    Stalled::Kubelet { start, beat } => self.kubelet_asks(*node, start, beat),
                    Stalled::Request(request) => self.send_request(request),
                    Stalled::Local(member, epoch, local) => {
                        self.deliver_local(member, epoch, local);
                    }
                }
            }
        }
    }

    pub(super) fn step_clocks(&mut self, nodes: &[NodeId], by: Span, back: bool) {
        let ms = i64::try_from(by.as_micros() / 1_000).unwrap_or(i64::MAX / 4);
        for node in nodes {
            self.host_mut(*node).clock_ahead_ms += if back { -ms } else { ms };
        }
    }

    pub(super) fn hold_nodes(&mut self, nodes: &[NodeId], on: bool) {
        for node in nodes {
            self.api.touch(node.0 as usize, |object| {
                object.hold = if on {
                    object.hold + 1
                } else {
                    object.hold.saturating_sub(1)
                };
            });
            self.publish(*node);
        }
    }
}

// Processes.
impl World {
    /// The members on these nodes that a part means.
    pub(super) fn members_on(&self, nodes: &[NodeId], part: Part) -> Vec<MemberId> {
        let on = nodes.iter().flat_map(|node| {
            let host = self.host(*node);
            host.agent.into_iter().chain(host.aggregator)
        });
        on.filter(|member| self.processes[member.0 as usize].is_of(part))
            .collect()
    }

    pub(super) fn each_member(
        &mut self,
        nodes: &[NodeId],
        part: Part,
        mut with: impl FnMut(&mut crate::process::Process),
    ) {
        for member in self.members_on(nodes, part) {
            with(&mut self.processes[member.0 as usize]);
            self.resume_later(member);
        }
    }

    pub(super) fn stop_on(&mut self, nodes: &[NodeId], part: Part, goodbye: bool) {
        for member in self.members_on(nodes, part) {
            if goodbye {
                self.leave(member);
            } else {
                self.stop(member);
            }
        }
    }

    pub(super) fn start_on(&mut self, nodes: &[NodeId], part: Part) {
        for member in self.members_on(nodes, part) {
            self.start(member);
        }
    }

    /// Rolls the next agents: those of the step before come back. `false` when all are.
    pub(super) fn roll(&mut self, step: usize, at_once: crate::units::Ppm) -> bool {
        let all: Vec<_> = (0..self.nodes())
            .map(NodeId)
            .filter(|node| self.host(*node).power && self.host(*node).agent.is_some())
            .collect();
        let size = at_once.of(all.len()).max(1);
        if step > 0 {
            let begin = (step - 1) * size;
            let before = all.iter().skip(begin).take(size).copied();
            let before: Vec<_> = before.collect();
            self.start_on(&before, Part::Agent);
        }
        let next: Vec<_> = all.iter().skip(step * size).take(size).copied().collect();
        self.stop_on(&next, Part::Agent, true);
        step == 0 || (step - 1) * size < all.len()
    }
}
