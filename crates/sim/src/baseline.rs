//! Plain foca 2.0, for comparison: its own probes, suspicions and Downs, with its default
//! configuration for the size of the cluster, on the network model that our members run on.
//!
//! UDP instead of QUIC, one datagram a packet, no Kubernetes around it. It is what one
//! gets by putting the library into a DaemonSet, and no criticism of it: foca is the core
//! beneath our member table too.

mod wire;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use foca::{Config, Foca, Identity, Member, NoCustomBroadcast, Notification, Runtime, Timer};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use swimlet_protocol::Moment;

use crate::fault::Port;
use crate::host::HELD_MAX;
use crate::net::{Fate, Net};
use crate::queue::Queue;
use crate::record::NodeId;
use crate::topology::Network;
use wire::Wire;

/// A member as foca knows it: its number, and how often it came back after it had been
/// declared down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) node: u32,
    pub(crate) renewed: u16,
}

/// That a member declared another one down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// When, since the start.
    pub at: Duration,
    /// Who.
    pub by: NodeId,
    /// Whom.
    pub about: NodeId,
}

/// A cluster of plain foca members.
pub struct Baseline {
    now: Moment,
    zones: u16,
    members: Vec<Foca<Id, Wire, Xoshiro256PlusPlus, NoCustomBroadcast>>,
    hosts: Vec<Host>,
    queue: Queue<Event>,
    net: Net,
    downs: Vec<Down>,
    errors: u64,
}

#[derive(Clone, Debug, Default)]
struct Host {
    off: bool,
    sick: bool,
    /// Packets of and for it that wait until it is well. At most [`HELD_MAX`].
    held: Vec<(u32, u32, Bytes)>,
}

enum Event {
    Packet {
        from: u32,
        to: u32,
        data: Bytes,
    },
    Timer {
        of: u32,
        timer: Timer<Id>,
    },
    Crash(u32),
    Sick {
        node: u32,
        held: Duration,
        free: Duration,
        until: Moment,
    },
    Well {
        node: u32,
        held: Duration,
        free: Duration,
        until: Moment,
    },
}

/// What a member wants, until it is carried out.
#[derive(Default)]
struct Wanted {
    sends: Vec<(Id, Bytes)>,
    timers: Vec<(Duration, Timer<Id>)>,
    downs: Vec<u32>,
}

impl Baseline {
    /// A cluster whose members know each other, their timers out of phase.
    #[must_use]
    pub fn new(nodes: NonZeroU32, zones: u16, network: &Network, seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let config = Config::new_lan(nodes);
        let id = |node| Id { node, renewed: 0 };
        let mut cluster = Self {
            now: Moment::ORIGIN,
            zones: zones.max(1),
            members: Vec::new(),
            hosts: vec![Host::default(); nodes.get() as usize],
            queue: Queue::new(),
            net: Net::new(network.clone(), rng.random()),
            downs: Vec::new(),
            errors: 0,
        };
        for node in 0..nodes.get() {
            let rng_of = Xoshiro256PlusPlus::seed_from_u64(rng.random());
            let mut member = Foca::new(id(node), config.clone(), rng_of, Wire);
            let others = (0..nodes.get()).filter(|other| *other != node);
            let mut wanted = Wanted::default();
            let known = member.apply_many(others.map(|o| Member::alive(id(o))), false, &mut wanted);
            cluster.errors += u64::from(known.is_err());
            cluster.members.push(member);
            let period = u64::try_from(config.probe_period.as_micros()).unwrap_or(1);
            let phase = Duration::from_micros(rng.random_range(0..period));
            for (after, timer) in wanted.timers {
                let at = cluster.now + phase + after;
                cluster.queue.push(at, Event::Timer { of: node, timer });
            }
        }
        cluster
    }

    /// A host loses its power at that time.
    pub fn crash(&mut self, at: Duration, node: NodeId) {
        self.queue.push(Moment::ORIGIN + at, Event::Crash(node.0));
    }

    /// From `at` to `until` all packets of and for a host are held for `held` and flow
    /// for `free`, in turn.
    pub fn sicken(
        &mut self,
        node: NodeId,
        (at, until): (Duration, Duration),
        (held, free): (Duration, Duration),
    ) {
        let sick = Event::Sick {
            node: node.0,
            held,
            free,
            until: Moment::ORIGIN + until,
        };
        self.queue.push(Moment::ORIGIN + at, sick);
    }

    /// Lets time pass, up to so long after the start.
    pub fn run_to(&mut self, until: Duration) {
        let until = Moment::ORIGIN + until;
        while let Some(at) = self.queue.next_at().filter(|at| *at <= until) {
            self.now = at;
            if let Some(event) = self.queue.pop() {
                self.handle(event);
            }
        }
        self.now = until;
    }

    /// Every Down so far, in order.
    #[must_use]
    pub fn downs(&self) -> &[Down] {
        &self.downs
    }

    /// Errors that foca gave back: packets for a former identity, mostly.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet { from, to, data } => self.arrives(from, to, data),
            Event::Timer { of, timer } => {
                if !self.hosts[of as usize].off {
                    self.act(of, |member, wanted| member.handle_timer(timer, wanted));
                }
            }
            Event::Crash(node) => self.hosts[node as usize].off = true,
            Event::Sick {
                node,
                held,
                free,
                until,
            } if self.now < until => {
                self.hosts[node as usize].sick = true;
                let well = Event::Well {
                    node,
                    held,
                    free,
                    until,
                };
                self.queue.push((self.now + held).min(until), well);
            }
            Event::Sick { .. } => {}
            Event::Well {
                node,
                held,
                free,
                until,
            } => {
                let host = &mut self.hosts[node as usize];
                host.sick = false;
                for (from, to, data) in std::mem::take(&mut host.held) {
                    self.send(from, to, data);
                }
                let sick = Event::Sick {
                    node,
                    held,
                    free,
                    until,
                };
                self.queue.push(self.now + free, sick);
            }
        }
    }

    fn arrives(&mut self, from: u32, to: u32, data: Bytes) {
        let host = &mut self.hosts[to as usize];
        if host.off {
            return;
        }
        if host.sick {
            if host.held.len() < HELD_MAX {
                host.held.push((from, to, data));
            }
            return;
        }
        self.act(to, |member, wanted| member.handle_data(&data, wanted));
    }

    fn act(
        &mut self,
        of: u32,
        action: impl FnOnce(
            &mut Foca<Id, Wire, Xoshiro256PlusPlus, NoCustomBroadcast>,
            &mut Wanted,
        ) -> Result<(), foca::Error>,
    ) {
        let mut wanted = Wanted::default();
        let done = action(&mut self.members[of as usize], &mut wanted);
        self.errors += u64::from(done.is_err());
        for about in wanted.downs {
            self.downs.push(Down {
                at: self.now.since(Moment::ORIGIN),
                by: NodeId(of),
                about: NodeId(about),
            });
        }
        for (after, timer) in wanted.timers {
            self.queue
                .push(self.now + after, Event::Timer { of, timer });
        }
        for (to, data) in wanted.sends {
            self.send(of, to.node, data);
        }
    }

    fn send(&mut self, from: u32, to: u32, data: Bytes) {
        let host = &mut self.hosts[from as usize];
        if host.sick {
            if host.held.len() < HELD_MAX {
                host.held.push((from, to, data));
            }
            return;
        }
        let zone = |node: u32| u16::try_from(node % u32::from(self.zones)).unwrap_or_default();
        let ends = ((NodeId(from), zone(from)), (NodeId(to), zone(to)));
        let fate = self.net.fate(ends.0, ends.1, Port::Mesh, Some(data.len()));
        if let Fate::Arrives(after) = fate {
            self.queue
                .push(self.now + after, Event::Packet { from, to, data });
        }
    }
}

impl Identity for Id {
    type Addr = u32;

    fn renew(&self) -> Option<Self> {
        Some(Self {
            renewed: self.renewed.wrapping_add(1),
            ..*self
        })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.renewed > adversary.renewed
    }
}

impl Runtime<Id> for Wanted {
    fn notify(&mut self, notification: Notification<'_, Id>) {
        if let Notification::MemberDown(id) = notification {
            self.downs.push(id.node);
        }
    }

    fn send_to(&mut self, to: Id, data: &[u8]) {
        self.sends.push((to, Bytes::copy_from_slice(data)));
    }

    fn submit_after(&mut self, timer: Timer<Id>, after: Duration) {
        self.timers.push((after, timer));
    }
}
