//! How much a member costs where thousands run in one process.
//!
//! Runs members over a network in memory, in virtual time: every datagram arrives after
//! a millisecond, nobody dies, nothing is encoded. Prints JSON:
//!
//! ```text
//! cargo run --release -p swimlet-mesh --example crowd -- MEMBERS SECONDS [join]
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use swimlet_mesh::{Commons, Config, Input, Mesh, Output};
use swimlet_protocol::{
    Bounded, ClusterId, Generation, Identity, MemberKey, MemberRecord, Moment, Role,
};

/// One way from any member to any other.
const LATENCY: Duration = Duration::from_millis(1);
/// The first members are aggregators, and everybody's seeds.
const AGGREGATORS: usize = 3;
/// Members that start within a second.
const STARTS_PER_SECOND: usize = 250;
/// How long a mesh may take to become one.
const FORMATION_MAX: Duration = Duration::from_secs(600);

struct Crowd {
    now: Moment,
    cluster: ClusterId,
    commons: Commons,
    members: Vec<Mesh>,
    identities: Vec<Identity>,
    keys: HashMap<MemberKey, usize>,
    /// In the order of arrival, because everything takes equally long.
    mail: VecDeque<(Moment, usize, Input)>,
    /// May hold wake-ups that were moved since; `due` has the right ones.
    wakes: BinaryHeap<Reverse<(Moment, usize)>>,
    due: Vec<Option<Moment>>,
    streams: HashMap<u64, (usize, usize)>,
    tokens: u64,
    inputs: u64,
}

fn address(member: usize) -> SocketAddr {
    let [_, b, c, d] = u32::try_from(member).unwrap_or(u32::MAX).to_be_bytes();
    SocketAddr::from(([10, b, c, d], 10_270))
}

impl Crowd {
    fn new(cluster: ClusterId) -> Self {
        Self {
            now: Moment::from_micros(1_000_000),
            cluster,
            commons: Commons::default(),
            members: Vec::new(),
            identities: Vec::new(),
            keys: HashMap::new(),
            mail: VecDeque::new(),
            wakes: BinaryHeap::new(),
            due: Vec::new(),
            streams: HashMap::new(),
            tokens: 0,
            inputs: 0,
        }
    }

    /// What the next member says of itself.
    fn record(&self, i: usize) -> Option<MemberRecord> {
        Some(MemberRecord {
            role: if i < AGGREGATORS {
                Role::Aggregator
            } else {
                Role::Agent
            },
            name: format!("ip-10-0-{}-{}.internal", i / 256, i % 256)
                .parse()
                .ok()?,
            generation: Generation(1_700_000_000_000 + i as u64),
            zone: format!("zone-{}", i % 3).parse().ok()?,
            addresses: Bounded::fill(&mut std::iter::once(address(i))),
            kubelet_port: 10_250,
        })
    }

    /// Starts the next member: to join, or as one that knows `others`.
    fn start(&mut self, me: MemberRecord, others: Option<&[Arc<MemberRecord>]>) {
        let i = self.members.len();
        let identity = Identity {
            cluster: self.cluster.clone(),
            role: me.role,
            name: me.name.clone(),
        };
        let config = Config {
            cluster: self.cluster.clone(),
            me,
            seed: i as u64,
            seeds: (0..AGGREGATORS).map(address).collect(),
            peers: Vec::new(),
        };
        if self.keys.insert(identity.key(), i).is_none() {
            self.identities.push(identity);
        }
        self.members.push(match others {
            None => Mesh::sharing(self.now, config, &self.commons),
            Some(others) => {
                Mesh::with_members(self.now, config, &self.commons, others.iter().cloned())
            }
        });
        self.due.push(None);
        self.drain(i);
    }

    /// Runs until `end`.
    fn run(&mut self, end: Moment) {
        loop {
            let mail = self.mail.front().map(|&(at, ..)| at);
            let wake = self.wakes.peek().map(|&Reverse((at, _))| at);
            let Some(next) = [mail, wake]
                .into_iter()
                .flatten()
                .min()
                .filter(|&at| at <= end)
            else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if mail == Some(next) {
                if let Some((_, to, input)) = self.mail.pop_front() {
                    self.input(to, input);
                }
            } else if let Some(Reverse((at, member))) = self.wakes.pop()
                && self.due[member] == Some(at)
            {
                self.due[member] = None;
                self.input(member, Input::Wake);
            }
        }
    }

    fn input(&mut self, member: usize, input: Input) {
        self.inputs += 1;
        self.members[member].handle(self.now, input);
        self.drain(member);
    }

    fn drain(&mut self, member: usize) {
        while let Some(output) = self.members[member].poll() {
            self.output(member, output);
        }
        let wake = self.members[member].next_wake();
        if wake != self.due[member] {
            self.due[member] = wake;
            self.wakes.extend(wake.map(|at| Reverse((at, member))));
        }
    }

    fn output(&mut self, from: usize, output: Output) {
        let me = self.members[from].key();
        match output {
            Output::Send { to, frame } => self.mail_to(to, Input::Frame { from: me, frame }),
            Output::Dial { peer, .. } => self.link(from, self.keys.get(&peer).copied()),
            Output::Close { peer } => self.mail_to(peer, Input::LinkDown { peer: me }),
            Output::Join { address, request } => {
                let to = (0..self.members.len()).find(|&i| self::address(i) == address);
                self.link(from, to);
                match to {
                    Some(to) => self.sync(from, to, request),
                    None => self.mail(from, Input::JoinFailed { address }),
                }
            }
            Output::Sync { to, request } => {
                if let Some(&to) = self.keys.get(&to) {
                    self.sync(from, to, request);
                }
            }
            Output::SyncReply { token, parts } => {
                if let Some((asking, answering)) = self.streams.remove(&token) {
                    let from = self.identities[answering].key();
                    for part in parts {
                        self.mail(asking, Input::SyncAnswered { from, part });
                    }
                }
            }
            Output::Probed { .. } | Output::Event(_) => {}
        }
    }

    fn link(&mut self, from: usize, to: Option<usize>) {
        let Some(to) = to else { return };
        for (end, other) in [(from, to), (to, from)] {
            let input = Input::LinkUp {
                peer: self.identities[other].clone(),
                addresses_seen: address(other),
            };
            self.mail(end, input);
        }
    }

    fn sync(&mut self, from: usize, to: usize, request: swimlet_protocol::stream::SyncRequest) {
        self.tokens += 1;
        let token = self.tokens;
        self.streams.insert(token, (from, to));
        let input = Input::SyncRequested {
            from: self.identities[from].clone(),
            token,
            request,
        };
        self.mail(to, input);
    }

    fn mail_to(&mut self, to: MemberKey, input: Input) {
        if let Some(&to) = self.keys.get(&to) {
            self.mail(to, input);
        }
    }

    fn mail(&mut self, to: usize, input: Input) {
        self.mail.push_back((self.now + LATENCY, to, input));
    }

    /// Whether everybody knows everybody.
    fn is_formed(&self, members: usize) -> bool {
        self.members
            .iter()
            .all(|mesh| mesh.stats().members_alive as usize + 1 == members)
    }

    /// Starts members at an even pace and runs until they are one mesh.
    fn form(&mut self, members: usize) {
        let start = self.now;
        for i in 0..members {
            let spacing = Duration::from_secs(1) / STARTS_PER_SECOND as u32;
            self.run(start + spacing * u32::try_from(i).unwrap_or(u32::MAX));
            if let Some(record) = self.record(i) {
                self.start(record, None);
            }
        }
        while !self.is_formed(members) && self.now.since(start) < FORMATION_MAX {
            self.run(self.now + Duration::from_secs(1));
        }
    }
}

impl Crowd {
    /// Starts members that know each other within a second, and runs until their links stand.
    fn place(&mut self, members: usize) {
        let records: Vec<_> = (0..members)
            .filter_map(|i| self.record(i))
            .map(Arc::new)
            .collect();
        self.commons = Commons::of(records.iter().map(|record| record.key(&self.cluster)));
        // Whoever is dialled may start a little later.
        for record in &records {
            let identity = Identity {
                cluster: self.cluster.clone(),
                role: record.role,
                name: record.name.clone(),
            };
            self.keys.insert(identity.key(), self.identities.len());
            self.identities.push(identity);
        }
        for record in &records {
            self.start(MemberRecord::clone(record), Some(&records));
        }
        self.run(self.now + Duration::from_secs(30));
    }
}

/// Resident memory of this process in bytes; 0 where that is not told.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

/// Time this process was run for.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().map(str::parse);
    Duration::from_nanos(nanos.and_then(Result::ok).unwrap_or(0))
}

/// One phase's figures as JSON.
fn report(phase: &str, crowd: &Crowd, simulated: Duration, cpu: Duration, inputs: u64) -> String {
    let members = crowd.members.len().max(1) as u64;
    let total = |count: fn(&swimlet_mesh::Stats) -> u64| -> u64 {
        crowd.members.iter().map(|mesh| count(&mesh.stats())).sum()
    };
    format!(
        concat!(
            "{{\"phase\":\"{}\",\"members\":{},\"simulated_s\":{:.1},\"cpu_s\":{:.2},\"speed\":{:.2},",
            "\"inputs\":{},\"us_per_input\":{:.2},\"probes\":{},\"misses\":{},\"links\":{},",
            "\"resident_mb\":{},\"bytes_per_member\":{}}}"
        ),
        phase,
        members,
        simulated.as_secs_f64(),
        cpu.as_secs_f64(),
        simulated.as_secs_f64() / cpu.as_secs_f64(),
        inputs,
        cpu.as_secs_f64() * 1e6 / inputs.max(1) as f64,
        total(|stats| stats.probes),
        total(|stats| stats.misses),
        total(|stats| stats.links),
        resident() / 1_000_000,
        resident() / members,
    )
}

#[expect(clippy::print_stdout, reason = "figures are what this program is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| -> Result<u64, std::num::ParseIntError> {
        arguments.next().map_or(Ok(usual), |text| text.parse())
    };
    let members = usize::try_from(number(1_000)?)?;
    let seconds = Duration::from_secs(number(60)?);
    let joins = arguments.next().is_some_and(|how| how == "join");
    let mut crowd = Crowd::new("crowd".parse()?);
    let (started, start) = (cpu(), crowd.now);
    if joins {
        crowd.form(members);
    } else {
        crowd.place(members);
    }
    let formed = crowd.is_formed(members);
    let phase = if formed { "formation" } else { "unformed" };
    let (simulated, inputs) = (crowd.now.since(start), crowd.inputs);
    println!(
        "{}",
        report(phase, &crowd, simulated, cpu() - started, inputs)
    );
    // Links settle and news runs out before it counts as rest.
    crowd.run(crowd.now + Duration::from_secs(30));
    let (started, start, before) = (cpu(), crowd.now, crowd.inputs);
    crowd.run(crowd.now + seconds);
    let (simulated, inputs) = (crowd.now.since(start), crowd.inputs - before);
    println!(
        "{}",
        report("rest", &crowd, simulated, cpu() - started, inputs)
    );
    Ok(())
}
