//! Kubelets towards the API server: Leases, status reports, and taking an Unknown back.

use std::time::Duration;

use crate::api::{Reported, clock};
use crate::fault::KubeletState;
use crate::host::Stalled;
use crate::record::{NodeId, What};
use crate::world::{Event, World};

/// A kubelet computes its status this often.
const STATUS: Duration = Duration::from_secs(10);
/// Renewals in a Lease's duration.
const RENEWALS: u32 = 4;
/// The longest pause between two tries to renew a Lease.
const RENEW_AGAIN: Duration = Duration::from_secs(7);
/// Between a kubelet's start and its first report.
const FIRST_REPORT: Duration = Duration::from_millis(100);
/// How often a process that is not run is looked at.
const STOPPED_LOOK: Duration = Duration::from_millis(500);
/// The node lifecycle controller's pass.
pub(crate) const MONITOR: Duration = Duration::from_secs(5);

/// What a kubelet does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// It renews its Lease.
    Lease,
    /// It computes its status, and writes it if it differs or is due.
    Status,
}

impl World {
    /// A kubelet's process starts.
    pub(crate) fn start_kubelet(&mut self, node: NodeId) {
        let now = self.now();
        let lease = self.topology().lease.duration();
        let kubelet = &mut self.host_mut(node).kubelet;
        kubelet.start += 1;
        kubelet.state = KubeletState::Running;
        kubelet.report_due = now;
        let start = kubelet.start;
        let first = now + FIRST_REPORT;
        let status = Beat::Status;
        self.queue.push(
            first,
            Event::Beat {
                node,
                start,
                beat: status,
            },
        );
        if !lease.is_zero() {
            let wait = self.net.random(lease / RENEWALS);
            self.beat_later(node, start, Beat::Lease, wait);
        }
        self.note_truth(node);
    }

    fn beat_later(&mut self, node: NodeId, start: u32, beat: Beat, wait: Duration) {
        let at = self.now() + wait;
        self.queue.push(at, Event::Beat { node, start, beat });
    }

    /// A kubelet's next round.
    pub(crate) fn beat(&mut self, node: NodeId, start: u32, beat: Beat) {
        let host = self.host(node);
        let running = host.kubelet.state == KubeletState::Running;
        if !host.power || host.kubelet.start != start || !running {
            return;
        }
        if !host.kubelet_works() {
            self.beat_later(node, start, beat, STOPPED_LOOK);
            return;
        }
        let usual = match beat {
            Beat::Lease => self.topology().lease.duration() / RENEWALS,
            Beat::Status => STATUS,
        };
        let jitter = self.net.random(usual / 25);
        let reachable = self.api.down == 0 && self.net.api_open(node);
        let wait = if reachable || beat == Beat::Status {
            usual + jitter
        } else {
            RENEW_AGAIN.min(usual)
        };
        self.beat_later(node, start, beat, wait);
        self.kubelet_asks(node, start, beat);
    }

    /// A kubelet's request, unless there is no path or its packets are held.
    pub(crate) fn kubelet_asks(&mut self, node: NodeId, start: u32, beat: Beat) {
        if self.host(node).sick > 0 {
            let stalled = &mut self.host_mut(node).stalled;
            let waits = |it: &Stalled| matches!(it, Stalled::Kubelet { beat: b, .. } if *b == beat);
            if !stalled.iter().any(waits) {
                stalled.push(Stalled::Kubelet { start, beat });
            }
        } else if self.net.api_open(node) {
            let at = self.now() + self.net.api_way() + self.api.slow;
            self.queue.push(at, Event::Kubelet { node, start, beat });
        }
    }

    /// A kubelet's request arrives.
    pub(crate) fn serve_kubelet(&mut self, node: NodeId, start: u32, beat: Beat) {
        let now = self.now();
        let host = self.host(node);
        if self.api.down > 0 || host.kubelet.start != start {
            return;
        }
        let (ahead_ms, address) = (host.clock_ahead_ms, host.address);
        match beat {
            Beat::Lease => self.api.renew(node.0 as usize, now),
            Beat::Status => {
                let due = host.kubelet.report_due <= now;
                if host.registers {
                    self.register(node);
                } else if !due && !self.api.differs(node.0 as usize, address) {
                    return;
                }
                let every = self.topology().status_report.duration();
                let next = every / 2 + self.net.random(every);
                self.host_mut(node).kubelet.report_due = now + next;
                let reported = self
                    .api
                    .report(node.0 as usize, now, address, clock(now, ahead_ms));
                if let Reported::Stored { took_back } = reported {
                    if let Some(ours) = took_back {
                        self.tell(What::TakenBack { node, ours });
                    }
                    self.publish(node);
                }
            }
        }
    }

    /// The node lifecycle controller looks at every Node.
    pub(crate) fn monitor(&mut self) {
        let grace = self.topology().in_tree_grace.duration();
        let now = self.now();
        if self.api.down == 0 {
            for node in (0..self.nodes()).map(NodeId) {
                if self.api.in_tree(node.0 as usize, now, grace) {
                    self.tell(What::InTree { node });
                    self.publish(node);
                }
            }
        }
        self.queue.push(now + MONITOR, Event::Monitor);
    }
}
