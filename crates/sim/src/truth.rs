//! What is true of the nodes, kept beside what anybody believes.

use crate::fault::Port;
use crate::link::Packet;
use crate::net::Nodes;
use crate::record::{MemberId, NodeId, Truth, What};
use crate::world::World;

impl World {
    /// Writes down what is true of a node now, if it is something new.
    pub(crate) fn note_truth(&mut self, node: NodeId) {
        let truth = self.truth_now(node);
        let now = self.now();
        let history = &mut self.host_mut(node).history;
        if history.last().is_none_or(|(_, last)| *last != truth) {
            // Of one moment only the last counts.
            if history.last().is_some_and(|(at, _)| *at == now) {
                history.pop();
            }
            history.push((now, truth));
        }
    }

    /// The same of every node: a path has changed.
    pub(crate) fn note_all_truths(&mut self) {
        for node in (0..self.nodes()).map(NodeId) {
            self.note_truth(node);
        }
    }

    fn truth_now(&self, node: NodeId) -> Truth {
        let host = self.host(node);
        let agent = host.agent.map(|agent| &self.processes[agent.0 as usize]);
        let starved =
            agent.is_some_and(|agent| agent.quota.is_some() || !agent.per_packet.is_zero());
        let powered: &Nodes = &self.powered;
        Truth {
            exists: self.api.object(node.0 as usize).is_some(),
            power: host.power,
            frozen: host.frozen > 0,
            sick: host.sick > 0,
            kubelet: host.kubelet.state,
            kubelet_frozen: host.kubelet.frozen > 0,
            agent: agent.is_some_and(|agent| agent.life.is_some()),
            agent_frozen: agent.is_some_and(|agent| agent.frozen > 0),
            impaired: starved || self.net.is_lossy(node),
            mesh: self.net.reach(node, powered, Port::Mesh),
            kubelet_port: self.net.reach(node, powered, Port::Kubelet),
            api: self.net.api_open(node) && self.api.down == 0,
        }
    }

    /// A process reads a packet of another: its host has answered.
    pub(crate) fn note_answer(&mut self, from: MemberId, reader: MemberId) {
        self.note_answer_of(self.host_of(from), reader);
    }

    /// The same for a packet of any kind.
    pub(crate) fn note_answer_of(&mut self, from: NodeId, reader: MemberId) {
        let reader = self.host_of(reader);
        if from != reader && self.host(reader).sick == 0 {
            self.host_mut(from).answered = Some(self.now());
        }
    }

    /// A network holds a sick host's packet.
    pub(crate) fn hold(
        &mut self,
        host: NodeId,
        from: MemberId,
        to: MemberId,
        packet: Packet,
    ) -> bool {
        let held = &mut self.host_mut(host).held;
        let room = held.len() < crate::host::HELD_MAX;
        if room {
            held.push((from, to, packet));
        } else {
            self.counters.frames_lost += 1;
        }
        room
    }

    pub(crate) fn tell(&mut self, what: What) {
        let at = self.now();
        self.records.push(crate::record::Record { at, what });
    }
}
