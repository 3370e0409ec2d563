//! What the mesh says of its members' comings and goings.

use std::time::Duration;

use super::village::{AgentRuns, Village, key, node_name, secs};
use crate::{Decision, Input, MemberChange, Profile, SeenShare, StepDownReason, Verdict};
use swimlet_protocol::{MemberKey, Role};

fn aggregator(change: MemberChange, name: &str, host: Option<&str>) -> Input {
    Input::Member {
        key: key(Role::Aggregator, name),
        change,
        aggregator: true,
        host: host.map(node_name),
        heard_age: None,
    }
}

fn agent(change: MemberChange, name: &str, heard_age: Option<Duration>) -> Input {
    Input::Member {
        key: key(Role::Agent, name),
        change,
        aggregator: false,
        host: None,
        heard_age,
    }
}

/// Kills a node and returns the decision about it.
fn death(village: &mut Village, name: &str) -> Decision {
    village.kill(name);
    village.run_until(secs(30), |village| !village.written(name).is_empty());
    let decisions = village.decisions.iter().rev();
    decisions
        .map(|(_, decision)| decision)
        .find(|decision| decision.node.name == node_name(name))
        .unwrap()
        .clone()
}

fn testifies(decision: &Decision, member: MemberKey) -> bool {
    let mut witnesses = decision.evidence.witnesses.iter();
    witnesses.any(|witness| witness.member == member)
}

/// What the edge derives from the Nodes it says anew; also that it no longer knows.
#[test]
fn the_host_of_an_aggregator_is_what_was_told_last() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let hosts = |decision: &Decision| {
        let mut hosts: Vec<Option<String>> = decision
            .evidence
            .witnesses
            .iter()
            .filter(|witness| witness.aggregator)
            .map(|witness| witness.host.as_ref().map(|host| host.as_str().to_owned()))
            .collect();
        hosts.sort();
        hosts
    };
    let cp = |host: &str| Some(host.to_owned());
    let decision = death(&mut village, "n1");
    assert_eq!(hosts(&decision), [cp("cp-0"), cp("cp-1"), cp("cp-2")]);
    village.feed(aggregator(MemberChange::Joined, "agg-1", Some("cp-7")));
    let decision = death(&mut village, "n2");
    assert_eq!(hosts(&decision), [cp("cp-0"), cp("cp-2"), cp("cp-7")]);
    // Two whose hosts nobody knows may share one: they are one witness.
    village.feed(aggregator(MemberChange::Joined, "agg-1", None));
    village.feed(aggregator(MemberChange::Joined, "agg-2", None));
    let decision = death(&mut village, "n3");
    assert_eq!(hosts(&decision), [None, cp("cp-0")]);
}

/// An aggregator that went away and is known again is asked to verify, and its view
/// counts, as before.
#[test]
fn an_aggregator_that_comes_back_is_a_verifier_and_a_peer_again() {
    for change in [MemberChange::Gone, MemberChange::Left] {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        let other = key(Role::Aggregator, "agg-1");
        let view = Input::PeerView {
            aggregator: other,
            seen: SeenShare { alive: 11, of: 12 },
        };
        village.feed(view.clone());
        village.feed(aggregator(change, "agg-1", None));
        let decision = death(&mut village, "n1");
        assert!(!testifies(&decision, other), "{change:?}");
        // It is heard before the mesh says that it is back.
        village.feed(Input::Heard {
            node: other,
            age: Duration::ZERO,
        });
        village.feed(aggregator(MemberChange::Joined, "agg-1", Some("cp-1")));
        let decision = death(&mut village, "n2");
        assert!(testifies(&decision, other), "{change:?}");

        village.each(0..8, |host| host.side = 1);
        village.run(secs(8));
        village.feed(view);
        village.run(secs(8));
        let stepped_down = village.outputs.iter().any(|output| {
            matches!(
                output,
                crate::Output::StepDown {
                    reason: StepDownReason::AnotherSeesMore { .. }
                }
            )
        });
        assert!(stepped_down, "{change:?}: {:?}", village.outputs);
        assert!(!village.judge.may_stand());
    }
}

/// What it saw before it went away is no view of now.
#[test]
fn the_view_of_an_aggregator_that_went_away_is_forgotten() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.each(0..8, |host| host.side = 1);
    village.run(secs(8));
    village.feed(Input::PeerView {
        aggregator: key(Role::Aggregator, "agg-1"),
        seen: SeenShare { alive: 11, of: 12 },
    });
    assert!(!village.judge.may_stand());
    village.feed(aggregator(MemberChange::Gone, "agg-1", None));
    village.feed(aggregator(MemberChange::Joined, "agg-1", Some("cp-1")));
    assert!(village.judge.may_stand());
}

/// A member of the table of which nobody says when it was heard makes no memory: its
/// Node stays unmonitored, whoever misses it.
#[test]
fn a_member_without_an_age_makes_no_node_monitored() {
    let mut village = Village::empty(Profile::Default);
    for index in 0..9 {
        village.add(&format!("n{index}"), ["a", "b", "c"][index % 3]);
    }
    for name in ["n3", "n4"] {
        village.host(name).agent = AgentRuns::Never;
        village.kill(name);
    }
    village.feed(agent(MemberChange::Joined, "n3", None));
    village.start();
    // Before its Node was listed or after makes no difference.
    village.feed(agent(MemberChange::Joined, "n4", None));
    village.feed(Input::Leadership(true));
    village.run(secs(20));
    for name in ["n3", "n4"] {
        village.accuse(key(Role::Agent, "n0"), name, secs(1));
        village.accuse(key(Role::Agent, "n1"), name, secs(1));
    }
    village.run(secs(100));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Unmonitored);
    assert_eq!(village.verdict("n4"), Verdict::Unmonitored);
    // An age is a memory, and a member that nobody hears is looked for.
    village.feed(agent(MemberChange::Joined, "n4", Some(secs(600))));
    village.run_until(secs(60), |village| !village.written("n4").is_empty());
    assert!(village.written("n3").is_empty());
}

/// Only after a goodbye does a member's return count without an age.
#[test]
fn a_return_after_a_goodbye_counts_without_an_age() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.leave("n3");
    village.run(secs(60));
    assert_eq!(village.verdict("n3"), Verdict::Left);
    village.feed(agent(MemberChange::Joined, "n3", None));
    village.host("n3").agent = AgentRuns::Yes;
    village.run(secs(30));
    assert_eq!(village.verdict("n3"), Verdict::Alive);
}

/// A goodbye is remembered until the Node is listed, though the mesh forgets the member.
#[test]
fn a_goodbye_before_the_node_is_listed_is_remembered() {
    let mut village = Village::empty(Profile::Default);
    for index in 0..9 {
        village.add(&format!("n{index}"), ["a", "b", "c"][index % 3]);
    }
    village.host("n3").agent = AgentRuns::Left;
    village.feed(agent(MemberChange::Joined, "n3", Some(secs(60))));
    village.feed(agent(MemberChange::Left, "n3", None));
    village.feed(agent(MemberChange::Gone, "n3", None));
    village.start();
    village.feed(Input::Leadership(true));
    village.run(secs(60));
    assert_eq!(village.verdict("n3"), Verdict::Left);
    assert!(village.writes.is_empty());
}

/// Deleted Nodes leave no trace when the mesh forgets their agents.
#[test]
fn members_that_are_gone_are_not_remembered() {
    let mut village = Village::of(3, &["a"], Profile::Default);
    let member = |index: usize, change| Input::Member {
        key: key(Role::Agent, &format!("gone-{index}")),
        change,
        aggregator: false,
        host: None,
        heard_age: None,
    };
    for index in 0..=crate::constants::MEMBERS_MAX {
        village.feed(member(index, MemberChange::Joined));
        village.feed(member(index, MemberChange::Gone));
    }
    assert_eq!(village.judge.stats().members_overflow, 0);
}
