//! The mesh and the judge together: twenty members of the real mesh, seventeen agents and
//! three aggregators on hosts of theirs in three zones, each aggregator with the real
//! judge, over a network, kubelets and an API server in virtual time. All but these is
//! production code: [`swimlet_roles`] joins the two here as it does in the binary.
//!
//! What either crate's own tests take for granted about the other is not taken for
//! granted here: a claim comes from a probe that was really missed, a verifier's answer
//! from a probe that was really sent, and a verdict goes back into the mesh.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests are tests; clippy tells them apart by the attribute alone"
)]

mod aggregator;
mod api;
mod member;
mod net;

use std::hash::DefaultHasher;
use std::time::Duration;

use net::{Decided, Net};
use swimlet_protocol::Role;
use swimlet_verdict::constants::PERSISTENCE_DEFAULT;
use swimlet_verdict::{Judge, ReadyStatus, Rule, Standing, Verdict};

const AGENTS: usize = 17;
/// The aggregators' members; they run on the first three hosts, a zone each.
const FIRST: usize = AGENTS;
const SECOND: usize = AGENTS + 1;
const AGGREGATORS: usize = 3;
const ZONES: [&str; 3] = ["a", "b", "c"];
/// Crash to write, in the default profile.
const DETECTED_WITHIN: Duration = secs(10);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn formed(seed: u64) -> Net {
    form(Net::new(seed))
}

/// Everything runs, everybody was heard, every path has its baseline, and the first
/// aggregator has led for a while.
fn form(mut net: Net) -> Net {
    for host in 0..AGENTS {
        net.add_host(host, ZONES[host % ZONES.len()]);
        net.start_kubelet(host);
    }
    for host in 0..AGENTS {
        let name = net.hosts[host].name.clone();
        net.add_member(host, Role::Agent, name.as_str());
    }
    for host in 0..AGGREGATORS {
        net.add_member(host, Role::Aggregator, &format!("aggregator-{host}"));
    }
    for member in 0..AGENTS + AGGREGATORS {
        let delay = net.random(secs(3));
        net.after(delay, move |net| net.start(member));
    }
    net.run(secs(45));
    net.lead(FIRST, true);
    net.run(secs(15));
    assert_eq!((asked(&net), &net.writes), (Vec::new(), &Vec::new()));
    for aggregator in FIRST..FIRST + AGGREGATORS {
        let seen = judge(&net, aggregator).seen();
        assert_eq!((seen.alive, seen.of), (17, 17));
    }
    net.decisions.clear();
    // What happens next meets probes, Leases and rounds at any phase.
    let phase = net.random(secs(10));
    net.run(phase);
    net
}

/// A host without an aggregator, another for another seed.
fn plain(seed: u64) -> usize {
    AGGREGATORS + usize::try_from(seed).unwrap() * 5 % (AGENTS - AGGREGATORS)
}

fn judge(net: &Net, aggregator: usize) -> &Judge {
    net.members[aggregator].aggregator.as_ref().unwrap().judge()
}

/// Where a node stands with the first aggregator.
fn standing(net: &Net, host: usize) -> Standing {
    judge(net, FIRST).standing(&net.hosts[host].name).unwrap()
}

/// Decisions that ask for a write.
fn asked(net: &Net) -> Vec<&Decided> {
    let decisions = net.decisions.iter();
    decisions
        .filter(|decided| decided.decision.verdict.reason().is_some())
        .collect()
}

/// Everything decided, for whoever reads a failure.
fn told(net: &Net, seed: u64) -> String {
    let lines = net.decisions.iter().map(|decided| {
        let decision = &decided.decision;
        format!(
            "{} by {}: {} {} {}: {}\n",
            decided.at,
            decided.by,
            decision.node.name,
            decision.verdict,
            decision.rule,
            decision.evidence.summary()
        )
    });
    format!("seed {seed}:\n{}", lines.collect::<String>())
}

fn assert_nothing_written(net: &Net, seed: u64) {
    assert!(asked(net).is_empty(), "{}", told(net, seed));
    assert!(net.writes.is_empty(), "seed {seed}: {:?}", net.writes);
}

/// Not even a decision that is not written.
fn assert_nothing_said_of_others(net: &Net, host: usize, seed: u64) {
    let silent = net.decisions.iter().all(|decided| decided.node == host);
    assert!(silent, "{}", told(net, seed));
}

/// Scenario 4: where nothing happens nothing is decided, whatever the network loses.
#[test]
fn nothing_is_written_in_quiet() {
    for (seed, loss) in [(1, 0.0), (2, 0.0), (3, 0.02), (4, 0.05), (5, 0.15)] {
        let mut net = formed(seed);
        net.loss = loss;
        net.run(secs(120));
        assert_nothing_written(&net, seed);
        assert_eq!(net.step_downs, 0, "seed {seed}");
    }
}

/// A death becomes one decision within 10 s, and not before the silence has lasted.
#[test]
fn a_crash_is_written_once_and_not_too_early() {
    for (seed, loss) in [
        (10, 0.0),
        (11, 0.0),
        (12, 0.0),
        (13, 0.0),
        (14, 0.02),
        (15, 0.05),
    ] {
        let mut net = formed(seed);
        net.loss = loss;
        let (victim, crashed) = (plain(seed), net.now);
        net.power_off(victim);
        net.run(secs(60));
        let asked = asked(&net);
        let [decided] = asked[..] else {
            panic!("{}", told(&net, seed));
        };
        assert_eq!(decided.node, victim, "{}", told(&net, seed));
        let decision = &decided.decision;
        assert_eq!(
            decision.verdict,
            Verdict::Unreachable,
            "{}",
            told(&net, seed)
        );
        assert_eq!(
            decision.rule,
            Rule::NoPacketFromHost,
            "{}",
            told(&net, seed)
        );
        let took = decided.at.since(crashed);
        // The earliest unanswered probe may have been on its way as the host died, and
        // where packets are lost one more before it.
        let lost_before = if loss > 0.0 {
            secs(1)
        } else {
            Duration::from_millis(65)
        };
        let earliest = PERSISTENCE_DEFAULT.saturating_sub(lost_before);
        assert!(took >= earliest, "seed {seed}: {took:?}");
        assert!(took <= DETECTED_WITHIN, "{}", told(&net, seed));
        assert!(
            decision.evidence.stood >= PERSISTENCE_DEFAULT,
            "seed {seed}"
        );
        assert!(decision.evidence.rounds >= 2, "seed {seed}");
        assert!(decision.evidence.witnesses.len() >= 3, "seed {seed}");
        assert_nothing_said_of_others(&net, victim, seed);
        assert_eq!(net.writes.len(), 1, "seed {seed}: {:?}", net.writes);
    }
}

/// The leader dies with its host: whoever takes over writes it, once.
#[test]
fn the_leaders_own_death_is_written_by_the_next() {
    for seed in 20..25 {
        let mut net = formed(seed);
        net.power_off(0);
        net.run(secs(12));
        assert_nothing_written(&net, seed);
        net.lead(SECOND, true);
        let led = net.now;
        net.run(secs(60));
        let [write] = &net.writes[..] else {
            panic!("{}", told(&net, seed));
        };
        assert_eq!((write.by, write.node), (SECOND, 0), "{}", told(&net, seed));
        assert_eq!(write.verdict, Verdict::Unreachable, "seed {seed}");
        assert!(
            write.at.since(led) <= DETECTED_WITHIN,
            "{}",
            told(&net, seed)
        );
        assert_eq!(asked(&net).len(), 1, "{}", told(&net, seed));
        assert_nothing_said_of_others(&net, 0, seed);
    }
}

/// Scenario 1: who hears nothing brings nobody else into a decision.
#[test]
fn a_deaf_node_harms_nobody_else() {
    for seed in 30..36 {
        let mut net = formed(seed);
        let deaf = plain(seed);
        net.hosts[deaf].udp_in = false;
        // Every other one hears no TCP either, so its kubelet is cut off as well.
        let whole = seed % 2 == 1;
        net.hosts[deaf].tcp_in = !whole;
        net.hosts[deaf].api = !whole;
        net.run(secs(120));
        assert_nothing_said_of_others(&net, deaf, seed);
        if !whole {
            assert_nothing_written(&net, seed);
        }
        // It was missed, so there was something to be wrong about.
        assert!(judge(&net, FIRST).stats().rounds > 0, "seed {seed}");
    }
}

/// Scenario 6: one member says of all others that nobody reaches them: as an observer,
/// as a co-observer and as a verifier.
#[test]
fn a_liar_alone_writes_nothing() {
    for seed in 40..45 {
        let mut net = formed(seed);
        net.lie(plain(seed));
        net.run(secs(90));
        assert_nothing_written(&net, seed);
        // Its claims were heard, and looked into.
        let stats = judge(&net, FIRST).stats();
        assert!(
            stats.claims > 16 && stats.rounds > 0,
            "seed {seed}: {stats:?}"
        );
    }
}

/// Scenarios 12 and 33: a goodbye is no death while the kubelet answers its port.
#[test]
fn a_goodbye_is_not_written() {
    for seed in 50..54 {
        let mut net = formed(seed);
        let leaving = plain(seed);
        net.leave(leaving);
        net.run(secs(120));
        assert_nothing_written(&net, seed);
        let verdict = standing(&net, leaving).verdict;
        assert_eq!(verdict, Verdict::Left, "{}", told(&net, seed));
    }
}

/// Scenario 12: a rolled agent is back in seconds, and its node's death is noticed as
/// soon as any other's.
#[test]
fn a_rolled_agent_is_watched_as_before() {
    for seed in 55..59 {
        let mut net = formed(seed);
        let rolled = plain(seed);
        net.leave(rolled);
        net.run(secs(5));
        net.start(rolled);
        net.run(secs(40));
        assert_nothing_written(&net, seed);
        let verdict = standing(&net, rolled).verdict;
        assert_eq!(verdict, Verdict::Alive, "{}", told(&net, seed));
        let died = net.now;
        net.power_off(rolled);
        net.run(secs(30));
        let [write] = &net.writes[..] else {
            panic!("{}", told(&net, seed));
        };
        assert_eq!((write.node, write.verdict), (rolled, Verdict::Unreachable));
        assert!(
            write.at.since(died) <= DETECTED_WITHIN,
            "{}",
            told(&net, seed)
        );
    }
}

/// Scenario 7: without UDP the agent is missing, and the node is not.
#[test]
fn a_blocked_mesh_port_is_not_a_death() {
    for seed in 60..64 {
        let mut net = formed(seed);
        let blocked = plain(seed);
        net.hosts[blocked].udp_in = false;
        net.hosts[blocked].udp_out = false;
        net.run(secs(180));
        assert_nothing_written(&net, seed);
        let standing = standing(&net, blocked);
        assert_eq!(
            standing.verdict,
            Verdict::AgentMissing,
            "{}",
            told(&net, seed)
        );
        assert_eq!(standing.rule, Rule::PortAnswers, "seed {seed}");
        assert_nothing_said_of_others(&net, blocked, seed);
    }
}

/// A node that came back and died again is another episode, with evidence of its own.
#[test]
fn a_second_death_is_a_second_episode() {
    for seed in 70..75 {
        let mut net = formed(seed);
        let victim = plain(seed);
        net.power_off(victim);
        assert!(net.run_until(DETECTED_WITHIN, |net| net.writes.len() == 1));
        net.run(secs(20));
        net.power_on(victim);
        net.run(secs(60));
        assert_eq!(net.writes.len(), 1, "{}", told(&net, seed));
        // The kubelet took the Unknown back, and nobody wrote it again.
        assert_eq!(net.hosts[victim].ready.status, ReadyStatus::True);
        let verdict = standing(&net, victim).verdict;
        assert_eq!(verdict, Verdict::Alive, "{}", told(&net, seed));
        let died = net.now;
        net.power_off(victim);
        net.run(secs(60));
        let [first, second] = &net.writes[..] else {
            panic!("{}", told(&net, seed));
        };
        assert!(
            second.at.since(died) <= DETECTED_WITHIN,
            "{}",
            told(&net, seed)
        );
        assert_ne!(first.episode, second.episode, "seed {seed}");
        assert_eq!((first.node, second.node), (victim, victim), "seed {seed}");
    }
}

/// A run can be repeated from its seed, to the last frame.
#[test]
fn a_seed_repeats_its_run() {
    let run = |seed: u64| {
        let mut net = Net::new(seed);
        net.trace = Some(DefaultHasher::new());
        let mut net = form(net);
        net.loss = 0.02;
        net.power_off(plain(80));
        net.run(secs(30));
        (net.digest().unwrap(), net.writes)
    };
    let (first, again, other) = (run(80), run(80), run(81));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
}
