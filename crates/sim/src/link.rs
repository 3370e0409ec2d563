//! QUIC as the members see it: dials with their round trips, links that idle out, resets
//! of what a restart forgot, datagrams over links alone, and streams that are repeated.
//!
//! What stands for a packet is moved by value; nothing is encoded. Sizes are those of the
//! codec, sampled by kind, with QUIC's, UDP's and IP's headers around.

mod handshake;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_protocol::{Frame, Identity, MemberKey, Moment};
use swimlet_roles::member::Input;

use crate::fault::Port;
use crate::net::Fate;
use crate::process::Local;
use crate::record::MemberId;
use crate::trace::{FRAME_KINDS, frame_kind, frame_word};
use crate::world::{Event, World};

/// The transport's link idle timeout.
const IDLE: Duration = Duration::from_secs(60);
/// How often links are looked at for having idled.
pub(crate) const IDLE_CHECK: Duration = Duration::from_secs(5);
/// How long the transport tries one address.
const DIAL_ATTEMPT: Duration = Duration::from_secs(1);
/// QUIC's first probe timeout: three times the initial round trip of 100 ms that the
/// transport sets (RFC 9002 §6.2.2). It doubles with each repetition.
const PTO: Duration = Duration::from_millis(300);
/// Dials of a member at once; more wait. As the transport's.
const DIALS_MAX: usize = 32;
/// Dials that wait.
const DIALS_QUEUED_MAX: usize = 1_024;
/// Incoming handshakes of a member at once; more are not answered. As the transport's.
const HANDSHAKES_MAX: usize = 64;
/// An incoming handshake is forgotten after this time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// What a handshake costs its server's CPU: half of what both sides were measured at.
const HANDSHAKE_CPU: Duration = Duration::from_micros(400);
/// How long a sync may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stream's packet is repeated.
const REPEATS_MAX: u32 = 5;
/// A stream's window in bytes: what goes out in one round trip.
const STREAM_WINDOW: usize = 16 * 1_024;
/// Connections of one peer that a pool keeps: both sides may have dialled at once.
const CONNECTIONS_MAX: usize = 2;

/// Around each datagram in bytes: IPv4 20, UDP 8, QUIC's short header with an 8-byte
/// connection id and a 2-byte packet number 11, the DATAGRAM frame's type and length 3,
/// the AEAD's tag 16, the version byte 1.
pub(crate) const OVERHEAD: usize = 59;
/// A datagram that acknowledges and does nothing else.
const ACK_BYTES: usize = 62;
/// UDP payload of a handshake's first packet, padded (RFC 9000 §14.1).
const INITIAL_BYTES: usize = 1_200;
/// Datagrams and bytes of the client's and the server's side of a handshake with mutual
/// TLS: 5 packets and 3.7 KB in all, as measured.
const CLIENT_HANDSHAKE: (u64, u64) = (3, 2_000);
const SERVER_HANDSHAKE: (u64, u64) = (2, 1_700);
/// One in so many frames of a kind is measured; the others count as the last one.
const SAMPLE: u64 = 16;

/// What goes from one member's socket to another's.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// A datagram of a link.
    Frame { connection: u64, frame: Frame },
    /// The client's first packet.
    Initial {
        connection: u64,
        dial: u64,
        source: SocketAddr,
    },
    /// The server's answer; with it the link stands for the client.
    Accept { connection: u64, dial: u64 },
    /// The client's last word of the handshake; with it the link stands for the server.
    Finished { connection: u64 },
    /// The link is closed.
    Close { connections: Connections },
    /// A stateless reset: the connection is not known there.
    Reset { connection: u64 },
    /// A sync is asked.
    Ask {
        connection: u64,
        stream: u64,
        request: Box<SyncRequest>,
    },
    /// A sync is answered.
    Answer { stream: u64, parts: Vec<SyncPart> },
}

/// The connections of one link; the last one carries what is sent.
pub(crate) type Connections = Vec<u64>;

/// One end of a link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    connections: Connections,
    heard: Moment,
}

/// What a member's transport holds.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) links: BTreeMap<MemberId, Link>,
    dials: BTreeMap<u64, Dial>,
    /// Peers that are being dialled.
    dialing: BTreeSet<MemberKey>,
    /// Dials that wait for others to end.
    waiting: VecDeque<u64>,
    /// Handshakes that others began: who, from where, and when.
    accepting: BTreeMap<u64, (MemberId, SocketAddr, Moment)>,
    /// When the handshakes before a new one are through.
    handshakes_until: Moment,
    /// Syncs asked of others, and the address of those that are joins.
    asked: BTreeMap<u64, Option<SocketAddr>>,
    /// Syncs asked of us, by the core's token: who asked, and on which stream.
    answering: BTreeMap<u64, (MemberId, u64)>,
}

/// A dial under way.
#[derive(Clone, Debug)]
struct Dial {
    /// Who must be there; `None`: whoever answers, to join.
    peer: Option<Identity>,
    addresses: Vec<SocketAddr>,
    next: usize,
    connection: u64,
    join: Option<Box<SyncRequest>>,
}

/// Sizes of frames by kind.
#[derive(Debug, Default)]
pub(crate) struct Sizes([(u64, usize); FRAME_KINDS]);

impl Sizes {
    /// A frame's length in bytes, of it or of one of its kind shortly before.
    fn of(&mut self, frame: &Frame) -> usize {
        let (count, last) = &mut self.0[frame_kind(frame)];
        if count.is_multiple_of(SAMPLE) {
            *last = encoded_len(frame);
        }
        *count += 1;
        *last
    }
}

// Datagrams.
impl World {
    /// Puts a frame on the link to a peer; without one it is lost.
    pub(crate) fn transmit(&mut self, from: MemberId, to: MemberKey, frame: Frame) {
        let Some(to) = self.member_of(to) else {
            return;
        };
        let Some(life) = self.life(from) else {
            return;
        };
        let Some(connection) = life
            .wire
            .links
            .get(&to)
            .and_then(|link| link.connections.last().copied())
        else {
            return;
        };
        let frame = self.spoken(from, frame);
        let bytes = self.sizes.of(&frame) + OVERHEAD;
        self.count_sent(from, 1, bytes as u64);
        self.counters.frames_sent += 1;
        if let Some(late) = self.net.doubled() {
            let packet = Packet::Frame {
                connection,
                frame: frame.clone(),
            };
            self.send_later(from, to, packet, late);
        }
        self.send(from, to, Packet::Frame { connection, frame });
    }

    pub(crate) fn count_sent(&mut self, member: MemberId, datagrams: u64, bytes: u64) {
        let traffic = &mut self.processes[member.0 as usize].traffic;
        traffic.datagrams += datagrams;
        traffic.bytes += bytes;
        self.counters.datagrams_sent += datagrams;
        self.counters.bytes_sent += bytes;
    }

    /// Sends a packet; says whether it is on its way.
    pub(crate) fn send(&mut self, from: MemberId, to: MemberId, packet: Packet) -> bool {
        self.send_later(from, to, packet, Duration::ZERO)
    }

    fn send_later(&mut self, from: MemberId, to: MemberId, packet: Packet, late: Duration) -> bool {
        let (sender, receiver) = (self.host_of(from), self.host_of(to));
        if sender != receiver && self.host(sender).sick > 0 {
            return self.hold(sender, from, to, packet);
        }
        let bytes = self.size_if_it_matters(from, to, &packet);
        let ends = (
            (sender, self.host(sender).zone),
            (receiver, self.host(receiver).zone),
        );
        match self.net.fate(ends.0, ends.1, Port::Mesh, bytes) {
            Fate::Arrives(way) => {
                let at = self.now() + way + late;
                self.queue.push(at, Event::Packet { from, to, packet });
                true
            }
            // QUIC takes no ICMP message's word for anything.
            Fate::Lost | Fate::Rejected(_) => {
                self.counters.frames_lost += 1;
                false
            }
            Fate::TooLarge => {
                self.counters.frames_too_large += 1;
                false
            }
        }
    }

    /// A packet's UDP payload in bytes, if the path is narrower than the largest one.
    fn size_if_it_matters(&self, from: MemberId, to: MemberId, packet: &Packet) -> Option<usize> {
        let (from, to) = (self.host_of(from), self.host_of(to));
        let mtu = usize::from(self.net.mtu(from, to));
        if mtu >= INITIAL_BYTES {
            return None;
        }
        Some(match packet {
            Packet::Frame { frame, .. } => encoded_len(frame) + OVERHEAD - 28,
            Packet::Initial { .. } | Packet::Accept { .. } | Packet::Finished { .. } => {
                INITIAL_BYTES
            }
            Packet::Ask { .. } | Packet::Answer { .. } => INITIAL_BYTES,
            Packet::Close { .. } | Packet::Reset { .. } => ACK_BYTES,
        })
    }

    /// A packet arrives at a host.
    pub(crate) fn arrive(&mut self, from: MemberId, to: MemberId, packet: Packet) {
        let (sender, receiver) = (self.host_of(from), self.host_of(to));
        if !self.host(receiver).power {
            self.counters.frames_lost += 1;
            return;
        }
        if sender != receiver && self.host(receiver).sick > 0 {
            self.hold(receiver, from, to, packet);
            return;
        }
        self.deliver_packet(from, to, packet);
    }

    /// A process reads a packet.
    pub(crate) fn read(&mut self, member: MemberId, from: MemberId, packet: Packet) {
        self.note_answer(from, member);
        match packet {
            Packet::Frame { connection, frame } => {
                if !self.is_current(member, from, connection) {
                    self.send(member, from, Packet::Reset { connection });
                    return;
                }
                self.trace.word(frame_word(&frame));
                // What is answered at once carries the acknowledgement with it.
                if !matches!(frame, Frame::Probe(_)) {
                    self.count_sent(member, 1, ACK_BYTES as u64);
                }
                let from = self.key_of(from);
                let frame = MeshInput::Frame { from, frame };
                self.feed(member, Input::Mesh(frame));
            }
            Packet::Initial {
                connection,
                dial,
                source,
            } => self.accept(member, from, connection, dial, source),
            Packet::Accept { connection, dial } => self.accepted(member, from, connection, dial),
            Packet::Finished { connection } => {
                self.is_current(member, from, connection);
            }
            Packet::Close { connections } => self.drop_link(member, from, &connections),
            Packet::Reset { connection } => self.drop_link(member, from, &[connection]),
            Packet::Ask {
                connection,
                stream,
                request,
            } => self.asked(member, from, connection, stream, *request),
            Packet::Answer { stream, parts } => self.answered(member, from, stream, parts),
        }
    }

    /// Whether a connection stands, perhaps from now on: its first packet may be what tells
    /// the server that the handshake is over.
    fn is_current(&mut self, member: MemberId, peer: MemberId, connection: u64) -> bool {
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            return false;
        };
        if let Some(link) = life.wire.links.get_mut(&peer)
            && link.connections.contains(&connection)
        {
            link.heard = now;
            return true;
        }
        let Some((_, source, _)) = life.wire.accepting.remove(&connection) else {
            return false;
        };
        self.came_up(member, peer, connection, source);
        true
    }
}

// Links.
impl World {
    fn came_up(&mut self, member: MemberId, peer: MemberId, connection: u64, from: SocketAddr) {
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            return;
        };
        let first = !life.wire.links.contains_key(&peer);
        let link = life.wire.links.entry(peer).or_insert(Link {
            connections: Connections::new(),
            heard: now,
        });
        link.heard = now;
        link.connections.push(connection);
        if link.connections.len() > CONNECTIONS_MAX {
            link.connections.remove(0);
        }
        // Another connection of a linked peer is no news.
        if first {
            let peer = self.identity_of(peer);
            let up = MeshInput::LinkUp {
                peer,
                addresses_seen: from,
            };
            self.feed(member, Input::Mesh(up));
        }
    }

    /// These connections to a peer are gone; without any left the link is down.
    fn drop_link(&mut self, member: MemberId, peer: MemberId, connections: &[u64]) {
        let Some(life) = self.life_mut(member) else {
            return;
        };
        let Some(link) = life.wire.links.get_mut(&peer) else {
            return;
        };
        link.connections
            .retain(|connection| !connections.contains(connection));
        if link.connections.is_empty() {
            life.wire.links.remove(&peer);
            let peer = self.key_of(peer);
            self.feed(member, Input::Mesh(MeshInput::LinkDown { peer }));
        }
    }

    /// Closes the link to a peer, and says so if the packet gets there.
    pub(crate) fn close(&mut self, member: MemberId, peer: MemberId) {
        let Some(life) = self.life_mut(member) else {
            return;
        };
        if let Some(link) = life.wire.links.remove(&peer) {
            let connections = link.connections;
            self.count_sent(member, 1, ACK_BYTES as u64);
            self.send(member, peer, Packet::Close { connections });
        }
    }

    /// Looks for links over which nothing came for too long.
    pub(crate) fn look_for_idle(&mut self, member: MemberId) {
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            return;
        };
        let wire = &mut life.wire;
        wire.accepting
            .retain(|_, (_, _, since)| now.since(*since) < HANDSHAKE_TIMEOUT);
        let idle: Vec<(MemberId, Connections)> = wire
            .links
            .iter()
            .filter(|(_, link)| now.since(link.heard) >= IDLE)
            .map(|(peer, link)| (*peer, link.connections.clone()))
            .collect();
        for (peer, connections) in idle {
            self.drop_link(member, peer, &connections);
        }
        self.after(member, IDLE_CHECK, Local::Idle);
    }
}
