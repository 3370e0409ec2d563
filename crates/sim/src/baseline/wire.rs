//! foca's packets as bytes: fixed fields, big-endian, as lean as a codec can be.

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member, Message, State};

use super::Id;

/// The codec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire;

/// A packet that is none, or a buffer that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("no room left in the packet")]
    Full,
    #[error("the packet ends too early")]
    Short,
    #[error("no such kind of message or state: {0}")]
    Kind(u8),
}

/// Bytes of an identity, and of a member with state and incarnation.
const ID_BYTES: usize = 6;
const MEMBER_BYTES: usize = ID_BYTES + 3;

fn put(id: &Id, buf: &mut impl BufMut) {
    buf.put_u32(id.node);
    buf.put_u16(id.renewed);
}

fn take(buf: &mut impl Buf) -> Result<Id, WireError> {
    if buf.remaining() < ID_BYTES {
        return Err(WireError::Short);
    }
    Ok(Id {
        node: buf.get_u32(),
        renewed: buf.get_u16(),
    })
}

fn take_u8(buf: &mut impl Buf) -> Result<u8, WireError> {
    buf.try_get_u8().map_err(|_| WireError::Short)
}

/// A message's kind, and what it says about a probe: its number, and of whom.
fn parts(message: &Message<Id>) -> (u8, Option<u8>, Option<Id>) {
    match message {
        Message::Ping(number) => (0, Some(*number), None),
        Message::Ack(number) => (1, Some(*number), None),
        Message::PingReq {
            target,
            probe_number,
        } => (2, Some(*probe_number), Some(*target)),
        Message::IndirectPing {
            origin,
            probe_number,
        } => (3, Some(*probe_number), Some(*origin)),
        Message::IndirectAck {
            target,
            probe_number,
        } => (4, Some(*probe_number), Some(*target)),
        Message::ForwardedAck {
            origin,
            probe_number,
        } => (5, Some(*probe_number), Some(*origin)),
        Message::Announce => (6, None, None),
        Message::Feed => (7, None, None),
        Message::Gossip => (8, None, None),
        Message::Broadcast => (9, None, None),
        Message::TurnUndead => (10, None, None),
    }
}

fn message(buf: &mut impl Buf) -> Result<Message<Id>, WireError> {
    Ok(match take_u8(buf)? {
        0 => Message::Ping(take_u8(buf)?),
        1 => Message::Ack(take_u8(buf)?),
        2 => Message::PingReq {
            probe_number: take_u8(buf)?,
            target: take(buf)?,
        },
        3 => Message::IndirectPing {
            probe_number: take_u8(buf)?,
            origin: take(buf)?,
        },
        4 => Message::IndirectAck {
            probe_number: take_u8(buf)?,
            target: take(buf)?,
        },
        5 => Message::ForwardedAck {
            probe_number: take_u8(buf)?,
            origin: take(buf)?,
        },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        other => return Err(WireError::Kind(other)),
    })
}

impl Codec<Id> for Wire {
    type Error = WireError;

    fn encode_header(
        &mut self,
        header: &Header<Id>,
        mut buf: impl BufMut,
    ) -> Result<(), WireError> {
        let (kind, number, of) = parts(&header.message);
        let bytes = 2 * ID_BYTES + 3 + usize::from(number.is_some()) + of.map_or(0, |_| ID_BYTES);
        if buf.remaining_mut() < bytes {
            return Err(WireError::Full);
        }
        put(&header.src, &mut buf);
        buf.put_u16(header.src_incarnation);
        put(&header.dst, &mut buf);
        buf.put_u8(kind);
        if let Some(number) = number {
            buf.put_u8(number);
        }
        if let Some(of) = of {
            put(&of, &mut buf);
        }
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Id>, WireError> {
        let src = take(&mut buf)?;
        let src_incarnation = buf.try_get_u16().map_err(|_| WireError::Short)?;
        Ok(Header {
            src,
            src_incarnation,
            dst: take(&mut buf)?,
            message: message(&mut buf)?,
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<Id>,
        mut buf: impl BufMut,
    ) -> Result<(), WireError> {
        if buf.remaining_mut() < MEMBER_BYTES {
            return Err(WireError::Full);
        }
        put(member.id(), &mut buf);
        buf.put_u16(member.incarnation());
        buf.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Id>, WireError> {
        let id = take(&mut buf)?;
        let incarnation = buf.try_get_u16().map_err(|_| WireError::Short)?;
        let state = match take_u8(&mut buf)? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            other => return Err(WireError::Kind(other)),
        };
        Ok(Member::new(id, incarnation, state))
    }
}
