//! The aggregators' baseline: every node's kubelet port, reached in turn.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use swimlet_protocol::Moment;

use crate::baseline::KubeletPort;

/// Within this time of a start, or of a node's appearance, each port has been tried.
const FIRST_SWEEP: Duration = Duration::from_secs(60);
/// Each port is tried again within this time: well within the baseline's window,
/// so that one failed try does not end it.
const SWEEP: Duration = Duration::from_secs(600);
/// No pause is longer, so that a new node does not wait.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// No pause is shorter: a connect and a TLS handshake cost both sides about a millisecond.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The ports in the order of their turns: untried ones first, then the one whose try
/// lies farthest back. As many as the Nodes that are watched have addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    turns: VecDeque<Turn>,
    /// Ports that were untried when the first of them came: their pace. 0 once all were tried.
    batch: usize,
    /// When the next try is due; never while there is no port.
    due: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Turn {
    port: KubeletPort,
    tried: Option<Moment>,
}

impl Sweep {
    /// When [`Self::next`] is to be asked.
    pub(crate) const fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Drops ports that are gone, and puts new ones first.
    pub(crate) fn take_in(&mut self, now: Moment, ports: Vec<KubeletPort>) {
        let mut fresh: BTreeSet<_> = ports.into_iter().collect();
        self.turns.retain(|turn| fresh.remove(&turn.port));
        for port in fresh {
            self.turns.push_front(Turn { port, tried: None });
        }
        let untried = self.turns.iter().take_while(|turn| turn.tried.is_none());
        let untried = untried.count();
        self.batch = self.batch.max(untried);
        let due = self.due.unwrap_or(now);
        let due = if untried > 0 { due.min(now) } else { due };
        self.due = (!self.turns.is_empty()).then_some(due);
    }

    /// The port whose turn it is; at most twice a sweep for each. `room` says whether
    /// another check may be started.
    pub(crate) fn next(&mut self, now: Moment, room: bool) -> Option<KubeletPort> {
        let port = if room { self.turn(now) } else { None };
        let soonest = now + pause(self.batch, self.turns.len());
        let front = self.turns.front();
        self.due = front.map(|turn| turn.rests_until().map_or(soonest, |at| at.max(soonest)));
        port
    }

    fn turn(&mut self, now: Moment) -> Option<KubeletPort> {
        let turn = self.turns.front_mut()?;
        if turn.tried.is_some() {
            self.batch = 0;
        }
        if turn.tried.is_some_and(|tried| now.since(tried) < SWEEP / 2) {
            return None;
        }
        turn.tried = Some(now);
        let due = turn.port.clone();
        self.turns.rotate_left(1);
        Some(due)
    }
}

impl Turn {
    fn rests_until(&self) -> Option<Moment> {
        self.tried.map(|tried| tried + SWEEP / 2)
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
    use std::net::SocketAddr;

    use super::*;

    fn ports(names: &[&str]) -> Vec<KubeletPort> {
        let port = |(index, name): (usize, &&str)| KubeletPort {
            address: SocketAddr::from(([10, 0, 0, u8::try_from(index).unwrap()], 10_250)),
            node: name.parse().unwrap(),
        };
        names.iter().enumerate().map(port).collect()
    }

    #[test]
    fn new_ports_come_first_and_gone_ones_never() {
        let start = Moment::from_micros(1);
        let mut sweep = Sweep::default();
        assert_eq!(sweep.due(), None);
        sweep.take_in(start, ports(&["a", "b"]));
        assert_eq!((sweep.batch, sweep.due()), (2, Some(start)));
        let first: Vec<_> = (0..2).filter_map(|_| sweep.next(start, true)).collect();
        assert_eq!(first.len(), 2);
        assert_eq!(sweep.next(start, true), None, "none is due so soon");
        assert_eq!(sweep.due(), Some(start + SWEEP / 2));
        sweep.take_in(start, ports(&["a", "b", "c"]));
        assert_eq!(sweep.due(), Some(start), "a new port does not wait");
        assert_eq!(sweep.next(start, false), None, "there is no room");
        assert_eq!(sweep.next(start, true).unwrap().node.as_str(), "c");
        sweep.take_in(start, ports(&["a"]));
        assert_eq!(sweep.next(start + SWEEP, true).unwrap().node.as_str(), "a");
        assert_eq!((sweep.turns.len(), sweep.batch), (1, 0));
        sweep.take_in(start, Vec::new());
        assert_eq!(sweep.due(), None);
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
