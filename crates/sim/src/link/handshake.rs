//! Dials and handshakes.

use std::net::SocketAddr;
use std::time::Duration;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::Identity;
use swimlet_protocol::stream::SyncRequest;
use swimlet_roles::member::Input;

use super::{
    CLIENT_HANDSHAKE, DIAL_ATTEMPT, DIALS_MAX, DIALS_QUEUED_MAX, Dial, HANDSHAKE_CPU,
    HANDSHAKES_MAX, INITIAL_BYTES, PTO, Packet, SERVER_HANDSHAKE,
};
use crate::process::Local;
use crate::record::MemberId;
use crate::world::World;

impl World {
    /// Builds a link to `peer`, or with `join` to whoever is there.
    pub(crate) fn dial(
        &mut self,
        member: MemberId,
        peer: Option<Identity>,
        addresses: Vec<SocketAddr>,
        join: Option<Box<SyncRequest>>,
    ) {
        let key = peer.as_ref().map(Identity::key);
        let there = key.and_then(|key| self.member_of(key));
        let id = self.number();
        let Some(life) = self.life_mut(member) else {
            return;
        };
        if let Some(key) = key {
            let linked = there.is_some_and(|there| life.wire.links.contains_key(&there));
            if linked || !life.wire.dialing.insert(key) {
                return;
            }
        }
        let dial = Dial {
            peer,
            addresses,
            next: 0,
            connection: 0,
            join,
        };
        life.wire.dials.insert(id, dial);
        if life.wire.dials.len() > DIALS_MAX + DIALS_QUEUED_MAX {
            self.dial_failed(member, id);
        } else if life.wire.dials.len() - life.wire.waiting.len() > DIALS_MAX {
            life.wire.waiting.push_back(id);
        } else {
            self.try_address(member, id);
        }
    }

    fn try_address(&mut self, member: MemberId, id: u64) {
        let connection = self.number();
        let Some(dial) = self
            .life_mut(member)
            .and_then(|life| life.wire.dials.get_mut(&id))
        else {
            return;
        };
        if dial.next >= dial.addresses.len() {
            self.dial_failed(member, id);
            return;
        }
        dial.connection = connection;
        dial.next += 1;
        self.after(
            member,
            DIAL_ATTEMPT,
            Local::DialTimeout {
                dial: id,
                connection,
            },
        );
        self.send_initial(member, id, connection, 0);
    }

    /// Sends the first packet of a dial, for the `n`th time.
    pub(crate) fn send_initial(&mut self, member: MemberId, dial: u64, connection: u64, n: u32) {
        let Some(it) = self.dial_at(member, dial, connection) else {
            return;
        };
        let address = it.addresses[it.next - 1];
        let source = self.source_of(member);
        let bytes = (INITIAL_BYTES + 28) as u64;
        self.count_sent(member, 1, bytes);
        if let Some(to) = self.listener(address) {
            let packet = Packet::Initial {
                connection,
                dial,
                source,
            };
            self.send(member, to, packet);
        }
        let again = Local::Initial {
            dial,
            connection,
            n: n + 1,
        };
        self.after(member, PTO * 2_u32.pow(n), again);
    }

    fn dial_at(&self, member: MemberId, dial: u64, connection: u64) -> Option<&Dial> {
        let it = self.life(member)?.wire.dials.get(&dial)?;
        (it.connection == connection).then_some(it)
    }

    /// Nobody answered at an address.
    pub(crate) fn dial_timed_out(&mut self, member: MemberId, dial: u64, connection: u64) {
        if self.dial_at(member, dial, connection).is_some() {
            self.try_address(member, dial);
        }
    }

    pub(super) fn accept(
        &mut self,
        member: MemberId,
        from: MemberId,
        connection: u64,
        dial: u64,
        source: SocketAddr,
    ) {
        let now = self.now();
        let Some(life) = self.life_mut(member) else {
            return;
        };
        let wire = &mut life.wire;
        let known = wire.accepting.contains_key(&connection)
            || wire
                .links
                .get(&from)
                .is_some_and(|link| link.connections.contains(&connection));
        if known {
            // Its first answer was lost.
            self.send(member, from, Packet::Accept { connection, dial });
            return;
        }
        if wire.accepting.len() >= HANDSHAKES_MAX {
            return;
        }
        wire.accepting.insert(connection, (from, source, now));
        wire.handshakes_until = wire.handshakes_until.max(now) + HANDSHAKE_CPU;
        let wait = wire.handshakes_until.since(now);
        let ready = Local::Accept {
            to: from,
            connection,
            dial,
        };
        self.after(member, wait, ready);
    }

    /// The server's side of a handshake is computed.
    pub(crate) fn send_accept(
        &mut self,
        member: MemberId,
        to: MemberId,
        connection: u64,
        dial: u64,
    ) {
        let (datagrams, bytes) = SERVER_HANDSHAKE;
        self.count_sent(member, datagrams, bytes);
        self.send(member, to, Packet::Accept { connection, dial });
    }

    /// The server answered.
    pub(super) fn accepted(
        &mut self,
        member: MemberId,
        from: MemberId,
        connection: u64,
        dial: u64,
    ) {
        if self.dial_at(member, dial, connection).is_none() {
            return;
        }
        let (datagrams, bytes) = CLIENT_HANDSHAKE;
        self.count_sent(member, datagrams - 1, bytes - (INITIAL_BYTES + 28) as u64);
        let there = self.identity_of(from);
        let Some(it) = self.end_dial(member, dial) else {
            return;
        };
        if it.peer.as_ref().is_some_and(|peer| *peer != there) {
            // Its certificate is another's: the next address, if there is one.
            self.send(
                member,
                from,
                Packet::Close {
                    connections: vec![connection],
                },
            );
            self.redial(member, dial, it);
            return;
        }
        self.counters.handshakes += 1;
        self.send_again(member, from, Packet::Finished { connection }, 0);
        let address = it.addresses[it.next - 1];
        self.came_up(member, from, connection, address);
        if let Some(request) = it.join {
            self.open_stream(member, from, connection, request, Some(address));
        }
    }

    fn redial(&mut self, member: MemberId, id: u64, dial: Dial) {
        let key = dial.peer.as_ref().map(Identity::key);
        if let Some(life) = self.life_mut(member) {
            life.wire.dialing.extend(key);
            life.wire.dials.insert(id, dial);
        }
        self.try_address(member, id);
    }

    /// Takes a dial out, and begins one that waited.
    fn end_dial(&mut self, member: MemberId, id: u64) -> Option<Dial> {
        let wire = &mut self.life_mut(member)?.wire;
        let dial = wire.dials.remove(&id)?;
        if let Some(peer) = &dial.peer {
            wire.dialing.remove(&peer.key());
        }
        wire.waiting.retain(|waiting| *waiting != id);
        if wire.dials.len() - wire.waiting.len() < DIALS_MAX
            && let Some(next) = wire.waiting.pop_front()
        {
            self.after(member, Duration::ZERO, Local::DialNow { dial: next });
        }
        Some(dial)
    }

    /// A dial that waited may begin.
    pub(crate) fn dial_now(&mut self, member: MemberId, dial: u64) {
        self.try_address(member, dial);
    }

    fn dial_failed(&mut self, member: MemberId, id: u64) {
        let Some(dial) = self.end_dial(member, id) else {
            return;
        };
        self.counters.dials_failed += 1;
        let failed = match dial.peer {
            Some(peer) => MeshInput::DialFailed { peer: peer.key() },
            None => MeshInput::JoinFailed {
                address: dial.addresses[0],
            },
        };
        self.feed(member, Input::Mesh(failed));
    }
}
