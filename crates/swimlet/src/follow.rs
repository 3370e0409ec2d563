//! Following what members notice, for who tells a story of it.

use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::MemberKey;
use swimlet_verdict::Decision;
use tokio::sync::mpsc;

/// Something that a member noticed or decided.
#[derive(Clone, Debug)]
pub(crate) struct Noticed {
    pub(crate) by: MemberKey,
    pub(crate) what: What,
}

/// What it was.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// The mesh noticed something.
    Mesh(MeshEvent),
    /// An aggregator asked for a round of verification by so many verifiers.
    Round {
        subjects: Vec<MemberKey>,
        verifiers: usize,
    },
    /// An aggregator's judge decided.
    Decided(Box<Decision>),
    /// An aggregator won or lost the Lease.
    Leads(bool),
}

/// Where to tell it, if anyone follows. Nobody is waited for: who follows too
/// slowly misses something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Follower(Option<mpsc::Sender<Noticed>>);

impl Follower {
    /// Tells `to`.
    pub(crate) const fn new(to: mpsc::Sender<Noticed>) -> Self {
        Self(Some(to))
    }

    /// Tells what `by` noticed.
    pub(crate) fn tell(&self, by: MemberKey, what: impl FnOnce() -> What) {
        if let Some(to) = &self.0 {
            drop(to.try_send(Noticed { by, what: what() }));
        }
    }
}
