//! What the parts of the engine ask of each other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_protocol::{Identity, MemberKey, Role};
use swimlet_verdict::NodeSeen;

use super::{Event, World};
use crate::api::New;
use crate::edge::Shown;
use crate::fault::KubeletState;
use crate::host::{self, Host, Kubelet};
use crate::kubelet::{self};
use crate::process::{AGENT_PORT, AGGREGATOR_PORT, Process};
use crate::record::{MemberId, NodeId, What};
use crate::units::Span;

impl World {
    /// A number that was not given out before.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn host(&self, node: NodeId) -> &Host {
        &self.hosts[node.0 as usize]
    }

    pub(crate) fn host_mut(&mut self, node: NodeId) -> &mut Host {
        &mut self.hosts[node.0 as usize]
    }

    pub(crate) fn host_of(&self, member: MemberId) -> NodeId {
        self.processes[member.0 as usize].host
    }

    pub(crate) fn member_of(&self, key: MemberKey) -> Option<MemberId> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn key_of(&self, member: MemberId) -> MemberKey {
        self.processes[member.0 as usize].key
    }

    pub(crate) fn identity_of(&self, member: MemberId) -> Identity {
        self.processes[member.0 as usize].identity.clone()
    }

    /// The host that has an address: of several the one that came last and has power.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<NodeId> {
        let hosts = self.by_address.get(&address)?;
        let powered = |node: &&NodeId| self.host(**node).power;
        hosts
            .iter()
            .rev()
            .find(powered)
            .or_else(|| hosts.last())
            .copied()
    }

    /// The member that listens at an address, running or not.
    pub(crate) fn listener(&self, address: SocketAddr) -> Option<MemberId> {
        let host = self.host(self.host_at(address.ip())?);
        match address.port() {
            AGENT_PORT => host.agent,
            AGGREGATOR_PORT => host.aggregator,
            _ => None,
        }
    }

    /// Where a member's packets come from.
    pub(crate) fn source_of(&self, member: MemberId) -> SocketAddr {
        let process = &self.processes[member.0 as usize];
        SocketAddr::new(self.host(process.host).address, process.port())
    }

    /// Where members join: the aggregators, as the headless Service has them.
    pub(crate) fn seeds(&self) -> Vec<SocketAddr> {
        let aggregators = self.aggregators().into_iter();
        aggregators.map(|member| self.source_of(member)).collect()
    }

    /// Every Node as the API server lists it.
    pub(crate) fn all_nodes(&self) -> Vec<(NodeId, NodeSeen)> {
        let objects = self.api.objects.iter().enumerate();
        objects
            .filter_map(|(index, object)| Some((NodeId(index as u32), object.as_ref()?.seen())))
            .collect()
    }

    pub(crate) fn new_address(&mut self) -> IpAddr {
        self.addresses += 1;
        host::address(self.addresses)
    }

    /// A host has another address from now on.
    pub(crate) fn move_host(&mut self, node: NodeId, address: IpAddr) {
        let before = self.host(node).address;
        if let Some(hosts) = self.by_address.get_mut(&before) {
            hosts.retain(|host| *host != node);
        }
        self.host_mut(node).address = address;
        self.by_address.entry(address).or_default().push(node);
    }

    /// A new node joins, perhaps at an address that another one has.
    pub(crate) fn add_node(&mut self, address: Option<IpAddr>) {
        let node = NodeId(self.nodes());
        let zone = (node.0 % u32::from(self.topology.zones)) as u16;
        let address = address.unwrap_or_else(|| self.new_address());
        self.add_host(node, zone, address, false);
        self.add_member(node, Role::Agent);
        self.tell(What::Added { node });
        let now = self.now;
        let kubelet = self.net.random(Duration::from_secs(2));
        self.queue
            .push(now + kubelet, Event::StartKubelet { node, boot: 0 });
        if let Some(member) = self.host(node).agent {
            let delay = kubelet + self.net.random(Duration::from_secs(3));
            self.queue
                .push(now + delay, Event::Start { member, boot: 0 });
        }
        self.note_truth(node);
    }

    pub(crate) fn add_host(&mut self, node: NodeId, zone: u16, address: IpAddr, agentless: bool) {
        let name = crate::form::name(&host::name(node));
        self.by_name.insert(name.clone(), node);
        self.by_address.entry(address).or_default().push(node);
        self.powered.insert(node);
        self.hosts.push(Host {
            name,
            zone,
            address,
            power: true,
            boot: 0,
            frozen: 0,
            sick: 0,
            held: Vec::new(),
            stalled: Vec::new(),
            kubelet: Kubelet {
                state: KubeletState::Running,
                frozen: 0,
                report_due: self.now,
                start: 0,
            },
            serves_healthz: true,
            registers: true,
            life: 1,
            agentless,
            clock_ahead_ms: 0,
            agent: None,
            aggregator: None,
            answered: None,
            history: Vec::new(),
        });
    }

    pub(crate) fn add_member(&mut self, node: NodeId, role: Role) {
        let member = MemberId(self.members());
        let name = match role {
            Role::Agent => self.host(node).name.clone(),
            Role::Aggregator => crate::form::name(&format!("aggregator-{}", node.0)),
        };
        let identity = Identity {
            cluster: self.cluster.clone(),
            role,
            name,
        };
        let process = Process::new(node, identity);
        self.by_key.insert(process.key, member);
        self.processes.push(process);
        match role {
            Role::Agent => self.host_mut(node).agent = Some(member),
            Role::Aggregator => self.host_mut(node).aggregator = Some(member),
        }
    }

    /// A kubelet makes its Node object.
    pub(crate) fn register(&mut self, node: NodeId) {
        let lease = self.topology.lease.duration();
        let now = self.now;
        let host = &mut self.hosts[node.0 as usize];
        host.registers = false;
        let new = New {
            cluster: &self.cluster,
            name: &host.name,
            life: host.life,
            zone: host.zone,
            address: host.address,
            agentless: host.agentless,
            lease: (!lease.is_zero()).then_some(lease),
        };
        self.api.create(node.0 as usize, now, new);
        self.note_truth(node);
    }

    pub(crate) fn delete_object(&mut self, node: NodeId) {
        if let Some(gone) = self.api.delete(node.0 as usize) {
            self.publish_shown(&Shown::Gone(node, gone));
            self.note_truth(node);
        }
    }

    /// The in-tree controller begins its passes, if the topology has it.
    pub(crate) fn begin_monitor(&mut self) {
        if self.topology.in_tree_grace != Span::ZERO {
            let at = self.now + kubelet::MONITOR;
            self.queue.push(at, Event::Monitor);
        }
    }
}
