//! What a member is, and what is said of it.

use std::fmt;
use std::net::SocketAddr;

use bincode::{Decode, Encode};

use crate::bounded::Bounded;
use crate::identity::{Identity, MemberKey, Role};
use crate::name::{ClusterId, NodeName, Zone};

/// Most addresses a member advertises: two families, and two interfaces of each.
pub const ADDRESSES_MAX: usize = 4;

/// Which start of a member's process: grows with every start.
///
/// Milliseconds of the wall clock at the start, or one more than the last
/// generation that the state directory remembers, whichever is larger. A member
/// takes its own generation from nobody else; a generation learnt from a third
/// party may exceed the known one only by a bounded step, because clocks lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Generation(pub u64);

/// SWIM's incarnation number (Das et al., DSN 2002, §4.2): raised by a member
/// alone, within one generation, to refute what is said against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Incarnation(pub u16);

/// What a member is held to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum MemberState {
    /// Answers, or nobody said otherwise.
    Alive,
    /// Accused, and not yet refuted.
    Suspect,
    /// Held dead by enough accusers, or by the verdict.
    Down,
    /// Said goodbye.
    Left,
}

/// What a member says of itself; spread when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MemberRecord {
    /// Agent or aggregator.
    pub role: Role,
    /// The node's name, or the aggregator's pod name.
    pub name: NodeName,
    /// Which start of its process.
    pub generation: Generation,
    /// The zone it was configured with. Observers spread load by it; verdicts
    /// take a node's zone from the Kubernetes API instead.
    pub zone: Zone,
    /// Where its mesh port answers, best first, in both families where it has both.
    pub addresses: Bounded<SocketAddr, ADDRESSES_MAX>,
    /// The port its kubelet serves on; 0 for an aggregator.
    pub kubelet_port: u16,
}

impl MemberRecord {
    /// The key of this member within `cluster`.
    #[must_use]
    pub fn key(&self, cluster: &ClusterId) -> MemberKey {
        MemberKey::of(cluster, self.role, &self.name)
    }

    /// Whether `identity` may speak as this member.
    #[must_use]
    pub fn belongs_to(&self, identity: &Identity) -> bool {
        self.role == identity.role && self.name == identity.name
    }
}

impl MemberState {
    /// Whether it is one of a member that is not there any more: Down or Left.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Down | Self::Left)
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Left => "left",
        })
    }
}
