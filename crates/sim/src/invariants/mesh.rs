//! Invariants about what members hold of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use swimlet_protocol::{MemberState, Moment};

use super::{Checker, Facts, Found, HEALED_WITHIN, NEWEST_WITHIN, Name, is_well};
use crate::fault::Fault;
use crate::record::{MemberId, NodeId, Reach, Record, What};
use crate::units::Ppm;

/// Beyond so many members a look at each pair would cost more than the run.
const MEMBERS_MAX: u32 = 256;
/// From look to look at each pair.
const PAIRS_EVERY: Duration = Duration::from_secs(5);
/// In a network that loses more than that, somebody may be held down for a moment at any
/// time, and is not held against anyone.
const LOSS_MAX: Ppm = Ppm::percent(2);

/// The newest word that each member held about each other since that one started;
/// bounded by [`MEMBERS_MAX`] squared.
#[derive(Default)]
pub(super) struct Newest {
    words: BTreeMap<(MemberId, MemberId), Held>,
    looked: Moment,
    /// Where a clock stepped, the start that is the newer one may say the smaller number.
    stepped: BTreeSet<NodeId>,
}

/// What was held.
struct Held {
    newest: (u64, u16),
    /// Since when something older is held.
    older_since: Option<Moment>,
}

impl Checker for Newest {
    fn record(&mut self, _: &dyn Facts, record: &Record, _: &mut Found<'_>) {
        match &record.what {
            // A process that starts anew knows nothing, and says something new of itself.
            What::Started { member } => self
                .words
                .retain(|(by, about), _| by != member && about != member),
            What::FaultBegan {
                fault: Fault::ClockStep { .. },
                nodes,
                ..
            } => self.stepped.extend(nodes),
            _ => {}
        }
    }

    fn look(&mut self, facts: &dyn Facts, found: &mut Found<'_>) {
        let due = facts.now().since(self.looked) >= PAIRS_EVERY;
        if facts.members() > MEMBERS_MAX || !due {
            return;
        }
        self.looked = facts.now();
        let host = |member: &MemberId| facts.runs_on(*member);
        let members: Vec<MemberId> = (0..facts.members())
            .map(MemberId)
            .filter(|member| host(member).is_some_and(|node| !self.stepped.contains(&node)))
            .collect();
        for by in &members {
            for about in members.iter().filter(|about| *about != by) {
                self.compare(facts, *by, *about, found);
            }
        }
    }
}

impl Newest {
    fn compare(&mut self, facts: &dyn Facts, by: MemberId, about: MemberId, found: &mut Found<'_>) {
        let Some(word) = facts.age(by, about) else {
            // Forgotten, as members long gone are.
            self.words.remove(&(by, about));
            return;
        };
        let held = self.words.entry((by, about)).or_insert(Held {
            newest: word,
            older_since: None,
        });
        if word >= held.newest {
            held.newest = word;
            held.older_since = None;
            return;
        }
        let since = *held.older_since.get_or_insert(facts.now());
        if facts.now().since(since) >= NEWEST_WITHIN {
            held.older_since = None;
            let text = format!(
                "member {} held generation {} and incarnation {} of member {}, and has held {} \
                 and {} for {NEWEST_WITHIN:?}",
                by.0, held.newest.0, held.newest.1, about.0, word.0, word.1
            );
            found.add(Name::Newest, text);
        }
    }
}

/// Since when nothing has happened that a mesh must recover from.
#[derive(Default)]
pub(super) struct Healed {
    quiet_since: Moment,
    looked: bool,
}

impl Checker for Healed {
    fn record(&mut self, _: &dyn Facts, record: &Record, _: &mut Found<'_>) {
        let disturbs = matches!(
            record.what,
            What::FaultBegan { .. }
                | What::FaultEnded { .. }
                | What::Crashed { .. }
                | What::Booted { .. }
                | What::Added { .. }
                | What::Removed { .. }
                | What::Started { .. }
                | What::Stopped { .. }
        );
        if disturbs {
            self.quiet_since = record.at;
            self.looked = false;
        }
    }

    fn look(&mut self, facts: &dyn Facts, found: &mut Found<'_>) {
        let quiet = facts.now().since(self.quiet_since);
        let is_beyond = facts.members() > MEMBERS_MAX || facts.loss() > LOSS_MAX;
        if self.looked || quiet < HEALED_WITHIN || is_beyond {
            return;
        }
        self.looked = true;
        let live = live(facts);
        // Without an aggregator nobody who starts finds anybody.
        if !live.iter().any(|member| facts.is_aggregator(*member)) {
            return;
        }
        for by in &live {
            for about in live.iter().filter(|about| *about != by) {
                let held = facts.held(*by, *about);
                if !matches!(held, Some(MemberState::Alive | MemberState::Suspect)) {
                    let held = held.map_or_else(|| "unknown".to_owned(), |s| format!("{s:?}"));
                    let text = format!(
                        "the network has been quiet for {quiet:?}, and member {} is {held} to \
                         member {}; both run and reach everybody",
                        about.0, by.0
                    );
                    found.add(Name::Healed, text);
                }
            }
        }
    }
}

/// Members that run on hosts with which nothing is wrong, and that reach everybody.
pub(crate) fn live(facts: &dyn Facts) -> Vec<MemberId> {
    let is_well_connected = |node: &NodeId| {
        let truth = facts.history(*node).last();
        truth.is_some_and(|(_, truth)| {
            is_well(truth) && truth.mesh == Reach::All && !truth.agent_frozen
        })
    };
    (0..facts.members())
        .map(MemberId)
        .filter(|member| {
            facts
                .runs_on(*member)
                .is_some_and(|node| is_well_connected(&node))
        })
        .collect()
}

pub(super) struct Bounded;

impl Checker for Bounded {
    fn look(&mut self, facts: &dyn Facts, found: &mut Found<'_>) {
        // One name a node, and one an aggregator.
        let names = facts.nodes() as usize + usize::from(facts.topology().aggregators);
        let overfull = (0..facts.members())
            .map(MemberId)
            .find(|member| facts.knows(*member) > names);
        if let Some(member) = overfull {
            let text = format!(
                "member {} knows {} members, and only {names} names were ever used",
                member.0,
                facts.knows(member)
            );
            found.add(Name::Bounded, text);
        }
    }
}
