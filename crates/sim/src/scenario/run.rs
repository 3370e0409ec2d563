//! Runs a scenario with one seed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use swimlet_protocol::{MemberState, Moment, NodeName};
use swimlet_verdict::{Notice, ReadyStatus, Verdict};

use super::expect::{Expect, Of};
use super::{Scenario, verify};
use crate::invariants::{INNOCENT_FOR, Invariants, Name, held_throughout, is_well};
use crate::record::{Counters, FaultId, MemberId, NodeId, Reach, Record, What};
use crate::topology::TopologyError;
use crate::units::Span;
use crate::world::World;

/// Between two looks at the world.
const STEP: Duration = Duration::from_secs(1);

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Equal for equal runs, on every machine.
    pub trace_hash: String,
    /// What did not hold; empty if all did.
    pub failures: Vec<Failure>,
    /// What happened, in figures.
    pub summary: Summary,
}

/// Something that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// When it was seen, counted from the run's start.
    pub at: Span,
    /// The invariant; `None` for an expectation of the file.
    pub invariant: Option<Name>,
    /// What was seen.
    pub text: String,
}

/// A run in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// What was written.
    pub writes: Vec<WriteSeen>,
    /// Times that a kubelet wrote `Ready=True` over an Unknown of ours.
    pub taken_back: u32,
    /// Unknowns of the in-tree controller.
    pub in_tree: u32,
    /// Times that a member with which nothing was wrong came to hold another such one down.
    pub false_downs: u64,
    /// Times that leadership began after the start.
    pub leaders: u32,
    /// What people were told, and how often.
    pub notices: BTreeMap<String, u32>,
    /// The engine's counters.
    pub counters: Counters,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WriteSeen {
    /// When, counted from the run's start.
    pub at: Span,
    /// About which node.
    pub node: NodeId,
    /// As what.
    pub verdict: String,
    /// Whose.
    pub by: MemberId,
}

/// Everything about a run that expectations look at.
#[derive(Debug)]
pub(super) struct Log {
    /// Of each fault of the file, when it began and whom it hit, each time.
    pub(super) hits: BTreeMap<usize, Vec<(Moment, Vec<NodeId>)>>,
    pub(super) writes: Vec<(Moment, NodeId, Verdict, MemberId)>,
    pub(super) in_tree: Vec<(Moment, NodeId)>,
    pub(super) notices: Vec<(Moment, Notice)>,
    pub(super) decisions: Vec<(Moment, NodeId, Verdict)>,
    pub(super) suspended: Vec<NodeId>,
    pub(super) taken_back: u32,
    pub(super) leaders: u32,
    pub(super) false_downs: u64,
    /// Answers of looks at a time, by the expectation's index.
    pub(super) looks: BTreeMap<usize, Vec<String>>,
}

/// A scenario under way.
struct Run<'a> {
    scenario: &'a Scenario,
    world: World,
    /// Which fault of the file each scheduled one is.
    faults: BTreeMap<FaultId, usize>,
    invariants: Invariants,
    log: Log,
    /// Records taken so far.
    taken: usize,
    /// When a member's process last started or stopped.
    changed: BTreeMap<MemberId, Moment>,
}

/// Runs a scenario with a seed, and says what held.
///
/// # Errors
/// If the topology cannot be.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, TopologyError> {
    run_with(scenario, seed, |_| {})
}

/// The same, and shows each record as it happens.
///
/// # Errors
/// If the topology cannot be.
pub fn run_with(
    scenario: &Scenario,
    seed: u64,
    mut show: impl FnMut(&Record),
) -> Result<Outcome, TopologyError> {
    let mut run = Run::new(scenario, seed)?;
    run.take(&mut show);
    let end = run.world.began() + scenario.lasts.duration();
    let mut looks = run.looks();
    while run.world.now() < end {
        run.advance((run.world.now() + STEP).min(end), &mut show);
        run.invariants.look(&run.world);
        let now = run.world.now();
        while let Some((_, index)) = looks.pop_if(|(at, _)| *at <= now) {
            run.look(index);
        }
    }
    // What is due after the end is looked at there.
    looks.into_iter().for_each(|(_, index)| run.look(index));
    Ok(run.outcome())
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Result<Self, TopologyError> {
        let mut world = World::new(&scenario.topology, &scenario.network, seed)?;
        let mut faults = BTreeMap::new();
        for (index, event) in scenario.faults.iter().enumerate() {
            for time in 0..u64::from(event.times) {
                let at = event.at.as_micros() + event.every.as_micros() * time;
                let at = Span::from_micros(at);
                let id = world.schedule(at, event.lasts, event.what.clone());
                faults.insert(id, index);
            }
        }
        Ok(Self {
            scenario,
            world,
            faults,
            invariants: Invariants::all(),
            log: Log::new(),
            taken: 0,
            changed: BTreeMap::new(),
        })
    }

    /// When which expectation is to be looked at, the earliest last.
    fn looks(&self) -> Vec<(Moment, usize)> {
        let mut looks = Vec::new();
        for (index, expect) in self.scenario.expects.iter().enumerate() {
            let due = match expect {
                Expect::ReadyBy { of, within } | Expect::OneMesh { of, within } => {
                    self.base(of) + within.duration()
                }
                Expect::EndsAs { .. } | Expect::MembersAtMost { .. } => {
                    self.world.began() + self.scenario.lasts.duration()
                }
                _ => continue,
            };
            looks.push((due, index));
        }
        looks.sort_unstable_by(|a, b| b.cmp(a));
        looks
    }

    /// What an expectation's times are counted from, as the file says it.
    fn base(&self, of: &Of) -> Moment {
        let events = self.scenario.faults.iter();
        let at = match of {
            Of::Fault(name) => events
                .filter(|event| event.name.as_ref() == Some(name))
                .map(|event| event.at)
                .min(),
            Of::Every => events.map(|event| event.at).min(),
            Of::Nodes(_) => None,
        };
        self.world.began() + at.unwrap_or_default().duration()
    }

    /// Runs up to a time, and stops at each write so that the invariants see the world as
    /// it was then.
    fn advance(&mut self, until: Moment, show: &mut impl FnMut(&Record)) {
        while self.world.now() < until {
            let seen = Cell::new(self.taken);
            self.world
                .run_until(until.since(self.world.now()), |world| {
                    let records = world.records();
                    let first = seen.replace(records.len());
                    let is_write = |record: &Record| matches!(record.what, What::Written { .. });
                    records[first..].iter().any(is_write)
                });
            self.take(show);
        }
    }

    fn take(&mut self, show: &mut impl FnMut(&Record)) {
        let records = self.world.records()[self.taken..].to_vec();
        self.taken += records.len();
        self.invariants.records(&self.world, &records);
        for record in &records {
            show(record);
            self.note(record);
        }
    }

    fn note(&mut self, record: &Record) {
        let at = record.at;
        match &record.what {
            What::FaultBegan { id, nodes, .. } => {
                if let Some(index) = self.faults.get(id) {
                    let hits = self.log.hits.entry(*index).or_default();
                    hits.push((at, nodes.clone()));
                }
            }
            What::Written {
                node, verdict, by, ..
            } => self.log.writes.push((at, *node, *verdict, *by)),
            What::InTree { node } => self.log.in_tree.push((at, *node)),
            What::TakenBack { ours: true, .. } => self.log.taken_back += 1,
            What::Noticed { notice, .. } => self.log.notices.push((at, notice.clone())),
            What::Decided { node, decision, .. } => {
                self.log.decisions.push((at, *node, decision.verdict));
            }
            What::Leads { .. } if at > self.world.began() => self.log.leaders += 1,
            What::Suspended { member, .. } => {
                if let Some(view) = self.world.member_view(*member) {
                    self.log.suspended.push(view.host);
                }
            }
            What::Started { member } | What::Stopped { member, .. } => {
                self.changed.insert(*member, at);
            }
            What::Held {
                by,
                about,
                to: MemberState::Down,
                ..
            } => {
                let healthy = |member| self.is_healthy(member, at);
                self.log.false_downs += u64::from(healthy(*by) && healthy(*about));
            }
            _ => {}
        }
    }

    /// Whether nothing was wrong with a member, its host and its paths for a while.
    fn is_healthy(&self, member: MemberId, at: Moment) -> bool {
        let from = at.before(INNOCENT_FOR);
        let changed = self.changed.get(&member).is_some_and(|when| *when > from);
        let Some(view) = self.world.member_view(member) else {
            return false;
        };
        !changed
            && view.running
            && held_throughout(self.world.history(view.host), from, at, |truth| {
                is_well(truth) && truth.mesh == Reach::All && !truth.agent_frozen
            })
    }

    fn look(&mut self, index: usize) {
        let found = match &self.scenario.expects[index] {
            Expect::ReadyBy { of, .. } => self.not_ready(of),
            Expect::OneMesh { .. } => self.not_seen(),
            Expect::EndsAs { of, verdict, .. } => self.stands_otherwise(of, verdict.verdict()),
            Expect::MembersAtMost { members } => self.overfull(*members),
            _ => Vec::new(),
        };
        self.log.looks.insert(index, found);
    }

    fn nodes(&self, of: &Of) -> Vec<NodeId> {
        self.log.nodes(self.scenario, of)
    }

    fn not_ready(&self, of: &Of) -> Vec<String> {
        let status = |node: &NodeId| self.world.ready(*node).map(|ready| ready.status);
        let nodes = self.nodes(of).into_iter();
        nodes
            .filter(|node| status(node) != Some(ReadyStatus::True))
            .map(|node| format!("node {} is {:?}", node.0, status(&node)))
            .collect()
    }

    fn not_seen(&self) -> Vec<String> {
        let live = crate::invariants::live(&self.world);
        let mut found = Vec::new();
        for by in &live {
            for about in live.iter().filter(|about| *about != by) {
                let held = self.world.held(*by, *about);
                if held != Some(MemberState::Alive) {
                    found.push(format!("member {} is {held:?} to member {}", about.0, by.0));
                }
            }
        }
        if live.len() < 2 {
            found.push(format!("{} members are live and reach all", live.len()));
        }
        found
    }

    fn stands_otherwise(&self, of: &Of, verdict: Verdict) -> Vec<String> {
        let Some(leader) = self.world.leader() else {
            return vec!["nobody leads".to_owned()];
        };
        let mut found = Vec::new();
        for node in self.nodes(of) {
            match self.world.standing(leader, node) {
                Some(standing) if standing.verdict == verdict => {}
                Some(standing) => found.push(format!(
                    "node {} is {} by {}: {}",
                    node.0, standing.verdict, standing.rule, standing.summary
                )),
                None => found.push(format!("node {} is unknown to the leader", node.0)),
            }
        }
        found
    }

    fn overfull(&self, members_max: usize) -> Vec<String> {
        (0..self.world.members())
            .filter_map(|member| self.world.member_view(MemberId(member)))
            .filter(|view| view.members > members_max)
            .map(|view| format!("{} knows {} others", view.name, view.members))
            .collect()
    }

    fn outcome(self) -> Outcome {
        let began = self.world.began();
        let mut failures: Vec<Failure> = self
            .invariants
            .violations()
            .iter()
            .map(|violation| Failure {
                at: since(began, violation.at),
                invariant: Some(violation.name),
                text: violation.text.clone(),
            })
            .collect();
        failures.extend(verify::verify(self.scenario, &self.world, &self.log));
        Outcome {
            scenario: self.scenario.name.clone(),
            seed: self.world.seed(),
            trace_hash: format!("{:016x}", self.world.trace_hash()),
            failures,
            summary: self.log.summary(&self.world),
        }
    }
}

impl Log {
    fn new() -> Self {
        Self {
            hits: BTreeMap::new(),
            writes: Vec::new(),
            in_tree: Vec::new(),
            notices: Vec::new(),
            decisions: Vec::new(),
            suspended: Vec::new(),
            taken_back: 0,
            leaders: 0,
            false_downs: 0,
            looks: BTreeMap::new(),
        }
    }

    /// Every time that a fault hit something: when, and whom.
    pub(super) fn hits<'a>(
        &'a self,
        scenario: &'a Scenario,
        of: &'a Of,
    ) -> impl Iterator<Item = &'a (Moment, Vec<NodeId>)> {
        let meant = move |index: &usize| match of {
            Of::Every => true,
            Of::Fault(name) => scenario.faults[*index].name.as_ref() == Some(name),
            Of::Nodes(_) => false,
        };
        self.hits
            .iter()
            .filter(move |(index, _)| meant(index))
            .flat_map(|(_, hits)| hits)
    }

    /// The nodes that an expectation is about.
    pub(super) fn nodes(&self, scenario: &Scenario, of: &Of) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = match of {
            Of::Nodes(nodes) => nodes.clone(),
            of => self
                .hits(scenario, of)
                .flat_map(|(_, nodes)| nodes.iter().copied())
                .collect(),
        };
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn summary(&self, world: &World) -> Summary {
        let mut notices = BTreeMap::new();
        for (_, notice) in &self.notices {
            *notices.entry(kind(notice)).or_default() += 1;
        }
        let seen = |(at, node, verdict, by): &(Moment, NodeId, Verdict, MemberId)| WriteSeen {
            at: since(world.began(), *at),
            node: *node,
            verdict: verdict.to_string(),
            by: *by,
        };
        Summary {
            writes: self.writes.iter().map(seen).collect(),
            taken_back: self.taken_back,
            in_tree: u32::try_from(self.in_tree.len()).unwrap_or(u32::MAX),
            false_downs: self.false_downs,
            leaders: self.leaders,
            notices,
            counters: world.counters(),
        }
    }
}

/// A notice without whom it is about.
fn kind(notice: &Notice) -> String {
    let text = format!("{notice:?}");
    let end = text.find(" {").unwrap_or(text.len());
    match notice {
        Notice::BrakeOn { brake } => format!("BrakeOn {}", brake.as_str()),
        Notice::BrakeOff { brake } => format!("BrakeOff {}", brake.as_str()),
        Notice::Withheld { rule, .. } => format!("Withheld {rule}"),
        _ => text[..end].to_owned(),
    }
}

/// About which node a notice is, if it is about one.
pub(super) const fn subject(notice: &Notice) -> Option<&NodeName> {
    match notice {
        Notice::AgentMissing { node }
        | Notice::MeshCutOff { node }
        | Notice::Unverifiable { node, .. }
        | Notice::Withheld { node, .. }
        | Notice::TakenBack { node } => Some(node),
        _ => None,
    }
}

/// A moment, counted from the run's start.
pub(super) fn since(began: Moment, at: Moment) -> Span {
    Span::from_micros(at.as_micros().saturating_sub(began.as_micros()))
}

impl Outcome {
    /// Whether everything held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.invariant {
            Some(name) => write!(f, "at {}, invariant {name}: {}", self.at, self.text),
            None => write!(f, "at {}: {}", self.at, self.text),
        }
    }
}
