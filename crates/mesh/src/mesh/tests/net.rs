//! A network of members in virtual time.
//!
//! Links, dials and streams behave as the edge's do; datagrams have latency and loss.
//! A killed member keeps its links: to its peers it just falls silent.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use swimlet_protocol::codec::{decode_frame, encode_frame};
use swimlet_protocol::frame::{Claim, ProbeOutcome};
use swimlet_protocol::{
    Bounded, ClusterId, Frame, Generation, Identity, MemberKey, MemberRecord, MemberState, Moment,
    Role, Zone,
};

use crate::{Commons, Config, Event, Input, Mesh, Output};

/// What happens at some moment.
#[derive(Debug)]
enum Action {
    /// Hand this to a member, if it is still the same start of it.
    Input {
        node: usize,
        start: u32,
        input: Input,
    },
    /// A handshake arrives at an address.
    Dial {
        from: usize,
        start: u32,
        peer: Option<MemberKey>,
        address: SocketAddr,
    },
}

pub(super) struct Node {
    pub(super) mesh: Mesh,
    pub(super) identity: Identity,
    key: MemberKey,
    pub(super) record: MemberRecord,
    pub(super) events: Vec<(Moment, Event)>,
    /// Outcomes of its active verifications.
    pub(super) probed: Vec<(u64, ProbeOutcome)>,
    /// Frames it sent, by no means all of which arrived.
    pub(super) sent: u64,
    alive: bool,
    frozen: bool,
    start: u32,
    inbox: Vec<Input>,
    wake: Option<Moment>,
}

pub(super) struct Net {
    pub(super) now: Moment,
    pub(super) nodes: Vec<Node>,
    /// Share of datagrams lost.
    pub(super) loss: f64,
    /// Datagrams and handshakes from the first to the second are lost.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// Datagrams from the first to the second are lost, and handshakes are not.
    pub(super) mute: BTreeSet<(usize, usize)>,
    /// Share of datagrams lost to and from each of these.
    pub(super) lossy: BTreeMap<usize, f64>,
    /// Members sent in answers to syncs.
    pub(super) synced: usize,
    /// How long a handshake takes.
    pub(super) handshake: Duration,
    /// Also says what every member did, if set.
    pub(super) trace: Option<DefaultHasher>,
    /// What whoever starts shares with the others, and knows.
    placed: Option<(Commons, Vec<Arc<MemberRecord>>)>,
    seeds: Vec<SocketAddr>,
    keys: BTreeMap<MemberKey, usize>,
    queue: BTreeMap<(Moment, u64), Action>,
    wakes: BTreeSet<(Moment, usize)>,
    links: BTreeSet<(usize, usize)>,
    streams: BTreeMap<u64, (usize, u32, usize)>,
    serial: u64,
    rng: Xoshiro256PlusPlus,
}

pub(super) fn cluster() -> ClusterId {
    "test".parse().unwrap()
}

pub(super) fn address(host: usize) -> SocketAddr {
    let [.., a, b] = u32::try_from(host).unwrap().to_be_bytes();
    SocketAddr::from(([10, 0, a, b], 10270))
}

fn record(role: Role, i: usize) -> MemberRecord {
    MemberRecord {
        role,
        name: format!("m{i}").parse().unwrap(),
        generation: Generation(1_700_000_000_000 + i as u64),
        zone: Zone::default(),
        addresses: Bounded::fill(&mut std::iter::once(address(i))),
        kubelet_port: 10250,
    }
}

impl Net {
    /// Nobody yet; whoever comes joins through the first `seeds` members.
    pub(super) fn with_seeds(seed: u64, seeds: usize) -> Self {
        Self {
            now: Moment::from_micros(1_000_000),
            nodes: Vec::new(),
            loss: 0.0,
            cut: BTreeSet::new(),
            mute: BTreeSet::new(),
            lossy: BTreeMap::new(),
            synced: 0,
            handshake: Duration::from_millis(5),
            trace: None,
            placed: None,
            seeds: (0..seeds).map(address).collect(),
            keys: BTreeMap::new(),
            queue: BTreeMap::new(),
            wakes: BTreeSet::new(),
            links: BTreeSet::new(),
            streams: BTreeMap::new(),
            serial: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// A mesh of `aggregators` and then `agents`, joined through the first member(s), at rest.
    pub(super) fn formed(seed: u64, aggregators: usize, agents: usize) -> Self {
        let mut net = Self::with_seeds(seed, aggregators.max(1));
        for i in 0..aggregators + agents {
            let role = if i < aggregators {
                Role::Aggregator
            } else {
                Role::Agent
            };
            net.add(role);
        }
        net.run(Duration::from_secs(40));
        net
    }

    /// The same mesh, of members that share names and know each other from the start.
    pub(super) fn placed(seed: u64, aggregators: usize, agents: usize) -> Self {
        let mut net = Self::with_seeds(seed, aggregators.max(1));
        let role = |i| {
            if i < aggregators {
                Role::Aggregator
            } else {
                Role::Agent
            }
        };
        let all = 0..aggregators + agents;
        let records: Vec<_> = all.map(|i| Arc::new(record(role(i), i))).collect();
        net.placed = Some((Commons::default(), records.clone()));
        for record in records {
            net.add(record.role);
        }
        net
    }

    pub(super) fn add(&mut self, role: Role) -> usize {
        let i = self.nodes.len();
        let record = record(role, i);
        let identity = Identity {
            cluster: cluster(),
            role,
            name: record.name.clone(),
        };
        self.serial += 1;
        let mesh = self.mesh(&record);
        self.nodes.push(Node {
            mesh,
            key: identity.key(),
            identity,
            record,
            events: Vec::new(),
            probed: Vec::new(),
            sent: 0,
            alive: true,
            frozen: false,
            start: 0,
            inbox: Vec::new(),
            wake: None,
        });
        self.keys.insert(self.nodes[i].key, i);
        self.drain(i);
        i
    }

    pub(super) fn key(&self, node: usize) -> MemberKey {
        self.nodes[node].key
    }

    /// Everybody but the dead.
    pub(super) fn living(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&i| self.nodes[i].alive)
            .collect()
    }

    /// What `node` holds `about` to be.
    pub(super) fn state(&self, node: usize, about: usize) -> Option<MemberState> {
        self.nodes[node]
            .mesh
            .member(self.key(about))
            .map(|member| member.state)
    }

    /// Who of the living holds `about` to be something else than `state`.
    pub(super) fn who_differs(&self, about: usize, state: MemberState) -> Vec<usize> {
        let mut who = self.living();
        who.retain(|&i| i != about && self.state(i, about) != Some(state));
        who
    }

    /// Claims the aggregators heard since `since`.
    pub(super) fn claims(&self, since: Moment) -> Vec<(Moment, Claim)> {
        self.events(since)
            .filter_map(|(at, _, event)| match event {
                Event::Claim(claim) => Some((at, claim.clone())),
                _ => None,
            })
            .collect()
    }

    /// Everything that happened since `since`: when, to whom, what.
    pub(super) fn events(&self, since: Moment) -> impl Iterator<Item = (Moment, usize, &Event)> {
        self.nodes.iter().enumerate().flat_map(move |(i, node)| {
            let events = node.events.iter().filter(move |(at, _)| *at >= since);
            events.map(move |(at, event)| (*at, i, event))
        })
    }

    /// Falls silent without a word.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.unwake(node);
    }

    /// Starts again, as another process: its peers' links break.
    pub(super) fn restart(&mut self, node: usize, generation: Generation, host: usize) {
        let old: Vec<_> = self
            .links
            .iter()
            .copied()
            .filter(|&(a, b)| a == node || b == node)
            .collect();
        for (a, b) in old {
            self.links.remove(&(a, b));
            let peer = self.key(node);
            self.input_later(if a == node { b } else { a }, Input::LinkDown { peer }, 5);
        }
        self.unwake(node);
        let mut record = self.nodes[node].record.clone();
        record.generation = generation;
        record.addresses = Bounded::fill(&mut std::iter::once(address(host)));
        let mesh = self.mesh(&record);
        let it = &mut self.nodes[node];
        it.record = record;
        it.mesh = mesh;
        it.alive = true;
        it.frozen = false;
        it.start += 1;
        it.inbox.clear();
        self.drain(node);
    }

    /// Runs no more, for now; what arrives waits.
    pub(super) fn freeze(&mut self, node: usize) {
        self.nodes[node].frozen = true;
        self.unwake(node);
    }

    /// Runs again: reads what waited, then wakes.
    pub(super) fn thaw(&mut self, node: usize) {
        self.nodes[node].frozen = false;
        for input in std::mem::take(&mut self.nodes[node].inbox) {
            self.input(node, input);
        }
        self.input(node, Input::Wake);
    }

    /// Cuts the node off: nothing reaches it.
    pub(super) fn deafen(&mut self, node: usize) {
        self.cut
            .extend((0..self.nodes.len()).map(|other| (other, node)));
    }

    /// Loses every datagram between the two groups, both ways; handshakes succeed.
    pub(super) fn silence(&mut self, left: &[usize], right: &[usize]) {
        for &a in left {
            for &b in right {
                self.mute.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Cuts the first from the second group, both ways.
    pub(super) fn split(&mut self, left: &[usize], right: &[usize]) {
        for &a in left {
            for &b in right {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Hands something to a member, now.
    pub(super) fn input(&mut self, node: usize, input: Input) {
        let it = &mut self.nodes[node];
        if !it.alive {
            return;
        }
        if it.frozen {
            it.inbox.push(input);
            return;
        }
        it.mesh.handle(self.now, input);
        self.drain(node);
    }

    /// Lets a member send a frame that it would not send by itself.
    pub(super) fn forge(&mut self, from: usize, to: usize, frame: Frame) {
        let key = self.key(to);
        self.output(from, Output::Send { to: key, frame });
    }

    /// Lets a member ask another for a sync, at once.
    pub(super) fn forge_sync(
        &mut self,
        asking: usize,
        answering: usize,
        from: Identity,
        request: swimlet_protocol::stream::SyncRequest,
    ) {
        self.serial += 1;
        let token = self.serial;
        self.streams
            .insert(token, (asking, self.nodes[asking].start, answering));
        let input = Input::SyncRequested {
            from,
            token,
            request,
        };
        self.input(answering, input);
    }

    pub(super) fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done`, for `time` at most; says whether it was done.
    pub(super) fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + time;
        while !done(self) {
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let wake = self.wakes.first().map(|&(at, _)| at);
            let next = [queued, wake].into_iter().flatten().min();
            let Some(next) = next.filter(|&at| at <= end) else {
                self.now = end;
                return done(self);
            };
            self.now = self.now.max(next);
            if queued == Some(next) {
                let (_, action) = self.queue.pop_first().unwrap();
                self.act(action);
            } else {
                let (_, node) = self.wakes.pop_first().unwrap();
                self.nodes[node].wake = None;
                self.input(node, Input::Wake);
            }
        }
        true
    }

    fn mesh(&mut self, record: &MemberRecord) -> Mesh {
        self.serial += 1;
        let config = Config {
            cluster: cluster(),
            me: record.clone(),
            seed: self.serial,
            seeds: self.seeds.clone(),
            peers: Vec::new(),
        };
        match &self.placed {
            None => Mesh::new(self.now, config),
            Some((commons, all)) => {
                Mesh::with_members(self.now, config, commons, all.iter().cloned())
            }
        }
    }

    fn unwake(&mut self, node: usize) {
        if let Some(at) = self.nodes[node].wake.take() {
            self.wakes.remove(&(at, node));
        }
    }

    fn drain(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].mesh.poll() {
            if let Some(trace) = &mut self.trace {
                format!("{} {node} {output:?}", self.now).hash(trace);
            }
            self.output(node, output);
        }
        self.unwake(node);
        let it = &mut self.nodes[node];
        if it.alive && !it.frozen {
            it.wake = it.mesh.next_wake();
            self.wakes.extend(it.wake.map(|at| (at, node)));
        }
    }

    fn output(&mut self, node: usize, output: Output) {
        match output {
            Output::Send { to, frame } => self.transmit(node, to, frame),
            Output::Dial { peer, addresses } => {
                let address = *addresses
                    .iter()
                    .find(|&&address| self.at(address).is_some())
                    .unwrap_or(&addresses[0]);
                self.dial(node, Some(peer), address);
            }
            Output::Join { address, .. } => self.dial(node, None, address),
            Output::Close { peer } => {
                if let Some(other) = self.find(peer)
                    && self.links.remove(&pair(node, other))
                {
                    let peer = self.key(node);
                    if self.nodes[node].alive && !self.cut.contains(&(node, other)) {
                        self.input_later(other, Input::LinkDown { peer }, 2);
                    }
                }
            }
            Output::Sync { to, request } => {
                let Some(other) = self.find(to) else { return };
                if self.links.contains(&pair(node, other)) && self.is_open(node, other) {
                    self.serial += 1;
                    let token = self.serial;
                    self.streams
                        .insert(token, (node, self.nodes[node].start, other));
                    let from = self.nodes[node].identity.clone();
                    self.input_later(
                        other,
                        Input::SyncRequested {
                            from,
                            token,
                            request,
                        },
                        3,
                    );
                }
            }
            Output::SyncReply { token, parts } => {
                let (asking, start, answering) = self.streams.remove(&token).unwrap();
                let from = self.key(answering);
                for part in parts {
                    self.synced += part.members.len();
                    let input = Input::SyncAnswered { from, part };
                    if self.nodes[asking].start == start {
                        self.input_later(asking, input, 3);
                    }
                }
            }
            Output::Probed { token, outcome, .. } => self.nodes[node].probed.push((token, outcome)),
            Output::Event(event) => self.nodes[node].events.push((self.now, event)),
        }
    }

    fn transmit(&mut self, node: usize, to: MemberKey, frame: Frame) {
        self.nodes[node].sent += 1;
        let bytes = encode_frame(&frame).expect("every frame fits a datagram");
        assert_eq!(decode_frame(&bytes).as_ref(), Ok(&frame));
        let Some(other) = self.find(to) else { return };
        let pair_lost = self.cut.contains(&(node, other)) || self.mute.contains(&(node, other));
        let worst = |i: &usize| self.lossy.get(i).copied().unwrap_or(0.0);
        let loss = self.loss.max(worst(&node)).max(worst(&other));
        let lost = self.rng.random_bool(loss) || pair_lost;
        if !lost && self.links.contains(&pair(node, other)) {
            let from = self.key(node);
            let latency = self.rng.random_range(200..2_000);
            self.later(
                other,
                Input::Frame { from, frame },
                Duration::from_micros(latency),
            );
        }
    }

    fn dial(&mut self, from: usize, peer: Option<MemberKey>, address: SocketAddr) {
        let start = self.nodes[from].start;
        self.serial += 1;
        let at = self.now + self.handshake;
        self.queue.insert(
            (at, self.serial),
            Action::Dial {
                from,
                start,
                peer,
                address,
            },
        );
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Input { node, start, input } => {
                if self.nodes[node].start == start {
                    self.input(node, input);
                }
            }
            Action::Dial {
                from,
                start,
                peer,
                address,
            } => {
                if self.nodes[from].start == start && self.nodes[from].alive {
                    self.handshake(from, peer, address);
                }
            }
        }
    }

    fn handshake(&mut self, from: usize, peer: Option<MemberKey>, address: SocketAddr) {
        let there = self.at(address).filter(|&other| self.is_open(from, other));
        let wrong = there.is_some_and(|other| peer.is_some_and(|peer| peer != self.key(other)));
        let Some(other) = there.filter(|_| !wrong) else {
            let (input, wait) = match peer {
                Some(peer) => (Input::DialFailed { peer }, if wrong { 5 } else { 3_000 }),
                None => (Input::JoinFailed { address }, 3_000),
            };
            self.input_later(from, input, wait);
            return;
        };
        self.links.insert(pair(from, other));
        let up = |identity: &Identity, address| Input::LinkUp {
            peer: identity.clone(),
            addresses_seen: address,
        };
        let to_them = up(
            &self.nodes[from].identity,
            self.nodes[from].record.addresses[0],
        );
        let to_us = up(&self.nodes[other].identity, address);
        self.input(other, to_them);
        self.input(from, to_us);
        if peer.is_none() {
            let (record, incarnation) = (
                self.nodes[from].record.clone(),
                swimlet_protocol::Incarnation(0),
            );
            let to = self.key(other);
            let request = swimlet_protocol::stream::SyncRequest {
                record: Arc::new(record),
                incarnation,
                digest: 0,
                ranges: Bounded::default(),
            };
            self.output(from, Output::Sync { to, request });
        }
    }

    fn input_later(&mut self, node: usize, input: Input, ms: u64) {
        self.later(node, input, Duration::from_millis(ms));
    }

    fn later(&mut self, node: usize, input: Input, wait: Duration) {
        self.serial += 1;
        let start = self.nodes[node].start;
        self.queue.insert(
            (self.now + wait, self.serial),
            Action::Input { node, start, input },
        );
    }

    fn find(&self, key: MemberKey) -> Option<usize> {
        self.keys.get(&key).copied()
    }

    /// Who listens at an address.
    fn at(&self, address: SocketAddr) -> Option<usize> {
        self.living()
            .into_iter()
            .find(|&i| !self.nodes[i].frozen && self.nodes[i].record.addresses[0] == address)
    }

    fn is_open(&self, a: usize, b: usize) -> bool {
        self.nodes[b].alive && !self.cut.contains(&(a, b)) && !self.cut.contains(&(b, a))
    }
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}
