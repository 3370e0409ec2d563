//! The aggregators' baseline: every node's kubelet port, reached in turn.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::NodeName;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::judging::Ports;
use crate::member::verifier::Verifier;

/// Within this time of a start, or of a node's appearance, each port has been tried.
const FIRST_SWEEP: Duration = Duration::from_secs(60);
/// Each port is tried again within this time: well within the baseline's window,
/// so that one failed try does not end it.
const SWEEP: Duration = Duration::from_secs(600);
/// No pause is longer, so that a new node does not wait.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// No pause is shorter: a connect and a TLS handshake cost both sides about a millisecond.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Checks under way at once; each takes a second at most.
const CHECKS_MAX: usize = 32;

/// Sweeps the ports again and again. Never returns.
pub(crate) async fn run(mut ports: watch::Receiver<Ports>, verifier: Verifier) {
    let mut queue = Queue::default();
    let mut checks = JoinSet::new();
    loop {
        if ports.has_changed().unwrap_or(false) {
            queue.take_in(&ports.borrow_and_update());
        }
        if let Some((port, node)) = queue.next(Instant::now()) {
            let verifier = verifier.clone();
            checks.spawn(async move { verifier.check_baseline(port, &node).await });
        }
        sleep(pause(queue.batch, queue.turns.len())).await;
        while checks.try_join_next().is_some() {}
        if checks.len() >= CHECKS_MAX {
            checks.join_next().await;
        }
    }
}

/// The ports in the order of their turns: untried ones first, then the one whose try
/// lies farthest back.
#[derive(Default)]
struct Queue {
    turns: VecDeque<Turn>,
    /// Ports that were untried when the first of them came: their pace. 0 once all were tried.
    batch: usize,
}

struct Turn {
    port: SocketAddr,
    node: NodeName,
    tried: Option<Instant>,
}

impl Queue {
    /// Drops ports that are gone, and puts new ones first.
    fn take_in(&mut self, ports: &[(SocketAddr, NodeName)]) {
        let mut fresh: BTreeMap<_, _> = ports.iter().cloned().collect();
        self.turns.retain(|turn| fresh.remove(&turn.port).is_some());
        for (port, node) in fresh {
            self.turns.push_front(Turn {
                port,
                node,
                tried: None,
            });
        }
        let untried = self
            .turns
            .iter()
            .take_while(|turn| turn.tried.is_none())
            .count();
        self.batch = self.batch.max(untried);
    }

    /// The port whose turn it is; at most twice a sweep for each.
    fn next(&mut self, now: Instant) -> Option<(SocketAddr, NodeName)> {
        let turn = self.turns.front_mut()?;
        if turn.tried.is_some() {
            self.batch = 0;
        }
        if turn.tried.is_some_and(|tried| now - tried < SWEEP / 2) {
            return None;
        }
        turn.tried = Some(now);
        let due = (turn.port, turn.node.clone());
        self.turns.rotate_left(1);
        Some(due)
    }
}

/// Between two tries: so that a batch of untried ports is through within the first
/// sweep's time, and all ports within a sweep's.
fn pause(batch: usize, ports: usize) -> Duration {
    let share = |time: Duration, count: usize| {
        // A little faster than needed, for what each turn costs beside the pause.
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        time * 3 / 4 / count
    };
    let steady = share(SWEEP, ports);
    let pause = if batch > 0 {
        steady.min(share(FIRST_SWEEP, batch))
    } else {
        steady
    };
    pause.clamp(PAUSE_MIN, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(names: &[&str]) -> Vec<(SocketAddr, NodeName)> {
        let port = |(index, name): (usize, &&str)| {
            let address = SocketAddr::from(([10, 0, 0, u8::try_from(index).unwrap()], 10_250));
            (address, name.parse().unwrap())
        };
        names.iter().enumerate().map(port).collect()
    }

    #[test]
    fn new_ports_come_first_and_gone_ones_never() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.take_in(&ports(&["a", "b"]));
        assert_eq!(queue.batch, 2);
        let first: Vec<_> = (0..2)
            .filter_map(|_| queue.next(start))
            .map(|(_, n)| n.to_string())
            .collect();
        assert_eq!(first.len(), 2);
        assert_eq!(queue.next(start), None, "none is due so soon");
        queue.take_in(&ports(&["a", "b", "c"]));
        assert_eq!(queue.next(start).unwrap().1.as_str(), "c");
        queue.take_in(&ports(&["a"]));
        assert_eq!(queue.next(start + SWEEP).unwrap().1.as_str(), "a");
        assert_eq!(queue.turns.len(), 1);
        assert_eq!(queue.batch, 0);
    }

    /// Scenario 36: a baseline must not lapse because a cluster is large.
    #[test]
    fn every_port_is_tried_in_time_at_every_size() {
        for ports in [1, 12, 300, 5_000, 15_000, 30_000] {
            let turns = u32::try_from(ports).unwrap();
            assert!(
                pause(ports, ports) * turns <= FIRST_SWEEP.max(PAUSE_MIN * turns),
                "{ports}"
            );
            assert!(pause(0, ports) * turns <= SWEEP, "{ports}");
        }
    }
}
