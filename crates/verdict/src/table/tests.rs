use super::{Agent, Heartbeats, Persistence, Port, Row, row};
use crate::verdict::Verdict;

/// A cell and what it must say: verdict, persistence, silence needed.
type Cell = (Port, Heartbeats, Verdict, Persistence, bool);

use Heartbeats::{Moving, None as NoLease, Silent as HbSilent};
use Persistence::{InTreeGrace, None as AtOnce, Profile};
use Port::{AcceptsOnly, AnswersTls, NeverReachable, Refuses, Silent};
use Verdict::{
    AgentMissing, Alive, ApiCutOff, KubeletDown, Left, MeshCutOff, Unreachable, Unverifiable,
};

/// An agent that answers is a living host: only silent heartbeats can say
/// something against its kubelet, and never before in-tree would.
const ANSWERS: [Cell; 15] = [
    (AnswersTls, Moving, Alive, AtOnce, false),
    (AnswersTls, HbSilent, ApiCutOff, InTreeGrace, true),
    (AnswersTls, NoLease, Alive, AtOnce, false),
    (AcceptsOnly, Moving, Alive, AtOnce, false),
    (AcceptsOnly, HbSilent, KubeletDown, InTreeGrace, true),
    (AcceptsOnly, NoLease, Alive, AtOnce, false),
    (Refuses, Moving, Alive, AtOnce, false),
    (Refuses, HbSilent, KubeletDown, InTreeGrace, true),
    (Refuses, NoLease, Alive, AtOnce, false),
    (Silent, Moving, Alive, AtOnce, false),
    (Silent, HbSilent, ApiCutOff, InTreeGrace, true),
    (Silent, NoLease, Alive, AtOnce, false),
    (NeverReachable, Moving, Alive, AtOnce, false),
    (NeverReachable, HbSilent, ApiCutOff, InTreeGrace, true),
    (NeverReachable, NoLease, Alive, AtOnce, false),
];

/// A silent agent alone says nothing of the node: its port and heartbeats decide.
const SILENT: [Cell; 15] = [
    (AnswersTls, Moving, AgentMissing, AtOnce, false),
    (AnswersTls, HbSilent, AgentMissing, AtOnce, false),
    (AnswersTls, NoLease, AgentMissing, AtOnce, false),
    (AcceptsOnly, Moving, AgentMissing, AtOnce, false),
    (AcceptsOnly, HbSilent, KubeletDown, InTreeGrace, true),
    (AcceptsOnly, NoLease, KubeletDown, InTreeGrace, true),
    (Refuses, Moving, AgentMissing, AtOnce, false),
    (Refuses, HbSilent, KubeletDown, InTreeGrace, true),
    (Refuses, NoLease, KubeletDown, InTreeGrace, true),
    (Silent, Moving, MeshCutOff, AtOnce, false),
    (Silent, HbSilent, Unreachable, Profile, false),
    (Silent, NoLease, Unreachable, Profile, false),
    (NeverReachable, Moving, MeshCutOff, AtOnce, false),
    (NeverReachable, HbSilent, Unreachable, Profile, true),
    (NeverReachable, NoLease, Unreachable, Profile, true),
];

/// An agent that said goodbye is no evidence at all: the port is what is left.
const LEFT: [Cell; 15] = [
    (AnswersTls, Moving, Left, AtOnce, false),
    (AnswersTls, HbSilent, Left, AtOnce, false),
    (AnswersTls, NoLease, Left, AtOnce, false),
    (AcceptsOnly, Moving, Left, AtOnce, false),
    (AcceptsOnly, HbSilent, KubeletDown, InTreeGrace, true),
    (AcceptsOnly, NoLease, KubeletDown, InTreeGrace, true),
    (Refuses, Moving, Left, AtOnce, false),
    (Refuses, HbSilent, KubeletDown, InTreeGrace, true),
    (Refuses, NoLease, KubeletDown, InTreeGrace, true),
    (Silent, Moving, Left, AtOnce, false),
    (Silent, HbSilent, Unreachable, Profile, true),
    (Silent, NoLease, Unreachable, Profile, true),
    (NeverReachable, Moving, Left, AtOnce, false),
    (NeverReachable, HbSilent, Unverifiable, AtOnce, false),
    (NeverReachable, NoLease, Unverifiable, AtOnce, false),
];

fn check(agent: Agent, cells: &[Cell; 15]) {
    let mut seen = std::collections::BTreeSet::new();
    for &(port, heartbeats, verdict, persistence, needs_silence) in cells {
        let row = row(agent, port, heartbeats);
        let cell = format!("{agent:?} × {port:?} × {heartbeats:?}: {}", row.because);
        assert_eq!(row.verdict, verdict, "{cell}");
        assert_eq!(row.persistence, persistence, "{cell}");
        assert_eq!(row.needs_silence, needs_silence, "{cell}");
        assert!(!row.because.is_empty(), "{cell}");
        seen.insert((port, heartbeats));
    }
    assert_eq!(seen.len(), 15, "each cell of {agent:?} once");
}

#[test]
fn cells_of_an_answering_agent() {
    check(Agent::Answers, &ANSWERS);
}

#[test]
fn cells_of_a_silent_agent() {
    check(Agent::Silent, &SILENT);
}

#[test]
fn cells_of_an_agent_that_left() {
    check(Agent::Left, &LEFT);
}

fn every_cell() -> impl Iterator<Item = (Agent, Port, Heartbeats, Row)> {
    Agent::ALL.into_iter().flat_map(|agent| {
        Port::ALL.into_iter().flat_map(move |port| {
            Heartbeats::ALL
                .into_iter()
                .map(move |heartbeats| (agent, port, heartbeats, row(agent, port, heartbeats)))
        })
    })
}

/// The rule above all rows: a heartbeat after the evidence began forbids each of them.
#[test]
fn no_row_is_written_while_heartbeats_move() {
    for (agent, port, heartbeats, row) in every_cell() {
        if heartbeats == Moving {
            assert_eq!(row.verdict.reason(), None, "{agent:?} × {port:?}");
        }
    }
}

/// A packet of the host, a refusal among them, is never "unreachable", and where
/// the data plane may live nothing is written before in-tree would.
#[test]
fn a_living_host_is_never_unreachable_and_never_early() {
    for (agent, port, heartbeats, row) in every_cell() {
        let lives = agent == Agent::Answers || matches!(port, AnswersTls | AcceptsOnly | Refuses);
        let cell = format!("{agent:?} × {port:?} × {heartbeats:?}");
        if lives {
            assert_ne!(row.verdict, Unreachable, "{cell}");
        }
        if lives && row.verdict.reason().is_some() {
            assert_eq!(row.persistence, InTreeGrace, "{cell}");
        }
        // What is written takes time, what is not takes none.
        assert_eq!(
            row.persistence == AtOnce,
            row.verdict.reason().is_none(),
            "{cell}"
        );
    }
}
