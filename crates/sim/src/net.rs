//! The network between hosts: who gets through to whom, after how long.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::fault::{Block, Port};
use crate::record::{FaultId, NodeId, Reach};
use crate::topology::{Latency, Network};
use crate::units::Ppm;

/// How much later an overtaken packet arrives, at most.
const OVERTAKEN_MAX: Duration = Duration::from_millis(20);
/// One way between two processes of one host.
const LOOPBACK: Duration = Duration::from_micros(40);

/// A set of nodes, as a bit a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(Vec<u64>);

/// Something that stands in the way from some nodes to others.
#[derive(Clone, Debug)]
struct Rule {
    fault: FaultId,
    from: Nodes,
    to: Nodes,
    /// A bit per [`Port`].
    ports: u8,
    effect: Effect,
}

/// What a rule does to a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Block(Block),
    Lose(Ppm),
    Mtu(u16),
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives after that time.
    Arrives(Duration),
    /// It is lost.
    Lost,
    /// A firewall answers in the host's place.
    Rejected(Duration),
    /// It is larger than the path takes.
    TooLarge,
}

/// The network.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) config: Network,
    rng: Xoshiro256PlusPlus,
    rules: Vec<Rule>,
    /// Nodes that a rule names as a sender or receiver: all other paths are free.
    touched: Nodes,
}

impl Nodes {
    pub(crate) fn of(nodes: &[NodeId]) -> Self {
        let mut set = Self::default();
        nodes.iter().for_each(|node| set.insert(*node));
        set
    }

    pub(crate) fn insert(&mut self, node: NodeId) {
        let word = node.0 as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (node.0 % 64);
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some(word) = self.0.get_mut(node.0 as usize / 64) {
            *word &= !(1 << (node.0 % 64));
        }
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        let word = self.0.get(node.0 as usize / 64);
        word.is_some_and(|word| word >> (node.0 % 64) & 1 == 1)
    }

    fn join(&mut self, others: &Self) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// How many of `these` are not among ours.
    fn count_without(&self, these: &Self) -> u32 {
        let word = |(index, word): (usize, &u64)| {
            (word & !self.0.get(index).copied().unwrap_or_default()).count_ones()
        };
        these.0.iter().enumerate().map(word).sum()
    }
}

pub(crate) const fn port_bit(port: Port) -> u8 {
    match port {
        Port::Mesh => 1,
        Port::Kubelet => 2,
        Port::Api => 4,
    }
}

impl Net {
    pub(crate) fn new(config: Network, seed: u64) -> Self {
        Self {
            config,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            rules: Vec::new(),
            touched: Nodes::default(),
        }
    }

    /// Evenly from zero to below `span`; zero for an empty one.
    pub(crate) fn random(&mut self, span: Duration) -> Duration {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        if micros == 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(self.rng.random_range(0..micros))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.rng.random()
    }

    fn chance(&mut self, share: Ppm) -> bool {
        share != Ppm::ZERO && self.rng.random_range(0..1_000_000) < share.get()
    }

    fn sample(&mut self, latency: Latency) -> Duration {
        let (low, high) = if self.chance(latency.straggle) {
            (latency.max, latency.tail)
        } else {
            (latency.min, latency.max)
        };
        let (low, high) = (low.as_micros(), high.as_micros().max(low.as_micros()));
        Duration::from_micros(self.rng.random_range(low..=high))
    }

    /// One way between two hosts in these zones, when all is well.
    pub(crate) fn way(&mut self, same_host: bool, same_zone: bool) -> Duration {
        if same_host {
            return LOOPBACK;
        }
        let latency = if same_zone {
            self.config.within
        } else {
            self.config.between
        };
        self.sample(latency)
    }

    /// One way to or from the API server, when all is well.
    pub(crate) fn api_way(&mut self) -> Duration {
        self.sample(self.config.api)
    }

    /// The largest UDP payload that gets from one node to another.
    pub(crate) fn mtu(&self, from: NodeId, to: NodeId) -> u16 {
        let mut mtu = self.config.mtu;
        for effect in self.effects(from, to, port_bit(Port::Mesh)) {
            if let Effect::Mtu(bytes) = effect {
                mtu = mtu.min(bytes);
            }
        }
        mtu
    }

    /// What becomes of a packet that one host sends to another.
    pub(crate) fn fate(
        &mut self,
        from: (NodeId, u16),
        to: (NodeId, u16),
        port: Port,
        bytes: Option<usize>,
    ) -> Fate {
        let ((from, from_zone), (to, to_zone)) = (from, to);
        if from == to {
            return Fate::Arrives(LOOPBACK);
        }
        let way = self.way(false, from_zone == to_zone);
        if let Some(fate) = self.stopped(from, to, port, bytes, way) {
            return fate;
        }
        if self.chance(self.config.loss) {
            return Fate::Lost;
        }
        if self.chance(self.config.reorder) {
            return Fate::Arrives(way + self.random(OVERTAKEN_MAX));
        }
        Fate::Arrives(way)
    }

    /// Whether a datagram arrives a second time, and how much later.
    pub(crate) fn doubled(&mut self) -> Option<Duration> {
        let doubled = self.chance(self.config.duplicate);
        doubled.then(|| self.random(OVERTAKEN_MAX))
    }

    /// What a rule makes of a packet, if any does.
    fn stopped(
        &mut self,
        from: NodeId,
        to: NodeId,
        port: Port,
        bytes: Option<usize>,
        way: Duration,
    ) -> Option<Fate> {
        if self.is_free(from, to) {
            return None;
        }
        let effects: Vec<Effect> = self.effects(from, to, port_bit(port)).collect();
        for effect in effects {
            match effect {
                Effect::Block(Block::Drop) => return Some(Fate::Lost),
                Effect::Block(Block::Reject) => return Some(Fate::Rejected(way)),
                Effect::Lose(share) if self.chance(share) => return Some(Fate::Lost),
                Effect::Mtu(mtu) if bytes.is_some_and(|bytes| bytes > usize::from(mtu)) => {
                    return Some(Fate::TooLarge);
                }
                Effect::Lose(_) | Effect::Mtu(_) => {}
            }
        }
        None
    }

    /// Whether no rule is about a path.
    pub(crate) fn is_free(&self, from: NodeId, to: NodeId) -> bool {
        !(self.touched.contains(from) && self.touched.contains(to))
    }

    fn effects(&self, from: NodeId, to: NodeId, port: u8) -> impl Iterator<Item = Effect> {
        let concerned = move |rule: &&Rule| {
            rule.ports & port != 0 && rule.from.contains(from) && rule.to.contains(to)
        };
        self.rules.iter().filter(concerned).map(|rule| rule.effect)
    }

    /// Puts something in the way.
    pub(crate) fn add(
        &mut self,
        fault: FaultId,
        from: &Nodes,
        to: &Nodes,
        ports: u8,
        effect: Effect,
    ) {
        self.rules.push(Rule {
            fault,
            from: from.clone(),
            to: to.clone(),
            ports,
            effect,
        });
        self.note_touched();
    }

    /// Takes away what a fault put there.
    pub(crate) fn remove(&mut self, fault: FaultId) {
        self.rules.retain(|rule| rule.fault != fault);
        self.note_touched();
    }

    fn note_touched(&mut self) {
        self.touched = Nodes::default();
        for rule in &self.rules {
            self.touched.join(&rule.from);
            self.touched.join(&rule.to);
        }
    }

    /// Whether a node's requests get to the API server.
    pub(crate) fn api_open(&self, node: NodeId) -> bool {
        let cut = |rule: &Rule| {
            rule.ports & port_bit(Port::Api) != 0
                && matches!(rule.effect, Effect::Block(_))
                && rule.from.contains(node)
        };
        !self.rules.iter().any(cut)
    }

    /// Whether packets of a node are lost beyond what all lose.
    pub(crate) fn is_lossy(&self, node: NodeId) -> bool {
        let lossy = |rule: &Rule| {
            !matches!(rule.effect, Effect::Block(_))
                && (rule.from.contains(node) || rule.to.contains(node))
        };
        self.touched.contains(node) && self.rules.iter().any(lossy)
    }

    /// How many of `others` a node exchanges packets with, both ways.
    pub(crate) fn reach(&self, node: NodeId, others: &Nodes, port: Port) -> Reach {
        if !self.touched.contains(node) {
            return Reach::All;
        }
        let mut cut = Nodes::default();
        for rule in &self.rules {
            let blocks =
                rule.ports & port_bit(port) != 0 && matches!(rule.effect, Effect::Block(_));
            if blocks && rule.from.contains(node) {
                cut.join(&rule.to);
            }
            if blocks && rule.to.contains(node) {
                cut.join(&rule.from);
            }
        }
        let mut others = others.clone();
        others.remove(node);
        match (cut.count_without(&others), others.count()) {
            (open, all) if open == all => Reach::All,
            (0, _) => Reach::Nobody,
            (open, all) if open * 2 > all => Reach::Most,
            _ => Reach::Few,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u32]) -> Nodes {
        let ids: Vec<_> = ids.iter().map(|id| NodeId(*id)).collect();
        Nodes::of(&ids)
    }

    fn net() -> Net {
        Net::new(Network::default(), 1)
    }

    fn arrives(net: &mut Net, from: u32, to: u32, port: Port) -> bool {
        let fate = net.fate((NodeId(from), 0), (NodeId(to), 0), port, None);
        matches!(fate, Fate::Arrives(_))
    }

    /// Guards that a one-way block is one, on its port alone, until its end.
    #[test]
    fn a_rule_blocks_one_way_on_its_ports() {
        let mut net = net();
        let (a, b) = (nodes(&[1, 70]), nodes(&[2, 3]));
        net.add(
            FaultId(7),
            &a,
            &b,
            port_bit(Port::Mesh),
            Effect::Block(Block::Drop),
        );
        assert!(!arrives(&mut net, 70, 2, Port::Mesh));
        assert!(arrives(&mut net, 2, 70, Port::Mesh));
        assert!(arrives(&mut net, 70, 2, Port::Kubelet));
        assert!(arrives(&mut net, 70, 4, Port::Mesh));
        let all = nodes(&[1, 2, 3, 4, 70]);
        assert_eq!(net.reach(NodeId(70), &all, Port::Mesh), Reach::Few);
        assert_eq!(net.reach(NodeId(4), &all, Port::Mesh), Reach::All);
        assert_eq!(
            net.reach(NodeId(2), &nodes(&[1, 2, 70]), Port::Mesh),
            Reach::Nobody,
        );
        net.remove(FaultId(7));
        assert!(arrives(&mut net, 70, 2, Port::Mesh));
    }

    /// Guards that loss is what it says, within four standard deviations.
    #[test]
    fn packets_are_lost_at_the_rate() {
        let mut net = net();
        net.config.loss = Ppm::percent(10);
        let arrived = (0..10_000).filter(|_| arrives(&mut net, 1, 2, Port::Mesh));
        let arrived = arrived.count();
        assert!((8_880..9_120).contains(&arrived), "{arrived}");
    }
}
