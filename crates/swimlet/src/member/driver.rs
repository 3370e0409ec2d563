//! The task that owns a member's sans-IO core.
//!
//! Packets, commands and timers come in one at a time; what the core wants done
//! is done before the next. Packets that have arrived are always handed in before
//! a due timer fires, so that a pause of this process is not taken for the silence
//! of others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use swimlet_mesh::{Event as MeshEvent, Input, Mesh, Output};
use swimlet_protocol::frame::{ProbeOutcome, Verified, Verify, View};
use swimlet_protocol::member::MemberRecord;
use swimlet_protocol::{
    ClusterId, Frame, Generation, Identity, MemberKey, MemberState, Moment, Role,
};
use swimlet_telemetry::{Clock, catalogue};
use swimlet_transport::{Event as LinkEvent, EventReceiver, SendError, Transport};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::handle::{Command, Handle, MemberView, Probed};

/// Commands waiting for the driver: as many as one verification round of the
/// largest batch asks for at once, with room.
const COMMANDS_MAX: usize = 1_024;
/// Events waiting for their reader. Frames come at hundreds a second at most.
const EVENTS_MAX: usize = 4_096;
/// Peers with frames waiting for a link to be built: as many as the transport has
/// dials waiting. Each keeps its newest frame alone: an older request of verification
/// is no longer wanted.
const UNSENT_MAX: usize = 1_024;
/// A frame that has waited longer is not sent: its round is over.
const UNSENT_AGE_MAX: Duration = Duration::from_secs(2);
/// A wake-up later than this means that the process did not run; then packets
/// that the kernel has queued need a moment to come through.
const LATE: Duration = Duration::from_millis(300);
/// That moment.
const CATCH_UP: Duration = Duration::from_millis(50);
/// How often the gauges are brought up to date.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// What a driver is started with.
pub(crate) struct Setup {
    pub(crate) cluster: ClusterId,
    pub(crate) record: MemberRecord,
    pub(crate) seeds: Vec<SocketAddr>,
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    /// Addresses that name resolution finds later.
    pub(crate) found: mpsc::Receiver<Vec<SocketAddr>>,
}

/// What a member tells its owner.
#[derive(Debug)]
pub(crate) enum Event {
    /// The mesh noticed something.
    Mesh(MeshEvent),
    /// An aggregator asks for verification.
    VerifyAsked { by: MemberKey, request: Verify },
    /// A verifier answered.
    Verified { by: MemberKey, answers: Verified },
    /// A direct answer, link or frame of that member arrived.
    Heard(MemberKey),
    /// Another aggregator says how much of the cluster it sees.
    View { by: MemberKey, view: View },
    /// Every member, after events before this one were lost for want of room.
    Members(Vec<(MemberRecord, MemberKey, MemberState)>),
}

/// The driver: owns the core, borrows the transport.
pub(crate) struct Driver {
    mesh: Mesh,
    clock: Clock,
    cluster: ClusterId,
    transport: Transport,
    links: EventReceiver,
    found: Option<mpsc::Receiver<Vec<SocketAddr>>>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    probes: BTreeMap<u64, Pending>,
    next_token: u64,
    unsent: BTreeMap<MemberKey, (Moment, Frame)>,
    /// The role of each linked member, by its certificate.
    roles: BTreeMap<MemberKey, Role>,
    /// Whether events were lost since the last time all members were told.
    lost: bool,
    health: Arc<AtomicU8>,
    gauges_due: Moment,
}

struct Pending {
    reply: oneshot::Sender<Probed>,
    contact_before: Option<Moment>,
}

impl Driver {
    /// A driver over a started transport, its handle, and its events.
    pub(crate) fn new(
        setup: Setup,
        transport: Transport,
        links: EventReceiver,
    ) -> (Self, Handle, mpsc::Receiver<Event>) {
        let (commands, commands_receiver) = mpsc::channel(COMMANDS_MAX);
        let (events, events_receiver) = mpsc::channel(EVENTS_MAX);
        let config = swimlet_mesh::Config {
            cluster: setup.cluster.clone(),
            me: setup.record,
            seed: setup.seed,
            seeds: setup.seeds,
            peers: setup.peers,
        };
        let mesh = Mesh::new(setup.clock.now(), config);
        let handle = Handle {
            me: mesh.key(),
            clock: setup.clock,
            commands,
            health: Arc::default(),
        };
        let driver = Self {
            mesh,
            clock: setup.clock,
            cluster: setup.cluster,
            transport,
            links,
            found: Some(setup.found),
            commands: commands_receiver,
            events,
            probes: BTreeMap::new(),
            next_token: 0,
            unsent: BTreeMap::new(),
            roles: BTreeMap::new(),
            lost: false,
            health: handle.health.clone(),
            gauges_due: Moment::ORIGIN,
        };
        (driver, handle, events_receiver)
    }

    /// Runs until `stop`, or until the transport is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.carry_out();
            self.tell_again();
            self.show_gauges();
            let wake = self
                .mesh
                .next_wake()
                .unwrap_or_else(|| self.clock.now() + GAUGES_EVERY);
            if self.clock.now() >= wake {
                // Packets and commands that never end must not starve the timers.
                self.on_timer(wake).await;
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                link = self.links.recv() => match link {
                    Some(event) => self.on_link(event),
                    None => return,
                },
                Some(command) = self.commands.recv() => self.on_command(command),
                found = next(&mut self.found) => match found {
                    Some(addresses) => self.feed(Input::Seeds(addresses)),
                    None => self.found = None,
                },
                () = sleep_until(self.clock.instant(wake)) => self.on_timer(wake).await,
            }
        }
    }

    async fn on_timer(&mut self, due: Moment) {
        if self.clock.now().since(due) > LATE {
            tokio::time::sleep(CATCH_UP).await;
        }
        // At most what the queue held when the timer fired: a flood must not starve timers.
        for _ in 0..self.links.len() {
            match self.links.try_recv() {
                Ok(event) => self.on_link(event),
                Err(_) => break,
            }
        }
        self.feed(Input::Wake);
    }

    fn feed(&mut self, input: Input) {
        self.mesh.handle(self.clock.now(), input);
        self.health.store(self.mesh.health(), Ordering::Relaxed);
    }

    fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::LinkUp { peer, remote, .. } => self.on_link_up(peer, remote),
            LinkEvent::LinkDown { peer, reason } => {
                debug!(?peer, ?reason, "a link is gone");
                self.roles.remove(&peer);
                self.feed(Input::LinkDown { peer });
            }
            LinkEvent::DialFailed { peer, reason } => {
                debug!(?peer, %reason, "a dial failed");
                self.unsent.remove(&peer);
                self.feed(Input::DialFailed { peer });
            }
            LinkEvent::Frame { from, frame } => self.on_frame(from, frame),
            LinkEvent::SyncRequested {
                from,
                token,
                request,
            } => self.feed(Input::SyncRequested {
                from,
                token,
                request,
            }),
            LinkEvent::SyncAnswered { from, part } => self.feed(Input::SyncAnswered { from, part }),
            LinkEvent::JoinFailed { address, reason } => {
                debug!(%address, %reason, "a join failed");
                self.feed(Input::JoinFailed { address });
            }
            LinkEvent::Refused { remote, reason } => {
                info!(%remote, %reason, "turned a stranger away");
            }
        }
    }

    fn on_link_up(&mut self, peer: Identity, remote: SocketAddr) {
        let key = peer.key();
        self.roles.insert(key, peer.role);
        self.feed(Input::LinkUp {
            peer,
            addresses_seen: remote,
        });
        self.tell(Event::Heard(key));
        // The core introduces us first.
        self.carry_out();
        if let Some((since, frame)) = self.unsent.remove(&key)
            && self.clock.now().since(since) <= UNSENT_AGE_MAX
        {
            self.transmit(key, &frame);
        }
    }

    fn on_frame(&mut self, from: MemberKey, frame: Frame) {
        match frame {
            Frame::Verify(request) => {
                // Only an aggregator may make others knock at ports.
                if self.role_of(from) == Some(Role::Aggregator) {
                    self.tell(Event::VerifyAsked { by: from, request });
                } else {
                    warn!(
                        ?from,
                        "refused a verification request of a member that is no aggregator"
                    );
                }
            }
            Frame::Verified(answers) => self.tell(Event::Verified { by: from, answers }),
            Frame::View(view) => {
                if self.role_of(from) == Some(Role::Aggregator) {
                    self.tell(Event::View { by: from, view });
                }
            }
            frame => {
                if matches!(frame, Frame::Ack(_) | Frame::Probe(_)) {
                    self.tell(Event::Heard(from));
                }
                self.feed(Input::Frame { from, frame });
            }
        }
    }

    /// The role in the certificate of the link that a frame came over.
    fn role_of(&self, key: MemberKey) -> Option<Role> {
        self.roles.get(&key).copied()
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Probe(subject, reply) => self.probe(subject, reply),
            Command::Report(report) => self.feed(Input::SelfReport(report)),
            Command::Verdict(subject, down) => {
                if let Some(generation) = self.generation_of(subject) {
                    self.feed(Input::Verdict {
                        subject,
                        generation,
                        down,
                    });
                }
            }
            Command::Send(to, frame) => self.send_or_dial(to, frame),
            Command::Name(of, reply) => {
                let name = self.mesh.member(of).map(|m| m.record.name.clone());
                answer(reply, name);
            }
            Command::Observers(of, reply) => answer(reply, self.mesh.observers_of(of)),
            Command::Subjects(reply) => {
                let subjects = self.mesh.subjects();
                let records = subjects
                    .into_iter()
                    .filter_map(|key| Some(self.mesh.member(key)?.record.clone()))
                    .collect();
                answer(reply, records);
            }
            Command::KnowsOthers(reply) => {
                answer(reply, self.mesh.members().next().is_some());
            }
            Command::View(reply) => answer(reply, self.view()),
            Command::Peers(reply) => {
                let alive = self
                    .mesh
                    .members()
                    .filter(|m| m.state == MemberState::Alive);
                let addresses = alive.filter_map(|m| m.record.addresses.first().copied());
                answer(reply, addresses.collect());
            }
            Command::Leave(reply) => {
                self.feed(Input::Leave);
                self.carry_out();
                answer(reply, ());
            }
        }
    }

    fn generation_of(&self, key: MemberKey) -> Option<Generation> {
        self.mesh.member(key).map(|member| member.record.generation)
    }

    fn probe(&mut self, subject: MemberKey, reply: oneshot::Sender<Probed>) {
        let contact_before = self.mesh.last_contact(subject);
        if self.mesh.member(subject).is_none() {
            answer(
                reply,
                Probed {
                    outcome: ProbeOutcome::NoStatement,
                    contact_before,
                },
            );
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        self.probes.retain(|_, pending| !pending.reply.is_closed());
        self.probes.insert(
            token,
            Pending {
                reply,
                contact_before,
            },
        );
        self.feed(Input::ProbeNow { subject, token });
    }

    fn send_or_dial(&mut self, to: MemberKey, frame: Frame) {
        if self.transport.send(to, &frame) != Err(SendError::NoLink) {
            return;
        }
        let Some(member) = self.mesh.member(to) else {
            return;
        };
        if self.unsent.len() >= UNSENT_MAX && !self.unsent.contains_key(&to) {
            metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "unsent").increment(1);
            return;
        }
        let peer = self.identity(&member.record);
        self.transport.dial(&peer, &member.record.addresses);
        self.unsent.insert(to, (self.clock.now(), frame));
    }

    fn identity(&self, record: &MemberRecord) -> Identity {
        Identity {
            cluster: self.cluster.clone(),
            role: record.role,
            name: record.name.clone(),
        }
    }

    /// Does everything the core wants done.
    fn carry_out(&mut self) {
        while let Some(output) = self.mesh.poll() {
            match output {
                Output::Dial { peer, addresses } => {
                    if let Some(member) = self.mesh.member(peer) {
                        let peer = self.identity(&member.record);
                        self.transport.dial(&peer, &addresses);
                    }
                }
                Output::Close { peer } => self.transport.close(peer),
                Output::Send { to, frame } => self.transmit(to, &frame),
                Output::Join { address, request } => self.transport.join(address, request),
                Output::Sync { to, request } => self.transport.sync(to, request),
                Output::SyncReply { token, parts } => self.transport.reply(token, parts),
                Output::Probed { token, outcome, .. } => self.answer_probe(token, outcome),
                Output::Event(event) => self.tell(Event::Mesh(event)),
            }
        }
    }

    fn answer_probe(&mut self, token: u64, outcome: ProbeOutcome) {
        if let Some(pending) = self.probes.remove(&token) {
            answer(
                pending.reply,
                Probed {
                    outcome,
                    contact_before: pending.contact_before,
                },
            );
        }
    }

    fn transmit(&self, to: MemberKey, frame: &Frame) {
        // The transport counts what it could not send; the core's timers cover the loss.
        if let Err(error) = self.transport.send(to, frame) {
            debug!(?to, %error, "a frame was not sent");
        }
    }

    /// Makes up for lost events, once their reader has caught up.
    fn tell_again(&mut self) {
        if self.lost && self.events.capacity() > EVENTS_MAX / 2 {
            let member = |m: &swimlet_mesh::Member| {
                let key = m.record.key(&self.cluster);
                (m.record.clone(), key, m.state)
            };
            let members = self.mesh.members().map(member).collect();
            self.lost = self.events.try_send(Event::Members(members)).is_err();
        }
    }

    fn tell(&mut self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.lost = true;
            metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "member_events").increment(1);
        }
    }

    fn view(&self) -> Vec<MemberView> {
        let now = self.clock.now();
        let view = |member: &swimlet_mesh::Member| MemberView {
            name: member.record.name.to_string(),
            role: member.record.role.as_str(),
            state: member.state.to_string(),
            zone: member.record.zone.to_string(),
            generation: member.record.generation.0,
            addresses: member.record.addresses.to_vec(),
            heard_ms_ago: member
                .last_contact
                .map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
        };
        self.mesh.members().map(view).collect()
    }

    fn show_gauges(&mut self) {
        let now = self.clock.now();
        if now < self.gauges_due {
            return;
        }
        self.gauges_due = now + GAUGES_EVERY;
        for state in [
            MemberState::Alive,
            MemberState::Suspect,
            MemberState::Down,
            MemberState::Left,
        ] {
            let count = self.mesh.members().filter(|m| m.state == state).count();
            metrics::gauge!(catalogue::MEMBERS, "state" => state.to_string()).set(count as f64);
        }
        metrics::gauge!(catalogue::LOCAL_HEALTH).set(f64::from(self.mesh.health()));
        metrics::gauge!(catalogue::LINKS).set(self.transport.links() as f64);
        for (what, count) in self.transport.stats().iter() {
            metrics::counter!(catalogue::TRANSPORT, "what" => what).absolute(count);
        }
        self.show_mesh_counters();
    }

    fn show_mesh_counters(&self) {
        let stats = self.mesh.stats();
        for (result, count) in [("acked", stats.acks), ("missed", stats.misses)] {
            metrics::counter!(catalogue::PROBES, "result" => result).absolute(count);
        }
        for (reason, count) in [
            ("unknown", stats.dropped_unknown),
            ("stranger", stats.dropped_stranger),
            ("role", stats.dropped_role),
            ("generation", stats.dropped_generation),
            ("unasked", stats.dropped_unasked),
            ("stale", stats.dropped_stale),
            ("full", stats.dropped_full),
            ("busy", stats.dropped_busy),
            ("outputs", stats.dropped_outputs),
            ("claims", stats.claims_dropped),
            ("reports", stats.reports_dropped),
            ("news", stats.news_dropped),
        ] {
            metrics::counter!(catalogue::MESH_DROPS, "reason" => reason).absolute(count);
        }
    }
}

/// A reader that is gone needs no answer.
fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    let _ = reply.send(value);
}

async fn next<T>(receiver: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match receiver {
        Some(receiver) => receiver.recv().await,
        None => std::future::pending().await,
    }
}
