//! A member's process: the mesh core, and what the binary's edge does around it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_mesh::{Config, Input, Mesh, Output};
use swimlet_protocol::frame::{
    AgentAnswer, Answer, Check, Claim, Finding, PortAnswer, ProbeOutcome, SelfReport, Verified,
    Verify,
};
use swimlet_protocol::{
    Bounded, ClusterId, Frame, Generation, Identity, MemberKey, MemberRecord, Moment, Role,
};
use swimlet_verdict::Input as News;

use crate::aggregator::Court;
use crate::net::{End, Net};

/// How long a kubelet's port has, as in the binary.
const PORT_TIMEOUT: Duration = Duration::from_millis(800);
/// How long an agent has, as in the binary: without a link the mesh dials it first.
const AGENT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// How long a port that was reached lets a silence count.
const BASELINE_WINDOW: Duration = Duration::from_secs(25 * 60);
/// Pace of the baseline while something was not tried yet.
const BASELINE_START_INTERVAL: Duration = Duration::from_millis(500);
/// An observer checks one of its subjects in this time.
const BASELINE_INTERVAL: Duration = Duration::from_secs(60);
/// An aggregator has swept all nodes in this time.
const SWEEP: Duration = Duration::from_secs(600);
/// Between two self-reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Between two salvos of a liar.
const LIES_INTERVAL: Duration = Duration::from_secs(1);

const KUBELET_PORT: u16 = 10_250;

pub(crate) struct Member {
    pub(crate) host: usize,
    pub(crate) key: MemberKey,
    pub(crate) identity: Identity,
    pub(crate) record: MemberRecord,
    pub(crate) mesh: Mesh,
    pub(crate) running: bool,
    /// Counts its starts and ends.
    pub(crate) start: u32,
    /// Says of everybody that nobody reaches it.
    pub(crate) lies: bool,
    pub(crate) links: BTreeMap<usize, End>,
    pub(crate) dialing: BTreeSet<usize>,
    /// Frames that wait for a link.
    pub(crate) unsent: BTreeMap<usize, Vec<Frame>>,
    /// The judge of an aggregator.
    pub(crate) court: Option<Court>,
    baseline: BTreeMap<SocketAddr, Moment>,
    tried: BTreeMap<SocketAddr, Moment>,
    swept: BTreeMap<SocketAddr, Moment>,
    probes: BTreeMap<u64, Probing>,
    rounds: BTreeMap<u64, Round>,
    wake: Option<Moment>,
}

/// A probe of the core that a round waits for.
struct Probing {
    round: u64,
    index: usize,
    contact_before: Option<Moment>,
}

/// A round of verification under way.
struct Round {
    by: usize,
    round: u32,
    answers: Vec<Answer>,
    /// Answers that are not there yet, two of each subject.
    open: usize,
}

pub(crate) fn cluster() -> ClusterId {
    "test".parse().unwrap()
}

impl Net {
    /// A member that is not running yet.
    pub(crate) fn add_member(&mut self, host: usize, role: Role, name: &str) -> usize {
        let (port, kubelet_port) = match role {
            Role::Agent => (10_270, KUBELET_PORT),
            Role::Aggregator => (10_271, 0),
        };
        let address = SocketAddr::new(self.hosts[host].address, port);
        let record = MemberRecord {
            role,
            name: name.parse().unwrap(),
            generation: Generation(1_700_000_000_000),
            zone: self.hosts[host].zone.parse().unwrap(),
            addresses: Bounded::fill(&mut std::iter::once(address)),
            kubelet_port,
        };
        let identity = Identity {
            cluster: cluster(),
            role,
            name: record.name.clone(),
        };
        let key = identity.key();
        let index = self.members.len();
        self.keys.insert(key, index);
        let mesh = self.core(&record);
        self.members.push(Member {
            host,
            key,
            identity,
            mesh,
            record,
            running: false,
            start: 0,
            lies: false,
            links: BTreeMap::new(),
            dialing: BTreeSet::new(),
            unsent: BTreeMap::new(),
            court: None,
            baseline: BTreeMap::new(),
            tried: BTreeMap::new(),
            swept: BTreeMap::new(),
            probes: BTreeMap::new(),
            rounds: BTreeMap::new(),
            wake: None,
        });
        index
    }

    fn core(&mut self, record: &MemberRecord) -> Mesh {
        let seeds = (0..3).map(|host| SocketAddr::new(self.hosts[host].address, 10_271));
        let seeds: Vec<_> = seeds.collect();
        let config = Config {
            cluster: cluster(),
            me: record.clone(),
            seed: self.number(),
            seeds,
            peers: Vec::new(),
        };
        Mesh::new(self.now, config)
    }

    /// Starts a member's process, with nothing but its name and a later generation.
    pub(crate) fn start(&mut self, member: usize) {
        let started = u64::from(self.members[member].start);
        let mut record = self.members[member].record.clone();
        record.generation = Generation(1_700_000_000_000 + 1_000 * started);
        let mesh = self.core(&record);
        let it = &mut self.members[member];
        it.record = record;
        it.mesh = mesh;
        it.running = true;
        it.start += 1;
        it.links.clear();
        it.dialing.clear();
        it.unsent.clear();
        it.baseline.clear();
        it.tried.clear();
        it.swept.clear();
        it.probes.clear();
        it.rounds.clear();
        if it.record.role == Role::Aggregator {
            self.convene(member);
        }
        self.carry_out(member);
        self.keep_baseline(member);
        self.watch_idle(member);
        if self.members[member].record.role == Role::Agent {
            let phase = self.random(Duration::from_secs(2));
            self.after_at(member, phase, move |net| net.report(member));
        }
    }

    /// A member's process ends without a word.
    pub(crate) fn stop(&mut self, member: usize) {
        self.unwake(member);
        self.adjourn(member);
        let it = &mut self.members[member];
        it.running = false;
        it.start += 1;
    }

    /// A member says goodbye, and its process ends.
    pub(crate) fn leave(&mut self, member: usize) {
        self.feed(member, Input::Leave);
        let peers: Vec<usize> = self.members[member].links.keys().copied().collect();
        for peer in peers {
            self.close(member, peer, Duration::from_millis(100));
        }
        self.stop(member);
    }

    /// Hands something to a member's core.
    pub(crate) fn feed(&mut self, member: usize, input: Input) {
        if self.members[member].running {
            self.members[member].mesh.handle(self.now, input);
            self.carry_out(member);
        }
    }

    fn unwake(&mut self, member: usize) {
        if let Some(at) = self.members[member].wake.take() {
            self.wakes.remove(&(at, member));
        }
    }

    fn carry_out(&mut self, member: usize) {
        while let Some(output) = self.members[member].mesh.poll() {
            self.note(member, &output);
            self.output(member, output);
        }
        self.unwake(member);
        let it = &mut self.members[member];
        it.wake = it.mesh.next_wake();
        self.wakes.extend(it.wake.map(|at| (at, member)));
    }

    fn output(&mut self, member: usize, output: Output) {
        match output {
            Output::Send { to, frame } => {
                if let Some(&to) = self.keys.get(&to) {
                    self.transmit(member, to, &frame);
                }
            }
            Output::Dial { peer, addresses } => {
                let peer = self.keys.get(&peer).copied();
                self.dial(member, peer, addresses[0], None);
            }
            Output::Join { address, request } => self.dial(member, None, address, Some(request)),
            Output::Close { peer } => {
                if let Some(&peer) = self.keys.get(&peer) {
                    self.close(member, peer, Duration::ZERO);
                }
            }
            Output::Sync { to, request } => {
                if let Some(&to) = self.keys.get(&to) {
                    self.open_sync(member, to, request);
                }
            }
            Output::SyncReply { token, parts } => {
                let (asking, start, answering) = self.streams.remove(&token).unwrap();
                let from = self.members[answering].key;
                let latency = self.latency();
                self.after_at(asking, latency, move |net| {
                    if net.members[asking].start == start {
                        for part in parts {
                            net.feed(asking, Input::SyncAnswered { from, part });
                        }
                    }
                });
            }
            Output::Probed { token, outcome, .. } => self.probed(member, token, outcome),
            Output::Event(event) => self.on_mesh(member, event),
        }
    }

    pub(crate) fn link_up(&mut self, member: usize, peer: usize, address: SocketAddr) {
        let identity = self.members[peer].identity.clone();
        let key = self.members[peer].key;
        self.feed(
            member,
            Input::LinkUp {
                peer: identity,
                addresses_seen: address,
            },
        );
        self.heard(member, key);
        let waiting = self.members[member].unsent.remove(&peer);
        for frame in waiting.unwrap_or_default() {
            self.transmit(member, peer, &frame);
        }
    }

    pub(crate) fn on_frame(&mut self, member: usize, peer: usize, frame: Frame) {
        let from = self.members[peer].key;
        match frame {
            Frame::Verify(request) => {
                if self.members[peer].record.role == Role::Aggregator {
                    self.verify(member, peer, request);
                }
            }
            Frame::Verified(answers) => self.on_verified(member, from, answers),
            Frame::View(view) => self.on_view(member, from, view),
            frame => {
                if matches!(frame, Frame::Ack(_) | Frame::Probe(_)) {
                    self.heard(member, from);
                }
                self.feed(member, Input::Frame { from, frame });
            }
        }
    }

    /// Sends a frame, over a new link if there is none.
    pub(crate) fn send_or_dial(&mut self, member: usize, to: usize, frame: Frame) {
        if self.is_linked(member, to) {
            self.transmit(member, to, &frame);
            return;
        }
        let key = self.members[to].key;
        let Some(known) = self.members[member].mesh.member(key) else {
            return;
        };
        let address = known.record.addresses[0];
        self.members[member]
            .unsent
            .entry(to)
            .or_default()
            .push(frame);
        self.dial(member, Some(to), address, None);
    }

    fn report(&mut self, member: usize) {
        let report = SelfReport {
            node: self.members[member].key,
            generation: Generation::default(),
            age_ms: 0,
            kubelet_healthz: Check::Passing,
            kubelet_port: Check::Passing,
            api: Check::Passing,
        };
        self.feed(member, Input::SelfReport(report));
        self.after_at(member, REPORT_INTERVAL, move |net| net.report(member));
    }
}

// Verification and its baseline.
impl Net {
    /// Tries every subject's agent and port, and answers whoever asked.
    pub(crate) fn verify(&mut self, member: usize, by: usize, request: Verify) {
        let id = self.number();
        let now = self.now;
        let subjects = request.subjects.into_vec();
        let it = &mut self.members[member];
        let holds = |port: &SocketAddr| {
            it.baseline
                .get(port)
                .is_some_and(|&at| now.since(at) <= BASELINE_WINDOW)
        };
        let answers = subjects.iter().enumerate().map(|(index, subject)| Answer {
            index: u8::try_from(index).unwrap(),
            subject: subject.subject,
            agent: AgentAnswer::Untried,
            agent_baseline: false,
            port: PortAnswer::Untried,
            port_baseline: holds(&subject.kubelet),
        });
        let round = Round {
            by,
            round: request.round,
            answers: answers.collect(),
            open: 2 * subjects.len(),
        };
        it.rounds.insert(id, round);
        for (index, subject) in subjects.into_iter().enumerate() {
            self.check_port(member, subject.kubelet, move |net, port| {
                net.fill(member, id, |round| round.answers[index].port = port);
            });
            self.try_agent(member, id, index, subject.subject);
        }
    }

    fn try_agent(&mut self, member: usize, round: u64, index: usize, subject: MemberKey) {
        let token = self.number();
        let it = &mut self.members[member];
        if it.mesh.member(subject).is_none() {
            self.fill(member, round, |_| {});
            return;
        }
        let probing = Probing {
            round,
            index,
            contact_before: it.mesh.last_contact(subject),
        };
        it.probes.insert(token, probing);
        self.after_at(member, AGENT_TIMEOUT, move |net| {
            net.probed(member, token, ProbeOutcome::NoStatement);
        });
        self.feed(member, Input::ProbeNow { subject, token });
    }

    fn probed(&mut self, member: usize, token: u64, outcome: ProbeOutcome) {
        let Some(probing) = self.members[member].probes.remove(&token) else {
            return;
        };
        let now = self.now;
        let proven = probing
            .contact_before
            .is_some_and(|at| now.since(at) <= BASELINE_WINDOW);
        let (agent, baseline) = match outcome {
            ProbeOutcome::Reached => (AgentAnswer::Answers, true),
            ProbeOutcome::NotReached => (AgentAnswer::Silent, proven),
            ProbeOutcome::NoStatement => (AgentAnswer::Untried, false),
        };
        self.fill(member, probing.round, |round| {
            round.answers[probing.index].agent = agent;
            round.answers[probing.index].agent_baseline = baseline;
        });
    }

    fn fill(&mut self, member: usize, id: u64, with: impl FnOnce(&mut Round)) {
        let health = self.members[member].mesh.health();
        let rounds = &mut self.members[member].rounds;
        let Some(round) = rounds.get_mut(&id) else {
            return;
        };
        with(round);
        round.open -= 1;
        if round.open > 0 {
            return;
        }
        let round = rounds.remove(&id).unwrap();
        let verified = Verified {
            round: round.round,
            health,
            answers: Bounded::fill(&mut round.answers.into_iter()),
        };
        if round.by == member {
            let me = self.members[member].key;
            self.on_verified(member, me, verified);
        } else {
            self.send_or_dial(member, round.by, Frame::Verified(verified));
        }
    }

    fn check_port(
        &mut self,
        member: usize,
        port: SocketAddr,
        done: impl FnOnce(&mut Self, PortAnswer) + 'static,
    ) {
        let from = self.members[member].host;
        let to = self.host_at(port.ip());
        let latency = self.latency();
        self.after_at(member, latency, move |net| {
            let answers = to.is_some_and(|to| net.connects(from, to));
            let (answer, wait) = if answers {
                let tls = PortAnswer::Tls { names_node: true };
                (tls, net.latency() * 2)
            } else {
                (PortAnswer::Silent, PORT_TIMEOUT)
            };
            net.after_at(member, wait, move |net| {
                if answers {
                    let now = net.now;
                    net.members[member].baseline.insert(port, now);
                }
                done(net, answer);
            });
        });
    }

    fn host_at(&self, ip: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == ip)
    }

    /// Reaches one subject's port, and an aggregator one more node's, again and again.
    fn keep_baseline(&mut self, member: usize) {
        let now = self.now;
        let it = &mut self.members[member];
        let records = it.mesh.subjects().into_iter();
        let records = records.filter_map(|key| Some(&it.mesh.member(key)?.record));
        let subjects = records
            .filter(|record| record.kubelet_port != 0)
            .map(|record| SocketAddr::new(record.addresses[0].ip(), record.kubelet_port));
        let subjects: Vec<_> = subjects.collect();
        let resting = |tried: &BTreeMap<SocketAddr, Moment>| {
            tried.values().any(|&at| now.since(at) < BASELINE_INTERVAL)
        };
        let oldest = |tried: &BTreeMap<_, _>| {
            let ports = subjects.iter().copied();
            ports.min_by_key(|port| tried.get(port).copied())
        };
        let untried = subjects.iter().find(|port| !it.tried.contains_key(port));
        let due = untried
            .copied()
            .or_else(|| (!resting(&it.tried)).then(|| oldest(&it.tried)).flatten());
        it.tried.extend(due.map(|port| (port, now)));
        let nodes = it.court.iter().flat_map(Court::addresses);
        let nodes = nodes.map(|ip| SocketAddr::new(ip, KUBELET_PORT));
        let sweep = nodes.min_by_key(|port| it.swept.get(port).copied());
        let fresh = |port: &SocketAddr| {
            let at = it.swept.get(port);
            at.is_none_or(|&at| now.since(at) >= SWEEP)
        };
        let sweep = sweep.filter(fresh);
        it.swept.extend(sweep.map(|port| (port, now)));
        for port in due.into_iter().chain(sweep) {
            self.check_port(member, port, |_, _| {});
        }
        self.after_at(member, BASELINE_START_INTERVAL, move |net| {
            net.keep_baseline(member);
        });
    }
}

// A liar.
impl Net {
    /// From now on this member says of everybody that it is not reached: as an
    /// observer, as a co-observer, and as a verifier.
    pub(crate) fn lie(&mut self, member: usize) {
        self.members[member].lies = true;
        self.spread_lies(member);
    }

    fn spread_lies(&mut self, member: usize) {
        let me = self.members[member].key;
        let lie = |about: &Member| Claim {
            accuser: me,
            subject: about.key,
            generation: about.record.generation,
            finding: Finding::Missed {
                silent_ms: 6_000,
                indirect: false,
            },
            age_ms: 0,
            health: 0,
        };
        let agents = |it: &&Member| it.record.role == Role::Agent && it.key != me;
        let claims: Vec<Claim> = self.members.iter().filter(agents).map(lie).collect();
        let frame = Frame::Claims(Bounded::fill(&mut claims.into_iter()));
        let aggregators: Vec<usize> = (0..self.members.len())
            .filter(|&to| self.members[to].record.role == Role::Aggregator)
            .collect();
        for to in aggregators {
            self.send_or_dial(member, to, frame.clone());
        }
        self.after_at(member, LIES_INTERVAL, move |net| net.spread_lies(member));
    }

    /// A frame as it leaves the member.
    pub(crate) fn spoken(&self, from: usize, frame: &Frame) -> Frame {
        let mut frame = frame.clone();
        if !self.members[from].lies {
            return frame;
        }
        match &mut frame {
            Frame::ProbeReport(report) => report.outcome = ProbeOutcome::NotReached,
            Frame::Verified(verified) => {
                let answers = verified.answers.iter().copied().map(|answer| Answer {
                    agent: AgentAnswer::Silent,
                    agent_baseline: true,
                    port: PortAnswer::Silent,
                    port_baseline: true,
                    ..answer
                });
                verified.health = 0;
                verified.answers = Bounded::fill(&mut answers.collect::<Vec<_>>().into_iter());
            }
            _ => {}
        }
        frame
    }
}

/// News for the judge, of an age that the channel between the tasks adds nothing to.
pub(crate) fn heard_now(node: MemberKey) -> News {
    News::Heard {
        node,
        age: Duration::ZERO,
    }
}
