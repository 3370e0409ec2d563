//! Hosts: what runs on them, and what their faults do to packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use swimlet_protocol::{Moment, NodeName};

use crate::edge::Request;
use crate::fault::KubeletState;
use crate::kubelet::Beat;
use crate::link::Packet;
use crate::port::Check;
use crate::process::Local;
use crate::record::{MemberId, NodeId, Truth};

/// Packets of others that a socket holds for a process that does not read: the kernel's
/// default of 212,992 bytes, at 832 bytes for a small datagram (`SKB_TRUESIZE`).
pub(crate) const SOCKET_PACKETS_MAX: usize = 256;
/// Packets that a network holds for a host whose packets are held: a minute of an
/// aggregator of 5,000 nodes. What comes beyond is lost, and counted.
pub(crate) const HELD_MAX: usize = 131_072;

/// A machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: NodeName,
    pub(crate) zone: u16,
    pub(crate) address: IpAddr,
    pub(crate) power: bool,
    /// Counts its boots.
    pub(crate) boot: u32,
    /// Faults that stop all that runs on it.
    pub(crate) frozen: u32,
    /// Faults that hold its packets.
    pub(crate) sick: u32,
    /// Held until it is well: from whom, to whom, what.
    pub(crate) held: Vec<(MemberId, MemberId, Packet)>,
    /// Connections to its kubelet's port and its own requests that wait for that.
    pub(crate) stalled: Vec<Stalled>,
    pub(crate) kubelet: Kubelet,
    /// Whether its kubelet serves `:10248` as well.
    pub(crate) serves_healthz: bool,
    /// Whether its kubelet makes a Node object when it reports.
    pub(crate) registers: bool,
    /// Counts its Node objects.
    pub(crate) life: u32,
    pub(crate) agentless: bool,
    /// Its wall clock is that many milliseconds ahead.
    pub(crate) clock_ahead_ms: i64,
    pub(crate) agent: Option<MemberId>,
    pub(crate) aggregator: Option<MemberId>,
    /// When a packet of it last reached a healthy process elsewhere.
    pub(crate) answered: Option<Moment>,
    pub(crate) history: Vec<(Moment, Truth)>,
}

/// Something that a sick host's packets keep from going on.
#[derive(Debug)]
pub(crate) enum Stalled {
    /// A connection to its kubelet's port.
    Check(Check),
    /// A request of its kubelet.
    Kubelet { start: u32, beat: Beat },
    /// A request of its aggregator.
    Request(Request),
    /// Something of the API server's for its aggregator.
    Local(MemberId, u32, Local),
}

/// The kubelet's process.
#[derive(Debug)]
pub(crate) struct Kubelet {
    pub(crate) state: KubeletState,
    /// Faults that stop it as a process is stopped.
    pub(crate) frozen: u32,
    /// When its next status report is due.
    pub(crate) report_due: Moment,
    /// Counts its starts: a round of an earlier one ends.
    pub(crate) start: u32,
}

impl Host {
    /// Whether anything is run on it.
    pub(crate) fn runs(&self) -> bool {
        self.power && self.frozen == 0
    }

    /// Whether its kubelet's process does its work.
    pub(crate) fn kubelet_works(&self) -> bool {
        self.runs() && self.kubelet.state == KubeletState::Running && self.kubelet.frozen == 0
    }
}

/// The `index`th address of a world, of either family for each host in turn so that both
/// are used.
pub(crate) fn address(index: u32) -> IpAddr {
    if index % 4 == 3 {
        return IpAddr::V6(Ipv6Addr::new(
            0xfd00,
            0,
            0,
            0,
            0,
            0,
            (index >> 16) as u16,
            index as u16,
        ));
    }
    IpAddr::V4(Ipv4Addr::from(0x0a00_0100 + index))
}

/// A node's name.
pub(crate) fn name(node: NodeId) -> String {
    format!("node-{:05}", node.0)
}
