//! A member's process: the production roles, and what decides when they are run.
//!
//! What arrives while a process is not run waits in its inbox and is read before its
//! timers fire, as the binary's driver does it.

mod outputs;
mod start;

use std::collections::VecDeque;
use std::time::Duration;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::frame::PortAnswer;
use swimlet_protocol::{Generation, Identity, MemberKey, MemberRecord, Moment, Role};
use swimlet_roles::member::Input;
use swimlet_roles::{Aggregator, Member, SelfChecks, aggregator, checks};

use crate::edge::{Edge, Reply};
use crate::fault::Part;
use crate::host::SOCKET_PACKETS_MAX;
use crate::link::{Packet, Wire};
use crate::port::Token;
use crate::record::{MemberId, NodeId, Traffic};
use crate::units::Ppm;
use crate::world::{Event, World};

/// Ports of agents and aggregators.
pub(crate) const AGENT_PORT: u16 = 10_270;
pub(crate) const AGGREGATOR_PORT: u16 = 10_271;
/// The period of a CPU quota.
const QUOTA_PERIOD: Duration = Duration::from_millis(100);
/// What reading one packet costs where CPU is scarce: QUIC's work, as measured.
const PACKET_CPU: Duration = Duration::from_micros(60);
/// Own clocks of processes begin at some time within this.
const CLOCKS_APART: Duration = Duration::from_secs(1_000);

/// One member over its restarts.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) host: NodeId,
    pub(crate) role: Role,
    pub(crate) identity: Identity,
    pub(crate) key: MemberKey,
    /// Counts its starts and ends: what was meant for an earlier start comes to nothing.
    pub(crate) epoch: u32,
    pub(crate) life: Option<Box<Life>>,
    /// Faults that stop it as a process is stopped.
    pub(crate) frozen: u32,
    /// Faults that make each packet cost that much.
    pub(crate) per_packet: Duration,
    /// Its part of a CPU.
    pub(crate) quota: Option<Ppm>,
    /// Faults that make it lie.
    pub(crate) lies: u32,
    inbox: VecDeque<Arrival>,
    inbox_packets: usize,
    busy_until: Moment,
    /// Whether its return to work is in the queue.
    resuming: bool,
    /// The last generation it had.
    generation: Generation,
    pub(crate) traffic: Traffic,
}

/// A running process.
pub(crate) struct Life {
    /// Its own clock is that much ahead of the world's.
    clock_ahead: Duration,
    pub(crate) member: Member,
    pub(crate) aggregator: Option<Aggregator>,
    pub(crate) checks: Option<SelfChecks>,
    pub(crate) edge: Option<Edge>,
    pub(crate) wire: Wire,
    pub(crate) record: MemberRecord,
    /// Whether it has joined as members of a prepared world do.
    pub(crate) joined: bool,
}

/// What waits to be read.
#[derive(Debug)]
enum Arrival {
    Packet(MemberId, Packet),
    Local(Local),
}

/// Something of a process's own that is due, or answered.
#[derive(Debug)]
pub(crate) enum Local {
    /// Links may have idled.
    Idle,
    /// The first packet of a dial is to be repeated.
    Initial { dial: u64, connection: u64, n: u32 },
    /// An address did not answer in time.
    DialTimeout { dial: u64, connection: u64 },
    /// A dial that waited may begin.
    DialNow { dial: u64 },
    /// The server's side of a handshake is computed.
    Accept {
        to: MemberId,
        connection: u64,
        dial: u64,
    },
    /// What has not arrived is to be repeated.
    Again {
        to: MemberId,
        packet: Box<Packet>,
        n: u32,
    },
    /// A sync took too long.
    SyncTimeout { stream: u64 },
    /// Name resolution finds other seeds.
    Seeds,
    /// A port did something; the host that answered, if one did.
    Checked {
        token: Token,
        answer: PortAnswer,
        host: Option<NodeId>,
    },
    /// A liar's next salvo.
    Lie,
    /// The API server answered a call; `None`: it took too long.
    Call { id: u64, reply: Option<Box<Reply>> },
    /// The watch shows something.
    Watch(Box<crate::edge::Shown>),
    /// The edge has something due.
    Edge,
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life")
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

impl Process {
    pub(crate) fn new(host: NodeId, identity: Identity) -> Self {
        Self {
            host,
            role: identity.role,
            key: identity.key(),
            identity,
            epoch: 0,
            life: None,
            frozen: 0,
            per_packet: Duration::ZERO,
            quota: None,
            lies: 0,
            inbox: VecDeque::new(),
            inbox_packets: 0,
            busy_until: Moment::ORIGIN,
            resuming: false,
            generation: Generation::default(),
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self.role {
            Role::Agent => AGENT_PORT,
            Role::Aggregator => AGGREGATOR_PORT,
        }
    }

    /// Whether a fault takes this process for its own.
    pub(crate) fn is_of(&self, part: Part) -> bool {
        match part {
            Part::Host => true,
            Part::Agent => self.role == Role::Agent,
            Part::Aggregator => self.role == Role::Aggregator,
            Part::Kubelet => false,
        }
    }
}

impl Life {
    /// The world's `now` on its own clock.
    pub(crate) fn local(&self, now: Moment) -> Moment {
        now + self.clock_ahead
    }

    /// A moment of its own clock on the world's.
    pub(crate) fn global(&self, at: Moment) -> Moment {
        at.before(self.clock_ahead)
    }

    fn next_wake(&self) -> Moment {
        let mut wake = self.member.next_wake();
        if let Some(aggregator) = &self.aggregator {
            wake = wake.min(aggregator.next_wake());
        }
        if let Some(due) = self.checks.as_ref().and_then(SelfChecks::next_wake) {
            wake = wake.min(due);
        }
        self.global(wake)
    }
}

// Running.
impl World {
    pub(crate) fn life(&self, member: MemberId) -> Option<&Life> {
        self.processes[member.0 as usize].life.as_deref()
    }

    pub(crate) fn life_mut(&mut self, member: MemberId) -> Option<&mut Life> {
        self.processes[member.0 as usize].life.as_deref_mut()
    }

    /// Whether a process is run at all, busy or not.
    pub(crate) fn is_run(&self, member: MemberId) -> bool {
        let process = &self.processes[member.0 as usize];
        process.life.is_some() && process.frozen == 0 && self.host(process.host).runs()
    }

    /// Whether it takes up something new now.
    fn is_free(&self, member: MemberId) -> bool {
        let process = &self.processes[member.0 as usize];
        process.inbox.is_empty() && process.busy_until <= self.now() && self.is_run(member)
    }

    /// Something of a process's own is due later.
    pub(crate) fn after(&mut self, member: MemberId, delay: Duration, local: Local) {
        let epoch = self.processes[member.0 as usize].epoch;
        let at = self.now() + delay;
        self.queue.push(
            at,
            Event::Local {
                member,
                epoch,
                local,
            },
        );
    }

    pub(crate) fn deliver_packet(&mut self, from: MemberId, to: MemberId, packet: Packet) {
        let free = self.is_free(to);
        let process = &mut self.processes[to.0 as usize];
        if process.life.is_none() {
            self.counters.frames_lost += 1;
        } else if free {
            self.take(to, Arrival::Packet(from, packet));
            self.settle(to);
        } else if process.inbox_packets >= SOCKET_PACKETS_MAX {
            self.counters.frames_overflow += 1;
        } else {
            process.inbox_packets += 1;
            process.inbox.push_back(Arrival::Packet(from, packet));
            let waiting = process.inbox_packets as u64;
            self.counters.inbox_max = self.counters.inbox_max.max(waiting);
            self.resume_later(to);
        }
    }

    pub(crate) fn deliver_local(&mut self, member: MemberId, epoch: u32, local: Local) {
        let free = self.is_free(member);
        let process = &mut self.processes[member.0 as usize];
        if process.epoch != epoch || process.life.is_none() {
            return;
        }
        if free {
            self.take(member, Arrival::Local(local));
            self.settle(member);
        } else {
            process.inbox.push_back(Arrival::Local(local));
            self.resume_later(member);
        }
    }

    /// A process that is run again, or not busy any more, reads what waited, and then its
    /// timers fire.
    pub(crate) fn resume(&mut self, member: MemberId) {
        self.processes[member.0 as usize].resuming = false;
        if !self.is_run(member) {
            return;
        }
        self.wake_if_late(member);
        while self.processes[member.0 as usize].busy_until <= self.now() {
            let process = &mut self.processes[member.0 as usize];
            let Some(arrival) = process.inbox.pop_front() else {
                break;
            };
            process.inbox_packets -= usize::from(matches!(arrival, Arrival::Packet(..)));
            self.take(member, arrival);
        }
        self.settle(member);
    }

    /// An aggregator that was not run learns it before anything else.
    fn wake_if_late(&mut self, member: MemberId) {
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            return;
        };
        let local = life.local(now);
        if let Some(aggregator) = &mut life.aggregator
            && aggregator.is_late(local)
        {
            aggregator.handle(local, aggregator::Input::Wake);
            self.drain(member);
        }
    }

    /// Puts a process's return to work into the queue, unless it is there or cannot be told.
    pub(crate) fn resume_later(&mut self, member: MemberId) {
        let now = self.now();
        if !self.is_run(member) {
            return;
        }
        let process = &mut self.processes[member.0 as usize];
        if process.resuming {
            return;
        }
        process.resuming = true;
        let at = process.busy_until.max(now);
        self.queue.push(at, Event::Resume { member });
    }

    fn take(&mut self, member: MemberId, arrival: Arrival) {
        self.counters.inputs += 1;
        let packet = matches!(arrival, Arrival::Packet(..));
        match arrival {
            Arrival::Packet(from, packet) => self.read(member, from, packet),
            Arrival::Local(local) => self.do_local(member, local),
        }
        self.charge(member, packet);
    }

    /// CPU time is spent, where it is scarce.
    fn charge(&mut self, member: MemberId, packet: bool) {
        let now = self.now();
        let process = &mut self.processes[member.0 as usize];
        if process.quota.is_none() && process.per_packet.is_zero() {
            return;
        }
        let mut cost = PACKET_CPU;
        if packet {
            cost += process.per_packet;
        }
        process.busy_until = process.busy_until.max(now) + cost;
        if let Some(quota) = process.quota {
            process.busy_until = within_quota(process.busy_until, quota);
        }
    }

    fn do_local(&mut self, member: MemberId, local: Local) {
        match local {
            Local::Idle => self.look_for_idle(member),
            Local::Initial {
                dial,
                connection,
                n,
            } => {
                self.send_initial(member, dial, connection, n);
            }
            Local::DialTimeout { dial, connection } => {
                self.dial_timed_out(member, dial, connection);
            }
            Local::DialNow { dial } => self.dial_now(member, dial),
            Local::Accept {
                to,
                connection,
                dial,
            } => self.send_accept(member, to, connection, dial),
            Local::Again { to, packet, n } => self.send_again(member, to, *packet, n),
            Local::SyncTimeout { stream } => self.sync_timed_out(member, stream),
            Local::Seeds => {
                let seeds = MeshInput::Seeds(self.seeds());
                self.feed(member, Input::Mesh(seeds));
            }
            Local::Checked {
                token,
                answer,
                host,
            } => self.learn_port(member, token, answer, host),
            Local::Lie => self.spread_lies(member),
            Local::Call { id, reply } => self.call_ended(member, id, reply),
            Local::Watch(shown) => self.on_shown(member, *shown),
            Local::Edge => self.look_at_edge(member),
        }
    }

    fn learn_port(
        &mut self,
        member: MemberId,
        token: Token,
        answer: PortAnswer,
        host: Option<NodeId>,
    ) {
        if let Some(host) = host {
            self.note_answer_of(host, member);
        }
        match token {
            Token::Verifier(token) => self.feed(member, Input::Checked { token, answer }),
            Token::Own => self.looked(member, answer),
        }
    }

    /// Hands something to a member's role.
    pub(crate) fn feed(&mut self, member: MemberId, input: Input) {
        let now = self.now();
        if let Some(life) = self.life_mut(member) {
            let local = life.local(now);
            life.member.handle(local, input);
            self.drain(member);
        }
    }

    /// Hands something to an aggregator's role.
    pub(crate) fn inform(&mut self, member: MemberId, input: aggregator::Input) {
        let now = self.now();
        if let Some(life) = self.life_mut(member) {
            let local = life.local(now);
            if let Some(aggregator) = &mut life.aggregator {
                aggregator.handle(local, input);
            }
            self.drain(member);
        }
    }

    /// Timers of a process are due.
    pub(crate) fn wake(&mut self, member: MemberId) {
        if !self.is_free(member) {
            // It comes back to them when it has read what waits.
            self.wakes.set(member.0 as usize, None);
            self.resume_later(member);
            return;
        }
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            self.wakes.set(member.0 as usize, None);
            return;
        };
        let local = life.local(now);
        if life.member.next_wake() <= local {
            life.member.handle(local, Input::Wake);
        }
        if let Some(aggregator) = &mut life.aggregator
            && aggregator.next_wake() <= local
        {
            aggregator.handle(local, aggregator::Input::Wake);
        }
        if let Some(checks) = &mut life.checks
            && checks.next_wake().is_some_and(|due| due <= local)
        {
            checks.handle(local, checks::Input::Wake);
        }
        self.drain(member);
        self.charge(member, false);
        self.settle(member);
    }

    /// Says when a process wakes next, unless something else brings it back before.
    fn settle(&mut self, member: MemberId) {
        let now = self.now();
        let process = &self.processes[member.0 as usize];
        let busy = process.busy_until > now || !process.inbox.is_empty();
        let wake = match &process.life {
            Some(life) if !busy => Some(life.next_wake().max(now)),
            _ => None,
        };
        self.wakes.set(member.0 as usize, wake);
        if busy {
            self.resume_later(member);
        }
    }

    /// Does everything that a process's roles want done.
    pub(crate) fn drain(&mut self, member: MemberId) {
        loop {
            let Some(life) = self.life_mut(member) else {
                return;
            };
            if let Some(output) = life.member.poll() {
                self.of_member(member, output);
            } else if let Some(output) = life.aggregator.as_mut().and_then(Aggregator::poll) {
                self.of_aggregator(member, output);
            } else if let Some(output) = life.checks.as_mut().and_then(SelfChecks::poll) {
                self.of_checks(member, output);
            } else {
                return;
            }
        }
    }
}

/// The next moment at which a process with that part of a CPU is run: at the begin of each
/// period, as if its cgroup's other processes used up the rest at once.
fn within_quota(at: Moment, quota: Ppm) -> Moment {
    let period = QUOTA_PERIOD.as_micros() as u64;
    let run = period * u64::from(quota.get()) / 1_000_000;
    let begin = at.as_micros() / period * period;
    if at.as_micros() - begin < run {
        at
    } else {
        Moment::from_micros(begin + period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards what scenario 3 starves agents with.
    #[test]
    fn a_quota_is_used_up_at_the_begin_of_each_period() {
        let quota = Ppm::percent(5);
        let at = Moment::from_micros;
        assert_eq!(within_quota(at(1_004_999), quota), at(1_004_999));
        assert_eq!(within_quota(at(1_005_000), quota), at(1_100_000));
    }
}
