//! A member's process: the production machines, with what carries their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_mesh::{Config, Input as MeshInput};
use swimlet_protocol::frame::{AgentAnswer, Answer, Claim, Finding, PortAnswer, ProbeOutcome};
use swimlet_protocol::{
    Bounded, ClusterId, Frame, Generation, Identity, MemberKey, MemberRecord, Moment, Role,
};
use swimlet_roles::checks::{self, Looked, SelfChecks};
use swimlet_roles::member::{Input, Member as Core, Output};
use swimlet_roles::{Aggregator, aggregator};

use crate::net::{End, Net};

/// Between two salvos of a liar.
const LIES_INTERVAL: Duration = Duration::from_secs(1);

const KUBELET_PORT: u16 = 10_250;

pub(crate) struct Member {
    pub(crate) host: usize,
    pub(crate) key: MemberKey,
    pub(crate) identity: Identity,
    pub(crate) record: MemberRecord,
    pub(crate) core: Core,
    pub(crate) running: bool,
    /// Counts its starts and ends.
    pub(crate) start: u32,
    /// Says of everybody that nobody reaches it.
    pub(crate) lies: bool,
    pub(crate) links: BTreeMap<usize, End>,
    pub(crate) dialing: BTreeSet<usize>,
    /// Of a running aggregator.
    pub(crate) aggregator: Option<Aggregator>,
    pub(crate) judge_wake: Option<Moment>,
    checks: SelfChecks,
    wake: Option<Moment>,
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
        let core = self.core(&record);
        self.members.push(Member {
            host,
            key,
            identity,
            core,
            record,
            running: false,
            start: 0,
            lies: false,
            links: BTreeMap::new(),
            dialing: BTreeSet::new(),
            aggregator: None,
            judge_wake: None,
            checks: SelfChecks::new(self.now, key),
            wake: None,
        });
        index
    }

    fn core(&mut self, record: &MemberRecord) -> Core {
        let seeds = (0..3).map(|host| SocketAddr::new(self.hosts[host].address, 10_271));
        let seeds: Vec<_> = seeds.collect();
        let config = Config {
            cluster: cluster(),
            me: record.clone(),
            seed: self.number(),
            seeds,
            peers: Vec::new(),
        };
        Core::new(self.now, config)
    }

    /// Starts a member's process, with nothing but its name and a later generation.
    pub(crate) fn start(&mut self, member: usize) {
        let started = u64::from(self.members[member].start);
        let mut record = self.members[member].record.clone();
        record.generation = Generation(1_700_000_000_000 + 1_000 * started);
        let core = self.core(&record);
        let now = self.now;
        let it = &mut self.members[member];
        it.record = record;
        it.core = core;
        it.checks = SelfChecks::new(now, it.key);
        it.running = true;
        it.start += 1;
        it.links.clear();
        it.dialing.clear();
        if it.record.role == Role::Aggregator {
            self.convene(member);
        }
        self.carry_out(member);
        self.watch_idle(member);
        if self.members[member].record.role == Role::Agent {
            let phase = self.random(Duration::from_secs(2));
            self.after_at(member, phase, move |net| net.look(member));
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
        self.feed_mesh(member, MeshInput::Leave);
        let peers: Vec<usize> = self.members[member].links.keys().copied().collect();
        for peer in peers {
            self.close(member, peer, Duration::from_millis(100));
        }
        self.stop(member);
    }

    pub(crate) fn feed_mesh(&mut self, member: usize, input: MeshInput) {
        self.feed(member, Input::Mesh(input));
    }

    /// Hands something to a member.
    pub(crate) fn feed(&mut self, member: usize, input: Input) {
        if self.members[member].running {
            self.members[member].core.handle(self.now, input);
            self.carry_out(member);
        }
    }

    fn unwake(&mut self, member: usize) {
        if let Some(at) = self.members[member].wake.take() {
            self.wakes.remove(&(at, member));
        }
    }

    fn carry_out(&mut self, member: usize) {
        while let Some(output) = self.members[member].core.poll() {
            self.note(member, &output);
            self.output(member, output);
        }
        self.unwake(member);
        let it = &mut self.members[member];
        let wake = it.core.next_wake();
        it.wake = Some(wake);
        self.wakes.insert((wake, member));
    }

    fn output(&mut self, member: usize, output: Output) {
        match output {
            Output::Send { to, frame } => {
                if let Some(&to) = self.keys.get(&to) {
                    self.transmit(member, to, &frame);
                }
            }
            Output::Dial { peer, addresses } => {
                let peer = self.keys.get(&peer.key()).copied();
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
                            net.feed_mesh(asking, MeshInput::SyncAnswered { from, part });
                        }
                    }
                });
            }
            Output::CheckPort {
                token, port, limit, ..
            } => self.check_port(member, token, port, limit),
            // Its owner takes it after what came before.
            Output::Event(event) => {
                if self.members[member].aggregator.is_some() {
                    self.after_at(member, Duration::ZERO, move |net| {
                        net.judge(member, aggregator::Input::Member(event));
                    });
                }
            }
        }
    }

    fn check_port(&mut self, member: usize, token: u64, port: SocketAddr, limit: Duration) {
        let from = self.members[member].host;
        let to = self.host_at(port.ip());
        let latency = self.latency();
        self.after_at(member, latency, move |net| {
            let answers = to.is_some_and(|to| net.connects(from, to));
            let (answer, wait) = if answers {
                let tls = PortAnswer::Tls { names_node: true };
                (tls, net.latency() * 2)
            } else {
                (PortAnswer::Silent, limit)
            };
            net.after_at(member, wait, move |net| {
                net.feed(member, Input::Checked { token, answer });
            });
        });
    }

    fn host_at(&self, ip: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == ip)
    }

    /// An agent looks at its own node, and reports.
    fn look(&mut self, member: usize) {
        let now = self.now;
        let it = &mut self.members[member];
        it.checks.handle(now, checks::Input::Wake);
        let looked = Looked {
            healthz: true,
            port: PortAnswer::Tls { names_node: true },
            api: Some(self.hosts[it.host].api),
        };
        let mut reports = Vec::new();
        while let Some(output) = it.checks.poll() {
            match output {
                checks::Output::Look => it.checks.handle(now, checks::Input::Looked(looked)),
                checks::Output::Report(report) => reports.push(report),
            }
        }
        let due = it.checks.next_wake().unwrap();
        for report in reports {
            self.feed_mesh(member, MeshInput::SelfReport(report));
        }
        self.after_at(member, due.since(now), move |net| net.look(member));
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
            let (to, frame) = (self.members[to].key, frame.clone());
            self.feed(member, Input::Send { to, frame });
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
