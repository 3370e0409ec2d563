//! The API server, the kubelets that write to it, and the writer of decisions.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use swimlet_protocol::{MemberKey, Role};
use swimlet_verdict::{
    Decision, Input, LeaseRead, NodeRef, NodeSeen, ReadyCondition, ReadyStatus, WriteOutcome,
};

use crate::member::cluster;
use crate::net::{Host, Net, Write};

/// A kubelet renews its Lease, and looks at its Node, this often.
const KUBELET_PERIOD: Duration = Duration::from_secs(10);
/// The jitter of that.
const KUBELET_JITTER: Duration = Duration::from_millis(400);
/// `nodeLeaseDurationSeconds`.
const LEASE_DURATION: Duration = Duration::from_secs(40);
/// Rounds of a kubelet after which it reports its status unasked: 5 min.
const STATUS_REPORT_ROUNDS: u64 = 30;
/// Before a request to the API server is done.
const REQUEST: Duration = Duration::from_millis(3);

impl Net {
    pub(crate) fn add_host(&mut self, index: usize, zone: &'static str) {
        let last = u8::try_from(index + 1).unwrap();
        self.hosts.push(Host {
            name: format!("n{index:02}").parse().unwrap(),
            zone,
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
            power: true,
            udp_in: true,
            udp_out: true,
            tcp_in: true,
            api: true,
            boot: 0,
            ready: ReadyCondition {
                status: ReadyStatus::True,
                reason: "KubeletReady".to_owned(),
                heartbeat: Some(1),
                transition: Some(1),
                ours: false,
            },
            lease: 1,
        });
    }

    /// Everything on a host stops, without a packet.
    pub(crate) fn power_off(&mut self, host: usize) {
        self.hosts[host].power = false;
        self.hosts[host].boot += 1;
        for member in 0..self.members.len() {
            if self.members[member].host == host {
                self.stop(member);
            }
        }
    }

    /// A host boots: its kubelet first, its agent some seconds later.
    pub(crate) fn power_on(&mut self, host: usize) {
        self.hosts[host].power = true;
        self.start_kubelet(host);
        for member in 0..self.members.len() {
            if self.members[member].host == host {
                let delay = self.random(Duration::from_secs(5));
                self.after(delay, move |net| net.start(member));
            }
        }
    }

    pub(crate) fn start_kubelet(&mut self, host: usize) {
        let boot = self.hosts[host].boot;
        let phase = self.random(KUBELET_PERIOD);
        self.after(phase, move |net| net.kubelet(host, boot));
    }

    /// One round of a kubelet: it renews its Lease, and takes back what others wrote.
    fn kubelet(&mut self, host: usize, boot: u32) {
        let it = &mut self.hosts[host];
        if !it.power || it.boot != boot {
            return;
        }
        if it.api {
            it.lease += 1;
            let foreign = it.ready.status != ReadyStatus::True;
            if foreign || it.lease.is_multiple_of(STATUS_REPORT_ROUNDS) {
                it.ready.heartbeat = it.ready.heartbeat.map(|at| at + 1);
                it.ready.transition = it.ready.transition.map(|at| at + i64::from(foreign));
                it.ready.status = ReadyStatus::True;
                it.ready.reason = "KubeletReady".to_owned();
                it.ready.ours = false;
                self.publish(host);
            }
        }
        let pause = KUBELET_PERIOD + self.random(KUBELET_JITTER);
        self.after(pause, move |net| net.kubelet(host, boot));
    }

    /// The Node as the API server holds it.
    pub(crate) fn node(&self, host: usize) -> NodeSeen {
        let host = &self.hosts[host];
        NodeSeen {
            node: NodeRef {
                name: host.name.clone(),
                uid: format!("uid-{}", host.name).into(),
            },
            key: MemberKey::of(&cluster(), Role::Agent, &host.name),
            zone: host.zone.parse().unwrap(),
            addresses: vec![host.address],
            kubelet_port: 10_250,
            ready: Some(host.ready.clone()),
            hold: false,
            deleting: false,
            lifecycle: Vec::new(),
            agentless: false,
        }
    }

    /// Every watch shows a Node.
    fn publish(&mut self, host: usize) {
        let aggregators: Vec<usize> = (0..self.members.len())
            .filter(|&member| self.members[member].aggregator.is_some())
            .collect();
        for member in aggregators {
            let seen = self.node(host);
            let latency = REQUEST + self.latency();
            self.after_at(member, latency, move |net| {
                net.tell(member, Input::Node(seen))
            });
        }
    }

    pub(crate) fn read_lease(&mut self, member: usize, node: NodeRef) {
        let latency = REQUEST + self.latency();
        self.after_at(member, latency, move |net| {
            let read = LeaseRead::Renewed {
                fingerprint: net.hosts[net.host_of(&node.name)].lease,
                duration: Some(LEASE_DURATION),
            };
            net.tell(member, Input::Lease { node, read });
        });
    }

    /// The writer: a fresh read, then a write with a precondition.
    pub(crate) fn carry_to_api(&mut self, member: usize, decision: Decision) {
        let Some(reason) = decision.verdict.reason() else {
            return;
        };
        let latency = REQUEST + self.latency();
        self.after_at(member, latency, move |net| {
            let node = net.host_of(&decision.node.name);
            let now = net.now;
            let ready = &mut net.hosts[node].ready;
            let outcome = if Some(&*ready) == decision.evidence.ready.as_ref() {
                ready.status = ReadyStatus::Unknown;
                ready.reason = reason.to_owned();
                ready.transition = ready.transition.map(|at| at + 1);
                ready.ours = true;
                net.writes.push(Write {
                    at: now,
                    by: member,
                    node,
                    verdict: decision.verdict,
                    episode: decision.episode,
                });
                net.publish(node);
                WriteOutcome::Written
            } else {
                WriteOutcome::Superseded
            };
            let latency = net.latency();
            net.after_at(member, latency, move |net| {
                let written = Input::Written {
                    node: decision.node,
                    episode: decision.episode,
                    outcome,
                };
                net.tell(member, written);
            });
        });
    }
}
