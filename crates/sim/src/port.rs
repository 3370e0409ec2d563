//! TCP as the checks see it: a kubelet's port that finishes TLS, accepts only, refuses, or
//! is silent, and the path to the API server.

use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::PortAnswer;
use swimlet_protocol::{Moment, NodeName};

use crate::api::KUBELET_PORT;
use crate::fault::{KubeletState, Port};
use crate::host::Stalled;
use crate::net::Fate;
use crate::process::Local;
use crate::record::{MemberId, NodeId};
use crate::world::{Event, World};

/// TCP's first repetition of a SYN (RFC 6298 §2).
const SYN_AGAIN: Duration = Duration::from_secs(1);
/// TCP's shortest retransmission timeout in Linux.
const RTO: Duration = Duration::from_millis(200);
/// What TLS and the answer cost a kubelet.
const TLS_WORK: Duration = Duration::from_millis(2);
/// Repetitions of a SYN within the longest limit of a check, 3 s.
const SYNS_MAX: u32 = 2;

/// A check of one port under way.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) by: MemberId,
    pub(crate) epoch: u32,
    /// What comes back with the answer.
    pub(crate) token: Token,
    pub(crate) port: SocketAddr,
    /// Whom the certificate should name.
    pub(crate) node: Option<NodeName>,
    /// When the check is over.
    pub(crate) until: Moment,
    /// SYNs sent before this one.
    pub(crate) syns: u32,
}

/// Whose check it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The verifier's.
    Verifier(u64),
    /// The agent's look at its own node.
    Own,
}

impl World {
    /// Begins a check.
    pub(crate) fn check(&mut self, mut check: Check) {
        self.counters.port_checks += 1;
        check.syns = 0;
        self.syn(check);
    }

    /// Sends a SYN.
    pub(crate) fn syn(&mut self, check: Check) {
        let prober = self.host_of(check.by);
        if self.now() >= check.until {
            // It was held until now, and its end was told.
            return;
        }
        let Some(host) = self.host_at(check.port.ip()) else {
            self.checked(&check, PortAnswer::Silent, check.until);
            return;
        };
        if prober != host && self.host(prober).sick > 0 {
            self.stall(prober, check);
            return;
        }
        match self.tcp(prober, host) {
            Fate::Arrives(way) => {
                let at = self.now() + way;
                self.queue.push(at, Event::Syn { host, check });
            }
            Fate::Rejected(way) => {
                let at = self.now() + way * 2;
                self.checked(&check, PortAnswer::Refuses, at);
            }
            Fate::Lost | Fate::TooLarge => self.syn_again(check),
        }
    }

    /// A check waits for a host's packets; the prober's timer goes on.
    fn stall(&mut self, host: NodeId, check: Check) {
        let until = check.until;
        self.checked(&check, PortAnswer::Silent, until);
        self.host_mut(host).stalled.push(Stalled::Check(check));
    }

    fn syn_again(&mut self, mut check: Check) {
        let again = self.now() + SYN_AGAIN * 2_u32.pow(check.syns);
        check.syns += 1;
        if again >= check.until || check.syns > SYNS_MAX {
            let until = check.until;
            self.checked(&check, PortAnswer::Silent, until);
        } else {
            self.queue.push(again, Event::SynAgain(check));
        }
    }

    fn tcp(&mut self, from: NodeId, to: NodeId) -> Fate {
        let ends = ((from, self.host(from).zone), (to, self.host(to).zone));
        self.net.fate(ends.0, ends.1, Port::Kubelet, None)
    }

    /// A SYN arrives.
    pub(crate) fn on_syn(&mut self, host: NodeId, check: Check) {
        let prober = self.host_of(check.by);
        let it = self.host(host);
        if it.sick > 0 && prober != host {
            self.stall(host, check);
            return;
        }
        if !it.runs() {
            self.syn_again(check);
            return;
        }
        let kubelet = (it.kubelet.state, it.kubelet.frozen > 0);
        let right_port = check.port.port() == KUBELET_PORT;
        let back = match self.tcp(host, prober) {
            Fate::Arrives(back) => back,
            Fate::Rejected(_) | Fate::Lost | Fate::TooLarge => {
                self.syn_again(check);
                return;
            }
        };
        let until = check.until;
        match kubelet {
            (KubeletState::Dead, _) => {
                let at = self.now() + back;
                self.checked(&check, PortAnswer::Refuses, at);
            }
            _ if !right_port => {
                let at = self.now() + back;
                self.checked(&check, PortAnswer::Refuses, at);
            }
            (KubeletState::Hung, _) | (KubeletState::Running, true) => {
                self.checked(&check, PortAnswer::Accepts, until);
            }
            (KubeletState::Running, false) => {
                let names_node = check.node.as_ref() == Some(&self.host(host).name);
                // SYN-ACK, the two flights of TLS 1.3, the request and its answer.
                let mut at = self.now() + back * 5 + TLS_WORK;
                for _ in 0..4 {
                    if !matches!(self.tcp(host, prober), Fate::Arrives(_)) {
                        at += RTO;
                    }
                }
                let answer = if at < until {
                    PortAnswer::Tls { names_node }
                } else {
                    PortAnswer::Accepts
                };
                self.checked(&check, answer, at.min(until));
            }
        }
    }

    /// The prober learns what a port did.
    fn checked(&mut self, check: &Check, answer: PortAnswer, at: Moment) {
        let host = self.host_at(check.port.ip());
        let local = Local::Checked {
            token: check.token,
            answer,
            host: host.filter(|_| answer != PortAnswer::Silent),
        };
        let at = at.max(self.now());
        self.queue.push(
            at,
            Event::Local {
                member: check.by,
                epoch: check.epoch,
                local,
            },
        );
    }
}
