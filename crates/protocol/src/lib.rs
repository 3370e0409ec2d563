//! What members of the mesh say to each other: names, identities, member
//! records and frames, with a hard limit on every length.
//!
//! The crate is pure: it opens no socket and reads no clock. Decoding never
//! panics and never allocates more than a small constant times its input.
//!
//! | module | holds |
//! | --- | --- |
//! | [`name`] | node names, cluster ids, zones: parsed once, valid ever after |
//! | [`identity`] | who a certificate speaks for, as a SPIFFE ID; [`MemberKey`] |
//! | [`member`] | generation, incarnation, state, and what a member says of itself |
//! | [`frame`] | the datagrams |
//! | [`stream`] | the stream messages (state sync) |
//! | [`codec`] | bytes on the wire: a version byte, then bincode |
//! | [`time`] | the monotonic clock that the pure cores are handed |

pub mod bounded;
pub mod codec;
pub mod frame;
pub mod identity;
pub mod member;
pub mod name;
pub mod stream;
pub mod time;

pub use bounded::Bounded;
pub use frame::Frame;
pub use identity::{Identity, MemberKey, Role};
pub use member::{Generation, Incarnation, MemberRecord, MemberState};
pub use name::{ClusterId, NodeName, Zone};
pub use stream::StreamMessage;
pub use time::Moment;
