//! How a world starts.

use std::sync::Arc;
use std::time::Duration;

use swimlet_mesh::Commons;
use swimlet_protocol::stream::{SyncMember, SyncPart};
use swimlet_protocol::{Bounded, ClusterId, Incarnation, MemberState, NodeName, Role};

use crate::record::{MemberId, NodeId, What};
use crate::topology::Start;
use crate::world::{Event, World};

/// A world that is prepared starts within one period of probes.
const PREPARED_WITHIN: Duration = Duration::from_secs(1);
/// A cold one is started within this time, and so many members at most within a second:
/// what three aggregators' handshakes allow.
const STARTED_WITHIN: Duration = Duration::from_secs(3);
const STARTED_A_SECOND: u32 = 250;
/// How often a forming world is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A leader decides nothing before it has waited one detection interval; this is longer
/// than the one of `cautious`.
const LED_FOR: Duration = Duration::from_secs(20);
/// A world that has not formed by then goes on as it is: its scenario shows why.
const FORMED_WITHIN: Duration = Duration::from_secs(300);
/// What happens next meets probes, Leases and rounds at any phase.
const PHASE: Duration = Duration::from_secs(10);

#[expect(clippy::expect_used, reason = "a constant that the tests parse")]
pub(crate) fn cluster() -> ClusterId {
    "simulated".parse().expect("a valid cluster id")
}

#[expect(
    clippy::expect_used,
    reason = "made of letters, digits and a dash alone"
)]
pub(crate) fn name(text: &str) -> NodeName {
    text.parse().expect("a valid node name")
}

impl World {
    /// Builds everything, starts it, and waits as long as the topology wants.
    pub(crate) fn form(&mut self) {
        let topology = self.topology().clone();
        for index in 0..topology.nodes {
            let zone = (index % u32::from(topology.zones)) as u16;
            let address = self.new_address();
            let agentless = index >= topology.nodes - topology.agentless;
            self.add_host(NodeId(index), zone, address, agentless);
        }
        for node in (0..topology.nodes - topology.agentless).map(NodeId) {
            self.add_member(node, Role::Agent);
        }
        for node in (0..u32::from(topology.aggregators)).map(NodeId) {
            self.add_member(node, Role::Aggregator);
        }
        let keys = (0..self.members()).map(|index| self.key_of(MemberId(index)));
        self.commons = Commons::of(keys.collect::<Vec<_>>());
        self.note_all_truths();
        // Whoever joins needs another one that it can join through.
        let prepared = topology.start == Start::Formed && topology.aggregators > 1;
        let within = if prepared {
            self.table = self.whole_table();
            PREPARED_WITHIN
        } else {
            let paced = Duration::from_secs(u64::from(self.members() / STARTED_A_SECOND));
            paced.max(STARTED_WITHIN)
        };
        self.start_all(within);
        self.begin_monitor();
        if topology.start == Start::Formed {
            let views = std::mem::replace(&mut self.record_views, false);
            if prepared {
                self.run_for(within);
                self.table = Vec::new();
            }
            self.wait_until_formed();
            self.record_views = views;
            self.begin();
            self.records.clear();
            if let Some(member) = self.leader() {
                self.tell(What::Leads { member });
            }
        }
    }

    fn start_all(&mut self, within: Duration) {
        for node in (0..self.nodes()).map(NodeId) {
            let at = self.now() + self.net.random(within);
            self.queue.push(at, Event::StartKubelet { node, boot: 0 });
        }
        for member in (0..self.members()).map(MemberId) {
            let aggregator = self.processes[member.0 as usize].role == Role::Aggregator;
            // The aggregators of a prepared world are there first.
            let wait = if aggregator && !self.table.is_empty() {
                Duration::ZERO
            } else {
                self.net.random(within)
            };
            let at = self.now() + wait;
            self.queue.push(at, Event::Start { member, boot: 0 });
        }
    }

    /// Everybody as they will say it of themselves.
    fn whole_table(&mut self) -> Vec<SyncPart> {
        let all: Vec<MemberId> = (0..self.members()).map(MemberId).collect();
        all.iter().for_each(|member| self.next_generation(*member));
        let told = |member: &MemberId| SyncMember {
            record: Arc::new(self.record_of(*member)),
            incarnation: Incarnation::default(),
            state: MemberState::Alive,
            heard_s: 0,
        };
        let mut members = all.iter().map(told).peekable();
        let mut parts = Vec::new();
        while members.peek().is_some() {
            let part = Bounded::fill(&mut members);
            let more = members.peek().is_some();
            parts.push(SyncPart {
                members: part,
                more,
            });
        }
        parts
    }

    fn wait_until_formed(&mut self) {
        let end = self.now() + FORMED_WITHIN;
        let mut led_since = None;
        while self.now() < end {
            self.run_for(LOOK);
            let now = self.now();
            let leader = self.leader();
            if led_since.is_none_or(|(who, _)| Some(who) != leader) {
                led_since = leader.map(|leader| (leader, now));
            }
            let led = led_since.is_some_and(|(_, since)| now.since(since) >= LED_FOR)
                || self.topology().aggregators == 0;
            if led && self.is_formed() {
                break;
            }
        }
        let phase = self.net.random(PHASE);
        self.run_for(phase);
    }

    /// Whether everybody knows everybody, every path has its baseline, and every judge sees
    /// every agent.
    fn is_formed(&self) -> bool {
        let others = self.members() as usize - 1;
        let now = self.now();
        let formed = |index: u32| {
            let Some(life) = self.life(MemberId(index)) else {
                return false;
            };
            let mesh = life.member.mesh();
            let stats = mesh.stats();
            let known = stats.members as usize == others && stats.members_alive as usize == others;
            let ports = match &life.aggregator {
                Some(_) => self.topology().nodes - self.topology().agentless,
                None => 1,
            };
            let paths = || life.member.verifier().paths(life.local(now)) >= ports as usize;
            let sees = || {
                life.aggregator.as_ref().is_none_or(|aggregator| {
                    let seen = aggregator.judge().seen();
                    seen.alive == seen.of && seen.of == ports
                })
            };
            known && sees() && paths()
        };
        (0..self.members()).all(formed)
    }
}
