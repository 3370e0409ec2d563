//! One connection of a peer, from its handshake to its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError};
use swimlet_protocol::codec::{DecodeError, decode_frame};
use swimlet_protocol::{Identity, MemberKey};

use crate::event::{Event, LinkLoss, RefusedReason};
use crate::pool::{Inserted, Link, LinkId, Removed};
use crate::shared::{Shared, code};
use crate::sync;

/// How long two connections of a peer stay side by side. By then the peer has
/// both too, and a live older one has acknowledged our ping: initial round trip
/// estimates and two probe timeouts stay below this.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// Malformed datagrams, less the well-formed ones, at which a link is closed.
/// A member that runs our code sends none, and QUIC leaves no bit error through,
/// so this only bounds the work that a hostile member can make.
const STRIKES_MAX: u32 = 32;

/// The link table is full.
#[derive(Debug)]
pub(crate) struct Full;

/// Takes a connection into the pool, tells of it, and reads it in a task.
pub(crate) async fn establish(
    shared: &Arc<Shared>,
    identity: Identity,
    connection: Connection,
    dialled: bool,
) -> Result<(), Full> {
    // Places for the events come first, so that the pool's change and its word
    // are one step and the order of events is that of the changes.
    let Ok(mut places) = shared.events.reserve_many(2).await else {
        shared.cancel.cancel();
        return Err(Full);
    };
    let key = identity.key();
    let up = Event::LinkUp {
        peer: identity.clone(),
        remote: connection.remote_address(),
        dialled,
    };
    let mut tell = |event| {
        if let Some(place) = places.next() {
            place.send(event);
        }
    };
    let mut pool = shared.pool();
    let id = match pool.insert(&identity, connection.clone(), dialled) {
        Inserted::Up(id) => {
            tell(up);
            shared.counters.links_up.inc();
            id
        }
        Inserted::Again { id, dead } => {
            tell(Event::LinkDown {
                peer: key,
                reason: loss(dead.close_reason()),
            });
            tell(up);
            shared.counters.links_down.inc();
            shared.counters.links_up.inc();
            id
        }
        Inserted::Doubled { id, older, evicted } => {
            if let Some(evicted) = evicted {
                evicted.close(code::DOUBLED, b"");
            }
            shared.counters.links_doubled.inc();
            shared
                .tasks
                .spawn(settle(shared.clone(), key, older, id, connection.clone()));
            id
        }
        Inserted::Full => {
            drop(pool);
            connection.close(code::FULL, b"");
            shared.counters.links_refused_full.inc();
            return Err(Full);
        }
    };
    drop(pool);
    let task = run(shared.clone(), identity, id, connection);
    shared.tasks.spawn(task);
    Ok(())
}

/// What the end of a connection means to its owner.
fn loss(error: Option<ConnectionError>) -> LinkLoss {
    match error {
        None | Some(ConnectionError::LocallyClosed) => LinkLoss::ClosedHere,
        Some(ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_)) => {
            LinkLoss::ClosedByPeer
        }
        Some(ConnectionError::Reset) => LinkLoss::Reset,
        Some(ConnectionError::TimedOut) => LinkLoss::Idle,
        Some(error) => LinkLoss::Failed(error.to_string()),
    }
}

async fn run(shared: Arc<Shared>, identity: Identity, id: LinkId, connection: Connection) {
    let key = identity.key();
    let reason = tokio::select! {
        reason = read(&shared, &identity, &connection) => reason,
        () = shared.cancel.cancelled() => return,
    };
    tracing::debug!(peer = %identity, %reason, "connection ended");
    let Ok(place) = shared.events.reserve().await else {
        return shared.cancel.cancel();
    };
    let mut pool = shared.pool();
    if pool.remove(key, id) == Removed::Last {
        place.send(Event::LinkDown { peer: key, reason });
        shared.counters.links_down.inc();
    }
}

/// Reads datagrams and accepts streams until the connection ends.
async fn read(shared: &Arc<Shared>, identity: &Identity, connection: &Connection) -> LinkLoss {
    let key = identity.key();
    let mut strikes = 0_u32;
    loop {
        tokio::select! {
            datagram = connection.read_datagram() => match datagram {
                // A ping: see `settle`.
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => strikes = judge(shared, key, &bytes, strikes),
                Err(error) => return loss(Some(error)),
            },
            stream = connection.accept_bi() => match stream {
                Ok((send, receive)) => sync::serve(shared, identity, connection, send, receive),
                Err(error) => return loss(Some(error)),
            },
        }
        if strikes >= STRIKES_MAX {
            connection.close(code::PROTOCOL, b"malformed datagrams");
            shared.counters.links_closed_malformed.inc();
            shared.refused(
                connection.remote_address(),
                RefusedReason::Handshake(format!("{identity} sent malformed datagrams")),
            );
            return LinkLoss::Malformed;
        }
    }
}

/// Turns a datagram into an event, or into a strike.
fn judge(shared: &Shared, from: MemberKey, bytes: &[u8], strikes: u32) -> u32 {
    match decode_frame(bytes) {
        Ok(frame) => {
            if shared.offer(Event::Frame { from, frame }) {
                shared.counters.frames_received.inc();
            } else {
                shared.counters.frames_dropped_queue_full.inc();
            }
            strikes.saturating_sub(1)
        }
        // A member of another release is no enemy, and its link must not flap
        // while a cluster is upgraded.
        Err(DecodeError::Version { .. }) => {
            shared.counters.frames_other_version.inc();
            strikes
        }
        Err(_) => {
            shared.counters.frames_malformed.inc();
            strikes + 1
        }
    }
}

/// Chooses between two connections of one peer, once both sides have both.
///
/// The older one is pinged. If its other end is gone, as after a restart, nothing
/// comes back, or a reset: then the newer one stays, whoever dialled it.
async fn settle(
    shared: Arc<Shared>,
    peer: MemberKey,
    older: Link<Connection>,
    newer: LinkId,
    newer_wire: Connection,
) {
    let heard = |connection: &Connection| connection.stats().udp_rx.datagrams;
    let before = heard(&older.wire);
    // If it cannot be sent, the older one is closed, and there is nothing to settle.
    let _ = older.wire.send_datagram(Bytes::new());
    let both_stayed = tokio::select! {
        () = tokio::time::sleep(SETTLE_AFTER) => true,
        _ = older.wire.closed() => false,
        _ = newer_wire.closed() => false,
        () = shared.cancel.cancelled() => return,
    };
    if both_stayed {
        let lives = heard(&older.wire) > before;
        let loser = shared.pool().settle(peer, older.id, newer, lives);
        if let Some(loser) = loser {
            loser.close(code::DOUBLED, b"");
        }
    }
    shared.counters.links_settled.inc();
}
