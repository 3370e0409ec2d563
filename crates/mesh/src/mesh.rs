//! The member itself.

use std::collections::{BTreeMap, VecDeque};

use swimlet_protocol::{MemberKey, Moment};

use crate::api::{Config, Input, Output};
use crate::stats::Stats;
use crate::table::Member;

/// One member of the mesh.
pub struct Mesh {
    config: Config,
    members: BTreeMap<MemberKey, Member>,
    outputs: VecDeque<Output>,
    stats: Stats,
}

impl Mesh {
    /// A member that starts now.
    #[must_use]
    pub fn new(_now: Moment, config: Config) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes note of what happened at `now`.
    pub fn handle(&mut self, _now: Moment, _input: Input) {}

    /// The next thing to be done, until there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Wake`] is due next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        None
    }

    /// This member's own key.
    #[must_use]
    pub fn key(&self) -> MemberKey {
        self.config.me.key(&self.config.cluster)
    }

    /// A member other than this one.
    #[must_use]
    pub fn member(&self, key: MemberKey) -> Option<&Member> {
        self.members.get(&key)
    }

    /// Every member but this one, in the order of their keys.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Who watches that member, this one included where it does.
    #[must_use]
    pub fn observers_of(&self, _key: MemberKey) -> Vec<MemberKey> {
        Vec::new()
    }

    /// Whom this member watches.
    #[must_use]
    pub fn subjects(&self) -> Vec<MemberKey> {
        Vec::new()
    }

    /// When that member last answered over a link of ours.
    #[must_use]
    pub fn last_contact(&self, key: MemberKey) -> Option<Moment> {
        self.members
            .get(&key)
            .and_then(|member| member.last_contact)
    }

    /// The local health multiplier (Lifeguard, arXiv 1707.00788 §IV-A): 0 is healthy, 8 is sick.
    #[must_use]
    pub fn health(&self) -> u8 {
        0
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
