//! The engine.

mod parts;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use swimlet_mesh::Commons;
use swimlet_protocol::stream::SyncPart;
use swimlet_protocol::{ClusterId, MemberKey, MemberState, Moment, NodeName, Role};
use swimlet_verdict::{ReadyCondition, Standing};

use crate::api::Api;
use crate::edge::Request;
use crate::fault::Fault;
use crate::host::{Host, Stalled};
use crate::inject::{Hit, Injected};
use crate::kubelet::Beat;
use crate::link::{Packet, Sizes};
use crate::net::{Net, Nodes};
use crate::port::Check;
use crate::process::{Local, Process};
use crate::queue::{Queue, Wakes};
use crate::record::{Counters, FaultId, MemberId, MemberView, NodeId, Record, Traffic, Truth};
use crate::topology::{Network, Topology, TopologyError};
use crate::trace::Trace;
use crate::units::Span;

/// When a world's clock begins: later than every age that is subtracted from it.
const BEGIN: Moment = Moment::from_micros(1_000_000);

/// A cluster in virtual time.
///
/// Times that go in are counted from the end of its start ([`World::began`]); what comes
/// out are moments of its clock.
pub struct World {
    topology: Topology,
    network: Network,
    seed: u64,
    now: Moment,
    began: Moment,
    numbers: u64,
    pub(crate) cluster: ClusterId,
    /// What the members of this process share of each other's names.
    pub(crate) commons: Commons,
    /// While a prepared world starts: the whole mesh, as an answer to a sync.
    pub(crate) table: Vec<SyncPart>,
    pub(crate) queue: Queue<Event>,
    pub(crate) wakes: Wakes,
    pub(crate) net: Net,
    pub(crate) api: Api,
    pub(crate) hosts: Vec<Host>,
    pub(crate) processes: Vec<Process>,
    /// Looked up for each packet and never walked through, so its order is nobody's matter.
    by_key: HashMap<MemberKey, MemberId, BuildHasherDefault<KeyHash>>,
    by_name: BTreeMap<NodeName, NodeId>,
    /// Who has an address; of several hosts the last one.
    by_address: BTreeMap<IpAddr, Vec<NodeId>>,
    addresses: u32,
    pub(crate) powered: Nodes,
    pub(crate) leader: Option<MemberId>,
    pub(crate) faults: Vec<Injected>,
    pub(crate) hit: Hit,
    pub(crate) records: Vec<Record>,
    pub(crate) record_views: bool,
    pub(crate) counters: Counters,
    pub(crate) sizes: Sizes,
    pub(crate) trace: Trace,
}

/// Keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyHash(u64);

impl Hasher for KeyHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A packet arrives at a host.
    Packet {
        from: MemberId,
        to: MemberId,
        packet: Packet,
    },
    /// Something of a process's own.
    Local {
        member: MemberId,
        epoch: u32,
        local: Local,
    },
    /// Something of the API server's arrives at a host.
    ToHost {
        host: NodeId,
        member: MemberId,
        epoch: u32,
        local: Local,
    },
    /// A process may be run again.
    Resume { member: MemberId },
    /// A SYN arrives at a host.
    Syn { host: NodeId, check: Check },
    /// A SYN is repeated.
    SynAgain(Check),
    /// An aggregator's request arrives at the API server.
    Request(Request),
    /// A kubelet's round.
    Beat {
        node: NodeId,
        start: u32,
        beat: Beat,
    },
    /// A kubelet's request arrives at the API server.
    Kubelet {
        node: NodeId,
        start: u32,
        beat: Beat,
    },
    /// The node lifecycle controller's pass.
    Monitor,
    /// A booted host's kubelet starts.
    StartKubelet { node: NodeId, boot: u32 },
    /// A booted host's pod starts.
    Start { member: MemberId, boot: u32 },
    /// A fault begins.
    Begin(FaultId),
    /// The next step of a fault.
    Step(FaultId),
    /// A part of a fault that is spread over time.
    Part(FaultId, usize),
    /// A fault ends.
    End(FaultId),
}

impl World {
    /// A world that has started as the topology says.
    ///
    /// # Errors
    /// If the topology cannot be.
    pub fn new(topology: &Topology, network: &Network, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        let mut world = Self {
            topology: topology.clone(),
            network: network.clone(),
            seed,
            now: BEGIN,
            began: BEGIN,
            numbers: 0,
            cluster: crate::form::cluster(),
            commons: Commons::default(),
            table: Vec::new(),
            queue: Queue::new(),
            wakes: Wakes::new(),
            net: Net::new(network.clone(), seed),
            api: Api::default(),
            hosts: Vec::new(),
            processes: Vec::new(),
            by_key: HashMap::default(),
            by_name: BTreeMap::new(),
            by_address: BTreeMap::new(),
            addresses: 0,
            powered: Nodes::default(),
            leader: None,
            faults: Vec::new(),
            hit: Hit::new(),
            records: Vec::new(),
            record_views: true,
            counters: Counters::default(),
            sizes: Sizes::default(),
            trace: Trace::new(seed),
        };
        world.form();
        Ok(world)
    }

    /// Its clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// When its start was over.
    #[must_use]
    pub fn began(&self) -> Moment {
        self.began
    }

    pub(crate) fn begin(&mut self) {
        self.began = self.now;
    }

    /// The seed that decides everything.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What it was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The network it was built on.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
    }

    /// Lets time pass until `done`, for `time` at most; says whether it was done. `done` is
    /// looked at after each event, so it should be cheap.
    pub fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + time;
        loop {
            if done(self) {
                return true;
            }
            if !self.step(end) {
                return done(self);
            }
        }
    }

    /// Handles one event; without any until `end` only the clock moves, and it says no.
    fn step(&mut self, end: Moment) -> bool {
        let queued = self.queue.next_at();
        let wake = self.wakes.next_at();
        // Packets that have arrived are handed in before timers fire.
        let due = match (queued, wake) {
            (Some(queued), Some(wake)) => queued.min(wake),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => end + Duration::from_micros(1),
        };
        if due > end {
            self.now = self.now.max(end);
            return false;
        }
        self.now = self.now.max(due);
        self.counters.events += 1;
        if queued == Some(due) {
            if let Some(event) = self.queue.pop() {
                self.happen(event);
            }
        } else if let Some(sleeper) = self.wakes.first() {
            // Members are numbered in 32 bits.
            let member = MemberId(sleeper as u32);
            self.trace.event(self.now, 0, member.0, 0);
            self.wake(member);
        }
        true
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        let mut trace = |kind, a, b| self.trace.event(now, kind, a, b);
        match event {
            Event::Packet { from, to, packet } => {
                trace(1, from.0, to.0);
                self.arrive(from, to, packet);
            }
            Event::Local {
                member,
                epoch,
                local,
            } => {
                trace(2, member.0, epoch);
                self.deliver_local(member, epoch, local);
            }
            Event::ToHost {
                host,
                member,
                epoch,
                local,
            } => {
                trace(3, member.0, epoch);
                if self.host(host).sick > 0 {
                    let stalled = Stalled::Local(member, epoch, local);
                    self.host_mut(host).stalled.push(stalled);
                } else {
                    self.deliver_local(member, epoch, local);
                }
            }
            Event::Resume { member } => self.resume(member),
            Event::Syn { host, check } => {
                trace(4, host.0, check.by.0);
                self.on_syn(host, check);
            }
            Event::SynAgain(check) => self.syn(check),
            Event::Request(request) => {
                trace(5, request.member.0, request.epoch);
                self.serve(request);
            }
            Event::Beat { node, start, beat } => self.beat(node, start, beat),
            Event::Kubelet { node, start, beat } => {
                trace(6, node.0, start);
                self.serve_kubelet(node, start, beat);
            }
            Event::Monitor => self.monitor(),
            Event::StartKubelet { node, boot } => {
                let host = self.host(node);
                if host.power && host.boot == boot {
                    self.start_kubelet(node);
                }
            }
            Event::Start { member, boot } => {
                trace(7, member.0, boot);
                let host = self.host(self.host_of(member));
                if host.power && host.boot == boot {
                    self.start(member);
                }
            }
            Event::Begin(id) => self.begin_fault(id),
            Event::Step(id) => self.step_fault(id),
            Event::Part(id, part) => self.step_part(id, part),
            Event::End(id) => self.end_fault(id),
        }
    }

    /// A fault at that time after [`World::began`], and its end after `lasts`; without one it
    /// lasts until [`World::end`]. In the past means now.
    pub fn schedule(&mut self, at: Span, lasts: Option<Span>, fault: Fault) -> FaultId {
        let id = self.note_fault(lasts, fault);
        let at = (self.began + at.duration()).max(self.now);
        self.queue.push(at, Event::Begin(id));
        id
    }

    /// A fault now, which lasts until [`World::end`].
    pub fn inject(&mut self, fault: Fault) -> FaultId {
        let id = self.note_fault(None, fault);
        self.begin_fault(id);
        id
    }

    /// Ends a fault now; one that has not begun never does.
    pub fn end(&mut self, id: FaultId) {
        if (id.0 as usize) < self.faults.len() {
            self.end_fault(id);
        }
    }

    /// What happened since [`World::began`], in order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The same, and forgets it.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Whether [`crate::What::Held`] and [`crate::What::Accused`] are recorded; they are at first. In a
    /// large world a mass failure makes millions.
    pub fn record_views(&mut self, on: bool) {
        self.record_views = on;
    }

    /// Nodes that there are or were; their ids are `0..nodes`.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Members that there are or were; their ids are `0..members`.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.processes.len() as u32
    }

    /// The agent of a node, if it ever had one.
    #[must_use]
    pub fn agent_of(&self, node: NodeId) -> Option<MemberId> {
        self.hosts.get(node.0 as usize)?.agent
    }

    /// The aggregator on a node.
    #[must_use]
    pub fn aggregator_on(&self, node: NodeId) -> Option<MemberId> {
        self.hosts.get(node.0 as usize)?.aggregator
    }

    /// Every aggregator.
    #[must_use]
    pub fn aggregators(&self) -> Vec<MemberId> {
        // They run on the first hosts.
        let hosts = self
            .hosts
            .iter()
            .take(usize::from(self.topology.aggregators));
        hosts.filter_map(|host| host.aggregator).collect()
    }

    /// The aggregator that holds the Lease and was last told so; a frozen one may not know
    /// that it does not any more.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    /// The zone of a node.
    #[must_use]
    pub fn zone_of(&self, node: NodeId) -> u16 {
        self.hosts.get(node.0 as usize).map_or(0, |host| host.zone)
    }

    /// The node that a member runs on.
    #[must_use]
    pub fn node_of(&self, member: MemberId) -> Option<NodeId> {
        self.processes
            .get(member.0 as usize)
            .map(|process| process.host)
    }

    /// The node of this name.
    #[must_use]
    pub fn node_named(&self, name: &NodeName) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// What is true of a node now.
    #[must_use]
    pub fn truth(&self, node: NodeId) -> Option<Truth> {
        self.history(node).last().map(|(_, truth)| *truth)
    }

    /// What was true of a node from which moment on, oldest first.
    #[must_use]
    pub fn history(&self, node: NodeId) -> &[(Moment, Truth)] {
        self.hosts
            .get(node.0 as usize)
            .map_or(&[], |host| &host.history)
    }

    /// When a packet of that host was last read by a process on another host whose packets
    /// were not held.
    #[must_use]
    pub fn last_answer(&self, node: NodeId) -> Option<Moment> {
        self.hosts.get(node.0 as usize)?.answered
    }

    /// The Node's Ready condition, as the API server holds it.
    #[must_use]
    pub fn ready(&self, node: NodeId) -> Option<&ReadyCondition> {
        self.api.object(node.0 as usize)?.ready.as_ref()
    }

    /// What a member holds another to be; `None` if it does not know it, or does not run.
    #[must_use]
    pub fn held(&self, by: MemberId, about: MemberId) -> Option<MemberState> {
        let life = self.processes.get(by.0 as usize)?.life.as_ref()?;
        let about = self.processes.get(about.0 as usize)?.key;
        life.member.mesh().member(about).map(|member| member.state)
    }

    /// How new the word is that a member has of another: generation, then incarnation.
    #[must_use]
    pub fn known(&self, by: MemberId, about: MemberId) -> Option<(u64, u16)> {
        let life = self.processes.get(by.0 as usize)?.life.as_ref()?;
        let about = self.processes.get(about.0 as usize)?.key;
        let member = life.member.mesh().member(about)?;
        Some((member.record.generation.0, member.incarnation.0))
    }

    /// Where a node stands with an aggregator's judge.
    #[must_use]
    pub fn standing(&self, aggregator: MemberId, node: NodeId) -> Option<Standing> {
        let life = self.processes.get(aggregator.0 as usize)?.life.as_ref()?;
        let name = &self.hosts.get(node.0 as usize)?.name;
        life.aggregator.as_ref()?.judge().standing(name)
    }

    /// What a member sees and holds.
    #[must_use]
    pub fn member_view(&self, member: MemberId) -> Option<MemberView> {
        let process = self.processes.get(member.0 as usize)?;
        let mesh = process.life.as_ref().map(|life| life.member.mesh());
        let stats = mesh.map(|mesh| mesh.stats()).unwrap_or_default();
        let alive = |mesh: &swimlet_mesh::Mesh| {
            let all = mesh.members();
            all.filter(|member| !member.is_gone()).count()
        };
        Some(MemberView {
            running: process.life.is_some(),
            host: process.host,
            aggregator: process.role == Role::Aggregator,
            name: process.identity.name.clone(),
            members: stats.members as usize,
            alive: mesh.map_or(0, alive),
            links: process
                .life
                .as_ref()
                .map_or(0, |life| life.wire.links.len()),
            health: mesh.map_or(0, |mesh| mesh.health()),
            stats,
        })
    }

    /// The judge of an aggregator that runs.
    #[must_use]
    pub fn judge(&self, aggregator: MemberId) -> Option<&swimlet_verdict::Judge> {
        let life = self.processes.get(aggregator.0 as usize)?.life.as_ref()?;
        Some(life.aggregator.as_ref()?.judge())
    }

    /// What a member sent.
    #[must_use]
    pub fn traffic(&self, member: MemberId) -> Traffic {
        self.processes
            .get(member.0 as usize)
            .map(|process| process.traffic)
            .unwrap_or_default()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let sent = self.processes.iter().map(|process| process.traffic.bytes);
        Counters {
            queue_max: self.queue.peak() as u64,
            bytes_sent_max: sent.max().unwrap_or_default(),
            ..self.counters
        }
    }

    /// A number that every event so far went into: equal for equal runs, on every machine.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace.value()
    }
}

#[cfg(test)]
mod tests;
