//! Outgoing connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, ConnectionError, TransportErrorCode};
use swimlet_protocol::Identity;
use swimlet_protocol::member::ADDRESSES_MAX;
use swimlet_protocol::stream::SyncRequest;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::endpoint::client_config;
use crate::event::{DialError, Event, JoinError, Refusal};
use crate::link;
use crate::shared::{Shared, lock};
use crate::sync;
use crate::tls::{self, Expect, Outcome};

/// Pause before a peer that refused us as busy is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// First and longest pause between looks for the handshake's confirmation.
const CONFIRM_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// Dials `peer` at each address in turn, and tells what came of it.
pub(crate) async fn dial(
    shared: Arc<Shared>,
    peer: Identity,
    addresses: Vec<SocketAddr>,
    place: OwnedSemaphorePermit,
) {
    let key = peer.key();
    let outcome = tokio::select! {
        outcome = dial_each(&shared, &peer, &addresses) => outcome,
        () = shared.cancel.cancelled() => Err(DialError::Stopping),
    };
    // From here on a new dial to the same peer is a new one.
    lock(&shared.dialling).remove(&key);
    drop(place);
    if let Err(reason) = outcome {
        failed(&shared, &reason);
        tracing::debug!(%peer, %reason, "dial failed");
        shared.tell(Event::DialFailed { peer: key, reason }).await;
    }
}

/// Dials whoever is at `address`, and syncs with it.
pub(crate) async fn join(
    shared: Arc<Shared>,
    address: SocketAddr,
    request: SyncRequest,
    place: OwnedSemaphorePermit,
) {
    let reached = async {
        let Ok(_under_way) = shared.dials.acquire().await else {
            return Err(DialError::Stopping);
        };
        shared.counters.dials.inc();
        let (peer, connection) = attempt(&shared, &Expect::AnyMember, address).await?;
        link::establish(&shared, peer.clone(), connection.clone(), true)
            .await
            .map_err(|link::Full| DialError::LinksFull)?;
        Ok((peer, connection))
    };
    let reached = tokio::select! {
        reached = reached => reached,
        () = shared.cancel.cancelled() => Err(DialError::Stopping),
    };
    drop(place);
    let reason = match reached {
        Ok((peer, connection)) => match sync::ask(&shared, peer.key(), connection, request).await {
            Ok(()) => return,
            Err(error) => JoinError::Sync(error.to_string()),
        },
        Err(error) => {
            failed(&shared, &error);
            JoinError::Dial(error)
        }
    };
    tracing::debug!(%address, %reason, "join failed");
    shared.tell(Event::JoinFailed { address, reason }).await;
}

fn failed(shared: &Shared, reason: &DialError) {
    shared.counters.dials_failed.inc();
    if *reason == DialError::LinksFull {
        tracing::warn!("no link to a new peer: all links are taken");
    }
}

async fn dial_each(
    shared: &Arc<Shared>,
    peer: &Identity,
    addresses: &[SocketAddr],
) -> Result<(), DialError> {
    let Ok(_under_way) = shared.dials.acquire().await else {
        return Err(DialError::Stopping);
    };
    {
        let pool = shared.pool();
        // While this dial waited, the peer may have dialled us.
        if pool.current(peer.key()).is_some() {
            return Ok(());
        }
        if pool.is_full() {
            return Err(DialError::LinksFull);
        }
    }
    shared.counters.dials.inc();
    let expect = Expect::Exactly(peer.clone());
    let mut last = DialError::NoAddress;
    for &address in addresses.iter().take(ADDRESSES_MAX) {
        match attempt(shared, &expect, address).await {
            Ok((peer, connection)) => {
                return link::establish(shared, peer, connection, true)
                    .await
                    .map_err(|link::Full| DialError::LinksFull);
            }
            // A family that we do not listen on says nothing about the others.
            Err(DialError::NoAddress) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Tries one address, for at most the attempt's timeout.
async fn attempt(
    shared: &Arc<Shared>,
    expect: &Expect,
    address: SocketAddr,
) -> Result<(Identity, Connection), DialError> {
    let mut busy = false;
    let attempts = async {
        loop {
            match handshake(shared, expect, address).await {
                Err(DialError::Busy) => {
                    busy = true;
                    shared.counters.dials_put_off.inc();
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    };
    match timeout(shared.config.dial_attempt_timeout, attempts).await {
        Ok(outcome) => outcome,
        Err(_) if busy => Err(DialError::Busy),
        Err(_) => Err(DialError::Timeout),
    }
}

async fn handshake(
    shared: &Arc<Shared>,
    expect: &Expect,
    address: SocketAddr,
) -> Result<(Identity, Connection), DialError> {
    let bound = shared.endpoint_for(address).ok_or(DialError::NoAddress)?;
    let credentials = shared.store.current();
    let (crypto, outcome) = tls::client(&shared.config.identity, expect.clone(), credentials)
        .map_err(DialError::Failed)?;
    let config = client_config(crypto, shared.transport.clone());
    let connecting = bound
        .endpoint
        .connect_with(config, address, tls::SERVER_NAME)
        .map_err(|error| DialError::Failed(error.to_string()))?;
    let connection = match connecting.await {
        Ok(connection) => connection,
        Err(error) => return Err(error_of(error, &outcome)),
    };
    confirmed(&connection)
        .await
        .map_err(|error| error_of(error, &outcome))?;
    match outcome.get() {
        Some(Ok(identity)) => Ok((identity.clone(), connection)),
        // Every handshake that completes has verified the peer's certificate.
        Some(Err(_)) | None => Err(DialError::Failed("no certificate was verified".to_owned())),
    }
}

/// Waits until the peer has accepted our certificate too.
///
/// In TLS 1.3 the client is done before the server has seen the client's
/// certificate; a link told up here would go down a round trip later at every
/// foreign member. HANDSHAKE_DONE (RFC 9001, §4.1.2) ends the doubt, and quinn
/// shows it in its statistics only.
async fn confirmed(connection: &Connection) -> Result<(), ConnectionError> {
    let [mut pause, longest] = CONFIRM_PAUSES;
    while connection.stats().frame_rx.handshake_done == 0 {
        tokio::select! {
            error = connection.closed() => return Err(error),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
        }
    }
    Ok(())
}

fn error_of(error: ConnectionError, outcome: &Outcome) -> DialError {
    match outcome.get() {
        Some(Err(Refusal::Ourselves)) => return DialError::Ourselves,
        Some(Err(refusal)) => return DialError::Certificate(refusal.clone()),
        Some(Ok(_)) | None => {}
    }
    match error {
        ConnectionError::TimedOut => DialError::Timeout,
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            DialError::Busy
        }
        error @ (ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_)) => {
            DialError::TurnedAway(error.to_string())
        }
        error => DialError::Failed(error.to_string()),
    }
}
