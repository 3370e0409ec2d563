//! A member's process, without its I/O: the mesh's core, frames for members to which no
//! link stands, verification, and who may ask for it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use swimlet_mesh::{Commons, Event as MeshEvent, Input as MeshInput, Mesh, Output as MeshOutput};
use swimlet_protocol::frame::{PortAnswer, ProbeOutcome, Verified, Verify, View};
use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_protocol::{
    ClusterId, Frame, Identity, MemberKey, MemberRecord, MemberState, Moment, NodeName, Role,
};

use crate::baseline::KubeletPort;
use crate::verifier::{self, Subject, Verifier};

/// Peers with frames waiting for a link to be built: as many as the transport has
/// dials waiting. Each keeps its newest frame alone: an older request of verification
/// is no longer wanted.
pub const UNSENT_MAX: usize = 1_024;
/// A frame that has waited longer is not sent: its round is over.
pub const UNSENT_AGE_MAX: Duration = Duration::from_secs(2);
/// Probes for verification under way: one of each subject of all requests that an
/// aggregator works on at once.
const PROBES_MAX: usize = verifier::REQUESTS_MAX_AGGREGATOR * swimlet_protocol::frame::SUBJECTS_MAX;
/// Outputs waiting to be polled. Whoever drives the machine drains it after each input, to
/// which the mesh answers with a few hundred at most.
const OUTPUTS_MAX: usize = 65_536;

/// One member of the mesh, agent or aggregator; what differs is what its owner does with
/// its [`Event`]s.
pub struct Member {
    cluster: ClusterId,
    mesh: Mesh,
    verifier: Verifier,
    /// Members to which a link stands, with the role in their certificate.
    links: BTreeMap<MemberKey, Role>,
    unsent: BTreeMap<MemberKey, (Moment, Frame)>,
    /// When the subject of each probe under way had answered last before it.
    contacts: BTreeMap<u64, Option<Moment>>,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// What the machine is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something of the mesh: packets, links, seeds, self-reports, the goodbye. The judge's
    /// word is told by [`Input::Verdict`] instead; [`MeshInput::ProbeNow`] is this
    /// machine's own.
    Mesh(MeshInput),
    /// Send a frame, over a new link if there is none.
    Send {
        /// To whom.
        to: MemberKey,
        /// What.
        frame: Frame,
    },
    /// On aggregators: spread the judge's word about the start of that member that is
    /// known here.
    Verdict {
        /// About whom.
        subject: MemberKey,
        /// Down, or alive again.
        down: bool,
    },
    /// On aggregators: who watches that member? Answered by [`Event::Observers`].
    Observers {
        /// Whom.
        subject: MemberKey,
    },
    /// On aggregators: verify for our own judge. Answered by [`Event::Verified`] in this
    /// member's own name.
    Verify(Verify),
    /// On aggregators: every kubelet port there is, to be swept for the baseline.
    Sweep(Vec<KubeletPort>),
    /// The answer to [`Output::CheckPort`].
    Checked {
        /// Which check.
        token: u64,
        /// What the port did.
        answer: PortAnswer,
    },
    /// Time passed. Due at [`Member::next_wake`].
    Wake,
}

/// What the machine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Build a link to this member, as [`MeshOutput::Dial`] says. Nothing happens if one
    /// stands or is being built.
    Dial {
        /// Whom; its certificate must say so.
        peer: Identity,
        /// Where, best first.
        addresses: Vec<SocketAddr>,
    },
    /// The link is of no more use.
    Close {
        /// Whose.
        peer: MemberKey,
    },
    /// Send a datagram over the link to this member; without one it is lost.
    Send {
        /// To whom.
        to: MemberKey,
        /// What.
        frame: Frame,
    },
    /// As [`MeshOutput::Join`].
    Join {
        /// Where.
        address: SocketAddr,
        /// What to ask there.
        request: SyncRequest,
    },
    /// As [`MeshOutput::Sync`].
    Sync {
        /// With whom.
        to: MemberKey,
        /// What to ask.
        request: SyncRequest,
    },
    /// As [`MeshOutput::SyncReply`].
    SyncReply {
        /// The stream.
        token: u64,
        /// The answer.
        parts: Vec<SyncPart>,
    },
    /// Finish TLS with this port and ask it for its health; answered by [`Input::Checked`].
    CheckPort {
        /// Comes back in the answer.
        token: u64,
        /// Where.
        port: SocketAddr,
        /// Which Node the served certificate should name; `None` if it is not known.
        node: Option<NodeName>,
        /// How long this may take from now. A check without an answer by then found
        /// the port silent.
        limit: Duration,
    },
    /// Something for the member's owner.
    Event(Event),
}

/// What a member tells its owner. To an agent most of it is nothing but a sign that the
/// mesh is there; [`crate::Aggregator`] takes all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The mesh noticed something.
    Mesh(MeshEvent),
    /// A verifier answered.
    Verified {
        /// Which.
        by: MemberKey,
        /// What it found.
        answers: Verified,
    },
    /// A direct answer, link or frame of that member arrived.
    Heard(MemberKey),
    /// Another aggregator says how much of the cluster it sees.
    View {
        /// Which.
        by: MemberKey,
        /// What it sees.
        view: View,
    },
    /// The answer to [`Input::Observers`].
    Observers {
        /// Whom.
        subject: MemberKey,
        /// Who watches it.
        observers: Vec<MemberKey>,
    },
    /// A member that is no aggregator asked for verification, and was refused: only
    /// aggregators may make others knock at ports.
    Refused {
        /// Which.
        by: MemberKey,
    },
    /// Every member, as [`Member::census`] tells: for an owner to which events were lost.
    Members(Vec<(Arc<MemberRecord>, MemberKey, MemberState)>),
}

/// What was counted beside [`swimlet_mesh::Stats`] and [`verifier::Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames for members without a link that found no room.
    pub unsent_dropped: u64,
    /// Outputs that found no room.
    pub outputs_dropped: u64,
}

impl Member {
    /// A member that knows nobody yet.
    #[must_use]
    pub fn new(now: Moment, config: swimlet_mesh::Config) -> Self {
        Self::around(now, config, Mesh::new)
    }

    /// One of many in this process, as [`Mesh::sharing`] makes them.
    #[must_use]
    pub fn sharing(now: Moment, config: swimlet_mesh::Config, commons: &Commons) -> Self {
        Self::around(now, config, |now, config| {
            Mesh::sharing(now, config, commons)
        })
    }

    /// As [`Member::sharing`], for tests that show what a part of the mesh guards.
    #[doc(hidden)]
    #[must_use]
    pub fn switched(
        now: Moment,
        config: swimlet_mesh::Config,
        commons: &Commons,
        switches: swimlet_mesh::Switches,
    ) -> Self {
        Self::around(now, config, |now, config| {
            Mesh::sharing(now, config, commons).with_switches(switches)
        })
    }

    fn around(
        now: Moment,
        config: swimlet_mesh::Config,
        mesh: impl FnOnce(Moment, swimlet_mesh::Config) -> Mesh,
    ) -> Self {
        let cluster = config.cluster.clone();
        let verifier = Verifier::new(now, config.me.role);
        Self {
            cluster,
            mesh: mesh(now, config),
            verifier,
            links: BTreeMap::new(),
            unsent: BTreeMap::new(),
            contacts: BTreeMap::new(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes one piece of news. `now` must not run backwards.
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Mesh(input) => self.take(now, input),
            Input::Send { to, frame } => self.send_or_dial(now, to, frame),
            Input::Verdict { subject, down } => {
                if let Some(known) = self.mesh.member(subject) {
                    let generation = known.record.generation;
                    let verdict = MeshInput::Verdict {
                        subject,
                        generation,
                        down,
                    };
                    self.mesh.handle(now, verdict);
                }
            }
            Input::Observers { subject } => {
                let observers = self.mesh.observers_of(subject);
                self.tell(Event::Observers { subject, observers });
            }
            Input::Verify(request) => {
                let by = self.key();
                let asked = verifier::Input::Asked { by, request };
                self.verifier.handle(now, asked);
            }
            Input::Sweep(ports) => self.verifier.handle(now, verifier::Input::Sweep(ports)),
            Input::Checked { token, answer } => {
                let checked = verifier::Input::Checked { token, answer };
                self.verifier.handle(now, checked);
            }
            Input::Wake => self.wake(now),
        }
        self.settle(now);
    }

    /// The next thing to be done, if any. Drain it after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to feed [`Input::Wake`] at the latest. Packets that arrived before go in first.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let due = self.verifier.next_wake();
        self.mesh.next_wake().map_or(due, |wake| wake.min(due))
    }

    /// The mesh's core.
    #[must_use]
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The verifier.
    #[must_use]
    pub const fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// This member's own key.
    #[must_use]
    pub fn key(&self) -> MemberKey {
        self.mesh.key()
    }

    /// Every other member, for an owner to which events were lost.
    #[must_use]
    pub fn census(&self) -> Event {
        let entry = |member: swimlet_mesh::Member| (member.record, member.key, member.state);
        Event::Members(self.mesh.members().map(entry).collect())
    }

    /// What was counted.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    fn take(&mut self, now: Moment, input: MeshInput) {
        match input {
            MeshInput::Frame { from, frame } => self.on_frame(now, from, frame),
            MeshInput::LinkUp {
                peer,
                addresses_seen,
            } => self.on_link_up(now, peer, addresses_seen),
            MeshInput::LinkDown { peer } => {
                self.links.remove(&peer);
                self.mesh.handle(now, MeshInput::LinkDown { peer });
            }
            MeshInput::DialFailed { peer } => {
                self.unsent.remove(&peer);
                self.mesh.handle(now, MeshInput::DialFailed { peer });
            }
            other => self.mesh.handle(now, other),
        }
    }

    fn on_link_up(&mut self, now: Moment, peer: Identity, addresses_seen: SocketAddr) {
        let key = peer.key();
        self.links.insert(key, peer.role);
        self.tell(Event::Heard(key));
        let up = MeshInput::LinkUp {
            peer,
            addresses_seen,
        };
        self.mesh.handle(now, up);
        // The core introduces us first.
        self.settle(now);
        if let Some((since, frame)) = self.unsent.remove(&key)
            && now.since(since) <= UNSENT_AGE_MAX
        {
            self.put(Output::Send { to: key, frame });
        }
    }

    fn on_frame(&mut self, now: Moment, from: MemberKey, frame: Frame) {
        let by = from;
        // By the certificate of the link that the frame came over.
        let by_aggregator = self.links.get(&from) == Some(&Role::Aggregator);
        match frame {
            Frame::Verify(request) if by_aggregator => {
                let asked = verifier::Input::Asked { by, request };
                self.verifier.handle(now, asked);
            }
            Frame::Verify(_) => self.tell(Event::Refused { by }),
            Frame::Verified(answers) => self.tell(Event::Verified { by, answers }),
            Frame::View(view) => {
                if by_aggregator {
                    self.tell(Event::View { by, view });
                }
            }
            frame => {
                if matches!(frame, Frame::Ack(_) | Frame::Probe(_)) {
                    self.tell(Event::Heard(from));
                }
                self.mesh.handle(now, MeshInput::Frame { from, frame });
            }
        }
    }

    fn wake(&mut self, now: Moment) {
        if self.mesh.next_wake().is_some_and(|wake| wake <= now) {
            self.mesh.handle(now, MeshInput::Wake);
            // What the mesh found is told before the verifier gives up waiting for it.
            self.settle(now);
        }
        if self.verifier.next_wake() <= now {
            self.verifier.handle(now, verifier::Input::Wake);
        }
    }

    fn send_or_dial(&mut self, now: Moment, to: MemberKey, frame: Frame) {
        if self.links.contains_key(&to) {
            self.put(Output::Send { to, frame });
            return;
        }
        let Some(known) = self.mesh.member(to) else {
            return;
        };
        if self.unsent.len() >= UNSENT_MAX && !self.unsent.contains_key(&to) {
            self.stats.unsent_dropped += 1;
            return;
        }
        let peer = self.identity(&known.record);
        let addresses = known.record.addresses.to_vec();
        self.unsent.insert(to, (now, frame));
        self.put(Output::Dial { peer, addresses });
    }

    fn identity(&self, record: &MemberRecord) -> Identity {
        Identity {
            cluster: self.cluster.clone(),
            role: record.role,
            name: record.name.clone(),
        }
    }

    /// Lets both cores have what they ask of each other, until they ask nothing more.
    fn settle(&mut self, now: Moment) {
        loop {
            if let Some(output) = self.mesh.poll() {
                self.of_mesh(now, output);
            } else if let Some(output) = self.verifier.poll() {
                self.of_verifier(now, output);
            } else {
                return;
            }
        }
    }

    fn of_mesh(&mut self, now: Moment, output: MeshOutput) {
        let output = match output {
            MeshOutput::Dial { peer, addresses } => {
                let Some(known) = self.mesh.member(peer) else {
                    return;
                };
                let peer = self.identity(&known.record);
                Output::Dial { peer, addresses }
            }
            MeshOutput::Close { peer } => Output::Close { peer },
            MeshOutput::Send { to, frame } => Output::Send { to, frame },
            MeshOutput::Join { address, request } => Output::Join { address, request },
            MeshOutput::Sync { to, request } => Output::Sync { to, request },
            MeshOutput::SyncReply { token, parts } => Output::SyncReply { token, parts },
            MeshOutput::Probed { token, outcome, .. } => {
                let contact_before = self.contacts.remove(&token).flatten();
                self.probed(now, token, outcome, contact_before);
                return;
            }
            MeshOutput::Event(event) => Output::Event(Event::Mesh(event)),
        };
        self.put(output);
    }

    fn of_verifier(&mut self, now: Moment, output: verifier::Output) {
        match output {
            verifier::Output::ProbeAgent { token, subject } => {
                if self.mesh.member(subject).is_none() {
                    self.probed(now, token, ProbeOutcome::NoStatement, None);
                    return;
                }
                // The oldest is the one that the mesh never answered.
                if self.contacts.len() >= PROBES_MAX {
                    self.contacts.pop_first();
                }
                let contact = self.mesh.last_contact(subject);
                self.contacts.insert(token, contact);
                let probe = MeshInput::ProbeNow { subject, token };
                self.mesh.handle(now, probe);
            }
            verifier::Output::CheckPort {
                token,
                port,
                of,
                limit,
            } => {
                let name_of = |key| Some(self.mesh.member(key)?.record.name.clone());
                let node = match of {
                    Subject::Agent(key) => name_of(key),
                    Subject::Node(name) => Some(name),
                };
                self.put(Output::CheckPort {
                    token,
                    port,
                    node,
                    limit,
                });
            }
            verifier::Output::Subjects => {
                let subjects = self.mesh.subjects().into_iter();
                let known = subjects.filter_map(|key| self.mesh.member(key));
                let ports = known.flat_map(|known| KubeletPort::all_of(&known.record));
                let subjects = verifier::Input::Subjects(ports.collect());
                self.verifier.handle(now, subjects);
            }
            verifier::Output::Answer { to, round, answers } => {
                let health = self.mesh.health();
                let answers = Verified {
                    round,
                    health,
                    answers,
                };
                if to == self.key() {
                    self.tell(Event::Verified { by: to, answers });
                } else {
                    self.send_or_dial(now, to, Frame::Verified(answers));
                }
            }
        }
    }

    fn probed(
        &mut self,
        now: Moment,
        token: u64,
        outcome: ProbeOutcome,
        contact_before: Option<Moment>,
    ) {
        let probed = verifier::Input::Probed {
            token,
            outcome,
            contact_before,
        };
        self.verifier.handle(now, probed);
    }

    fn tell(&mut self, event: Event) {
        self.put(Output::Event(event));
    }

    fn put(&mut self, output: Output) {
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        } else {
            self.stats.outputs_dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests;
