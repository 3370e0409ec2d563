//! Which kubelet ports a member has reached lately, and which it tries next.
//!
//! Only a path that worked can fail: a verifier's "no" counts only if it reached
//! that port within the baseline window before. Worker-to-worker 10250 is often
//! closed by a firewall, and such a silence says nothing about a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::PortAnswer;
use swimlet_protocol::{MemberRecord, Moment, NodeName, Role};

/// How long a success counts.
pub const WINDOW: Duration = Duration::from_secs(25 * 60);
/// Most ports remembered: every address of every node of the largest cluster.
pub const PORTS_MAX: usize = 40_000;
/// How often an observer tries one of its subjects' ports, once all were tried; more
/// often if there are so many that a turn would take longer than [`TURN`].
pub const INTERVAL: Duration = Duration::from_secs(60);
/// All ports are tried within this time: well within the window, so that one failed try
/// does not end it.
pub const TURN: Duration = Duration::from_secs(600);
/// Between two tries while a subject's port was not tried yet: ten subjects within five
/// seconds of a start. A kubelet meets ten such checks, once.
pub const START_INTERVAL: Duration = Duration::from_millis(500);
/// How soon a new subject is noticed once all were tried. Long before a minute is over, and
/// rare: to look takes as much as a dozen probes.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Where the kubelet of a Node serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubeletPort {
    /// One address of the Node, and the port.
    pub address: SocketAddr,
    /// The Node, which the served certificate should name.
    pub node: NodeName,
}

impl KubeletPort {
    /// Where the kubelet of the agent that says this of itself serves, one entry an
    /// address; nothing for an aggregator.
    #[must_use]
    pub fn all_of(record: &MemberRecord) -> Vec<Self> {
        if record.role != Role::Agent || record.kubelet_port == 0 {
            return Vec::new();
        }
        let mut hosts: Vec<_> = record.addresses.iter().map(SocketAddr::ip).collect();
        hosts.dedup();
        let port = |ip| Self {
            address: SocketAddr::new(ip, record.kubelet_port),
            node: record.name.clone(),
        };
        hosts.into_iter().map(port).collect()
    }
}

/// The last success of each port; at most [`PORTS_MAX`] are remembered.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    reached: BTreeMap<SocketAddr, Moment>,
    overflow: u64,
}

impl Baseline {
    /// Whether `port` was reached within the window before `now`.
    #[must_use]
    pub fn holds(&self, now: Moment, port: SocketAddr) -> bool {
        self.reached
            .get(&port)
            .is_some_and(|at| now.since(*at) <= WINDOW)
    }

    /// Takes note of what a check found. Only an answer of the kubelet itself is a success.
    pub fn note(&mut self, now: Moment, port: SocketAddr, answer: PortAnswer) {
        if !matches!(answer, PortAnswer::Tls { .. }) {
            return;
        }
        if self.reached.len() >= PORTS_MAX && !self.reached.contains_key(&port) {
            self.reached.retain(|_, at| now.since(*at) <= WINDOW);
        }
        if self.reached.len() < PORTS_MAX || self.reached.contains_key(&port) {
            self.reached.insert(port, now);
        } else {
            self.overflow += 1;
        }
    }

    /// How many ports were reached within the window before `now`.
    #[must_use]
    pub fn count(&self, now: Moment) -> usize {
        let reached = self.reached.values();
        reached.filter(|at| now.since(**at) <= WINDOW).count()
    }

    /// Successes that found no room.
    #[must_use]
    pub const fn overflow(&self) -> u64 {
        self.overflow
    }
}

/// Whose turn it is among the ports of an observer's subjects: one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// When each subject's port was tried last; subjects are few by the rings' design,
    /// and all members in a mesh so small that everyone watches everyone.
    tried: BTreeMap<SocketAddr, Moment>,
    /// When to look at the subjects again.
    pub(crate) due: Moment,
    /// Whether a try is under way.
    pub(crate) busy: bool,
}

impl Turns {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            tried: BTreeMap::new(),
            due: now + START_INTERVAL,
            busy: false,
        }
    }

    /// The subjects are being looked up.
    pub(crate) fn put_off(&mut self, now: Moment) {
        self.due = now + START_INTERVAL;
    }

    /// The port to be tried now, if any is due, of all that are watched.
    pub(crate) fn next(&mut self, now: Moment, ports: &[KubeletPort]) -> Option<KubeletPort> {
        self.put_off(now);
        if self.busy {
            return None;
        }
        self.tried
            .retain(|tried, _| ports.iter().any(|port| port.address == *tried));
        let untried = |port: &&KubeletPort| !self.tried.contains_key(&port.address);
        let due = match ports.iter().find(untried) {
            Some(port) => port,
            None => {
                let turns = u32::try_from(ports.len().max(1)).unwrap_or(u32::MAX);
                let interval = INTERVAL.min(TURN / turns);
                self.due = now + LOOK_INTERVAL.min(interval);
                if self.tried.values().any(|at| now.since(*at) < interval) {
                    return None;
                }
                let tried = |port: &&KubeletPort| self.tried.get(&port.address).copied();
                ports.iter().min_by_key(tried)?
            }
        };
        self.tried.insert(due.address, now);
        self.busy = true;
        Some(due.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario 36: a path that never worked, or not for long, has no say.
    #[test]
    fn only_a_recent_success_makes_a_baseline() {
        let port: SocketAddr = "10.0.0.1:10250".parse().unwrap();
        let start = Moment::from_micros(1_000_000);
        let mut baseline = Baseline::default();
        for failure in [
            PortAnswer::Accepts,
            PortAnswer::Refuses,
            PortAnswer::Silent,
            PortAnswer::Untried,
        ] {
            baseline.note(start, port, failure);
            assert!(!baseline.holds(start, port), "{failure:?}");
        }
        baseline.note(start, port, PortAnswer::Tls { names_node: false });
        assert!(baseline.holds(start + WINDOW, port));
        assert!(!baseline.holds(start + WINDOW + Duration::from_micros(1), port));
        assert_eq!(baseline.count(start), 1);
    }

    fn ports(count: u8) -> Vec<KubeletPort> {
        let port = |index: u8| KubeletPort {
            address: SocketAddr::from(([10, 0, 0, index], 10_250)),
            node: format!("n{index}").parse().unwrap(),
        };
        (0..count).map(port).collect()
    }

    /// What an observer tries from `from` on, for `time`, each try being over at once.
    fn tried(turns: &mut Turns, ports: &[KubeletPort], from: Moment, time: Duration) -> Vec<u8> {
        let mut tried = Vec::new();
        while turns.due <= from + time {
            let now = turns.due;
            if let Some(port) = turns.next(now, ports) {
                let index = ports.iter().position(|p| *p == port).unwrap();
                tried.push(u8::try_from(index).unwrap());
                turns.busy = false;
            }
        }
        tried
    }

    #[test]
    fn every_subject_is_tried_soon_and_then_one_a_minute_in_turn() {
        let start = Moment::ORIGIN;
        let mut turns = Turns::new(start);
        let mut watched = ports(3);
        let first = tried(&mut turns, &watched, start, Duration::from_secs(3));
        assert_eq!(first, [0, 1, 2]);
        let now = turns.due;
        let then = tried(&mut turns, &watched, now, Duration::from_secs(190));
        assert_eq!(then, [0, 1, 2]);
        watched = ports(4);
        let now = turns.due;
        let new = tried(&mut turns, &watched, now, Duration::from_secs(10));
        assert_eq!(new, [3], "a new one does not wait for its turn");
    }

    /// Scenario 36: a member that watches many, as in a mesh where everyone watches
    /// everyone, has tried each within the window.
    #[test]
    fn many_subjects_are_all_tried_within_a_turn() {
        let start = Moment::ORIGIN;
        let mut turns = Turns::new(start);
        let watched = ports(60);
        let first = tried(&mut turns, &watched, start, Duration::from_secs(31));
        assert_eq!(first.len(), 60);
        let now = turns.due;
        let mut then = tried(&mut turns, &watched, now, TURN + TURN / 4);
        then.sort_unstable();
        then.dedup();
        assert_eq!(then.len(), 60);
    }

    #[test]
    fn one_try_at_a_time() {
        let mut turns = Turns::new(Moment::ORIGIN);
        let watched = ports(2);
        assert!(turns.next(turns.due, &watched).is_some());
        assert!(turns.next(turns.due, &watched).is_none());
        turns.busy = false;
        assert!(turns.next(turns.due, &watched).is_some());
    }
}
