//! State syncs over streams: one request, then the parts of its answer.
//!
//! Each message is preceded by its length as a big-endian `u32`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quinn::{Connection, RecvStream, SendStream};
use swimlet_protocol::codec::{decode_stream, encode_stream};
use swimlet_protocol::stream::{STREAM_MESSAGE_BYTES_MAX, StreamMessage, SyncPart, SyncRequest};
use swimlet_protocol::{Identity, MemberKey};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use crate::event::{Event, RefusedReason};
use crate::shared::{Shared, code, lock};

/// Most parts of one answer: 64 parts of 512 members are 32,768 members, twice
/// what the membership is capped at.
const PARTS_MAX: usize = 64;

/// Why a sync failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error("too many syncs are in flight")]
    TooMany,
    #[error("it took too long")]
    Timeout,
    #[error("the stream broke: {0}")]
    Stream(String),
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    #[error("the peer spoke as another member")]
    Impersonation,
    #[error("the owner did not reply")]
    NoReply,
}

/// Asks `peer` for a sync and queues the parts of its answer as events.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    peer: MemberKey,
    connection: Connection,
    request: SyncRequest,
) -> Result<(), SyncError> {
    let Ok(_place) = shared.asking.try_acquire() else {
        shared.counters.syncs_over_limit.inc();
        return Err(SyncError::TooMany);
    };
    shared.counters.syncs_asked.inc();
    let asked = async {
        let (mut send, mut receive) = connection.open_bi().await.map_err(broke)?;
        write(&mut send, &StreamMessage::SyncRequest(request)).await?;
        send.finish().map_err(broke)?;
        for _ in 0..PARTS_MAX {
            let StreamMessage::SyncPart(part) = read(&mut receive).await? else {
                return Err(SyncError::Protocol("a request for an answer".to_owned()));
            };
            let more = part.more;
            shared.tell(Event::SyncAnswered { from: peer, part }).await;
            if !more {
                return Ok(());
            }
        }
        Err(SyncError::Protocol(format!("more than {PARTS_MAX} parts")))
    };
    let outcome = tokio::select! {
        outcome = timeout(shared.config.sync_timeout, asked) => outcome,
        () = shared.cancel.cancelled() => return Err(SyncError::Stream("stopping".to_owned())),
    };
    let outcome = outcome.unwrap_or(Err(SyncError::Timeout));
    if let Err(error) = &outcome {
        shared.counters.syncs_failed.inc();
        tracing::debug!(?peer, %error, "sync failed");
    }
    outcome
}

/// Serves a stream that a peer opened, in a task.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    identity: &Identity,
    connection: &Connection,
    send: SendStream,
    receive: RecvStream,
) {
    // Dropping the streams tells the peer at once.
    let Ok(place) = shared.answering.clone().try_acquire_owned() else {
        return shared.counters.syncs_over_limit.inc();
    };
    let (shared, identity, connection) = (shared.clone(), identity.clone(), connection.clone());
    shared.tasks.clone().spawn(async move {
        let served = tokio::select! {
            served = timeout(
                shared.config.sync_timeout,
                answer(&shared, &identity, send, receive, place),
            ) => served.unwrap_or(Err(SyncError::Timeout)),
            () = shared.cancel.cancelled() => return,
        };
        let Err(error) = served else {
            return shared.counters.syncs_answered.inc();
        };
        shared.counters.syncs_bad.inc();
        tracing::debug!(peer = %identity, %error, "sync not answered");
        if matches!(error, SyncError::Impersonation) {
            connection.close(code::PROTOCOL, b"spoke as another member");
            shared.refused(
                connection.remote_address(),
                RefusedReason::Impersonation {
                    peer: Box::new(identity),
                },
            );
        }
    });
}

/// A request that waits for the owner's reply; forgotten when dropped.
struct Waiting<'a> {
    shared: &'a Shared,
    token: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.shared.replies).remove(&self.token);
    }
}

async fn answer(
    shared: &Shared,
    identity: &Identity,
    mut send: SendStream,
    mut receive: RecvStream,
    _place: OwnedSemaphorePermit,
) -> Result<(), SyncError> {
    let StreamMessage::SyncRequest(request) = read(&mut receive).await? else {
        return Err(SyncError::Protocol("an answer for a request".to_owned()));
    };
    // The certificate's name is the only one a member may speak under.
    if !request.record.belongs_to(identity) {
        return Err(SyncError::Impersonation);
    }
    let token = shared.next_token.fetch_add(1, Ordering::Relaxed);
    let (reply, replied) = oneshot::channel();
    lock(&shared.replies).insert(token, reply);
    let _waiting = Waiting { shared, token };
    shared
        .tell(Event::SyncRequested {
            from: identity.clone(),
            token,
            request,
        })
        .await;
    let parts = replied.await.map_err(|_| SyncError::NoReply)?;
    for part in closed_by_last(parts) {
        write(&mut send, &StreamMessage::SyncPart(part)).await?;
    }
    send.finish().map_err(broke)?;
    // Until the peer has all of it: a link closed before would cut it off.
    send.stopped().await.map_err(broke)?;
    Ok(())
}

/// The parts with `more` as it is: set on all but the last. No parts are one empty part.
fn closed_by_last(mut parts: Vec<SyncPart>) -> Vec<SyncPart> {
    parts.truncate(PARTS_MAX);
    if parts.is_empty() {
        parts.push(SyncPart {
            members: swimlet_protocol::Bounded::new(),
            more: false,
        });
    }
    let last = parts.len() - 1;
    for (index, part) in parts.iter_mut().enumerate() {
        part.more = index < last;
    }
    parts
}

async fn write(send: &mut SendStream, message: &StreamMessage) -> Result<(), SyncError> {
    let bytes = encode_stream(message).map_err(|error| SyncError::Protocol(error.to_string()))?;
    // At most STREAM_MESSAGE_BYTES_MAX, as encoded.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    send.write_all(&len.to_be_bytes()).await.map_err(broke)?;
    send.write_all(&bytes).await.map_err(broke)
}

async fn read(receive: &mut RecvStream) -> Result<StreamMessage, SyncError> {
    let mut len = [0; 4];
    receive.read_exact(&mut len).await.map_err(broke)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > STREAM_MESSAGE_BYTES_MAX {
        return Err(SyncError::Protocol(format!(
            "a message of {len} bytes, {STREAM_MESSAGE_BYTES_MAX} at most"
        )));
    }
    // Grows with what really arrives: a length alone reserves nothing.
    let mut bytes = Vec::new();
    while bytes.len() < len {
        match receive.read_chunk(len - bytes.len(), true).await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Ok(None) => return Err(SyncError::Protocol("a truncated message".to_owned())),
            Err(error) => return Err(broke(error)),
        }
    }
    decode_stream(&bytes).map_err(|error| SyncError::Protocol(error.to_string()))
}

fn broke(error: impl std::fmt::Display) -> SyncError {
    SyncError::Stream(error.to_string())
}
