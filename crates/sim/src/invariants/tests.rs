//! Each invariant, against a forged run that breaks it and one that does not.

use std::collections::BTreeMap;
use std::time::Duration;

use swimlet_protocol::{MemberState, Moment};
use swimlet_verdict::Verdict;

use super::{Facts, Invariants, Name};
use crate::fault::{Fault, KubeletState, Target};
use crate::record::{FaultId, MemberId, NodeId, Reach, Record, Truth, What};
use crate::topology::Topology;
use crate::units::Ppm;

const WELL: Truth = Truth {
    exists: true,
    power: true,
    frozen: false,
    sick: false,
    kubelet: KubeletState::Running,
    kubelet_frozen: false,
    agent: true,
    agent_frozen: false,
    impaired: false,
    mesh: Reach::All,
    kubelet_port: Reach::All,
    api: true,
};
const OFF: Truth = Truth {
    power: false,
    agent: false,
    mesh: Reach::Nobody,
    kubelet_port: Reach::Nobody,
    api: false,
    ..WELL
};
const NODE: NodeId = NodeId(0);

/// A run that never was: two nodes, a member on each.
struct Forged {
    now: Moment,
    topology: Topology,
    histories: [Vec<(Moment, Truth)>; 2],
    answered: Option<Moment>,
    held: Option<MemberState>,
    ages: BTreeMap<MemberId, (u64, u16)>,
    knows: usize,
    led: bool,
    seeded: bool,
}

impl Default for Forged {
    fn default() -> Self {
        Self {
            now: at(0),
            topology: Topology {
                nodes: 2,
                zones: 1,
                aggregators: 0,
                ..Topology::default()
            },
            histories: [vec![(at(0), WELL)], vec![(at(0), WELL)]],
            answered: None,
            held: Some(MemberState::Alive),
            ages: BTreeMap::new(),
            knows: 1,
            led: true,
            seeded: true,
        }
    }
}

impl Facts for Forged {
    fn now(&self) -> Moment {
        self.now
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn loss(&self) -> Ppm {
        Ppm::ZERO
    }

    fn nodes(&self) -> u32 {
        2
    }

    fn members(&self) -> u32 {
        2
    }

    fn history(&self, node: NodeId) -> &[(Moment, Truth)] {
        &self.histories[node.0 as usize]
    }

    fn last_answer(&self, _: NodeId) -> Option<Moment> {
        self.answered
    }

    fn runs_on(&self, member: MemberId) -> Option<NodeId> {
        Some(NodeId(member.0))
    }

    fn knows(&self, _: MemberId) -> usize {
        self.knows
    }

    fn held(&self, _: MemberId, _: MemberId) -> Option<MemberState> {
        self.held
    }

    fn age(&self, by: MemberId, _: MemberId) -> Option<(u64, u16)> {
        self.ages.get(&by).copied()
    }

    fn is_led(&self) -> bool {
        self.led
    }

    fn agent_of(&self, node: NodeId) -> Option<MemberId> {
        Some(MemberId(node.0))
    }

    fn is_aggregator(&self, member: MemberId) -> bool {
        member.0 == 1 && self.seeded
    }
}

fn at(seconds: u64) -> Moment {
    Moment::from_micros(seconds * 1_000_000)
}

fn record(seconds: u64, what: What) -> Record {
    Record {
        at: at(seconds),
        what,
    }
}

fn written(verdict: Verdict, began: u64) -> What {
    What::Written {
        by: MemberId(1),
        node: NODE,
        verdict,
        episode: 1,
        evidence_began: at(began),
        kubelet_wrote: Some(at(10)),
    }
}

/// The invariants that a forged run violates, each once.
fn violated(facts: &Forged, records: &[Record]) -> Vec<Name> {
    let mut invariants = Invariants::all();
    invariants.records(facts, records);
    invariants.look(facts);
    let mut names: Vec<_> = invariants.violations().iter().map(|v| v.name).collect();
    names.dedup();
    names
}

/// A node that lost its power at 100 s.
fn dead() -> Forged {
    let mut facts = Forged::default();
    facts.histories[0].push((at(100), OFF));
    facts.now = at(110);
    facts.answered = Some(at(100));
    facts
}

#[test]
fn a_dead_node_may_be_written() {
    let writes = [record(105, written(Verdict::Unreachable, 101))];
    assert_eq!(violated(&dead(), &writes), []);
}

#[test]
fn a_node_that_answered_may_not_be_called_unreachable() {
    let mut facts = Forged::default();
    facts.histories[0].push((at(100), Truth { sick: true, ..WELL }));
    facts.histories[0].push((at(104), WELL));
    facts.now = at(110);
    facts.answered = Some(at(104));
    let writes = |seconds| [record(seconds, written(Verdict::Unreachable, 101))];
    assert_eq!(violated(&facts, &writes(107)), [Name::Answering]);
    assert_eq!(violated(&facts, &writes(105)), [], "it is on its way");
    // What it said before it fell silent is no answer.
    facts.answered = Some(at(99));
    assert_eq!(violated(&facts, &writes(105)), []);
}

#[test]
fn a_node_with_which_nothing_is_wrong_may_not_be_written() {
    let mut facts = Forged {
        now: at(110),
        ..Forged::default()
    };
    let writes = [record(105, written(Verdict::Unreachable, 101))];
    assert_eq!(violated(&facts, &writes), [Name::Innocent]);
    // Something was wrong 5 s before.
    facts.histories[0].push((
        at(99),
        Truth {
            impaired: true,
            ..WELL
        },
    ));
    facts.histories[0].push((at(100), WELL));
    assert_eq!(violated(&facts, &writes), []);
    // A dead agent alone is no reason to write a node.
    let mut facts = Forged {
        now: at(110),
        ..Forged::default()
    };
    facts.histories[0].push((
        at(90),
        Truth {
            agent: false,
            ..WELL
        },
    ));
    assert_eq!(violated(&facts, &writes), [Name::Innocent]);
}

#[test]
fn a_kubelet_is_given_the_time_that_in_tree_gives_it() {
    let mut facts = Forged::default();
    let kubelet = Truth {
        kubelet: KubeletState::Dead,
        ..WELL
    };
    facts.histories[0].push((at(100), kubelet));
    facts.now = at(200);
    let early = [record(130, written(Verdict::KubeletDown, 101))];
    assert_eq!(violated(&facts, &early), [Name::Patience]);
    let in_time = [record(151, written(Verdict::KubeletDown, 101))];
    assert_eq!(violated(&facts, &in_time), []);
}

#[test]
fn evidence_is_younger_than_the_kubelets_last_write() {
    let stale = [record(105, written(Verdict::Unreachable, 10))];
    assert_eq!(violated(&dead(), &stale), [Name::Fresh]);
}

#[test]
fn one_evidence_is_written_once() {
    let first = record(105, written(Verdict::Unreachable, 101));
    let second = record(106, written(Verdict::Unreachable, 102));
    let taken_back = record(
        105,
        What::TakenBack {
            node: NODE,
            ours: true,
        },
    );
    let facts = dead();
    assert_eq!(
        violated(&facts, &[first.clone(), second.clone()]),
        [Name::Once]
    );
    let between = [first.clone(), taken_back.clone(), second];
    assert_eq!(violated(&facts, &between), []);
    // The same evidence again, whoever wrote in between.
    assert_eq!(
        violated(&facts, &[first.clone(), taken_back, first]),
        [Name::Once]
    );
}

#[test]
fn a_pause_and_a_hold_are_obeyed() {
    let began = |fault| {
        let nodes = vec![NODE];
        record(
            80,
            What::FaultBegan {
                id: FaultId(0),
                fault,
                nodes,
            },
        )
    };
    let write = record(105, written(Verdict::Unreachable, 101));
    let target = Target::Nodes(vec![0]);
    for fault in [Fault::Pause, Fault::Hold { target }] {
        let facts = dead();
        let under = [began(fault.clone()), write.clone()];
        assert_eq!(violated(&facts, &under), [Name::Obedient], "{fault:?}");
        let ended = record(90, What::FaultEnded { id: FaultId(0) });
        assert_eq!(violated(&facts, &[began(fault), ended, write.clone()]), []);
    }
}

#[test]
fn a_crash_is_written_or_explained() {
    let crash = record(100, What::Crashed { node: NODE });
    let mut facts = dead();
    facts.now = at(150);
    assert_eq!(violated(&facts, std::slice::from_ref(&crash)), []);
    facts.now = at(200);
    assert_eq!(
        violated(&facts, std::slice::from_ref(&crash)),
        [Name::Complete]
    );
    let write = record(190, written(Verdict::Unreachable, 101));
    assert_eq!(violated(&facts, &[crash.clone(), write]), []);
    let in_tree = record(190, What::InTree { node: NODE });
    assert_eq!(violated(&facts, &[crash.clone(), in_tree]), []);
    // Without a leader nobody could.
    facts.led = false;
    assert_eq!(violated(&facts, &[crash]), []);
}

#[test]
fn newer_word_is_not_lost_to_older() {
    let held = |words: &[(u64, (u64, u16))], started: Option<u64>| {
        let mut facts = Forged::default();
        let mut invariants = Invariants::all();
        for (seconds, word) in words {
            facts.now = at(*seconds);
            facts.ages.insert(MemberId(0), *word);
            if started == Some(*seconds) {
                let member = MemberId(1);
                invariants.records(&facts, &[record(*seconds, What::Started { member })]);
            }
            invariants.look(&facts);
        }
        let violations = invariants.violations().iter();
        violations.map(|found| found.name).collect::<Vec<_>>()
    };
    let newer = [(10, (5, 1)), (20, (5, 2)), (100, (6, 0))];
    assert_eq!(held(&newer, None), []);
    let lost = [(10, (5, 2)), (20, (5, 1)), (60, (5, 1)), (141, (5, 1))];
    assert_eq!(held(&lost, None), [Name::Newest]);
    let back = [(10, (5, 2)), (20, (5, 1)), (60, (5, 2)), (141, (5, 2))];
    assert_eq!(held(&back, None), []);
    // Who starts anew says something new of itself.
    assert_eq!(held(&lost, Some(20)), []);
}

#[test]
fn a_quiet_network_is_whole_in_time() {
    let mut facts = Forged {
        held: Some(MemberState::Down),
        ..Forged::default()
    };
    facts.now = at(100);
    assert_eq!(violated(&facts, &[]), [], "it has its time");
    facts.now = at(200);
    assert_eq!(violated(&facts, &[]), [Name::Healed]);
    // Without an aggregator there is nobody to join through.
    facts.seeded = false;
    assert_eq!(violated(&facts, &[]), []);
    facts.seeded = true;
    // Who was disturbed lately has its time again, and who is sick is not counted.
    let booted = record(150, What::Booted { node: NODE });
    assert_eq!(violated(&facts, &[booted]), []);
    facts.histories[0].push((at(10), Truth { sick: true, ..WELL }));
    assert_eq!(violated(&facts, &[]), []);
}

#[test]
fn nobody_knows_more_members_than_there_are_names() {
    let mut facts = Forged {
        knows: 2,
        ..Forged::default()
    };
    assert_eq!(violated(&facts, &[]), []);
    facts.knows = 3;
    assert_eq!(violated(&facts, &[]), [Name::Bounded]);
}

/// Guards that a run without end does not fill the memory with what broke in it.
#[test]
fn violations_are_bounded() {
    let mut facts = Forged {
        knows: 9,
        ..Forged::default()
    };
    let mut invariants = Invariants::all();
    for seconds in 0..100 {
        facts.now = at(seconds) + Duration::from_millis(1);
        invariants.look(&facts);
    }
    assert_eq!(invariants.violations().len(), super::VIOLATIONS_MAX);
}
