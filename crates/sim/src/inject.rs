//! Faults begin, go on and end.

mod hosts;

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::fault::{Fault, KubeletState, Part, Target};
use crate::net::{Effect, Nodes, port_bit};
use crate::process::Local;
use crate::record::{FaultId, NodeId, What};
use crate::units::Span;
use crate::world::{Event, World};

/// A booted machine's kubelet runs after this time and up to as much again.
const KUBELET_BOOTS: Duration = Duration::from_secs(1);
/// Its pods of ours run after this time and up to as much again.
const PODS_BOOT: Duration = Duration::from_secs(3);

/// Between two look-ups of the seeds, as the binary makes them.
const SEEDS_LOOKED_UP: Duration = Duration::from_secs(15);

/// A fault that was scheduled.
#[derive(Debug)]
pub(crate) struct Injected {
    fault: Fault,
    lasts: Option<Span>,
    state: State,
    nodes: Vec<NodeId>,
    /// Where an alternating fault is, or what a spread one has reached.
    step: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Scheduled,
    Active,
    Ended,
}

impl World {
    /// Takes note of a fault.
    pub(crate) fn note_fault(&mut self, lasts: Option<Span>, fault: Fault) -> FaultId {
        let id = FaultId(u32::try_from(self.faults.len()).unwrap_or(u32::MAX));
        self.faults.push(Injected {
            fault,
            lasts,
            state: State::Scheduled,
            nodes: Vec::new(),
            step: 0,
        });
        id
    }

    fn fault(&mut self, id: FaultId) -> &mut Injected {
        &mut self.faults[id.0 as usize]
    }

    /// A fault begins.
    pub(crate) fn begin_fault(&mut self, id: FaultId) {
        if self.fault(id).state != State::Scheduled {
            return;
        }
        let fault = self.fault(id).fault.clone();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed() ^ (u64::from(id.0) << 32));
        let nodes = match fault.target() {
            Some(target) => self.draw(target, &mut rng),
            None => Vec::new(),
        };
        let lasts = self.fault(id).lasts;
        let it = self.fault(id);
        it.state = State::Active;
        it.nodes.clone_from(&nodes);
        self.tell(What::FaultBegan {
            id,
            fault: fault.clone(),
            nodes: nodes.clone(),
        });
        self.hit.extend(nodes.iter().copied());
        if let Some(lasts) = lasts {
            let at = self.now() + lasts.duration();
            self.queue.push(at, Event::End(id));
        }
        self.apply(id, &fault, &nodes, &mut rng);
        self.note_all_truths();
    }

    /// A fault ends.
    pub(crate) fn end_fault(&mut self, id: FaultId) {
        let it = self.fault(id);
        let was = std::mem::replace(&mut it.state, State::Ended);
        if was != State::Active {
            return;
        }
        let (fault, nodes) = (it.fault.clone(), it.nodes.clone());
        self.tell(What::FaultEnded { id });
        self.undo(id, &fault, &nodes);
        self.note_all_truths();
    }

    /// The nodes of a target.
    fn draw(&self, target: &Target, rng: &mut Xoshiro256PlusPlus) -> Vec<NodeId> {
        let all = (0..self.nodes()).map(NodeId).filter(|node| {
            let host = self.host(*node);
            host.power || self.api.object(node.0 as usize).is_some()
        });
        let hosts_aggregator = |node: &NodeId| self.host(*node).aggregator.is_some();
        let leader = self.leader().map(|leader| self.host_of(leader));
        match target {
            Target::All => all.collect(),
            Target::Nodes(nodes) => all.filter(|node| nodes.contains(&node.0)).collect(),
            Target::Except(nodes) => all.filter(|node| !nodes.contains(&node.0)).collect(),
            Target::Zone(zone) => all.filter(|node| self.host(*node).zone == *zone).collect(),
            Target::LeaderHost => leader.into_iter().collect(),
            Target::AggregatorHosts => all.filter(hosts_aggregator).collect(),
            Target::FollowerHosts => all
                .filter(|node| hosts_aggregator(node) && Some(*node) != leader)
                .collect(),
            Target::Random(count) => self.draw_some(*count as usize, rng),
            Target::Share(share) => {
                let whole = all.count();
                self.draw_some(share.of(whole), rng)
            }
        }
    }

    /// Nodes that host no aggregator and run, those that no fault has hit first.
    fn draw_some(&self, count: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<NodeId> {
        let eligible = (0..self.nodes()).map(NodeId).filter(|node| {
            let host = self.host(*node);
            host.power && host.aggregator.is_none() && host.agent.is_some()
        });
        let (mut fresh, mut hit): (Vec<_>, Vec<_>) =
            eligible.partition(|node| !self.hit.contains(node));
        fresh.shuffle(rng);
        hit.shuffle(rng);
        fresh.extend(hit);
        fresh.truncate(count);
        fresh.sort_unstable();
        fresh
    }

    fn apply(
        &mut self,
        id: FaultId,
        fault: &Fault,
        nodes: &[NodeId],
        rng: &mut Xoshiro256PlusPlus,
    ) {
        match fault {
            Fault::Crash { .. } => nodes.iter().for_each(|node| self.power_off(*node)),
            Fault::Freeze { part, .. } => self.freeze(nodes, *part),
            Fault::Sick { .. } | Fault::RestartLoop { .. } => {
                // Alternating faults of one kind do not begin in step.
                self.step_fault(id);
            }
            Fault::Slow { per_packet, .. } => {
                self.each_member(nodes, Part::Host, |process| {
                    process.per_packet = per_packet.duration();
                });
            }
            Fault::Starve { quota, .. } => {
                let quota = Some(*quota);
                self.each_member(nodes, Part::Host, |process| process.quota = quota);
            }
            Fault::Kubelet { state, .. } => {
                for node in nodes {
                    self.host_mut(*node).kubelet.state = *state;
                }
            }
            Fault::Stop { over, .. } => self.spread(id, nodes.len(), *over, rng),
            Fault::Join { count, over, .. } => self.spread(id, *count as usize, *over, rng),
            Fault::Roll { .. } => self.step_fault(id),
            Fault::ClockStep { by, back, .. } => self.step_clocks(nodes, *by, *back),
            Fault::Cut { .. } | Fault::Partition { .. } | Fault::Loss { .. } => {
                self.apply_paths(id, fault, nodes, rng);
            }
            Fault::Mtu { bytes, .. } => {
                let (these, all) = (Nodes::of(nodes), self.every_node());
                let mesh = port_bit(crate::fault::Port::Mesh);
                self.net.add(id, &these, &all, mesh, Effect::Mtu(*bytes));
                self.net.add(id, &all, &these, mesh, Effect::Mtu(*bytes));
            }
            Fault::Weather { .. } | Fault::ApiSlow { .. } | Fault::WatchLag { .. } => {
                self.apply_weather();
            }
            Fault::ApiDown => self.api.down += 1,
            Fault::Pause => self.api.paused += 1,
            Fault::Remove { grace, .. } => {
                for node in nodes {
                    self.api
                        .touch(node.0 as usize, |object| object.deleting = true);
                    self.publish(*node);
                }
                let at = self.now() + grace.duration();
                self.queue.push(at, Event::Step(id));
            }
            Fault::Liar { .. } => {
                for member in self.members_on(nodes, Part::Agent) {
                    self.processes[member.0 as usize].lies += 1;
                    self.after(member, Duration::ZERO, Local::Lie);
                }
            }
            Fault::Hold { .. } => self.hold_nodes(nodes, true),
        }
    }

    fn undo(&mut self, id: FaultId, fault: &Fault, nodes: &[NodeId]) {
        match fault {
            Fault::Crash { returns, .. } => {
                nodes.iter().for_each(|node| self.boot(*node, *returns));
            }
            Fault::Freeze { part, .. } => self.thaw(nodes, *part),
            Fault::Sick { .. } => {
                if self.fault(id).step % 2 == 1 {
                    self.well(nodes);
                }
            }
            Fault::RestartLoop { .. } => self.start_on(nodes, Part::Agent),
            Fault::Slow { .. } => {
                self.each_member(nodes, Part::Host, |process| {
                    process.per_packet = Duration::ZERO;
                });
            }
            Fault::Starve { .. } => {
                self.each_member(nodes, Part::Host, |process| process.quota = None);
            }
            Fault::Kubelet { .. } => {
                for node in nodes {
                    if self.host(*node).power {
                        self.start_kubelet(*node);
                    } else {
                        self.host_mut(*node).kubelet.state = KubeletState::Running;
                    }
                }
            }
            Fault::Stop { part, .. } => self.start_on(nodes, *part),
            Fault::ClockStep { by, back, .. } => self.step_clocks(nodes, *by, !back),
            Fault::Cut { .. }
            | Fault::Partition { .. }
            | Fault::Loss { .. }
            | Fault::Mtu { .. } => self.net.remove(id),
            Fault::Weather { .. } | Fault::ApiSlow { .. } | Fault::WatchLag { .. } => {
                self.apply_weather();
            }
            Fault::ApiDown => self.api.down -= 1,
            Fault::Pause => self.api.paused -= 1,
            Fault::Liar { .. } => {
                self.each_member(nodes, Part::Agent, |process| process.lies -= 1);
            }
            Fault::Hold { .. } => self.hold_nodes(nodes, false),
            // What was done to the cluster stays done.
            Fault::Roll { .. } | Fault::Join { .. } | Fault::Remove { .. } => {}
        }
    }

    /// The next step of a fault that has several.
    pub(crate) fn step_fault(&mut self, id: FaultId) {
        let it = self.fault(id);
        if it.state != State::Active {
            return;
        }
        let (fault, nodes, step) = (it.fault.clone(), it.nodes.clone(), it.step);
        it.step += 1;
        let on = step.is_multiple_of(2);
        let wait = match fault {
            Fault::Sick { held, free, .. } => {
                if on {
                    self.sicken(&nodes);
                } else {
                    self.well(&nodes);
                }
                if held == Span::ZERO {
                    return;
                }
                if on { held } else { free }
            }
            Fault::RestartLoop { every, up, .. } => {
                if on {
                    self.stop_on(&nodes, Part::Agent, false);
                    Span::from_micros(every.as_micros().saturating_sub(up.as_micros()))
                } else {
                    self.start_on(&nodes, Part::Agent);
                    up
                }
            }
            Fault::Roll { at_once, down } => {
                if !self.roll(step, at_once) {
                    self.end_fault(id);
                    return;
                }
                down
            }
            Fault::Remove { .. } => {
                nodes.iter().for_each(|node| self.remove_node(*node));
                return;
            }
            _ => return,
        };
        self.note_all_truths();
        let at = self.now() + wait.duration();
        self.queue.push(at, Event::Step(id));
    }

    /// One part of a fault that is spread over time.
    pub(crate) fn step_part(&mut self, id: FaultId, part: usize) {
        let it = self.fault(id);
        if it.state != State::Active {
            return;
        }
        match it.fault.clone() {
            Fault::Stop {
                part: of, goodbye, ..
            } => {
                let node = it.nodes.get(part).copied();
                self.stop_on(node.as_slice(), of, goodbye);
            }
            Fault::Join { address_of, .. } => {
                let of = address_of.filter(|_| part == 0);
                let address = of.map(|node| self.host(NodeId(node)).address);
                self.add_node(address);
            }
            _ => {}
        }
    }

    fn spread(&mut self, id: FaultId, count: usize, over: Span, rng: &mut Xoshiro256PlusPlus) {
        let now = self.now();
        for part in 0..count {
            let after = match over.as_micros() {
                0 => 0,
                over => rng.random_range(0..over),
            };
            let at = now + Duration::from_micros(after);
            self.queue.push(at, Event::Part(id, part));
        }
    }

    fn apply_paths(
        &mut self,
        id: FaultId,
        fault: &Fault,
        nodes: &[NodeId],
        rng: &mut Xoshiro256PlusPlus,
    ) {
        let these = Nodes::of(nodes);
        match fault {
            Fault::Cut {
                to,
                ports,
                both,
                block,
                ..
            } => {
                let to = Nodes::of(&self.draw(to, rng));
                let ports = ports.iter().fold(0, |all, port| all | port_bit(*port));
                self.net.add(id, &these, &to, ports, Effect::Block(*block));
                if *both {
                    self.net.add(id, &to, &these, ports, Effect::Block(*block));
                }
            }
            Fault::Partition { ports, .. } => {
                let mut others = self.every_node();
                nodes.iter().for_each(|node| others.remove(*node));
                let ports = ports.iter().fold(0, |all, port| all | port_bit(*port));
                let effect = Effect::Block(crate::fault::Block::Drop);
                self.net.add(id, &these, &others, ports, effect);
                // The API server stays with the other side.
                let api = port_bit(crate::fault::Port::Api);
                self.net.add(id, &others, &these, ports & !api, effect);
            }
            Fault::Loss { to, rate, both, .. } => {
                let to = Nodes::of(&self.draw(to, rng));
                let every =
                    port_bit(crate::fault::Port::Mesh) | port_bit(crate::fault::Port::Kubelet);
                self.net.add(id, &these, &to, every, Effect::Lose(*rate));
                if *both {
                    self.net.add(id, &to, &these, every, Effect::Lose(*rate));
                }
            }
            _ => {}
        }
    }

    /// The weather is the worst of all that is on.
    fn apply_weather(&mut self) {
        let base = self.network().clone();
        let (mut config, mut slow, mut lag) = (base, Duration::ZERO, Duration::ZERO);
        for it in self.faults.iter().filter(|it| it.state == State::Active) {
            match it.fault {
                Fault::Weather {
                    loss,
                    duplicate,
                    reorder,
                } => {
                    config.loss = config.loss.max(loss);
                    config.duplicate = config.duplicate.max(duplicate);
                    config.reorder = config.reorder.max(reorder);
                }
                Fault::ApiSlow { by } => slow = slow.max(by.duration()),
                Fault::WatchLag { by } => lag = lag.max(by.duration()),
                _ => {}
            }
        }
        self.net.config = config;
        self.api.slow = slow;
        self.api.watch_lag = lag;
    }

    fn every_node(&self) -> Nodes {
        let all: Vec<_> = (0..self.nodes()).map(NodeId).collect();
        Nodes::of(&all)
    }
}

/// Nodes that a fault has hit.
pub(crate) type Hit = BTreeSet<NodeId>;
