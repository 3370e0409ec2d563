//! What must hold in every run, whatever goes wrong in it.
//!
//! Each invariant is a checker over the records and the truth, and each is shown to be
//! able to fail by a forged run (`invariants/tests.rs`).
//!
//! | invariant | says |
//! | --- | --- |
//! | [`Name::Answering`] | a node that answered anyone healthy within the persistence time is not written as unreachable |
//! | [`Name::Innocent`] | a node with which nothing was wrong in the last 10 s is not written |
//! | [`Name::Patience`] | where the data plane lives we are not faster than in-tree |
//! | [`Name::Fresh`] | the evidence of every write began after the kubelet's last write |
//! | [`Name::Once`] | one piece of evidence leads to one write, by one writer |
//! | [`Name::Obedient`] | a pause and a hold stop writes |
//! | [`Name::Newest`] | what a member holds of another does not stay older than what it held |
//! | [`Name::Healed`] | every live member of a quiet network is seen by all |
//! | [`Name::Bounded`] | nobody knows more members than there are names |
//! | [`Name::Complete`] | a real crash is written, or a reason is given why not |

mod mesh;
mod writes;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use swimlet_protocol::{MemberState, Moment};

use crate::fault::KubeletState;
use crate::record::{MemberId, NodeId, Reach, Record, Truth};
use crate::topology::{Profile, Topology};
use crate::units::Ppm;
use crate::world::World;

pub(crate) use mesh::live;

/// An invariant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// No `NodeUnreachableFromPeers` about a node that answered anyone healthy within the
    /// persistence time, the last [`ANSWER_ARRIVES_WITHIN`] not counted.
    Answering,
    /// No write about a node with which nothing was wrong in the last [`INNOCENT_FOR`].
    Innocent,
    /// No write about a failing kubelet or a lost way to the API server before
    /// [`PATIENCE`].
    Patience,
    /// Every write's evidence began after the last observed write of the kubelet.
    Fresh,
    /// At most one writer's decision per evidence, and none over another of ours.
    Once,
    /// No write under a pause, or about a node on hold.
    Obedient,
    /// No word about a member is lost to an older one for longer than [`NEWEST_WITHIN`].
    Newest,
    /// Every live member of a healed network is seen by all within [`HEALED_WITHIN`].
    Healed,
    /// Memory is bounded by names.
    Bounded,
    /// A real crash is written in time, unless a brake, a hold or too few verifiers say
    /// why not.
    Complete,
}

/// What a checker may ask about a run. A [`World`] knows it all; tests forge it.
pub trait Facts {
    /// The clock.
    fn now(&self) -> Moment;
    /// What the cluster was built from.
    fn topology(&self) -> &Topology;
    /// Packets that its network loses at all times.
    fn loss(&self) -> Ppm;
    /// Nodes that there are or were.
    fn nodes(&self) -> u32;
    /// Members that there are or were.
    fn members(&self) -> u32;
    /// What was true of a node from which moment on, oldest first.
    fn history(&self, node: NodeId) -> &[(Moment, Truth)];
    /// When a packet of that host last reached a healthy process elsewhere.
    fn last_answer(&self, node: NodeId) -> Option<Moment>;
    /// The host of a member that runs; `None` if it does not run.
    fn runs_on(&self, member: MemberId) -> Option<NodeId>;
    /// How many others a member knows.
    fn knows(&self, member: MemberId) -> usize;
    /// What a member holds another to be.
    fn held(&self, by: MemberId, about: MemberId) -> Option<MemberState>;
    /// How new a member's word about another is: generation, then incarnation.
    fn age(&self, by: MemberId, about: MemberId) -> Option<(u64, u16)>;
    /// Whether an aggregator acts as the leader.
    fn is_led(&self) -> bool;
    /// The agent of a node, if it ever had one.
    fn agent_of(&self, node: NodeId) -> Option<MemberId>;
    /// Whether a member is an aggregator: where others join.
    fn is_aggregator(&self, member: MemberId) -> bool;
}

/// A member with which nothing was wrong for so long is innocent. The anomaly grid's
/// measure of a false write: about a member not sick then or in the last 10 s.
pub const INNOCENT_FOR: Duration = Duration::from_secs(10);
/// In-tree's 50 s of silence, counted from the last heartbeat, which may lie 10 s before
/// the failure.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Every live member of a network that has been quiet for so long is seen by all. A
/// member that was held dead is dialled again within 60 s, and anti-entropy meets everyone in
/// another minute.
pub const HEALED_WITHIN: Duration = Duration::from_secs(120);
/// An aggregator's word may replace what nobody confirmed, whichever start it is of, so
/// that a clock that lied does not stay for ever; the member's own word ends that with the
/// next link to it or the next anti-entropy, as in [`HEALED_WITHIN`].
pub const NEWEST_WITHIN: Duration = Duration::from_secs(120);
/// An answer is on its way to whoever writes for so long: a round of verification a second,
/// its time limit, and the write itself. Who came back to life within that time may be
/// written on what was true before.
pub const ANSWER_ARRIVES_WITHIN: Duration = Duration::from_secs(2);
/// A real crash is written within this time of the last disturbance, and two periods of
/// heartbeats: takeover of the Lease 14 s, a new leader's own interval, 15 s of silence in
/// `cautious`, rounds; the rest is room.
pub const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// A pause is seen with the next renewal of our Lease.
pub const PAUSE_SEEN_WITHIN: Duration = Duration::from_secs(10);
/// A hold is seen with the watch.
pub const HOLD_SEEN_WITHIN: Duration = Duration::from_secs(5);
/// More violations say nothing more.
pub const VIOLATIONS_MAX: usize = 32;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was seen, on the world's clock.
    pub at: Moment,
    /// Which.
    pub name: Name,
    /// What was seen.
    pub text: String,
}

/// All of them, over one run.
pub struct Invariants {
    checkers: Vec<Box<dyn Checker>>,
    violations: Vec<Violation>,
}

/// One of them.
trait Checker {
    /// Takes a record, right after it happened.
    fn record(&mut self, facts: &dyn Facts, record: &Record, found: &mut Found<'_>) {
        let _ = (facts, record, found);
    }

    /// Looks around. Called about once a second of the world.
    fn look(&mut self, facts: &dyn Facts, found: &mut Found<'_>) {
        let _ = (facts, found);
    }
}

/// Where violations go; what is beyond [`VIOLATIONS_MAX`] is not kept, since the run has
/// failed long before.
struct Found<'a> {
    at: Moment,
    violations: &'a mut Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, name: Name, text: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            let at = self.at;
            self.violations.push(Violation { at, name, text });
        }
    }
}

impl Default for Invariants {
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Debug for Invariants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invariants")
            .field("violations", &self.violations)
            .finish_non_exhaustive()
    }
}

impl Invariants {
    /// Every invariant.
    #[must_use]
    pub fn all() -> Self {
        Self {
            checkers: vec![
                Box::new(writes::Answering),
                Box::new(writes::Innocent),
                Box::new(writes::Patience),
                Box::new(writes::Fresh),
                Box::new(writes::Once::default()),
                Box::new(writes::Obedient::default()),
                Box::new(writes::Complete::default()),
                Box::new(mesh::Newest::default()),
                Box::new(mesh::Healed::default()),
                Box::new(mesh::Bounded),
            ],
            violations: Vec::new(),
        }
    }

    /// Takes what happened since the last call, right after it happened.
    pub fn records(&mut self, facts: &dyn Facts, records: &[Record]) {
        for record in records {
            for checker in &mut self.checkers {
                let mut found = Found {
                    at: record.at,
                    violations: &mut self.violations,
                };
                checker.record(facts, record, &mut found);
            }
        }
    }

    /// Looks around. To be called about once a second of the world.
    pub fn look(&mut self, facts: &dyn Facts) {
        for checker in &mut self.checkers {
            let mut found = Found {
                at: facts.now(),
                violations: &mut self.violations,
            };
            checker.look(facts, &mut found);
        }
    }

    /// What was violated so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}

impl Name {
    /// As files and reports write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answering => "answering",
            Self::Innocent => "innocent",
            Self::Patience => "patience",
            Self::Fresh => "fresh",
            Self::Once => "once",
            Self::Obedient => "obedient",
            Self::Newest => "newest",
            Self::Healed => "healed",
            Self::Bounded => "bounded",
            Self::Complete => "complete",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long a node is silent before it is written.
pub(crate) const fn persistence(profile: Profile) -> Duration {
    match profile {
        Profile::Default => Duration::from_secs(4),
        Profile::Fast => Duration::from_secs(1),
        Profile::Cautious => Duration::from_secs(15),
    }
}

/// Whether a host does its work and its packets flow as the network's do.
pub(crate) const fn is_well(truth: &Truth) -> bool {
    truth.exists && truth.power && !truth.frozen && !truth.sick && !truth.impaired
}

/// Whether nothing is wrong with a node that a write could be about. Its agent may be dead,
/// or its kubelet's port closed, but not both: then nothing of it answers. Nor is one that
/// only the small side of a partition reaches: whoever judges on the large side cannot know.
pub(crate) fn is_innocent(truth: &Truth) -> bool {
    let agent_answers = truth.agent && !truth.agent_frozen && truth.mesh >= Reach::Most;
    let answers = agent_answers || truth.kubelet_port >= Reach::Most;
    is_well(truth) && does_kubelet_work(truth) && answers
}

/// Whether a kubelet works and reaches the API server.
pub(crate) fn does_kubelet_work(truth: &Truth) -> bool {
    truth.kubelet == KubeletState::Running && !truth.kubelet_frozen && truth.api
}

/// Whether `holds` was true of a node all the time from `from` to `to`, and it was known
/// then.
pub(crate) fn held_throughout(
    history: &[(Moment, Truth)],
    from: Moment,
    to: Moment,
    holds: impl Fn(&Truth) -> bool,
) -> bool {
    let begins = history.partition_point(|(at, _)| *at <= from);
    let Some(first) = begins.checked_sub(1) else {
        return false;
    };
    history[first..]
        .iter()
        .take_while(|(at, _)| *at <= to)
        .all(|(_, truth)| holds(truth))
}

/// The end of the last time before `at` in which `holds` was true of a node: `at` itself
/// if it is true then, `None` if it never was.
pub(crate) fn last_held(
    history: &[(Moment, Truth)],
    at: Moment,
    holds: impl Fn(&Truth) -> bool,
) -> Option<Moment> {
    let mut until = at;
    for (since, truth) in history.iter().rev() {
        if *since > at {
            continue;
        }
        if holds(truth) {
            return Some(until);
        }
        until = *since;
    }
    None
}

impl Facts for World {
    fn now(&self) -> Moment {
        self.now()
    }

    fn topology(&self) -> &Topology {
        self.topology()
    }

    fn loss(&self) -> Ppm {
        self.network().loss
    }

    fn nodes(&self) -> u32 {
        self.nodes()
    }

    fn members(&self) -> u32 {
        self.members()
    }

    fn history(&self, node: NodeId) -> &[(Moment, Truth)] {
        self.history(node)
    }

    fn last_answer(&self, node: NodeId) -> Option<Moment> {
        self.last_answer(node)
    }

    fn runs_on(&self, member: MemberId) -> Option<NodeId> {
        let view = self.member_view(member)?;
        view.running.then_some(view.host)
    }

    fn knows(&self, member: MemberId) -> usize {
        self.member_view(member).map_or(0, |view| view.members)
    }

    fn held(&self, by: MemberId, about: MemberId) -> Option<MemberState> {
        self.held(by, about)
    }

    fn age(&self, by: MemberId, about: MemberId) -> Option<(u64, u16)> {
        self.known(by, about)
    }

    fn is_led(&self) -> bool {
        self.leader().is_some()
    }

    fn agent_of(&self, node: NodeId) -> Option<MemberId> {
        self.agent_of(node)
    }

    fn is_aggregator(&self, member: MemberId) -> bool {
        self.aggregators().contains(&member)
    }
}
