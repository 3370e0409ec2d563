//! One seed, one cluster, one schedule.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::fault::{Block, Fault, KubeletState, Part, Port, Return, Target};
use crate::scenario::{Event, Scenario};
use crate::topology::{Network, Profile, Start, Topology};
use crate::units::{Ppm, Span};

/// Nodes of the largest cluster: so many that not everyone watches everyone, and a run
/// takes about a second.
const NODES_MAX: u32 = 40;
/// Faults of one schedule.
const FAULTS_MAX: u32 = 8;
/// After the last fault begins there is time to see what comes of it.
const TAIL_S: u64 = 60;
/// Half of the schedules end with so much quiet that everything must have healed.
const QUIET_S: u64 = 150;

/// Dice with names.
struct Dice(Xoshiro256PlusPlus);

impl Dice {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0.random_range(0..=most)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.random_range(least..=most)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.up_to(many.saturating_sub(1)) == 0
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        let last = choices.len().saturating_sub(1) as u64;
        choices[usize::try_from(self.up_to(last)).unwrap_or_default()].clone()
    }

    fn secs(&mut self, least: u64, most: u64) -> Span {
        Span::from_secs(self.between(least, most))
    }

    fn node(&mut self, topology: &Topology) -> u32 {
        u32::try_from(self.up_to(u64::from(topology.nodes) - 1)).unwrap_or_default()
    }
}

/// The scenario of a seed.
#[must_use]
pub fn generate(seed: u64) -> Scenario {
    // The world takes the seed as it is; the schedule must not be made of the same numbers.
    let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(!seed));
    let topology = topology(&mut dice);
    let network = network(&mut dice);
    let heals = dice.one_in(2);
    let lasts = dice.between(120, 300) + if heals { QUIET_S } else { 0 };
    let lasts = Span::from_secs(lasts);
    let mut scenario = Scenario::open(format!("explored-{seed}"), topology, network, lasts);
    let latest = lasts.as_micros() / 1_000_000 - if heals { QUIET_S } else { TAIL_S };
    for _ in 0..dice.between(1, u64::from(FAULTS_MAX)) {
        let at = dice.between(2, latest);
        let most = if heals { latest + 1 - at } else { 120 };
        let ends = heals || !dice.one_in(6);
        scenario.faults.push(Event {
            name: None,
            at: Span::from_millis(at * 1_000 + dice.up_to(999)),
            lasts: ends.then(|| Span::from_millis(dice.between(500, most.min(120) * 1_000))),
            every: Span::ZERO,
            times: 1,
            what: fault(&mut dice, &scenario.topology),
        });
    }
    scenario.faults.sort_by_key(|event| event.at);
    scenario
}

fn topology(dice: &mut Dice) -> Topology {
    let nodes = if dice.one_in(4) {
        dice.between(2, 6)
    } else {
        dice.between(5, u64::from(NODES_MAX))
    };
    let nodes = u32::try_from(nodes).unwrap_or(NODES_MAX);
    let small = u16::try_from(nodes).unwrap_or(u16::MAX);
    let lease = dice.pick(&[40, 40, 40, 480, 0]);
    Topology {
        nodes,
        zones: dice.pick(&[1, 2, 3, 3]).min(small),
        aggregators: dice.pick(&[1, 2, 3, 3, 3]).min(small),
        profile: dice.pick(&[
            Profile::Default,
            Profile::Default,
            Profile::Fast,
            Profile::Cautious,
        ]),
        lease: Span::from_secs(lease),
        in_tree_grace: Span::from_secs(if lease == 40 { dice.pick(&[0, 50]) } else { 0 }),
        start: if dice.one_in(6) {
            Start::Cold
        } else {
            Start::Formed
        },
        ..Topology::default()
    }
}

fn network(dice: &mut Dice) -> Network {
    Network {
        loss: dice.pick(&[0, 0, 5_000, 10_000, 30_000]).into_ppm(),
        duplicate: dice.pick(&[0, 0, 10_000]).into_ppm(),
        reorder: dice.pick(&[0, 0, 20_000]).into_ppm(),
        ..Network::default()
    }
}

/// Literals of parts per million.
trait IntoPpm {
    fn into_ppm(self) -> Ppm;
}

impl IntoPpm for u32 {
    fn into_ppm(self) -> Ppm {
        Ppm::new(self)
    }
}

fn target(dice: &mut Dice, topology: &Topology) -> Target {
    match dice.up_to(9) {
        0 | 1 => Target::Nodes(vec![dice.node(topology)]),
        2 => Target::Zone(u16::try_from(dice.up_to(u64::from(topology.zones) - 1)).unwrap_or(0)),
        3 => Target::LeaderHost,
        4 => Target::FollowerHosts,
        5 => Target::Share(Ppm::percent(dice.pick(&[10, 30, 50, 60]))),
        6 => {
            let mut nodes: Vec<_> = (0..dice.between(1, 6))
                .map(|_| dice.node(topology))
                .collect();
            nodes.sort_unstable();
            nodes.dedup();
            Target::Nodes(nodes)
        }
        // No more than there are without an aggregator.
        _ => {
            let free = topology.nodes - u32::from(topology.aggregators);
            match u32::try_from(dice.between(1, 3)).unwrap_or(1).min(free) {
                0 => Target::Nodes(vec![dice.node(topology)]),
                count => Target::Random(count),
            }
        }
    }
}

fn fault(dice: &mut Dice, topology: &Topology) -> Fault {
    match dice.up_to(3) {
        0 => of_hosts(dice, topology),
        1 => of_processes(dice, topology),
        2 => of_the_network(dice, topology),
        _ => of_the_cluster(dice, topology),
    }
}

fn of_hosts(dice: &mut Dice, topology: &Topology) -> Fault {
    let target = target(dice, topology);
    match dice.up_to(7) {
        0..=2 => crash(dice, target),
        3 => Fault::Freeze {
            target,
            part: Part::Host,
        },
        4 | 5 => Fault::Sick {
            target,
            held: Span::from_millis(dice.pick(&[0, 500, 2_000, 8_000, 16_000])),
            free: Span::from_millis(dice.pick(&[1, 64, 1_000, 16_000])),
        },
        6 => Fault::Slow {
            target,
            per_packet: Span::from_millis(dice.between(1, 40)),
        },
        _ => Fault::Starve {
            target,
            quota: Ppm::percent(dice.pick(&[1, 5, 20])),
        },
    }
}

/// Only nodes without an aggregator come back with another address: what the Service's name
/// resolves to is looked up at each start, and not again.
fn crash(dice: &mut Dice, target: Target) -> Fault {
    let returns = dice.pick(&[
        Return::Same,
        Return::Same,
        Return::OtherAddress,
        Return::Replaced,
    ]);
    match (returns, target) {
        (Return::Same, target) => Fault::Crash { target, returns },
        (returns, Target::Random(count)) => Fault::Crash {
            target: Target::Random(count),
            returns,
        },
        (_, target) => Fault::Crash {
            target,
            returns: Return::Same,
        },
    }
}

fn of_processes(dice: &mut Dice, topology: &Topology) -> Fault {
    let target = target(dice, topology);
    match dice.up_to(6) {
        0 => Fault::Freeze {
            target,
            part: dice.pick(&[Part::Agent, Part::Aggregator, Part::Kubelet]),
        },
        1 | 2 => Fault::Kubelet {
            target,
            state: dice.pick(&[KubeletState::Dead, KubeletState::Hung]),
        },
        3 => Fault::Stop {
            target,
            part: dice.pick(&[Part::Agent, Part::Agent, Part::Aggregator]),
            goodbye: dice.one_in(2),
            over: Span::from_secs(dice.pick(&[0, 0, 20])),
        },
        4 => Fault::RestartLoop {
            target,
            every: dice.secs(3, 10),
            up: dice.secs(1, 2),
        },
        5 => Fault::Roll {
            at_once: Ppm::percent(dice.pick(&[5, 20])),
            down: dice.secs(1, 8),
        },
        _ => Fault::ClockStep {
            target,
            by: Span::from_secs(dice.pick(&[5, 3_600, 100_000_000])),
            back: dice.one_in(2),
        },
    }
}

fn of_the_network(dice: &mut Dice, topology: &Topology) -> Fault {
    let from = target(dice, topology);
    let both_ports = vec![Port::Mesh, Port::Kubelet];
    let ports = dice.pick(&[
        both_ports.clone(),
        vec![Port::Mesh],
        vec![Port::Kubelet],
        vec![Port::Mesh, Port::Kubelet, Port::Api],
    ]);
    match dice.up_to(7) {
        0 | 1 => Fault::Partition {
            target: from,
            ports,
        },
        2 | 3 => Fault::Cut {
            from,
            to: if dice.one_in(2) {
                Target::All
            } else {
                target(dice, topology)
            },
            ports,
            both: dice.one_in(2),
            block: dice.pick(&[Block::Drop, Block::Reject]),
        },
        4 => Fault::Cut {
            from,
            to: Target::All,
            ports: vec![Port::Api],
            both: false,
            block: Block::Drop,
        },
        5 => Fault::Loss {
            from,
            to: Target::All,
            rate: Ppm::percent(dice.pick(&[20, 50, 80])),
            both: dice.one_in(2),
        },
        6 => Fault::Weather {
            loss: Ppm::percent(dice.pick(&[1, 5, 15])),
            duplicate: Ppm::percent(dice.pick(&[0, 5])),
            reorder: Ppm::percent(dice.pick(&[0, 10])),
        },
        _ => Fault::Mtu {
            target: from,
            bytes: dice.pick(&[1_200, 1_000, 600]),
        },
    }
}

fn of_the_cluster(dice: &mut Dice, topology: &Topology) -> Fault {
    match dice.up_to(7) {
        0 | 1 => Fault::ApiDown,
        2 => Fault::ApiSlow {
            by: Span::from_millis(dice.pick(&[100, 1_000, 4_000])),
        },
        3 => Fault::WatchLag {
            by: Span::from_millis(dice.pick(&[200, 2_000, 20_000])),
        },
        4 => Fault::Join {
            count: u32::try_from(dice.between(1, 5)).unwrap_or(1),
            over: dice.secs(0, 10),
            // Whoever's address is taken while it lives is reached no more, and nothing that
            // is true of it says so.
            address_of: None,
        },
        5 => Fault::Remove {
            target: target(dice, topology),
            grace: dice.secs(0, 30),
        },
        // One: against a conspiracy nothing is promised.
        6 => Fault::Liar {
            target: Target::Nodes(vec![dice.node(topology)]),
        },
        _ if dice.one_in(2) => Fault::Pause,
        _ => Fault::Hold {
            target: target(dice, topology),
        },
    }
}
