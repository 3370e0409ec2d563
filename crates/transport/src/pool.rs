//! Which connection is the link to a peer: pure bookkeeping.
//!
//! A peer has one link, but may for a moment have two connections: both sides
//! dialled at once, or it restarted and dialled before the old connection was
//! known to be dead. The newer one, which has just proven alive, carries what we
//! send until the two are settled. That is silent: `LinkUp` and `LinkDown` are
//! about the first and the last connection of a peer.

use std::collections::BTreeMap;

use swimlet_protocol::{Identity, MemberKey};

/// Most connections of one peer: the settled one and its challenger.
const PER_PEER_MAX: usize = 2;

/// What the pool must know of a connection.
pub(crate) trait Wire: Clone {
    /// Whether it is not closed, as far as we know.
    fn is_open(&self) -> bool;
}

/// All connections by peer.
#[derive(Debug)]
pub(crate) struct Pool<W> {
    own: MemberKey,
    peers: BTreeMap<MemberKey, Peer<W>>,
    peers_max: usize,
    next_id: u64,
}

/// One connection in the pool.
#[derive(Clone, Debug)]
pub(crate) struct Link<W> {
    pub(crate) id: LinkId,
    pub(crate) wire: W,
    /// Whether we dialled it.
    pub(crate) dialled: bool,
}

/// Names a connection for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(u64);

/// What came of a new connection.
#[derive(Debug)]
pub(crate) enum Inserted<W> {
    /// The peer's first.
    Up(LinkId),
    /// The peer's former one was closed already, which was not told yet: tell
    /// that it is down, then that this one is up.
    Again { id: LinkId, dead: W },
    /// The peer has an open one: settle between the two. The pool let go of
    /// `evicted`, a third one.
    Doubled {
        id: LinkId,
        older: Link<W>,
        evicted: Option<W>,
    },
    /// No place; nothing was kept.
    Full,
}

/// What the end of a connection means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// The peer has none left: tell that its link is down.
    Last,
    /// Nothing to tell.
    Silent,
}

#[derive(Debug)]
struct Peer<W> {
    identity: Identity,
    /// In order of arrival, one or two.
    links: Vec<Link<W>>,
}

impl<W: Wire> Pool<W> {
    pub(crate) fn new(own: MemberKey, peers_max: usize) -> Self {
        Self {
            own,
            peers: BTreeMap::new(),
            peers_max,
            next_id: 0,
        }
    }

    /// Peers with a link.
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.peers.len() >= self.peers_max
    }

    /// The connection to send to `peer` over.
    pub(crate) fn current(&self, peer: MemberKey) -> Option<&W> {
        self.peers.get(&peer)?.current().map(|link| &link.wire)
    }

    /// Every connection of `peer`.
    pub(crate) fn all(&self, peer: MemberKey) -> Vec<W> {
        self.peers
            .get(&peer)
            .map(|peer| peer.links.iter().map(|link| link.wire.clone()).collect())
            .unwrap_or_default()
    }

    pub(crate) fn insert(&mut self, identity: &Identity, wire: W, dialled: bool) -> Inserted<W> {
        let key = identity.key();
        let full = self.is_full();
        let id = LinkId(self.next_id);
        let link = Link { id, wire, dialled };
        let Some(peer) = self.peers.get_mut(&key) else {
            if full {
                return Inserted::Full;
            }
            self.next_id += 1;
            let peer = Peer {
                identity: identity.clone(),
                links: vec![link],
            };
            self.peers.insert(key, peer);
            return Inserted::Up(id);
        };
        // Two names with one key: the later one finds no place.
        if peer.identity != *identity {
            return Inserted::Full;
        }
        self.next_id += 1;
        let Some(older) = peer.current().cloned() else {
            let dead = peer.links.pop().map(|link| link.wire);
            peer.links = vec![link];
            return match dead {
                Some(dead) => Inserted::Again { id, dead },
                None => Inserted::Up(id),
            };
        };
        let evicted = (peer.links.len() >= PER_PEER_MAX)
            .then(|| peer.links.iter().position(|other| other.id != older.id))
            .flatten()
            .map(|index| peer.links.remove(index).wire);
        peer.links.push(link);
        Inserted::Doubled { id, older, evicted }
    }

    /// Forgets a connection that ended.
    pub(crate) fn remove(&mut self, key: MemberKey, id: LinkId) -> Removed {
        let Some(peer) = self.peers.get_mut(&key) else {
            return Removed::Silent;
        };
        let before = peer.links.len();
        peer.links.retain(|link| link.id != id);
        if peer.links.is_empty() && before > 0 {
            self.peers.remove(&key);
            return Removed::Last;
        }
        Removed::Silent
    }

    /// Chooses between two connections of a peer; the loser is to be closed.
    ///
    /// `older_lives`: whether the older one brought a packet since the newer came.
    /// Both sides choose alike: of two live ones they keep the one that the member
    /// with the smaller key dialled, or the newer one if one side dialled both.
    pub(crate) fn settle(
        &mut self,
        key: MemberKey,
        older: LinkId,
        newer: LinkId,
        older_lives: bool,
    ) -> Option<W> {
        let own = self.own;
        let peer = self.peers.get_mut(&key)?;
        let dialled_by = |link: &Link<W>| if link.dialled { own } else { key };
        let find = |id| {
            peer.links
                .iter()
                .position(|link| link.id == id && link.wire.is_open())
        };
        let (older, newer) = (find(older)?, find(newer)?);
        let (by_older, by_newer) = (
            dialled_by(peer.links.get(older)?),
            dialled_by(peer.links.get(newer)?),
        );
        let loser = if older_lives && by_older < by_newer {
            newer
        } else {
            older
        };
        Some(peer.links.remove(loser).wire)
    }
}

impl<W: Wire> Peer<W> {
    fn current(&self) -> Option<&Link<W>> {
        self.links.iter().rev().find(|link| link.wire.is_open())
    }
}

#[cfg(test)]
mod tests;
