//! What forbids a write takes the decision back that waits at the writer.

use swimlet_protocol::Role;

use super::village::{Village, key, millis, secs};
use crate::{ApiHealth, Input, Profile, ReadyStatus, Rule, Verdict, WatchHealth, WriteOutcome};

/// A node that died, with its decision at a writer that takes a long time.
fn waiting() -> Village {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.writer_takes = secs(8);
    village.kill("n3");
    village.run_until(secs(10), |village| !village.decisions.is_empty());
    assert_eq!(
        village.said("n3"),
        [(Verdict::Unreachable, Rule::NoPacketFromHost)]
    );
    village
}

/// Whatever forbids a write, and how.
type Forbids = (&'static str, fn(&mut Village));

const AT_ONCE: [Forbids; 11] = [
    ("a hold", |village| {
        village.host("n3").hold = true;
        village.show("n3");
    }),
    ("a removal", |village| {
        village.host("n3").deleting = true;
        village.show("n3");
    }),
    ("a pause", |village| village.feed(Input::Paused(true))),
    ("a lost lease", |village| {
        village.feed(Input::Leadership(false))
    }),
    ("a stale watch", |village| {
        village.feed(Input::NodeWatch(WatchHealth::Stale));
    }),
    ("an API server that fails", |village| {
        village.feed(Input::Api(ApiHealth::Failing));
    }),
    ("a heartbeat", |village| {
        village.kubelet_writes("n3", ReadyStatus::True);
    }),
    ("an answer", |village| {
        village.feed(Input::Heard {
            node: key(Role::Agent, "n3"),
            age: millis(1),
        });
    }),
    ("another's Unknown", |village| {
        if let Some(ready) = &mut village.host("n3").ready {
            ready.status = ReadyStatus::Unknown;
            ready.reason = "NodeStatusUnknown".to_owned();
        }
        village.show("n3");
    }),
    ("a pause of our process", |village| {
        village.feed(Input::Suspended { missed: secs(2) });
    }),
    ("a Node that is gone", |village| {
        let gone = village.node_ref("n3");
        village.feed(Input::NodeGone(gone));
    }),
];

/// Guards every write that is queued when something forbids it: the newest decision about
/// the node writes nothing, at once.
#[test]
fn what_forbids_a_write_takes_back_the_one_that_waits() {
    for (what, forbid) in AT_ONCE {
        let mut village = waiting();
        forbid(&mut village);
        let (_, newest) = village.decisions.last().unwrap();
        assert_eq!(newest.verdict.reason(), None, "{what}: {newest:?}");
        village.run(secs(8));
        assert!(village.writes.is_empty(), "{what}: {:?}", village.writes);
    }
}

/// Scenario 9: the object that the decision spoke of is another one now.
#[test]
fn a_new_uid_takes_back_the_decision_about_the_old_one() {
    let mut village = waiting();
    let old = village.node_ref("n3");
    village.hosts.remove("n3");
    village.add("n3", "a");
    village.host("n3").power = false;
    village.show("n3");
    let (_, newest) = village.decisions.last().unwrap();
    assert_eq!((newest.verdict, &newest.node), (Verdict::Withheld, &old));
}

/// Guards the brakes against a slow writer: the first of many waits when the others fall.
#[test]
fn a_brake_takes_back_what_waits() {
    let mut village = waiting();
    village.each([0, 1, 2, 4, 5, 6], |host| host.power = false);
    village.run(secs(5));
    let said = village.said("n3");
    let (verdict, rule) = said.last().unwrap();
    assert_eq!(*verdict, Verdict::Withheld, "{said:?}");
    assert!(matches!(
        rule,
        Rule::BrakeMinority | Rule::BrakeGraded | Rule::BrakeShare
    ));
}

/// What was taken back is decided again once nothing forbids it any more.
#[test]
fn what_was_taken_back_is_decided_again_after_the_hold() {
    let mut village = waiting();
    village.host("n3").hold = true;
    village.show("n3");
    village.run(secs(30));
    assert_eq!(
        village.said("n3").last(),
        Some(&(Verdict::Withheld, Rule::Hold))
    );
    village.host("n3").hold = false;
    village.show("n3");
    village.writer_takes = secs(0);
    village.run_until(secs(10), |village| village.writes.len() == 1);
}

/// The word may come too late: what was written then is known as ours, should the kubelet
/// take it back.
#[test]
fn a_decision_that_was_written_before_it_was_taken_back_is_remembered() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    village.run_until(secs(10), |village| !village.decisions.is_empty());
    assert_eq!(village.writes.len(), 1, "its outcome is on its way");
    village.feed(Input::Paused(true));
    assert_eq!(village.verdict("n3"), Verdict::Withheld);
    village.run(secs(5));
    village.feed(Input::Paused(false));
    village.kubelet_writes("n3", ReadyStatus::True);
    assert_eq!(village.judge.stats().taken_back, 1);
}

/// What becomes of a withdrawn decision is not taken for what becomes of its successor,
/// which could not be withdrawn then.
#[test]
fn the_outcome_of_a_withdrawn_decision_does_not_end_the_next_one() {
    let mut village = waiting();
    let first = village.decisions[0].1.clone();
    village.feed(Input::NodeWatch(WatchHealth::Stale));
    village.feed(Input::NodeWatch(WatchHealth::Fresh));
    let writes = |village: &Village| {
        let mut decided = village.decisions.iter();
        decided.any(|(_, decision)| {
            decision.verdict.reason().is_some() && decision.episode != first.episode
        })
    };
    village.run_until(secs(60), writes);
    village.feed(Input::Written {
        node: first.node.clone(),
        episode: first.episode,
        outcome: WriteOutcome::Superseded,
    });
    village.feed(Input::Api(ApiHealth::Failing));
    let (_, newest) = village.decisions.last().unwrap();
    assert_eq!(newest.verdict.reason(), None, "{newest:?}");
    village.run(secs(20));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
}
