//! A small cluster in virtual time around one judge: hosts with an agent and a
//! kubelet, an API server, a writer. Nothing in it judges.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use swimlet_protocol::frame::{AgentAnswer, Check, PortAnswer};
use swimlet_protocol::{ClusterId, MemberKey, Moment, NodeName, Role, Zone};

use crate::{
    AnswerSeen, Ask, Brakes, Config, Decision, Finding, Input, Judge, LeaseRead, MemberChange,
    NodeRef, NodeSeen, Notice, Output, Profile, ReadyCondition, ReadyStatus, Rule, Switches,
    Verdict, WatchHealth, WriteOutcome,
};

/// Steps of virtual time.
const STEP: Duration = Duration::from_millis(20);
/// An observer's probe times out after this.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kubelet {
    Works,
    /// Not running: its port refuses.
    Killed,
    /// Accepts and says nothing.
    Hung,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentRuns {
    Yes,
    Killed,
    Left,
    Never,
}

/// A host. All fields may be changed by a test at any time.
#[derive(Clone, Debug)]
pub(super) struct HostSim {
    pub(super) key: MemberKey,
    pub(super) uid: u32,
    pub(super) zone: &'static str,
    pub(super) address: IpAddr,
    /// One that its Node lists before that, and where nothing answers any more.
    pub(super) dead_address: Option<IpAddr>,
    /// Without it nothing of the host sends a packet.
    pub(super) power: bool,
    pub(super) agent: AgentRuns,
    pub(super) kubelet: Kubelet,
    /// Hosts reach each other on the same side only; aggregators are on side 0.
    pub(super) side: u8,
    pub(super) reaches_api: bool,
    /// Its kubelet's heartbeats stop, and everything else goes on.
    pub(super) mute: bool,
    pub(super) reports_status: bool,
    pub(super) mesh_blocked: bool,
    pub(super) port_blocked: bool,
    /// Verifiers had reached the port before.
    pub(super) port_baseline: bool,
    /// The same for its agent.
    pub(super) agent_baseline: bool,
    /// Packets to it are lost; it can send.
    pub(super) deaf: bool,
    /// Accuses everybody, and finds everybody silent.
    pub(super) liar: bool,
    /// What its agent says of its kubelet and of the API server, whatever is true.
    pub(super) says: Option<(Check, Check)>,
    /// Its local health multiplier.
    pub(super) health: u8,
    /// It reaches every host that has power, whatever lies between.
    pub(super) reaches_all: bool,
    /// As a verifier it reached nobody before.
    pub(super) pathless: bool,
    /// Answers no request for verification.
    pub(super) frozen_verifier: bool,
    pub(super) lease: Option<u64>,
    pub(super) lease_duration: Duration,
    pub(super) hold: bool,
    pub(super) deleting: bool,
    pub(super) ready: Option<ReadyCondition>,
    missed_since: Option<Moment>,
    next_claim: Moment,
    unknown_since: Option<Moment>,
    phase: Duration,
}

/// The whole.
pub(super) struct Village {
    pub(super) now: Moment,
    pub(super) judge: Judge,
    pub(super) hosts: BTreeMap<String, HostSim>,
    /// Aggregators by name, and the node each runs on.
    pub(super) aggregators: BTreeMap<String, Option<String>>,
    pub(super) decisions: Vec<(Moment, Decision)>,
    pub(super) notices: Vec<(Moment, Notice)>,
    pub(super) outputs: Vec<Output>,
    /// What was written to which node, and when.
    pub(super) writes: Vec<(Moment, String, Verdict, Rule)>,
    pub(super) enforce: bool,
    pub(super) api_works: bool,
    /// What the API server says to the next writes instead of carrying them out.
    pub(super) api_refuses: Option<WriteOutcome>,
    /// How long a decision waits at the writer.
    pub(super) writer_takes: Duration,
    /// What waits there, one decision a node.
    waiting: BTreeMap<String, (Moment, Decision)>,
    pub(super) lease_reads: u32,
    /// How long the API server takes to answer a read.
    pub(super) lease_takes: Duration,
    /// So many reads of Leases fail from now on.
    pub(super) lease_reads_fail: u32,
    /// When each read that did not fail was answered.
    pub(super) leases_read: Vec<(Moment, String)>,
    /// Observers probe and tell what they miss; without it cases are opened by other means.
    pub(super) claims: bool,
    /// Of the datagrams that a verifier gets at a time, all but the first are lost.
    pub(super) loses_rest: bool,
    asked_last: BTreeMap<MemberKey, Moment>,
    /// How often each verifier has answered about each node.
    pub(super) answered: BTreeMap<(MemberKey, MemberKey), u32>,
    /// How long a verifier takes at least.
    pub(super) answer_takes: Duration,
    /// The judge's process does not run: whatever comes for it is lost.
    stopped: bool,
    queue: BTreeMap<(Moment, u64), Input>,
    seq: u64,
    next_address: u32,
}

pub(super) fn key(role: Role, name: &str) -> MemberKey {
    let cluster: ClusterId = "test".parse().unwrap();
    MemberKey::of(&cluster, role, &node_name(name))
}

pub(super) fn node_name(name: &str) -> NodeName {
    name.parse().unwrap()
}

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Village {
    /// `count` nodes over these zones, three aggregators on hosts of their own,
    /// everything listed, heard and quiet, and the judge leads since long.
    pub(super) fn of(count: usize, zones: &[&'static str], profile: Profile) -> Self {
        let mut village = Self::empty(profile);
        for index in 0..count {
            village.add(&format!("n{index}"), zones[index % zones.len()]);
        }
        village.settle();
        village
    }

    /// Twelve nodes in three zones, with another share for brake 2.
    pub(super) fn with_share(percent: u8) -> Self {
        let mut village = Self::empty(Profile::Fast);
        let config = Config {
            profile: Profile::Fast,
            brake_share_max: crate::Percent::new(percent).unwrap(),
            ..Config::new(key(Role::Aggregator, "agg-0"))
        };
        village.judge = Judge::new(village.now, config);
        for index in 0..12 {
            village.add(&format!("n{index}"), ["a", "b", "c"][index % 3]);
        }
        village.settle();
        village
    }

    /// Like [`Self::of`] in `fast`, with parts of the judge switched off.
    pub(super) fn with_switches(count: usize, zones: &[&'static str], switches: Switches) -> Self {
        let mut village = Self::empty(Profile::Fast);
        let config = Config {
            profile: Profile::Fast,
            ..Config::new(key(Role::Aggregator, "agg-0"))
        };
        village.judge = Judge::with_switches(village.now, config, switches);
        for index in 0..count {
            village.add(&format!("n{index}"), zones[index % zones.len()]);
        }
        village.settle();
        village
    }

    pub(super) fn empty(profile: Profile) -> Self {
        let now = Moment::ORIGIN + secs(100_000);
        let me = key(Role::Aggregator, "agg-0");
        let config = Config {
            profile,
            ..Config::new(me)
        };
        Self {
            now,
            judge: Judge::new(now, config),
            hosts: BTreeMap::new(),
            aggregators: (0..3)
                .map(|index| (format!("agg-{index}"), Some(format!("cp-{index}"))))
                .collect(),
            decisions: Vec::new(),
            notices: Vec::new(),
            outputs: Vec::new(),
            writes: Vec::new(),
            enforce: true,
            api_works: true,
            api_refuses: None,
            writer_takes: Duration::ZERO,
            waiting: BTreeMap::new(),
            lease_reads: 0,
            lease_takes: millis(10),
            lease_reads_fail: 0,
            leases_read: Vec::new(),
            claims: true,
            loses_rest: false,
            asked_last: BTreeMap::new(),
            answered: BTreeMap::new(),
            answer_takes: millis(20),
            stopped: false,
            queue: BTreeMap::new(),
            seq: 0,
            next_address: 1,
        }
    }

    pub(super) fn add(&mut self, name: &str, zone: &'static str) {
        let index = self.next_address;
        self.next_address += 1;
        let phase = millis(u64::from(index) * 737 % 10_000);
        self.hosts.insert(
            name.to_owned(),
            HostSim {
                key: key(Role::Agent, name),
                uid: index,
                zone,
                address: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + index)),
                dead_address: None,
                power: true,
                agent: AgentRuns::Yes,
                kubelet: Kubelet::Works,
                side: 0,
                reaches_api: true,
                mute: false,
                reports_status: true,
                mesh_blocked: false,
                port_blocked: false,
                port_baseline: true,
                agent_baseline: true,
                deaf: false,
                liar: false,
                says: None,
                health: 0,
                reaches_all: false,
                pathless: false,
                frozen_verifier: false,
                lease: Some(1),
                lease_duration: secs(40),
                hold: false,
                deleting: false,
                ready: Some(ReadyCondition {
                    status: ReadyStatus::True,
                    reason: "KubeletReady".to_owned(),
                    heartbeat: Some(1),
                    transition: Some(1),
                    ours: false,
                }),
                missed_since: None,
                next_claim: self.now,
                unknown_since: None,
                phase,
            },
        );
    }

    /// Feeds the picture, and lets half a minute pass in quiet.
    pub(super) fn settle(&mut self) {
        self.start();
        self.feed(Input::Leadership(true));
        self.run(secs(40));
        assert!(self.writes.is_empty(), "{:?}", self.writes);
        self.decisions.clear();
        self.notices.clear();
        self.outputs.clear();
        self.lease_reads = 0;
    }

    /// Feeds the picture, without leadership.
    pub(super) fn start(&mut self) {
        let aggregators: Vec<(String, Option<String>)> = self
            .aggregators
            .iter()
            .map(|(name, host)| (name.clone(), host.clone()))
            .collect();
        for (name, host) in aggregators {
            self.feed(Input::Member {
                key: key(Role::Aggregator, &name),
                change: MemberChange::Joined,
                aggregator: true,
                host: host.map(|host| node_name(&host)),
                heard_age: None,
            });
        }
        let names: Vec<String> = self.hosts.keys().cloned().collect();
        for name in names {
            self.show(&name);
            if self.hosts[&name].answers_mesh() {
                self.feed(Input::Heard {
                    node: key(Role::Agent, &name),
                    age: Duration::ZERO,
                });
            }
        }
        self.feed(Input::NodeWatch(WatchHealth::Fresh));
        self.feed(Input::NodesListed);
    }

    pub(super) fn host(&mut self, name: &str) -> &mut HostSim {
        self.hosts.get_mut(name).unwrap()
    }

    pub(super) fn each(
        &mut self,
        names: impl IntoIterator<Item = usize>,
        f: impl Fn(&mut HostSim),
    ) {
        for index in names {
            f(self.host(&format!("n{index}")));
        }
    }

    pub(super) fn node_ref(&self, name: &str) -> NodeRef {
        NodeRef {
            name: node_name(name),
            uid: format!("uid-{}", self.hosts[name].uid).into(),
        }
    }

    /// The Node watch shows a node as it is.
    pub(super) fn show(&mut self, name: &str) {
        let host = &self.hosts[name];
        let seen = NodeSeen {
            node: self.node_ref(name),
            key: key(Role::Agent, name),
            zone: host.zone.parse::<Zone>().unwrap(),
            addresses: host.addresses(),
            kubelet_port: 10_250,
            ready: host.ready.clone(),
            hold: host.hold,
            deleting: host.deleting,
            lifecycle: Vec::new(),
            agentless: false,
        };
        self.feed(Input::Node(seen));
    }

    /// An agent says goodbye.
    pub(super) fn leave(&mut self, name: &str) {
        self.host(name).agent = AgentRuns::Left;
        self.membership(name, MemberChange::Left);
    }

    pub(super) fn membership(&mut self, name: &str, change: MemberChange) {
        self.feed(Input::Member {
            key: key(Role::Agent, name),
            change,
            aggregator: false,
            host: None,
            heard_age: None,
        });
    }

    pub(super) fn kill(&mut self, name: &str) {
        self.host(name).power = false;
    }

    pub(super) fn verdict(&self, name: &str) -> Verdict {
        self.judge.standing(&node_name(name)).unwrap().verdict
    }

    pub(super) fn brakes(&self) -> Brakes {
        self.judge.brakes()
    }

    pub(super) fn written(&self, name: &str) -> Vec<Verdict> {
        self.writes
            .iter()
            .filter(|(_, node, ..)| node == name)
            .map(|(_, _, verdict, _)| *verdict)
            .collect()
    }

    /// How long after `since` the first write about a node came.
    pub(super) fn written_after(&self, name: &str, since: Moment) -> Option<Duration> {
        self.writes
            .iter()
            .find(|(at, node, ..)| node == name && *at >= since)
            .map(|(at, ..)| at.since(since))
    }

    pub(super) fn said(&self, name: &str) -> Vec<(Verdict, Rule)> {
        self.decisions
            .iter()
            .filter(|(_, decision)| decision.node.name == node_name(name))
            .map(|(_, decision)| (decision.verdict, decision.rule))
            .collect()
    }

    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now += STEP;
            self.live();
            while let Some(entry) = self.queue.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let input = entry.remove();
                self.note_answers(&input);
                self.feed(input);
            }
            if self.judge.next_wake().is_some_and(|at| at <= self.now) {
                self.feed(Input::Wake);
            }
            let now = self.now;
            while let Some(due) = self.waiting.values().find(|(at, _)| *at <= now) {
                let name = due.1.node.name.as_str().to_owned();
                if let Some((_, decision)) = self.waiting.remove(&name) {
                    self.write(&decision);
                }
            }
        }
    }

    /// The judge's process does not run for this long, and the world goes on.
    pub(super) fn stop(&mut self, duration: Duration) {
        self.stopped = true;
        self.run(duration);
        self.stopped = false;
    }

    /// Runs until a condition holds; fails after `limit`.
    pub(super) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            assert!(self.now < end, "not within {limit:?}");
            self.run(STEP);
        }
    }

    pub(super) fn feed(&mut self, input: Input) {
        if self.stopped {
            return;
        }
        self.judge.handle(self.now, input);
        while let Some(output) = self.judge.poll() {
            self.carry_out(output);
        }
    }

    fn note_answers(&mut self, input: &Input) {
        if let Input::Verified {
            verifier, answers, ..
        } = input
        {
            for answer in answers {
                *self
                    .answered
                    .entry((*verifier, answer.subject))
                    .or_default() += 1;
            }
        }
    }

    pub(super) fn later(&mut self, delay: Duration, input: Input) {
        self.seq += 1;
        self.queue.insert((self.now + delay, self.seq), input);
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Decide(decision) => self.decided(*decision),
            Output::Observe { subject } => {
                let observers = self
                    .hosts
                    .values()
                    .map(|host| host.key)
                    .filter(|observer| *observer != subject)
                    .take(10)
                    .collect();
                self.later(millis(1), Input::Observers { subject, observers });
            }
            Output::Verify { round, asks } => {
                for ask in asks {
                    self.verify(round, &ask);
                }
            }
            Output::ReadLease(node) => self.read_lease(node),
            Output::Notice(notice) => self.notices.push((self.now, notice)),
            other @ Output::StepDown { .. } => self.outputs.push(other),
        }
    }

    fn read_lease(&mut self, node: NodeRef) {
        self.lease_reads += 1;
        let fails = !self.api_works || self.lease_reads_fail > 0;
        self.lease_reads_fail = self.lease_reads_fail.saturating_sub(1);
        if !fails {
            let answered = self.now + self.lease_takes;
            self.leases_read.push((answered, node.name.to_string()));
        }
        let read = match self.hosts.get(node.name.as_str()) {
            _ if fails => LeaseRead::Failed,
            None => LeaseRead::None,
            Some(host) => match host.lease {
                None => LeaseRead::None,
                Some(fingerprint) => LeaseRead::Renewed {
                    fingerprint,
                    duration: Some(host.lease_duration),
                },
            },
        };
        self.later(self.lease_takes, Input::Lease { node, read });
    }

    /// The writer's queue: per node the newest decision wins.
    fn decided(&mut self, decision: Decision) {
        self.decisions.push((self.now, decision.clone()));
        let name = decision.node.name.as_str().to_owned();
        self.waiting.remove(&name);
        if decision.verdict.reason().is_some() {
            if self.writer_takes.is_zero() {
                self.write(&decision);
            } else {
                let due = self.now + self.writer_takes;
                self.waiting.insert(name, (due, decision));
            }
        }
    }

    /// The writer: a fresh read, then the write.
    fn write(&mut self, decision: &Decision) {
        let Some(reason) = decision.verdict.reason() else {
            return;
        };
        let name = decision.node.name.as_str().to_owned();
        let same_node = self.hosts.contains_key(&name) && self.node_ref(&name) == decision.node;
        let outcome = if !same_node {
            WriteOutcome::Gone
        } else if !self.api_works {
            WriteOutcome::Failed
        } else if self.hosts[&name].ready != decision.evidence.ready {
            WriteOutcome::Superseded
        } else if let Some(refused) = self.api_refuses {
            refused
        } else if !self.enforce {
            WriteOutcome::WouldWrite
        } else {
            WriteOutcome::Written
        };
        if outcome == WriteOutcome::Written {
            let now = self.now;
            let host = self.host(&name);
            host.unknown_since = Some(now);
            if let Some(ready) = &mut host.ready {
                ready.status = ReadyStatus::Unknown;
                ready.reason = reason.to_owned();
                ready.transition = ready.transition.map(|at| at + 1);
                ready.ours = true;
            }
            self.writes
                .push((now, name.clone(), decision.verdict, decision.rule));
            let seen = NodeSeen {
                node: decision.node.clone(),
                key: key(Role::Agent, &name),
                zone: self.hosts[&name].zone.parse().unwrap(),
                addresses: self.hosts[&name].addresses(),
                kubelet_port: 10_250,
                ready: self.hosts[&name].ready.clone(),
                hold: false,
                deleting: false,
                lifecycle: Vec::new(),
                agentless: false,
            };
            self.later(millis(25), Input::Node(seen));
        }
        self.later(
            millis(15),
            Input::Written {
                node: decision.node.clone(),
                episode: decision.episode,
                outcome,
            },
        );
    }

    /// One verifier tries what it was asked to.
    fn verify(&mut self, round: u32, ask: &Ask) {
        let Some(verifier) = self.side_of(ask.verifier) else {
            return;
        };
        let before = self.asked_last.insert(ask.verifier, self.now);
        if self.loses_rest && before == Some(self.now) {
            return;
        }
        let mut silent = false;
        let answers: Vec<AnswerSeen> = ask
            .subjects
            .iter()
            .enumerate()
            .map(|(index, subject)| {
                let answer = self.answer(&verifier, index, subject.subject, subject.kubelet.ip());
                silent |= answer.agent != AgentAnswer::Answers;
                answer
            })
            .collect();
        let delay = self.answer_takes.max(millis(if silent { 550 } else { 0 }));
        self.later(
            delay,
            Input::Verified {
                verifier: ask.verifier,
                round,
                health: verifier.health,
                answers,
            },
        );
    }

    /// The verifier as a host, if it answers the judge at all.
    fn side_of(&self, verifier: MemberKey) -> Option<HostSim> {
        let aggregator = self
            .aggregators
            .iter()
            .find(|(name, _)| key(Role::Aggregator, name) == verifier);
        if let Some((_, host)) = aggregator {
            let host = host.as_ref().and_then(|host| self.hosts.get(host));
            return match host {
                Some(host) => host.power.then(|| host.clone()),
                None => Some(HostSim::bystander(self.now)),
            };
        }
        let host = self.hosts.values().find(|host| host.key == verifier)?;
        (host.answers_mesh() && host.side == 0 && !host.frozen_verifier).then(|| host.clone())
    }

    fn answer(
        &self,
        verifier: &HostSim,
        index: usize,
        subject: MemberKey,
        to: IpAddr,
    ) -> AnswerSeen {
        let host = self
            .hosts
            .values()
            .find(|host| host.key == subject)
            .unwrap();
        let same_side = verifier.side == host.side || verifier.reaches_all;
        let reach = same_side && !verifier.liar && !verifier.deaf;
        let agent = if reach && host.answers_mesh() {
            AgentAnswer::Answers
        } else {
            AgentAnswer::Silent
        };
        // Whoever holds the address answers the port.
        let holder = self
            .hosts
            .values()
            .find(|holder| holder.address == to && holder.power);
        let port = match holder {
            Some(holder) if reach && !holder.port_blocked && !holder.deaf => match holder.kubelet {
                Kubelet::Works => PortAnswer::Tls {
                    names_node: holder.uid == host.uid,
                },
                Kubelet::Killed => PortAnswer::Refuses,
                Kubelet::Hung => PortAnswer::Accepts,
            },
            _ => PortAnswer::Silent,
        };
        AnswerSeen {
            subject,
            index: u8::try_from(index).unwrap(),
            agent,
            agent_baseline: host.agent_baseline && !verifier.pathless,
            port,
            port_baseline: host.port_baseline && !verifier.pathless,
        }
    }

    /// What hosts do by themselves.
    fn live(&mut self) {
        let names: Vec<String> = self.hosts.keys().cloned().collect();
        for name in &names {
            self.heartbeat(name);
            self.self_report(name);
            self.probes_of(name);
        }
    }

    fn every(&self, period: Duration, phase: Duration) -> bool {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
        let at = self.now.as_micros() + micros(phase);
        at % micros(period) < micros(STEP)
    }

    fn heartbeat(&mut self, name: &str) {
        let host = &self.hosts[name];
        let works = host.power && host.kubelet == Kubelet::Works && host.reaches_api;
        if !works || host.deaf || host.mute || !self.api_works {
            return;
        }
        let renews = self.every(host.lease_duration / 4, host.phase);
        let looks = self.every(secs(10), host.phase + secs(3));
        let reports = host.reports_status && self.every(secs(300), host.phase * 30);
        let bears_unknown = host.unknown_since.is_some();
        let host = self.host(name);
        if renews {
            host.lease = host.lease.map(|lease| lease + 1);
        }
        if reports || (looks && bears_unknown) {
            self.kubelet_writes(name, ReadyStatus::True);
        }
    }

    /// The kubelet writes its status: the whole condition.
    pub(super) fn kubelet_writes(&mut self, name: &str, status: ReadyStatus) {
        let host = self.host(name);
        host.unknown_since = None;
        if let Some(ready) = &mut host.ready {
            ready.status = status;
            ready.reason = "KubeletReady".to_owned();
            ready.heartbeat = ready.heartbeat.map(|at| at + 1);
            ready.ours = false;
        }
        self.show(name);
    }

    fn self_report(&mut self, name: &str) {
        let host = &self.hosts[name];
        let sends = host.power && host.agent == AgentRuns::Yes && host.side == 0;
        if !sends || host.mesh_blocked || !self.every(secs(10), host.phase + secs(1)) {
            return;
        }
        let kubelet = if host.kubelet == Kubelet::Works {
            Check::Passing
        } else {
            Check::Failing
        };
        let api = if host.reaches_api {
            Check::Passing
        } else {
            Check::Failing
        };
        let (kubelet, api) = host.says.unwrap_or((kubelet, api));
        self.later(
            millis(30),
            Input::Report {
                node: key(Role::Agent, name),
                age: millis(30),
                kubelet_healthz: kubelet,
                kubelet_port: kubelet,
                api,
            },
        );
    }

    /// Observers miss a subject: the first after its probe timed out, the others
    /// after their indirect probe did, and all of them each second after.
    fn probes_of(&mut self, name: &str) {
        if !self.claims {
            return;
        }
        let host = &self.hosts[name];
        let silent = !host.answers_mesh() || host.side != 0;
        let watched = !matches!(host.agent, AgentRuns::Left | AgentRuns::Never);
        let now = self.now;
        let phase = millis(u64::from(host.uid) * 137 % 1_000);
        let host = self.host(name);
        if !silent || !watched {
            let was = host.missed_since.take().is_some();
            if was && watched {
                self.feed(Input::Heard {
                    node: self.hosts[name].key,
                    age: millis(5),
                });
            }
            self.lies_about(name);
            return;
        }
        let missed = *host.missed_since.get_or_insert_with(|| {
            host.next_claim = now + phase + PROBE_TIMEOUT;
            now + phase
        });
        if now < host.next_claim {
            return;
        }
        let first = now.since(missed) < PROBE_TIMEOUT * 2;
        host.next_claim = now + if first { PROBE_TIMEOUT } else { secs(1) };
        let since_others = missed + PROBE_TIMEOUT;
        let observers: Vec<MemberKey> = self
            .hosts
            .iter()
            .filter(|(other, host)| *other != name && host.answers_mesh() && host.side == 0)
            .map(|(_, host)| host.key)
            .chain(
                self.aggregators
                    .keys()
                    .map(|aggregator| key(Role::Aggregator, aggregator)),
            )
            .take(10)
            .collect();
        for (index, accuser) in observers.into_iter().enumerate() {
            let since = if index == 0 { missed } else { since_others };
            if index > 0 && first {
                break;
            }
            self.accuse(accuser, name, now.since(since));
        }
    }

    /// Deaf hosts and liars accuse each node once a second.
    fn lies_about(&mut self, name: &str) {
        if !self.every(secs(1), Duration::ZERO) {
            return;
        }
        let accusers: Vec<MemberKey> = self
            .hosts
            .iter()
            .filter(|(other, host)| {
                *other != name
                    && host.power
                    && (host.deaf || host.liar)
                    && host.agent == AgentRuns::Yes
            })
            .map(|(_, host)| host.key)
            .collect();
        for accuser in accusers {
            self.accuse(accuser, name, millis(900));
        }
    }

    pub(super) fn accuse(&mut self, accuser: MemberKey, subject: &str, silent: Duration) {
        self.later(
            millis(10),
            Input::Claim {
                accuser,
                subject: self.hosts[subject].key,
                finding: Finding::Missed { silent },
                age: millis(10),
                health: 0,
            },
        );
    }
}

impl HostSim {
    /// As its Node lists them.
    fn addresses(&self) -> Vec<IpAddr> {
        self.dead_address
            .into_iter()
            .chain([self.address])
            .collect()
    }

    /// Whether its agent answers a probe that its network lets through.
    pub(super) fn answers_mesh(&self) -> bool {
        self.power && self.agent == AgentRuns::Yes && !self.deaf && !self.mesh_blocked
    }

    /// A host of an aggregator that is no node of ours.
    fn bystander(now: Moment) -> Self {
        let mut village = Village::empty(Profile::Default);
        village.now = now;
        village.add("bystander", "");
        village.hosts.remove("bystander").unwrap()
    }
}
