//! A process starts, and ends.

use std::net::SocketAddr;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::{Bounded, Generation, MemberKey, MemberRecord, Role};
use swimlet_roles::member::Input;
use swimlet_roles::{Aggregator, Member, SelfChecks, aggregator};

use super::{CLOCKS_APART, Life, Local};
use crate::api::{self, KUBELET_PORT};
use crate::edge::Edge;
use crate::link::{self, Wire};
use crate::record::{MemberId, What};
use crate::topology::{Guard, Profile};
use crate::world::World;

impl World {
    /// Starts a member's process, with nothing but its name and a later generation.
    pub(crate) fn start(&mut self, member: MemberId) {
        let now = self.now();
        if !self.host(self.host_of(member)).power || self.life(member).is_some() {
            return;
        }
        let life = self.new_life(member);
        let process = &mut self.processes[member.0 as usize];
        process.epoch += 1;
        process.life = Some(Box::new(life));
        process.inbox.clear();
        process.inbox_packets = 0;
        process.busy_until = now;
        self.tell(What::Started { member });
        self.note_truth(self.host_of(member));
        let phase = self.net.random(link::IDLE_CHECK);
        self.after(member, phase, Local::Idle);
        self.drain(member);
        self.begin_edge(member);
        self.settle(member);
    }

    fn new_life(&mut self, member: MemberId) -> Life {
        let now = self.now();
        let clock_ahead = self.net.random(CLOCKS_APART);
        let seed = self.net.number();
        let host = self.host_of(member);
        if self.table.is_empty() {
            self.next_generation(member);
        }
        let record = self.record_of(member);
        let process = &self.processes[member.0 as usize];
        let (role, key) = (process.role, process.key);
        let config = swimlet_mesh::Config {
            cluster: self.cluster.clone(),
            me: record.clone(),
            seed,
            seeds: self.seeds(),
            peers: Vec::new(),
        };
        let local = now + clock_ahead;
        let judge = self.judge_config(key);
        let aggregator = (role == Role::Aggregator).then(|| {
            let host = Some(self.host(host).name.clone());
            let config = aggregator::Config {
                judge,
                record: record.clone(),
                host,
            };
            Aggregator::with_switches(local, config, self.judge_switches())
        });
        let edge = (role == Role::Aggregator).then(|| Edge::new(local, member, key, seed));
        Life {
            clock_ahead,
            member: Member::switched(local, config, &self.commons, self.mesh_switches()),
            aggregator,
            checks: (role == Role::Agent).then(|| SelfChecks::new(local, key)),
            edge,
            wire: Wire::default(),
            record,
            joined: false,
        }
    }

    /// A start has a later generation than the one before.
    pub(crate) fn next_generation(&mut self, member: MemberId) {
        let ahead_ms = self.host(self.host_of(member)).clock_ahead_ms;
        let wall_ms = api::clock(self.now(), ahead_ms) / 1_000;
        let wall_ms = u64::try_from(wall_ms).unwrap_or_default();
        let process = &mut self.processes[member.0 as usize];
        // The state directory remembers the last one, whatever the clock says.
        process.generation = Generation(wall_ms.max(process.generation.0 + 1));
    }

    /// What a member says of itself in this generation.
    pub(crate) fn record_of(&self, member: MemberId) -> MemberRecord {
        let process = &self.processes[member.0 as usize];
        let host = self.host(process.host);
        let address = SocketAddr::new(host.address, process.port());
        MemberRecord {
            role: process.role,
            name: process.identity.name.clone(),
            generation: process.generation,
            zone: api::zone(host.zone),
            addresses: Bounded::fill(&mut std::iter::once(address)),
            kubelet_port: match process.role {
                Role::Agent => KUBELET_PORT,
                Role::Aggregator => 0,
            },
        }
    }

    fn judge_config(&self, me: MemberKey) -> swimlet_verdict::Config {
        let mut config = swimlet_verdict::Config::new(me);
        config.profile = match self.topology().profile {
            Profile::Default => swimlet_verdict::Profile::Default,
            Profile::Fast => swimlet_verdict::Profile::Fast,
            Profile::Cautious => swimlet_verdict::Profile::Cautious,
        };
        let share = self.topology().brake_share;
        if let Some(Ok(share)) = share.map(swimlet_verdict::Percent::new) {
            config.brake_share_max = share;
        }
        config
    }

    /// What of the judge is on: all but the guards that the topology does without.
    fn judge_switches(&self) -> swimlet_verdict::Switches {
        let on = |guard: Guard| !self.topology().without.contains(&guard);
        swimlet_verdict::Switches {
            verification: on(Guard::Verification),
            baseline: on(Guard::Baseline),
            brakes: [
                on(Guard::BrakeMinority),
                on(Guard::BrakeShare),
                on(Guard::BrakeGraded),
            ],
            distinct_accusers: on(Guard::DistinctAccusers),
        }
    }

    /// The same of the mesh.
    fn mesh_switches(&self) -> swimlet_mesh::Switches {
        let on = |guard: Guard| !self.topology().without.contains(&guard);
        swimlet_mesh::Switches {
            local_health: on(Guard::LocalHealth),
            distinct_accusers: on(Guard::DistinctAccusers),
            indirect_probes: on(Guard::IndirectProbes),
        }
    }

    /// A member's process ends without a word.
    pub(crate) fn stop(&mut self, member: MemberId) {
        self.end_life(member, false);
    }

    /// A member says goodbye, an aggregator releases its Lease, and the process ends.
    pub(crate) fn leave(&mut self, member: MemberId) {
        if self.life(member).is_none() || !self.is_run(member) {
            self.stop(member);
            return;
        }
        self.release(member);
        self.feed(member, Input::Mesh(MeshInput::Leave));
        let peers: Vec<_> = self
            .life(member)
            .map(|life| life.wire.links.keys().copied().collect())
            .unwrap_or_default();
        for peer in peers {
            self.close(member, peer);
        }
        self.end_life(member, true);
    }

    fn end_life(&mut self, member: MemberId, goodbye: bool) {
        let process = &mut self.processes[member.0 as usize];
        if process.life.take().is_none() {
            return;
        }
        process.epoch += 1;
        process.inbox.clear();
        process.inbox_packets = 0;
        self.wakes.set(member.0 as usize, None);
        if self.leader == Some(member) {
            self.leader = None;
            self.tell(What::Follows { member });
        }
        self.tell(What::Stopped { member, goodbye });
        self.note_truth(self.host_of(member));
    }
}
