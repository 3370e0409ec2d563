//! The task that owns a member, which is sans-IO.
//!
//! Packets, commands and timers come in one at a time; what the member wants
//! done is done before the next. Packets that have arrived are always handed in before
//! a due timer fires, so that a pause of this process is not taken for the silence
//! of others.

use std::net::SocketAddr;
use std::time::Duration;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::frame::PortAnswer;
use swimlet_protocol::member::MemberRecord;
use swimlet_protocol::{ClusterId, Frame, MemberKey, MemberState, Moment, NodeName};
use swimlet_roles::member::{Event, Input, Member, Output};
use swimlet_telemetry::{Clock, catalogue};
use swimlet_transport::{Event as LinkEvent, EventReceiver, Transport, check};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::gauges;
use super::handle::{Command, Handle, MemberView};

/// Commands waiting for the driver. The judge's orders, which come by the thousand, are
/// handed over in batches, and wait with the judge when there is no room.
const COMMANDS_MAX: usize = 1_024;
/// Events waiting for their reader. Frames come at hundreds a second at most.
const EVENTS_MAX: usize = 4_096;
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

/// The driver: owns the member, borrows the transport.
pub(crate) struct Driver {
    member: Member,
    clock: Clock,
    transport: Transport,
    links: EventReceiver,
    found: Option<mpsc::Receiver<Vec<SocketAddr>>>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    /// Checks of kubelet ports under way, with their tokens. The verifier bounds them.
    checks: JoinSet<(u64, PortAnswer)>,
    /// Whether events were lost since the last time all members were told.
    lost: bool,
    gauges_due: Moment,
}

/// What comes from the transport, or from this process.
enum Taken {
    Link(LinkEvent),
    Command(Command),
    /// The transport is gone.
    End,
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
            cluster: setup.cluster,
            me: setup.record,
            seed: setup.seed,
            seeds: setup.seeds,
            peers: setup.peers,
        };
        let member = Member::new(setup.clock.now(), config);
        let handle = Handle {
            me: member.key(),
            clock: setup.clock,
            commands,
        };
        let driver = Self {
            member,
            clock: setup.clock,
            transport,
            links,
            found: Some(setup.found),
            commands: commands_receiver,
            events,
            checks: JoinSet::new(),
            lost: false,
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
            let wake = self.member.next_wake();
            if self.clock.now() >= wake {
                // Packets and commands that never end must not starve the timers.
                self.on_timer(wake).await;
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                taken = take(&mut self.links, &mut self.commands) => match taken {
                    Taken::Link(event) => self.on_link(event),
                    Taken::Command(command) => self.on_command(command),
                    Taken::End => return,
                },
                Some(done) = self.checks.join_next() => self.on_checked(done),
                found = next(&mut self.found) => match found {
                    Some(addresses) => self.feed(Input::Mesh(MeshInput::Seeds(addresses))),
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
        while let Some(done) = self.checks.try_join_next() {
            self.on_checked(done);
        }
        // Nor must timers that are always due starve the commands.
        if let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
        }
        self.feed(Input::Wake);
    }

    fn feed(&mut self, input: Input) {
        self.member.handle(self.clock.now(), input);
    }

    fn on_link(&mut self, event: LinkEvent) {
        let input = match event {
            LinkEvent::LinkUp { peer, remote, .. } => MeshInput::LinkUp {
                peer,
                addresses_seen: remote,
            },
            LinkEvent::LinkDown { peer, reason } => {
                debug!(?peer, ?reason, "a link is gone");
                MeshInput::LinkDown { peer }
            }
            LinkEvent::DialFailed { peer, reason } => {
                debug!(?peer, %reason, "a dial failed");
                MeshInput::DialFailed { peer }
            }
            LinkEvent::Frame { from, frame } => MeshInput::Frame { from, frame },
            LinkEvent::SyncRequested {
                from,
                token,
                request,
            } => MeshInput::SyncRequested {
                from,
                token,
                request,
            },
            LinkEvent::SyncAnswered { from, part } => MeshInput::SyncAnswered { from, part },
            LinkEvent::JoinFailed { address, reason } => {
                debug!(%address, %reason, "a join failed");
                MeshInput::JoinFailed { address }
            }
            LinkEvent::Refused { remote, reason } => {
                info!(%remote, %reason, "turned a stranger away");
                return;
            }
        };
        self.feed(Input::Mesh(input));
    }

    fn on_checked(&mut self, done: Result<(u64, PortAnswer), JoinError>) {
        match done {
            Ok((token, answer)) => self.feed(Input::Checked { token, answer }),
            // The verifier gives up what nobody answers.
            Err(error) => warn!(%error, "a check of a kubelet port failed"),
        }
    }

    fn on_command(&mut self, command: Command) {
        let mesh = self.member.mesh();
        match command {
            Command::Feed(input) => self.feed(input),
            Command::FeedAll(orders) => {
                for order in orders {
                    self.feed(order);
                    // The member's outputs have a bound that a whole batch might exceed.
                    self.carry_out();
                }
            }
            Command::KnowsOthers(reply) => answer(reply, mesh.members().next().is_some()),
            Command::Paths(reply) => {
                answer(reply, self.member.verifier().paths(self.clock.now()));
            }
            Command::View(reply) => answer(reply, self.view()),
            Command::Peers(reply) => {
                let alive = mesh.members().filter(|m| m.state == MemberState::Alive);
                let addresses = alive.filter_map(|m| m.record.addresses.first().copied());
                answer(reply, addresses.collect());
            }
            Command::Leave(reply) => {
                self.feed(Input::Mesh(MeshInput::Leave));
                self.carry_out();
                answer(reply, ());
            }
        }
    }

    /// Does everything the member wants done.
    fn carry_out(&mut self) {
        while let Some(output) = self.member.poll() {
            match output {
                Output::Dial { peer, addresses } => self.transport.dial(&peer, &addresses),
                Output::Close { peer } => self.transport.close(peer),
                Output::Send { to, frame } => self.transmit(to, &frame),
                Output::Join { address, request } => self.transport.join(address, request),
                Output::Sync { to, request } => self.transport.sync(to, request),
                Output::SyncReply { token, parts } => self.transport.reply(token, parts),
                Output::CheckPort {
                    token,
                    port,
                    node,
                    limit,
                } => self.check(token, port, node, limit),
                Output::Event(event) => self.tell(event),
            }
        }
    }

    fn transmit(&self, to: MemberKey, frame: &Frame) {
        // The transport counts what it could not send; the core's timers cover the loss.
        if let Err(error) = self.transport.send(to, frame) {
            debug!(?to, %error, "a frame was not sent");
        }
    }

    fn check(&mut self, token: u64, port: SocketAddr, node: Option<NodeName>, limit: Duration) {
        self.checks.spawn(async move {
            let answer = check::kubelet_port(port, node.as_ref(), limit).await;
            debug!(%port, ?node, ?answer, "checked a kubelet port");
            (token, answer)
        });
    }

    /// Makes up for lost events, once their reader has caught up.
    fn tell_again(&mut self) {
        if self.lost && self.events.capacity() > EVENTS_MAX / 2 {
            let census = self.member.census();
            self.lost = self.events.try_send(census).is_err();
        }
    }

    fn tell(&mut self, event: Event) {
        if let Event::Refused { by } = event {
            warn!(
                ?by,
                "refused a verification request of a member that is no aggregator"
            );
        }
        if self.events.try_send(event).is_err() {
            self.lost = true;
            metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "member_events").increment(1);
        }
    }

    fn view(&self) -> Vec<MemberView> {
        let now = self.clock.now();
        let view = |member: swimlet_mesh::Member| MemberView {
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
        self.member.mesh().members().map(view).collect()
    }

    fn show_gauges(&mut self) {
        let now = self.clock.now();
        if now >= self.gauges_due {
            self.gauges_due = now + GAUGES_EVERY;
            gauges::show(&self.member, &self.transport, now);
        }
    }
}

/// Takes what comes next, in fair turns: when half the cluster fails at once, claims and
/// answers come without end, and the questions of the judge must get through all the same.
async fn take(links: &mut EventReceiver, commands: &mut mpsc::Receiver<Command>) -> Taken {
    tokio::select! {
        link = links.recv() => link.map_or(Taken::End, Taken::Link),
        Some(command) = commands.recv() => Taken::Command(command),
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
