//! Whatever comes in, in whatever order: what must hold always.

use proptest::prelude::{ProptestConfig, Strategy, any, prop, proptest};
use swimlet_protocol::Role;
use swimlet_protocol::frame::{AgentAnswer, Check, PortAnswer, SUBJECTS_MAX};

use super::village::{Kubelet, Village, key, secs};
use crate::{
    AnswerSeen, ApiHealth, Finding, Input, LeaseRead, MemberChange, Profile, WatchHealth,
    WriteOutcome,
};

/// A fault, or a piece of news out of turn.
#[derive(Clone, Copy, Debug)]
struct Event {
    kind: u8,
    node: u8,
    other: u8,
    flag: bool,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event =
        (any::<u8>(), 0..8_u8, 0..8_u8, any::<bool>()).prop_map(|(kind, node, other, flag)| {
            Event {
                kind,
                node,
                other,
                flag,
            }
        });
    prop::collection::vec(event, 1..60)
}

/// Carries an event out.
fn inject(village: &mut Village, event: Event) {
    let name = format!("n{}", event.node);
    match event.kind % 12 {
        0..=2 => {
            let input = of_members(&name, event);
            village.feed(input);
        }
        3..=7 => {
            let input = of_the_edge(village, &name, event);
            village.feed(input);
        }
        8 => village.feed(Input::Report {
            node: key(Role::Agent, &name),
            age: secs(u64::from(event.other)),
            kubelet_healthz: Check::Failing,
            kubelet_port: Check::Failing,
            api: Check::Failing,
        }),
        9 => village.host(&name).mesh_blocked = event.flag,
        10 => {
            village.host(&name).kubelet = if event.flag {
                Kubelet::Works
            } else {
                Kubelet::Hung
            };
        }
        _ => village.feed(Input::NodesListed),
    }
}

/// What members say: accusations, answers to nothing that was asked, comings and goings.
fn of_members(name: &str, event: Event) -> Input {
    let subject = key(Role::Agent, name);
    let other = key(Role::Agent, &format!("n{}", event.other));
    match event.kind % 12 {
        0 => Input::Claim {
            accuser: other,
            subject,
            finding: if event.flag {
                Finding::Answered
            } else {
                Finding::Missed { silent: secs(30) }
            },
            age: secs(u64::from(event.other)),
            health: event.other,
        },
        1 => Input::Verified {
            verifier: other,
            round: u32::from(event.kind),
            health: 0,
            answers: vec![
                AnswerSeen {
                    subject,
                    index: event.other,
                    agent: AgentAnswer::Silent,
                    agent_baseline: true,
                    port: PortAnswer::Silent,
                    port_baseline: event.flag,
                };
                SUBJECTS_MAX + 3
            ],
        },
        _ => Input::Member {
            key: subject,
            change: if event.flag {
                MemberChange::Joined
            } else {
                MemberChange::Gone
            },
            aggregator: false,
            host: None,
            heard_age: None,
        },
    }
}

/// What the API server and the election say.
fn of_the_edge(village: &Village, name: &str, event: Event) -> Input {
    let node = village.node_ref(name);
    match event.kind % 12 {
        3 => Input::Written {
            node,
            episode: u64::from(event.other),
            outcome: WriteOutcome::Conflict,
        },
        4 => Input::Lease {
            node,
            read: if event.flag {
                LeaseRead::Failed
            } else {
                LeaseRead::None
            },
        },
        5 => Input::Leadership(event.flag),
        6 => Input::Api(if event.flag {
            ApiHealth::Working
        } else {
            ApiHealth::Failing
        }),
        _ => Input::NodeWatch(if event.flag {
            WatchHealth::Fresh
        } else {
            WatchHealth::Stale
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Hosts that answer on some port are never called unreachable, whatever members,
    /// elections and the API server do meanwhile; and the judge never panics.
    #[test]
    fn a_host_that_answers_is_never_unreachable(events in events()) {
        let mut village = Village::of(8, &["a", "b"], Profile::Fast);
        for event in events {
            inject(&mut village, event);
            village.run(std::time::Duration::from_millis(u64::from(event.other) * 200));
        }
        village.run(secs(20));
        let unreachable = village
            .decisions
            .iter()
            .any(|(_, decision)| decision.verdict == crate::Verdict::Unreachable);
        assert!(!unreachable, "{:?}", village.decisions);
    }
}
