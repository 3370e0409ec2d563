//! Bytes on the wire: a version byte, then bincode with a hard limit.
//!
//! This is the only module that knows bincode. Version 2.0.1 is pinned, because
//! the project behind it was abandoned; what would replace it is written down in
//! docs/adr/0002.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::de::{BorrowDecode, BorrowDecoder, Decode, Decoder};
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError as BincodeDecodeError, EncodeError as BincodeEncodeError};

use crate::frame::{FRAME_BYTES_MAX, Frame};
use crate::identity::MemberKey;
use crate::name::{NODE_NAME_BYTES_MAX, NodeName, Zone};
use crate::stream::{STREAM_MESSAGE_BYTES_MAX, StreamMessage};

/// The wire version that this build speaks.
pub const WIRE_VERSION: u8 = 1;

/// Why bytes are not a message. Nothing was changed by them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No bytes at all.
    #[error("the message is empty")]
    Empty,
    /// Longer than any valid message.
    #[error("the message has {len} bytes, {max} at most")]
    TooLong {
        /// Length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A version this build does not speak.
    #[error("the message has wire version {found}, this build speaks {WIRE_VERSION}")]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// Truncated, malformed, or with an invalid name or length inside.
    #[error("the message is malformed: {0}")]
    Malformed(String),
    /// A valid message with bytes behind its end.
    #[error("{extra} bytes follow the message's end")]
    Trailing {
        /// Bytes left over.
        extra: usize,
    },
}

/// Why a message was not encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message does not fit {max} bytes; send fewer items in it")]
pub struct EncodeError {
    /// The limit in bytes.
    pub max: usize,
}

/// Encodes a datagram.
///
/// # Errors
/// If it does not fit [`FRAME_BYTES_MAX`].
pub fn encode_frame(frame: &Frame) -> Result<Vec<u8>, EncodeError> {
    encode(frame, FRAME_BYTES_MAX)
}

/// Decodes a datagram.
///
/// # Errors
/// See [`DecodeError`]. Never panics; allocates at most a small constant times `bytes.len()`.
pub fn decode_frame(bytes: &[u8]) -> Result<Frame, DecodeError> {
    decode(bytes, FRAME_BYTES_MAX)
}

/// Encodes a stream message, without its length prefix.
///
/// # Errors
/// If it does not fit [`STREAM_MESSAGE_BYTES_MAX`].
pub fn encode_stream(message: &StreamMessage) -> Result<Vec<u8>, EncodeError> {
    encode(message, STREAM_MESSAGE_BYTES_MAX)
}

/// Decodes a stream message, without its length prefix.
///
/// # Errors
/// See [`DecodeError`]. Never panics; allocates at most a small constant times `bytes.len()`.
pub fn decode_stream(bytes: &[u8]) -> Result<StreamMessage, DecodeError> {
    decode(bytes, STREAM_MESSAGE_BYTES_MAX)
}

/// How many bytes `item` takes inside a message.
#[must_use]
pub fn encoded_len(item: &impl Encode) -> usize {
    let mut counter = bincode::enc::write::SizeWriter::default();
    match bincode::encode_into_writer(item, &mut counter, config()) {
        Ok(()) => counter.bytes_written,
        // Only an item above the limit fails; it fits no message.
        Err(_) => usize::MAX,
    }
}

/// bincode's own byte limit counts decoded sizes; ours is the stream limit with
/// room for that difference. The real bound is the input's length, checked before.
const CONFIG_LIMIT: usize = 16 * STREAM_MESSAGE_BYTES_MAX;

const fn config() -> Configuration<LittleEndian, Varint, Limit<CONFIG_LIMIT>> {
    bincode::config::standard().with_limit::<CONFIG_LIMIT>()
}

fn encode(message: &impl Encode, max: usize) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = vec![WIRE_VERSION];
    let body = bincode::encode_to_vec(message, config())
        .map_err(|_: BincodeEncodeError| EncodeError { max })?;
    bytes.extend_from_slice(&body);
    if bytes.len() > max {
        return Err(EncodeError { max });
    }
    Ok(bytes)
}

fn decode<T: Decode<()>>(bytes: &[u8], max: usize) -> Result<T, DecodeError> {
    if bytes.len() > max {
        return Err(DecodeError::TooLong {
            len: bytes.len(),
            max,
        });
    }
    let (&version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if version != WIRE_VERSION {
        return Err(DecodeError::Version { found: version });
    }
    let (message, read) = bincode::decode_from_slice(body, config())
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if read < body.len() {
        return Err(DecodeError::Trailing {
            extra: body.len() - read,
        });
    }
    Ok(message)
}

/// Reads a text of at most `max` bytes, reserving nothing before its length was checked.
fn decode_text<D: Decoder>(decoder: &mut D, max: usize) -> Result<String, BincodeDecodeError> {
    let len = usize::from(u8::decode(decoder)?);
    if len > max {
        return Err(BincodeDecodeError::OtherString(format!(
            "a text of {len} bytes, {max} at most"
        )));
    }
    let mut bytes = [0; NODE_NAME_BYTES_MAX];
    // `len` ≤ `max` ≤ NODE_NAME_BYTES_MAX, the longest text there is.
    let Some(slot) = bytes.get_mut(..len) else {
        return Err(BincodeDecodeError::Other("text limit above the buffer"));
    };
    for byte in slot.iter_mut() {
        *byte = u8::decode(decoder)?;
    }
    match std::str::from_utf8(slot) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(BincodeDecodeError::Other("a text that is not UTF-8")),
    }
}

fn encode_text<E: Encoder>(text: &str, encoder: &mut E) -> Result<(), BincodeEncodeError> {
    let len = u8::try_from(text.len())
        .map_err(|_| BincodeEncodeError::Other("a text of more than 255 bytes"))?;
    len.encode(encoder)?;
    text.bytes().try_for_each(|byte| byte.encode(encoder))
}

macro_rules! text_on_the_wire {
    ($($name:ty, $max:expr);+ $(;)?) => {$(
        impl Encode for $name {
            fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), BincodeEncodeError> {
                encode_text(self.as_str(), encoder)
            }
        }

        impl<C> Decode<C> for $name {
            fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, BincodeDecodeError> {
                decode_text(decoder, $max)?
                    .parse()
                    .map_err(|error: crate::name::NameError| {
                        BincodeDecodeError::OtherString(error.to_string())
                    })
            }
        }

        impl<'de, C> BorrowDecode<'de, C> for $name {
            fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(
                decoder: &mut D,
            ) -> Result<Self, BincodeDecodeError> {
                Self::decode(decoder)
            }
        }
    )+};
}

text_on_the_wire! {
    NodeName, NODE_NAME_BYTES_MAX;
    Zone, crate::name::ZONE_BYTES_MAX;
}

// A key is random: eight plain bytes, where a variable-length integer takes nine.
impl Encode for MemberKey {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), BincodeEncodeError> {
        self.0.to_le_bytes().encode(encoder)
    }
}

impl<C> Decode<C> for MemberKey {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, BincodeDecodeError> {
        <[u8; 8]>::decode(decoder).map(|bytes| Self(u64::from_le_bytes(bytes)))
    }
}

impl<'de, C> BorrowDecode<'de, C> for MemberKey {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(
        decoder: &mut D,
    ) -> Result<Self, BincodeDecodeError> {
        Self::decode(decoder)
    }
}

#[cfg(test)]
mod tests;
