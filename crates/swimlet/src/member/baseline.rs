//! Which kubelet ports this member has reached lately.
//!
//! Only a path that worked can fail: a verifier's "no" counts only if it reached
//! that port within the baseline window before. Worker-to-worker 10250 is often
//! closed by a firewall, and such a silence says nothing about a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::Moment;
use swimlet_protocol::frame::PortAnswer;
use swimlet_telemetry::catalogue;

/// How long a success counts.
pub(crate) const WINDOW: Duration = Duration::from_secs(25 * 60);
/// Most ports remembered: every address of every node of the largest cluster.
const PORTS_MAX: usize = 40_000;

/// The last success of each port.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    reached: BTreeMap<SocketAddr, Moment>,
}

impl Baseline {
    /// Whether `port` was reached within the window before `now`.
    pub(crate) fn holds(&self, now: Moment, port: SocketAddr) -> bool {
        self.reached
            .get(&port)
            .is_some_and(|at| now.since(*at) <= WINDOW)
    }

    /// Takes note of what a check found. Only an answer of the kubelet itself is a success.
    pub(crate) fn note(&mut self, now: Moment, port: SocketAddr, answer: PortAnswer) {
        if !matches!(answer, PortAnswer::Tls { .. }) {
            return;
        }
        if self.reached.len() >= PORTS_MAX && !self.reached.contains_key(&port) {
            self.reached.retain(|_, at| now.since(*at) <= WINDOW);
        }
        if self.reached.len() < PORTS_MAX || self.reached.contains_key(&port) {
            self.reached.insert(port, now);
        } else {
            metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "baseline").increment(1);
        }
    }

    /// How many ports were reached within the window before `now`.
    pub(crate) fn count(&self, now: Moment) -> usize {
        let reached = self.reached.values();
        reached.filter(|at| now.since(**at) <= WINDOW).count()
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
}
