//! The member table.

use swimlet_protocol::{Incarnation, MemberKey, MemberRecord, MemberState, Moment};

/// One member, as this one holds it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its key.
    pub key: MemberKey,
    /// What it says of itself.
    pub record: MemberRecord,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What it is held to be.
    pub state: MemberState,
    /// Since when.
    pub since: Moment,
    /// When anyone is known to have heard it last.
    pub heard: Moment,
    /// When it last answered over a link of ours.
    pub last_contact: Option<Moment>,
}
