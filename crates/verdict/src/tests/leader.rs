//! Leaders, API outages, pauses and holds.

use super::village::{Village, key, millis, secs};
use crate::{
    ApiHealth, Brake, Input, MemberChange, Notice, Profile, Rule, StepDownReason, Verdict,
    WatchHealth,
};
use swimlet_protocol::Role;

#[test]
fn who_does_not_lead_asks_nothing_and_decides_nothing() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.feed(Input::Leadership(false));
    village.kill("n3");
    village.run(secs(120));
    assert!(village.writes.is_empty() && village.decisions.is_empty());
    assert!(village.notices.is_empty());
    assert_eq!(village.lease_reads, 0);
    assert!(
        village
            .judge
            .standing(&super::village::node_name("n3"))
            .unwrap()
            .suspected
    );
}

/// A new leader waits one full detection before its first write, and finds the death
/// that happened before.
#[test]
fn a_new_leader_waits_one_detection_and_writes_the_earlier_death() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.feed(Input::Leadership(false));
    village.kill("n3");
    village.run(secs(20));
    let leads = village.now;
    village.feed(Input::Leadership(true));
    village.run_until(secs(30), |village| !village.written("n3").is_empty());
    let took = village.written_after("n3", leads).unwrap();
    assert!(took >= Profile::Default.detection(), "{took:?}");
    assert!(took <= Profile::Default.detection() + secs(2), "{took:?}");
}

/// All aggregators restart while a node dies: state sync remembers that it had an
/// agent, and the sweep accuses it.
#[test]
fn a_death_during_a_restart_of_all_aggregators_is_written() {
    let mut village = Village::empty(Profile::Default);
    for index in 0..9 {
        village.add(&format!("n{index}"), ["a", "b", "c"][index % 3]);
    }
    village.kill("n3");
    village.host("n3").agent = super::village::AgentRuns::Never; // Nobody misses it any more.
    // The mesh tells its memory before the Nodes are listed.
    village.feed(Input::Member {
        key: key(Role::Agent, "n3"),
        change: MemberChange::Joined,
        aggregator: false,
        host: None,
        heard_age: Some(secs(600)),
    });
    village.start();
    village.feed(Input::Leadership(true));
    village.run_until(secs(90), |village| !village.written("n3").is_empty());
    village.run(secs(60));
    assert_eq!(village.writes.len(), 1);
}

/// A leader that loses the Lease with a decision on its way decides nothing more; its
/// successor, or itself, decides anew.
#[test]
fn a_lost_lease_ends_everything_at_once() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    village.run(secs(4));
    assert!(village.writes.is_empty());
    village.feed(Input::Leadership(false));
    village.run(secs(30));
    assert!(village.writes.is_empty());
    village.feed(Input::Leadership(true));
    village.run_until(secs(30), |village| !village.written("n3").is_empty());
}

/// Scenario 23: the API server is away for ten minutes, five nodes die in it.
#[test]
fn deaths_in_an_api_outage_are_written_after_it_and_nothing_else() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
    village.api_works = false;
    village.feed(Input::Api(ApiHealth::Failing));
    village.feed(Input::NodeWatch(WatchHealth::Stale));
    village.run(secs(60));
    for name in ["n1", "n5", "n9", "n13", "n17"] {
        village.kill(name);
        village.run(secs(90));
    }
    assert!(village.writes.is_empty());
    let back = village.now;
    village.api_works = true;
    village.feed(Input::Api(ApiHealth::Working));
    village.feed(Input::NodeWatch(WatchHealth::Fresh));
    village.feed(Input::NodesListed);
    village.run_until(secs(60), |village| village.writes.len() == 5);
    assert!(
        village
            .writes
            .iter()
            .all(|(at, ..)| at.since(back) >= Profile::Default.detection())
    );
    village.run(secs(120));
    assert_eq!(village.writes.len(), 5);
}

/// No decision on a stale watch, however sure.
#[test]
fn a_stale_watch_stops_decisions() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.feed(Input::NodeWatch(WatchHealth::Stale));
    village.kill("n3");
    village.run(secs(60));
    assert!(village.writes.is_empty());
    village.feed(Input::NodeWatch(WatchHealth::Fresh));
    village.run_until(secs(30), |village| village.writes.len() == 1);
}

#[test]
fn a_pause_withholds_loudly_and_ends() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.feed(Input::Paused(true));
    village.kill("n3");
    village.run(secs(60));
    assert!(village.writes.is_empty());
    assert_eq!(village.said("n3"), [(Verdict::Withheld, Rule::Paused)]);
    assert!(village.notices.iter().any(|(_, notice)| matches!(
        notice,
        Notice::Withheld {
            rule: Rule::Paused,
            ..
        }
    )));
    village.feed(Input::Paused(false));
    village.run_until(secs(10), |village| village.writes.len() == 1);
}

#[test]
fn a_hold_withholds_for_its_node_alone() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n3").hold = true;
    village.show("n3");
    village.kill("n3");
    village.kill("n4");
    village.run(secs(60));
    assert_eq!(village.written("n4"), [Verdict::Unreachable]);
    assert!(village.written("n3").is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Withheld);
    village.host("n3").hold = false;
    village.show("n3");
    village.run_until(secs(10), |village| village.writes.len() == 2);
}

/// Scenario 30: the autoscaler removes a node.
#[test]
fn a_node_being_removed_is_no_failure() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n3").deleting = true;
    village.show("n3");
    village.kill("n3");
    village.run(secs(30));
    assert!(village.writes.is_empty() && village.notices.is_empty());
    assert_eq!(
        village.said("n3"),
        [(Verdict::Withheld, Rule::BeingRemoved)]
    );
    let gone = village.node_ref("n3");
    village.hosts.remove("n3");
    village.feed(Input::NodeGone(gone));
    village.run(secs(30));
    assert!(village.writes.is_empty());
}

/// A leader that sees a minority and no other aggregator makes way once.
#[test]
fn an_isolated_leader_makes_way_once() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.each(0..8, |host| host.side = 1);
    village.run(secs(120));
    let isolated = village
        .outputs
        .iter()
        .filter(|output| {
            matches!(
                output,
                crate::Output::StepDown {
                    reason: StepDownReason::Isolated { .. }
                }
            )
        })
        .count();
    assert_eq!((isolated, village.outputs.len()), (1, 1));
    assert!(
        village.judge.may_stand(),
        "after a while it may stand again"
    );
}

/// Scenario 16: the judge's process was suspended. Its clock stood still for the
/// evidence too: what it hears on resuming comes before any decision.
#[test]
fn a_suspended_judge_decides_nothing_on_what_it_missed() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    for name in ["n1", "n2", "n4"] {
        village.accuse(key(Role::Agent, name), "n3", millis(500));
    }
    village.run(millis(40));
    village.now += secs(60);
    village.feed(Input::Wake);
    village.run(secs(120));
    assert!(village.writes.is_empty());
}

/// A brake that went on while nobody listened is told by the leader that takes over, so
/// that nobody hears of its end alone.
#[test]
fn a_new_leader_tells_which_brakes_are_on() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.feed(Input::Leadership(false));
    village.each([0, 3, 6, 9], |host| host.power = false);
    village.run(secs(10));
    assert!(village.notices.is_empty());
    village.feed(Input::Leadership(true));
    village.run(secs(180));
    let graded = |notice: &Notice| {
        let brake = Brake::Graded;
        [Notice::BrakeOn { brake }, Notice::BrakeOff { brake }].contains(notice)
    };
    let told: Vec<Notice> = village
        .notices
        .iter()
        .map(|(_, notice)| notice.clone())
        .filter(graded)
        .collect();
    let brake = Brake::Graded;
    assert_eq!(
        told,
        [Notice::BrakeOn { brake }, Notice::BrakeOff { brake }]
    );
}
