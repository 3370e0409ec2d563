//! The engine.

use std::collections::BTreeMap;
use std::time::Duration;

use swimlet_protocol::{MemberState, Moment};
use swimlet_verdict::{ReadyCondition, Standing};

use crate::fault::Fault;
use crate::record::{Counters, FaultId, MemberId, MemberView, NodeId, Record, Traffic, Truth};
use crate::topology::{Network, Topology, TopologyError};
use crate::units::Span;

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
    records: Vec<Record>,
    counters: Counters,
    scheduled: BTreeMap<(Moment, FaultId), (Option<Span>, Fault)>,
    faults: u32,
}

impl World {
    /// A world that has started as the topology says.
    ///
    /// # Errors
    /// If the topology cannot be.
    pub fn new(topology: &Topology, network: &Network, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        Ok(Self {
            topology: topology.clone(),
            network: network.clone(),
            seed,
            now: Moment::from_micros(1_000_000),
            began: Moment::from_micros(1_000_000),
            records: Vec::new(),
            counters: Counters::default(),
            scheduled: BTreeMap::new(),
            faults: 0,
        })
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
        self.run_until(time, |_| false);
    }

    /// Lets time pass until `done`, for `time` at most; says whether it was done. `done` is
    /// looked at after each event.
    pub fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        if !done(self) {
            self.now += time;
        }
        done(self)
    }

    /// A fault at that time after [`World::began`], and its end after `lasts`; without one it
    /// lasts until [`World::end`]. In the past means at once.
    pub fn schedule(&mut self, at: Span, lasts: Option<Span>, fault: Fault) -> FaultId {
        let id = FaultId(self.faults);
        self.faults += 1;
        let at = (self.began + at.duration()).max(self.now);
        self.scheduled.insert((at, id), (lasts, fault));
        id
    }

    /// A fault now, which lasts until [`World::end`].
    pub fn inject(&mut self, fault: Fault) -> FaultId {
        self.schedule(Span::ZERO, None, fault)
    }

    /// Ends a fault; one that has not begun never does.
    pub fn end(&mut self, id: FaultId) {
        self.scheduled.retain(|(_, it), _| *it != id);
    }

    /// What happened, in order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The same, and forgets it.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Whether [`crate::What::Held`] and [`crate::What::Accused`] are recorded; they are at
    /// first. In a large world a mass failure makes millions.
    pub fn record_views(&mut self, on: bool) {
        let _ = on;
    }

    /// Nodes that there are or were; their ids are `0..nodes`.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.topology.nodes
    }

    /// Members that there are or were; their ids are `0..members`.
    #[must_use]
    pub fn members(&self) -> u32 {
        0
    }

    /// The agent of a node, if it ever had one.
    #[must_use]
    pub fn agent_of(&self, node: NodeId) -> Option<MemberId> {
        let _ = node;
        None
    }

    /// The aggregator on a node.
    #[must_use]
    pub fn aggregator_on(&self, node: NodeId) -> Option<MemberId> {
        let _ = node;
        None
    }

    /// Every aggregator.
    #[must_use]
    pub fn aggregators(&self) -> Vec<MemberId> {
        Vec::new()
    }

    /// The aggregator that holds the Lease and acts by it.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        None
    }

    /// The zone of a node.
    #[must_use]
    pub fn zone_of(&self, node: NodeId) -> u16 {
        u16::try_from(node.0 % u32::from(self.topology.zones)).unwrap_or_default()
    }

    /// What is true of a node now.
    #[must_use]
    pub fn truth(&self, node: NodeId) -> Option<Truth> {
        self.history(node).last().map(|(_, truth)| *truth)
    }

    /// What was true of a node from which moment on, oldest first.
    #[must_use]
    pub fn history(&self, node: NodeId) -> &[(Moment, Truth)] {
        let _ = node;
        &[]
    }

    /// When a packet of that host last reached a process on another host that was neither
    /// sick nor frozen.
    #[must_use]
    pub fn last_answer(&self, node: NodeId) -> Option<Moment> {
        let _ = node;
        None
    }

    /// The Node's Ready condition, as the API server holds it.
    #[must_use]
    pub fn ready(&self, node: NodeId) -> Option<&ReadyCondition> {
        let _ = node;
        None
    }

    /// What a member holds another to be; `None` if it does not know it, or does not run.
    #[must_use]
    pub fn held(&self, by: MemberId, about: MemberId) -> Option<MemberState> {
        let _ = (by, about);
        None
    }

    /// Where a node stands with an aggregator's judge.
    #[must_use]
    pub fn standing(&self, aggregator: MemberId, node: NodeId) -> Option<Standing> {
        let _ = (aggregator, node);
        None
    }

    /// What a member sees and holds.
    #[must_use]
    pub fn member_view(&self, member: MemberId) -> Option<MemberView> {
        let _ = member;
        None
    }

    /// What a member sent.
    #[must_use]
    pub fn traffic(&self, member: MemberId) -> Traffic {
        let _ = member;
        Traffic::default()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A number that every event so far went into: equal for equal runs, on every machine.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.seed
    }
}
