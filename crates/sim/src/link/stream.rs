//! Streams: syncs, and how the members of a prepared world join.

use std::net::SocketAddr;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::MemberKey;
use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_roles::member::Input;

use super::{
    ACK_BYTES, INITIAL_BYTES, OVERHEAD, PTO, Packet, REPEATS_MAX, STREAM_WINDOW, SYNC_TIMEOUT,
};
use crate::process::Local;
use crate::record::MemberId;
use crate::world::World;

// A prepared start.
impl World {
    /// A member of a prepared world joins: it is linked to a seed that knows everybody, and
    /// has its answer. From there on all goes its usual way.
    pub(crate) fn join_at_once(&mut self, member: MemberId, address: SocketAddr) {
        let now = self.now();
        let Some(seed) = self.listener(address) else {
            return;
        };
        let Some(life) = self.life_mut(member) else {
            return;
        };
        // Further seeds would tell the same.
        if std::mem::replace(&mut life.joined, true) {
            return;
        }
        let connection = self.number();
        let source = self.source_of(member);
        if let Some(life) = self.life_mut(seed) {
            let handshake = (member, source, now);
            life.wire.accepting.insert(connection, handshake);
        }
        self.came_up(member, seed, connection, address);
        let from = self.key_of(seed);
        for part in self.table.clone() {
            let answered = MeshInput::SyncAnswered { from, part };
            self.feed(member, Input::Mesh(answered));
        }
    }
}

// Streams.
impl World {
    /// Sends what is repeated until it arrives, for the `n`th time.
    pub(crate) fn send_again(&mut self, from: MemberId, to: MemberId, packet: Packet, n: u32) {
        if n >= REPEATS_MAX || self.send(from, to, packet.clone()) {
            return;
        }
        let again = Local::Again {
            to,
            packet: Box::new(packet),
            n: n + 1,
        };
        self.after(from, PTO * 2_u32.pow(n), again);
    }

    /// Asks a linked peer for a sync.
    pub(crate) fn sync(&mut self, member: MemberId, to: MemberKey, request: SyncRequest) {
        let Some(to) = self.member_of(to) else {
            return;
        };
        let connection = self
            .life(member)
            .and_then(|life| life.wire.links.get(&to)?.connections.last().copied());
        if let Some(connection) = connection {
            self.open_stream(member, to, connection, Box::new(request), None);
        }
    }

    pub(super) fn open_stream(
        &mut self,
        member: MemberId,
        to: MemberId,
        connection: u64,
        request: Box<SyncRequest>,
        join: Option<SocketAddr>,
    ) {
        let stream = self.number();
        let bytes = encoded_len(&*request) + OVERHEAD;
        self.count_sent(member, 1, bytes as u64);
        self.counters.streams += 1;
        if let Some(life) = self.life_mut(member) {
            life.wire.asked.insert(stream, join);
        }
        self.after(member, SYNC_TIMEOUT, Local::SyncTimeout { stream });
        let ask = Packet::Ask {
            connection,
            stream,
            request,
        };
        self.send_again(member, to, ask, 0);
    }

    pub(super) fn asked(
        &mut self,
        member: MemberId,
        from: MemberId,
        connection: u64,
        stream: u64,
        request: SyncRequest,
    ) {
        if !self.is_current(member, from, connection) {
            self.send(member, from, Packet::Reset { connection });
            return;
        }
        let token = self.number();
        let identity = self.identity_of(from);
        if let Some(life) = self.life_mut(member) {
            life.wire.answering.insert(token, (from, stream));
        }
        let requested = MeshInput::SyncRequested {
            from: identity,
            token,
            request,
        };
        self.feed(member, Input::Mesh(requested));
    }

    /// The core answers a sync.
    pub(crate) fn reply(&mut self, member: MemberId, token: u64, parts: Vec<SyncPart>) {
        let Some((to, stream)) = self
            .life_mut(member)
            .and_then(|life| life.wire.answering.remove(&token))
        else {
            return;
        };
        let members: usize = parts.iter().map(|part| part.members.len()).sum();
        let sampled = parts.iter().find_map(|part| part.members.first());
        let bytes = members * sampled.map_or(0, encoded_len) + parts.len().max(1) * OVERHEAD;
        let datagrams = bytes.div_ceil(INITIAL_BYTES);
        self.count_sent(
            member,
            datagrams as u64,
            (bytes + datagrams * OVERHEAD) as u64,
        );
        // Half of the datagrams are acknowledged (RFC 9000 §13.2.2).
        let acks = datagrams.div_ceil(2);
        self.count_sent(to, acks as u64, (acks * ACK_BYTES) as u64);
        let (here, there) = (self.host_of(member), self.host_of(to));
        let same_zone = self.host(here).zone == self.host(there).zone;
        let round_trip = self.net.way(here == there, same_zone) * 2;
        let rounds = u32::try_from(bytes / STREAM_WINDOW).unwrap_or(u32::MAX);
        let answer = Local::Again {
            to,
            packet: Box::new(Packet::Answer { stream, parts }),
            n: 0,
        };
        self.after(member, round_trip * rounds, answer);
    }

    pub(super) fn answered(
        &mut self,
        member: MemberId,
        from: MemberId,
        stream: u64,
        parts: Vec<SyncPart>,
    ) {
        let Some(life) = self.life_mut(member) else {
            return;
        };
        if life.wire.asked.remove(&stream).is_none() {
            return;
        }
        let from = self.key_of(from);
        for part in parts {
            let answered = MeshInput::SyncAnswered { from, part };
            self.feed(member, Input::Mesh(answered));
        }
    }

    /// A sync took too long.
    pub(crate) fn sync_timed_out(&mut self, member: MemberId, stream: u64) {
        let asked = self
            .life_mut(member)
            .and_then(|life| life.wire.asked.remove(&stream));
        if let Some(Some(address)) = asked {
            self.feed(member, Input::Mesh(MeshInput::JoinFailed { address }));
        }
    }
}
