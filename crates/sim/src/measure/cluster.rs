//! A cluster as a whole: at rest, forming, rolled, in bad weather, and without a zone.

use std::time::Duration;

use serde::Serialize;
use swimlet_protocol::MemberState;

use super::{Measured, Times, false_writes};
use crate::fault::{Fault, Port, Return, Target};
use crate::record::{Counters, MemberId, NodeId, What};
use crate::topology::{Network, Topology};
use crate::units::{Ppm, Span};
use crate::world::World;

/// A world runs for so long before anything happens in it.
const SETTLED: Duration = Duration::from_secs(20);
/// Steps in which convergence is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Members that are asked what they see; asking all in each step would cost more than the run.
const ASKED: u32 = 64;

/// What members send when nothing happens.
#[derive(Clone, Debug, Serialize)]
pub struct Steady {
    /// Nodes.
    pub nodes: u32,
    /// Simulated seconds.
    pub seconds: u64,
    /// Datagrams sent, per member and 1,000 seconds.
    pub datagrams_per_member_ks: u64,
    /// Bytes sent with QUIC, UDP and IP, per member and second.
    pub bytes_per_member_s: u64,
    /// Writes, which are all false.
    pub false_writes: u64,
    /// Times that anybody came to hold anybody down.
    pub downs: u64,
    /// All counters, over the settling as well.
    pub counters: Counters,
}

/// A cluster that grew at once.
#[derive(Clone, Debug, Serialize)]
pub struct Joined {
    /// Nodes that joined.
    pub joined: u32,
    /// Over so many seconds.
    pub over_s: u64,
    /// After how many seconds the asked members saw all; `None`: not within the time.
    pub converged_s: Option<u64>,
    /// Writes about nodes with which nothing was wrong.
    pub false_writes: u64,
    /// Times that leadership changed.
    pub leader_changes: u64,
    /// All counters.
    pub counters: Counters,
}

/// A cluster whose agents were all restarted.
#[derive(Clone, Debug, Serialize)]
pub struct Rolled {
    /// Nodes.
    pub nodes: u32,
    /// Seconds until all saw all again after the start; `None`: not within the time.
    pub converged_s: Option<u64>,
    /// Writes.
    pub writes: u64,
    /// Times that anybody came to hold anybody down.
    pub downs: u64,
    /// All counters.
    pub counters: Counters,
}

/// A cluster that lost a zone.
#[derive(Clone, Debug, Serialize)]
pub struct ZoneLost {
    /// Nodes.
    pub nodes: u32,
    /// The seed.
    pub seed: u64,
    /// Whether the leader was in the zone.
    pub with_leader: bool,
    /// Nodes that fell.
    pub fell: usize,
    /// Of them written.
    pub written: usize,
    /// From the loss to each write.
    pub times: Times,
    /// Writes about others.
    pub false_writes: u64,
    /// All counters.
    pub counters: Counters,
}

/// Bad weather in a cluster of 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weathers {
    /// So many members hear nothing.
    Deaf(u32),
    /// One member in a hundred loses 80 % of its packets, 20 s on and off.
    Lossy,
    /// Everything loses so many percent.
    Loss(u32),
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Weathered {
    /// The weather.
    pub weather: Weathers,
    /// The seed.
    pub seed: u64,
    /// Writes about members with which nothing was wrong.
    pub false_writes: u64,
    /// Writes about the others.
    pub writes: u64,
    /// Down events at members that the weather spares, about such members.
    pub false_downs: u64,
    /// The most members that one of the spared ever held down at once, beyond the others.
    pub lost_view_max: usize,
}

/// Lets a cluster rest.
///
/// # Errors
/// If there is no such cluster.
pub fn steady(nodes: u32, seconds: u64, seed: u64) -> Measured<Steady> {
    let topology = Topology {
        nodes,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), seed)?;
    world.record_views(false);
    world.run_for(SETTLED);
    let before = world.counters();
    world.run_for(Duration::from_secs(seconds));
    let counters = world.counters();
    let members = u64::from(world.members()).max(1);
    let datagrams = counters.datagrams_sent - before.datagrams_sent;
    let bytes = counters.bytes_sent - before.bytes_sent;
    Ok(Steady {
        nodes,
        seconds,
        datagrams_per_member_ks: datagrams * 1_000 / members / seconds.max(1),
        bytes_per_member_s: bytes / members / seconds.max(1),
        false_writes: false_writes(&world, world.records()),
        downs: counters.downs,
        counters,
    })
}

/// Lets so many nodes join a small cluster.
///
/// # Errors
/// If there is no such cluster.
pub fn join(count: u32, over_s: u64, seed: u64) -> Measured<Joined> {
    let topology = Topology {
        nodes: 20,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), seed)?;
    world.record_views(false);
    world.run_for(SETTLED);
    world.inject(Fault::Join {
        count,
        over: Span::from_secs(over_s),
        address_of: None,
    });
    world.run_for(Duration::from_secs(over_s));
    let converged_s = converged(&mut world, 180).map(|seconds| seconds + over_s);
    let leads = |what: &What| matches!(what, What::Leads { .. });
    let records = world.records().iter();
    let leaders = records.filter(|record| record.at > world.began() && leads(&record.what));
    Ok(Joined {
        joined: count,
        over_s,
        converged_s,
        leader_changes: leaders.count() as u64,
        false_writes: false_writes(&world, world.records()),
        counters: world.counters(),
    })
}

/// Restarts all agents, 5 % at a time, each away for 5 s.
///
/// # Errors
/// If there is no such cluster.
pub fn rolling(nodes: u32, seed: u64) -> Measured<Rolled> {
    let topology = Topology {
        nodes,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), seed)?;
    world.record_views(false);
    world.run_for(SETTLED);
    world.inject(Fault::Roll {
        at_once: Ppm::percent(5),
        down: Span::from_secs(5),
    });
    // Twenty batches, each away for 5 s and given time to join.
    let rolled = Duration::from_secs(20 * 12);
    world.run_for(rolled);
    let converged_s = converged(&mut world, 180).map(|seconds| seconds + rolled.as_secs());
    let is_write = |what: &What| matches!(what, What::Written { .. });
    let writes = world
        .records()
        .iter()
        .filter(|record| is_write(&record.what));
    Ok(Rolled {
        nodes,
        converged_s,
        writes: writes.count() as u64,
        downs: world.counters().downs,
        counters: world.counters(),
    })
}

/// Seconds until members that are asked see all others; at most so many.
fn converged(world: &mut World, seconds_max: u64) -> Option<u64> {
    for second in 0..=seconds_max {
        let members = world.members();
        let step = (members / ASKED).max(1) as usize;
        let sees_all = |member: u32| {
            let view = world.member_view(MemberId(member));
            view.is_none_or(|view| !view.running || view.alive + 1 >= members as usize)
        };
        if (0..members).step_by(step).all(sees_all) {
            return Some(second);
        }
        world.run_for(LOOK_EVERY);
    }
    None
}

/// Takes a third of the nodes away.
///
/// # Errors
/// If there is no such cluster.
pub fn zone_loss(nodes: u32, with_leader: bool, seed: u64) -> Measured<ZoneLost> {
    let topology = Topology {
        nodes,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), seed)?;
    world.record_views(false);
    world.run_for(SETTLED);
    let leader = world.leader().and_then(|leader| world.member_view(leader));
    let its_zone = leader.map_or(0, |view| world.zone_of(view.host));
    let zone = if with_leader {
        its_zone
    } else {
        (its_zone + 1) % topology.zones
    };
    let lost_at = world.now();
    world.inject(Fault::Crash {
        target: Target::Zone(zone),
        returns: Return::Same,
    });
    world.run_for(Duration::from_secs(60));
    let fell: Vec<NodeId> = (0..nodes)
        .map(NodeId)
        .filter(|node| world.zone_of(*node) == zone)
        .collect();
    let mut micros = Vec::new();
    for record in world.records() {
        if let What::Written { node, .. } = record.what
            && fell.binary_search(&node).is_ok()
        {
            let took = record.at.since(lost_at).as_micros();
            micros.push(u64::try_from(took).unwrap_or(u64::MAX));
        }
    }
    Ok(ZoneLost {
        nodes,
        seed,
        with_leader,
        fell: fell.len(),
        written: micros.len(),
        times: Times::of(micros),
        false_writes: false_writes(&world, world.records()),
        counters: world.counters(),
    })
}

/// Five minutes of a weather in a cluster of 128.
///
/// # Errors
/// If there is no such cluster, which there is.
pub fn weather(weather: Weathers, seed: u64) -> Measured<Weathered> {
    let topology = Topology {
        nodes: 128,
        ..Topology::default()
    };
    let mut network = Network::default();
    if let Weathers::Loss(percent) = weather {
        network.loss = Ppm::percent(percent);
    }
    let mut world = World::new(&topology, &network, seed)?;
    let hit: Vec<NodeId> = match weather {
        Weathers::Deaf(count) => (20..20 + count).map(NodeId).collect(),
        Weathers::Lossy => vec![NodeId(20), NodeId(50)],
        Weathers::Loss(_) => Vec::new(),
    };
    let nodes = Target::Nodes(hit.iter().map(|node| node.0).collect());
    match weather {
        Weathers::Deaf(_) => {
            let deaf = Fault::Cut {
                from: Target::All,
                to: nodes,
                ports: vec![Port::Mesh, Port::Kubelet],
                both: false,
                block: crate::fault::Block::Drop,
            };
            world.schedule(Span::from_secs(10), Some(Span::from_secs(240)), deaf);
        }
        Weathers::Lossy => {
            for episode in 0..6 {
                let lossy = Fault::Loss {
                    from: nodes.clone(),
                    to: Target::All,
                    rate: Ppm::percent(80),
                    both: true,
                };
                let at = Span::from_secs(10 + 40 * episode);
                world.schedule(at, Some(Span::from_secs(20)), lossy);
            }
        }
        Weathers::Loss(_) => {}
    }
    let mut lost_view_max = 0;
    for _ in 0..300 {
        world.run_for(LOOK_EVERY);
        lost_view_max = lost_view_max.max(lost_view(&world, &hit));
    }
    Ok(judged(&world, weather, seed, &hit, lost_view_max))
}

/// The most members that a member whom the weather spares does not hold alive, beyond
/// those that it hits.
fn lost_view(world: &World, hit: &[NodeId]) -> usize {
    let members = world.members() as usize;
    let lost = |member: u32| {
        let view = world.member_view(MemberId(member))?;
        let spared = view.running && !hit.contains(&view.host);
        spared.then(|| (members - 1).saturating_sub(view.alive + hit.len()))
    };
    (0..world.members()).filter_map(lost).max().unwrap_or(0)
}

fn judged(
    world: &World,
    weather: Weathers,
    seed: u64,
    hit: &[NodeId],
    lost_view_max: usize,
) -> Weathered {
    let (mut writes, mut false_writes, mut false_downs) = (0, 0, 0);
    let spared = |member| {
        let view = world.member_view(member);
        view.is_some_and(|view| !hit.contains(&view.host))
    };
    for record in world.records() {
        match record.what {
            What::Written { node, .. } if hit.contains(&node) => writes += 1,
            What::Written { .. } => false_writes += 1,
            What::Held {
                by,
                about,
                to: MemberState::Down,
                ..
            } => false_downs += u64::from(spared(by) && spared(about)),
            _ => {}
        }
    }
    Weathered {
        weather,
        seed,
        false_writes,
        writes,
        false_downs,
        lost_view_max,
    }
}
