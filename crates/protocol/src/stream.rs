//! Stream messages: joining, and bringing two member tables together.

use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::bounded::Bounded;
use crate::identity::MemberKey;
use crate::member::{Generation, Incarnation, MemberRecord, MemberState};

/// Largest encoded stream message in bytes.
pub const STREAM_MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Most members in one stream message: a member takes up to about 420 bytes.
pub const SYNC_MEMBERS_MAX: usize = 512;

/// Ranges of keys that tables are compared by: a table of 5,000 has twenty members in each,
/// and all digests together are smaller than thirty members.
pub const SYNC_RANGES: usize = 256;

/// One message on a stream. Each is preceded by its length as a big-endian `u32`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum StreamMessage {
    /// Opens a state sync; also how a member joins.
    SyncRequest(SyncRequest),
    /// One part of the answer.
    SyncPart(SyncPart),
}

/// "Here I am; send me what I lack."
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SyncRequest {
    /// What the asking member says of itself.
    pub record: Arc<MemberRecord>,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Digest of its table: the XOR over its members of a hash of key, generation,
    /// incarnation and state. Equal digests need no members.
    pub digest: u64,
    /// The same for each range of keys, by [`range_of`]. The answer holds the members of
    /// those that differ; one that is not named differs, so an empty list asks for all.
    pub ranges: Bounded<u64, SYNC_RANGES>,
}

/// A part of a member table.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SyncPart {
    /// Members, in no particular order.
    pub members: Bounded<SyncMember, SYNC_MEMBERS_MAX>,
    /// Whether another part follows.
    pub more: bool,
}

/// One member as the answering side holds it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SyncMember {
    /// What it said of itself.
    pub record: Arc<MemberRecord>,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What it is held to be.
    pub state: MemberState,
    /// Seconds since anyone is known to have heard it.
    pub heard_s: u32,
}

/// The range of a key, less than [`SYNC_RANGES`]: its topmost eight bits. Keys are hashes,
/// so members spread evenly.
#[must_use]
pub const fn range_of(key: MemberKey) -> usize {
    key.0.to_be_bytes()[0] as usize
}

/// A member's part of the table digest; see [`SyncRequest::digest`].
#[must_use]
pub fn digest_of(
    key: MemberKey,
    generation: Generation,
    incarnation: Incarnation,
    state: MemberState,
) -> u64 {
    use std::hash::Hasher;
    // Suspicion is local and short-lived; tables that differ in it alone need no sync.
    let mut hasher = siphasher::sip::SipHasher24::new_with_keys(key.0, generation.0);
    hasher.write_u16(incarnation.0);
    hasher.write_u8(u8::from(state.is_gone()));
    hasher.finish()
}
