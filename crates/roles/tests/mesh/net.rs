//! Hosts and the network between them, in virtual time.
//!
//! Datagrams have latency and loss; links are numbered as connections are, and a host
//! that came back answers an old number by a reset. A host without power keeps its
//! links: to its peers it just falls silent, until the link has idled for too long.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::codec::{decode_frame, encode_frame};
use swimlet_protocol::stream::SyncRequest;
use swimlet_protocol::{Frame, MemberKey, Moment, NodeName};
use swimlet_roles::{aggregator, member};
use swimlet_verdict::{Decision, ReadyCondition, Verdict};

use crate::member::Member;

/// The transport's link idle timeout.
const IDLE: Duration = Duration::from_secs(60);
/// How long the transport tries one address.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often links are looked at for having idled.
const IDLE_CHECK: Duration = Duration::from_secs(5);
/// Connections of one peer that a pool keeps: both sides may have dialled at once.
const NUMBERS_MAX: usize = 2;

type Step = Box<dyn FnOnce(&mut Net)>;

/// A machine. Tests change its fields at any time.
pub(crate) struct Host {
    pub(crate) name: NodeName,
    pub(crate) zone: &'static str,
    pub(crate) address: IpAddr,
    pub(crate) power: bool,
    /// Datagrams of others reach it.
    pub(crate) udp_in: bool,
    /// Its datagrams reach others.
    pub(crate) udp_out: bool,
    /// TCP packets of others reach it.
    pub(crate) tcp_in: bool,
    /// It reaches the API server.
    pub(crate) api: bool,
    /// Counts its starts.
    pub(crate) boot: u32,
    pub(crate) ready: ReadyCondition,
    /// Grows with each renewal of its Lease.
    pub(crate) lease: u64,
}

/// One end of a link.
pub(crate) struct End {
    /// The connections it has; the newest carries what is sent.
    numbers: Vec<u64>,
    heard: Moment,
}

/// A decision that a judge handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) at: Moment,
    pub(crate) by: usize,
    /// The host that it is about.
    pub(crate) node: usize,
    pub(crate) decision: Decision,
}

/// A write that the API server took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) at: Moment,
    pub(crate) by: usize,
    pub(crate) node: usize,
    pub(crate) verdict: Verdict,
    pub(crate) episode: u64,
}

/// The whole.
pub(crate) struct Net {
    pub(crate) now: Moment,
    pub(crate) hosts: Vec<Host>,
    pub(crate) members: Vec<Member>,
    /// Share of datagrams between hosts that are lost.
    pub(crate) loss: f64,
    /// Every decision of every judge.
    pub(crate) decisions: Vec<Decided>,
    /// What was written.
    pub(crate) writes: Vec<Write>,
    /// How often an aggregator gave its Lease up.
    pub(crate) step_downs: usize,
    /// Digest of all that members and judges did, in order, if anybody wants it.
    pub(crate) trace: Option<DefaultHasher>,
    pub(crate) keys: BTreeMap<MemberKey, usize>,
    pub(crate) streams: BTreeMap<u64, (usize, u32, usize)>,
    pub(crate) wakes: BTreeSet<(Moment, usize)>,
    pub(crate) judge_wakes: BTreeSet<(Moment, usize)>,
    queue: BTreeMap<(Moment, u64), Step>,
    serial: u64,
    rng: Xoshiro256PlusPlus,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Moment::from_micros(1_000_000),
            hosts: Vec::new(),
            members: Vec::new(),
            loss: 0.0,
            decisions: Vec::new(),
            writes: Vec::new(),
            step_downs: 0,
            trace: None,
            keys: BTreeMap::new(),
            streams: BTreeMap::new(),
            wakes: BTreeSet::new(),
            judge_wakes: BTreeSet::new(),
            queue: BTreeMap::new(),
            serial: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    pub(crate) fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done`, for `time` at most; says whether it was done.
    pub(crate) fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + time;
        while !done(self) {
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let wake = self.wakes.first().copied();
            let judge = self.judge_wakes.first().copied();
            let wakes = [wake, judge].into_iter().flatten().map(|(at, _)| at);
            let Some(next) = queued
                .into_iter()
                .chain(wakes)
                .min()
                .filter(|&at| at <= end)
            else {
                self.now = end;
                return done(self);
            };
            self.now = self.now.max(next);
            // Packets that have arrived are handed in before timers fire.
            if queued == Some(next) {
                let (_, step) = self.queue.pop_first().unwrap();
                step(self);
            } else if let Some((_, member)) = wake.filter(|&(at, _)| at == next) {
                self.feed(member, member::Input::Wake);
            } else if let Some((_, member)) = judge {
                self.judge(member, aggregator::Input::Wake);
            }
        }
        true
    }

    pub(crate) fn after(&mut self, delay: Duration, step: impl FnOnce(&mut Self) + 'static) {
        self.serial += 1;
        self.queue
            .insert((self.now + delay, self.serial), Box::new(step));
    }

    /// The same for something that ends with a member's process.
    pub(crate) fn after_at(
        &mut self,
        member: usize,
        delay: Duration,
        step: impl FnOnce(&mut Self) + 'static,
    ) {
        let start = self.members[member].start;
        self.after(delay, move |net| {
            if net.members[member].running && net.members[member].start == start {
                step(net);
            }
        });
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn random(&mut self, below: Duration) -> Duration {
        let micros = u64::try_from(below.as_micros()).unwrap();
        Duration::from_micros(self.rng.random_range(0..micros))
    }

    /// Half a round trip: below 3 ms, and once in a hundred times up to 60 ms.
    pub(crate) fn latency(&mut self) -> Duration {
        let straggles = self.rng.random_bool(0.01);
        let max = Duration::from_millis(if straggles { 60 } else { 3 });
        Duration::from_micros(150) + self.random(max)
    }

    pub(crate) fn note(&mut self, member: usize, what: &impl std::fmt::Debug) {
        if let Some(trace) = &mut self.trace {
            format!("{} {member} {what:?}", self.now).hash(trace);
        }
    }

    /// What all members and judges did, as a number.
    pub(crate) fn digest(&self) -> Option<u64> {
        self.trace.as_ref().map(Hasher::finish)
    }

    /// Whether datagrams of one member reach another.
    fn carries(&self, from: usize, to: usize) -> bool {
        let (from, to) = (self.members[from].host, self.members[to].host);
        let (sender, receiver) = (&self.hosts[from], &self.hosts[to]);
        sender.power && receiver.power && (from == to || (sender.udp_out && receiver.udp_in))
    }

    fn carries_both(&self, a: usize, b: usize) -> bool {
        self.carries(a, b) && self.carries(b, a)
    }

    /// Whether a TCP connection from one host to another can be built.
    pub(crate) fn connects(&self, from: usize, to: usize) -> bool {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        a.power && b.power && (from == to || (a.tcp_in && b.tcp_in))
    }

    pub(crate) fn host_of(&self, node: &NodeName) -> usize {
        let mut hosts = self.hosts.iter();
        hosts.position(|host| host.name == *node).unwrap()
    }

    pub(crate) fn is_linked(&self, member: usize, peer: usize) -> bool {
        self.members[member].links.contains_key(&peer)
    }

    /// Puts a frame on the link to a peer; without one it is lost.
    pub(crate) fn transmit(&mut self, from: usize, to: usize, frame: &Frame) {
        let Some(end) = self.members[from].links.get(&to) else {
            return;
        };
        let number = *end.numbers.last().unwrap();
        let frame = self.spoken(from, frame);
        let bytes = encode_frame(&frame).expect("every frame fits a datagram");
        let loopback = self.members[from].host == self.members[to].host;
        let lost = !loopback && self.rng.random_bool(self.loss);
        if lost || !self.carries(from, to) {
            return;
        }
        let latency = self.latency();
        self.after(latency, move |net| net.arrive(from, to, number, &bytes));
    }

    fn arrive(&mut self, from: usize, to: usize, number: u64, bytes: &[u8]) {
        if !self.members[to].running || !self.carries(from, to) {
            return;
        }
        let now = self.now;
        let end = self.members[to].links.get_mut(&from);
        match end.filter(|end| end.numbers.contains(&number)) {
            Some(end) => {
                end.heard = now;
                let frame = decode_frame(bytes).expect("what was sent is a frame");
                let from = self.members[from].key;
                self.feed_mesh(to, MeshInput::Frame { from, frame });
            }
            None => {
                // A stateless reset.
                let latency = self.latency();
                if self.carries(to, from) {
                    self.after_at(from, latency, move |net| net.drop_link(from, to, &[number]));
                }
            }
        }
    }

    /// These connections to a peer are gone; without any left the link is down.
    fn drop_link(&mut self, member: usize, peer: usize, numbers: &[u64]) {
        let Some(end) = self.members[member].links.get_mut(&peer) else {
            return;
        };
        end.numbers.retain(|number| !numbers.contains(number));
        if end.numbers.is_empty() {
            self.members[member].links.remove(&peer);
            let peer = self.members[peer].key;
            self.feed_mesh(member, MeshInput::LinkDown { peer });
        }
    }

    /// Closes the link to a peer, and says so if the packet gets there.
    pub(crate) fn close(&mut self, member: usize, peer: usize, drain: Duration) {
        let Some(end) = self.members[member].links.remove(&peer) else {
            return;
        };
        let told = self.carries(member, peer);
        let latency = drain + self.latency();
        self.after_at(peer, latency, move |net| {
            if told {
                net.drop_link(peer, member, &end.numbers);
            }
        });
    }

    /// Builds a link: to `peer` if it answers there, to whoever answers if there is none.
    pub(crate) fn dial(
        &mut self,
        from: usize,
        peer: Option<usize>,
        address: SocketAddr,
        join: Option<SyncRequest>,
    ) {
        if let Some(peer) = peer
            && (self.is_linked(from, peer) || !self.members[from].dialing.insert(peer))
        {
            return;
        }
        let latency = self.latency();
        self.after_at(from, latency, move |net| {
            let there = net
                .members
                .iter()
                .position(|member| member.running && member.record.addresses.contains(&address));
            let to = there
                .filter(|&to| net.carries_both(from, to) && peer.is_none_or(|peer| peer == to));
            match to {
                Some(to) => net.accept(from, to, peer, address, join),
                None => net.after_at(from, DIAL_TIMEOUT, move |net| {
                    net.dial_failed(from, peer, address);
                }),
            }
        });
    }

    fn accept(
        &mut self,
        from: usize,
        to: usize,
        peer: Option<usize>,
        address: SocketAddr,
        join: Option<SyncRequest>,
    ) {
        let number = self.number();
        let source = self.members[from].record.addresses[0];
        self.came_up(to, from, number, source);
        let latency = self.latency();
        self.after_at(from, latency, move |net| {
            if let Some(peer) = peer {
                net.members[from].dialing.remove(&peer);
            }
            net.came_up(from, to, number, address);
            if let Some(request) = join {
                net.open_sync(from, to, request);
            }
        });
    }

    fn came_up(&mut self, member: usize, peer: usize, number: u64, address: SocketAddr) {
        let now = self.now;
        let first = !self.is_linked(member, peer);
        let end = self.members[member].links.entry(peer).or_insert(End {
            numbers: Vec::new(),
            heard: now,
        });
        end.heard = now;
        end.numbers.push(number);
        if end.numbers.len() > NUMBERS_MAX {
            end.numbers.remove(0);
        }
        // Another connection of a linked peer is no news.
        if first {
            let peer = self.members[peer].identity.clone();
            let up = MeshInput::LinkUp {
                peer,
                addresses_seen: address,
            };
            self.feed_mesh(member, up);
        }
    }

    fn dial_failed(&mut self, from: usize, peer: Option<usize>, address: SocketAddr) {
        let Some(peer) = peer else {
            self.feed_mesh(from, MeshInput::JoinFailed { address });
            return;
        };
        self.members[from].dialing.remove(&peer);
        let peer = self.members[peer].key;
        self.feed_mesh(from, MeshInput::DialFailed { peer });
    }

    pub(crate) fn open_sync(&mut self, from: usize, to: usize, request: SyncRequest) {
        if !self.is_linked(from, to) || !self.carries_both(from, to) {
            return;
        }
        let start = self.members[from].start;
        let latency = self.latency();
        self.after_at(to, latency, move |net| {
            let token = net.number();
            net.streams.insert(token, (from, start, to));
            let from = net.members[from].identity.clone();
            net.feed_mesh(
                to,
                MeshInput::SyncRequested {
                    from,
                    token,
                    request,
                },
            );
        });
    }

    /// Looks for links over which nothing came for too long, again and again.
    pub(crate) fn watch_idle(&mut self, member: usize) {
        let now = self.now;
        let links = self.members[member].links.iter();
        let idle: Vec<(usize, Vec<u64>)> = links
            .filter(|(_, end)| now.since(end.heard) >= IDLE)
            .map(|(&peer, end)| (peer, end.numbers.clone()))
            .collect();
        for (peer, numbers) in idle {
            self.drop_link(member, peer, &numbers);
        }
        self.after_at(member, IDLE_CHECK, move |net| net.watch_idle(member));
    }
}
