//! Each guard is worth something: without it, the runs that it guards go wrong.
//!
//! A world is built twice from one seed, once as it is shipped and once without the
//! guard. Users cannot do without: the switches are for tests alone.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use swimlet_sim::Guard;
use swimlet_sim::invariants::Name;
use swimlet_sim::scenario::{Outcome, Scenario, parse, run};

/// Seeds that are tried until one shows the difference; with the guard all must hold.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;

fn scenario(name: &str) -> Scenario {
    let path = format!("{}/scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text(text: &str) -> Scenario {
    parse(text).unwrap()
}

fn runs(scenario: &Scenario) -> Vec<Outcome> {
    SEEDS.map(|seed| run(scenario, seed).unwrap()).collect()
}

/// That the scenario holds with the guard and fails without.
fn is_guarded(scenario: &Scenario, guard: Guard) {
    for outcome in runs(scenario) {
        assert!(outcome.holds(), "with {guard:?}: {:?}", outcome.failures);
    }
    let mut without = scenario.clone();
    without.topology.without = vec![guard];
    let outcomes = runs(&without);
    assert!(
        outcomes.iter().any(|outcome| !outcome.holds()),
        "without {guard:?} nothing failed"
    );
}

/// Members whose packets are held for 16 s judge others, and spread it, unless they doubt
/// themselves.
const SICK: &str = r#"
name = "sick"
shows = "Sixteen of sixty-four members have their packets held."
lasts = "2m"

[topology]
nodes = 64

[[fault]]
name = "sick"
at = "10s"
for = "80s"
what.sick = { target = { random = 16 }, held = "16s", free = "64ms" }

[[expect]]
may_be_written = { of = "sick", times = 4 }

[[expect]]
no_false_downs = {}
"#;

#[test]
fn local_health_keeps_sick_members_from_judging() {
    is_guarded(&text(SICK), Guard::LocalHealth);
}

/// Two agents claim to reach nobody, while a third refutes too late because its packets
/// are held.
const LIARS: &str = r#"
name = "liars"
shows = "Two agents claim that they reach nobody, and a third has its packets held."
lasts = "2m"

[topology]
nodes = 40

[[fault]]
name = "sick"
at = "10s"
for = "90s"
what.sick = { target = { nodes = [5] }, held = "3s", free = "1s" }

[[fault]]
name = "liars"
at = "10s"
for = "90s"
what.liar = { target = { nodes = [7, 8] } }

[[expect]]
no_false_downs = {}
"#;

#[test]
fn distinct_accusers_keep_few_from_killing() {
    is_guarded(&text(LIARS), Guard::DistinctAccusers);
}

#[test]
fn verification_saves_a_node_whose_mesh_port_is_blocked() {
    is_guarded(&scenario("udp-blocked"), Guard::Verification);
}

#[test]
fn only_a_path_that_worked_can_fail() {
    is_guarded(&text(CLOSED_PORTS), Guard::Baseline);
}

/// Where workers may not knock at each other's kubelets, their silence says nothing.
const CLOSED_PORTS: &str = r#"
name = "closed-ports"
shows = "No worker ever reached another's kubelet port, and a firewall takes one agent's mesh port away."
lasts = "150s"

[topology]
nodes = 18
start = "cold"
lease = "480s"

[[fault]]
at = "0s"
what.cut = { from = "all", to = "all", ports = ["kubelet"] }

[[fault]]
name = "blocked"
at = "80s"
what.cut = { from = "all", to = { nodes = [9] }, ports = ["mesh"], both = true }
"#;

#[test]
fn the_first_brake_stops_whoever_sees_half() {
    is_guarded(&text(MINORITY), Guard::BrakeMinority);
}

/// The leader's side is the small one and has hosts in every zone, and Leases are too slow
/// to speak up.
const MINORITY: &str = r#"
name = "minority"
shows = "The aggregators are on the small side of a partition."
lasts = "90s"

[topology]
nodes = 20
lease = "480s"

[[fault]]
name = "cut"
at = "30s"
for = "40s"
what.partition = { target = { nodes = [0, 1, 2, 3, 4, 5, 6, 7, 8] }, ports = ["mesh", "kubelet"] }
"#;

#[test]
fn the_second_brake_stops_beyond_its_share() {
    let mut scenario = text(SHARE);
    let most = |scenario: &Scenario| {
        let writes = |outcome: &Outcome| outcome.summary.writes.len();
        runs(scenario).iter().map(writes).max()
    };
    assert!(most(&scenario) <= Some(4), "{:?}", most(&scenario));
    scenario.topology.without = vec![Guard::BrakeShare];
    assert!(most(&scenario) > Some(4), "{:?}", most(&scenario));
}

/// Heartbeats are rare, so the brake is not lifted by their silence within the run.
const SHARE: &str = r#"
name = "share"
shows = "Eight of twenty nodes lose power; the share is set to a fifth."
lasts = "60s"
open = true

[topology]
nodes = 20
brake_share = 20
lease = "480s"

[[fault]]
name = "dead"
at = "20s"
what.crash = { target = { nodes = [4, 5, 7, 8, 10, 11, 13, 14] } }
"#;

/// Without a guard the invariants see it too: they are what exploration judges by.
#[test]
fn invariants_see_what_a_missing_guard_lets_through() {
    let mut scenario = scenario("udp-blocked");
    scenario.open = true;
    scenario.expects.clear();
    scenario.topology.without = vec![Guard::Verification];
    let innocent = |outcome: &Outcome| {
        let mut failures = outcome.failures.iter();
        failures.any(|failure| failure.invariant == Some(Name::Innocent))
    };
    assert!(runs(&scenario).iter().any(innocent));
}
