//! From a crash to the write, and to plain foca's first Down.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use swimlet_protocol::Moment;

use super::{Measured, Times, draw, is_false};
use crate::baseline::Baseline;
use crate::fault::{Fault, Return, Target};
use crate::record::{NodeId, What};
use crate::topology::{Network, Profile, Topology};
use crate::units::{Ppm, Span};
use crate::world::World;

/// A world runs for so long before anything happens in it.
const SETTLED: Duration = Duration::from_secs(20);
/// After the last crash there is time to be written.
const PATIENCE: Duration = Duration::from_secs(60);
/// In a small cluster crashes lie so far apart that no brake counts two of them.
const APART_SMALL: Duration = Duration::from_secs(75);
/// A crashed machine of a small cluster is back after so long.
const BACK_AFTER: Duration = Duration::from_secs(30);
/// In a large one so far, and in no step with any period.
const APART: Duration = Duration::from_millis(3_170);
/// Clusters up to this size are small.
const SMALL_MAX: u32 = 500;

/// From crash to write, over one world.
#[derive(Clone, Debug, Serialize)]
pub struct Detection {
    /// Nodes.
    pub nodes: u32,
    /// The judges' profile.
    pub profile: Profile,
    /// The world's seed.
    pub seed: u64,
    /// Crashes.
    pub crashes: usize,
    /// Of them never written.
    pub never: usize,
    /// Writes about others.
    pub false_writes: u64,
    /// From the crash to the write, in microseconds, in order of the crashes.
    #[serde(skip)]
    pub micros: Vec<u64>,
    /// The same in short.
    pub times: Times,
}

/// From crash to first Down, over one cluster of plain foca.
#[derive(Clone, Debug, Serialize)]
pub struct FocaDetection {
    /// Members.
    pub nodes: u32,
    /// The seed.
    pub seed: u64,
    /// Crashes.
    pub crashes: usize,
    /// Of them never declared down by anybody.
    pub never: usize,
    /// From the crash to the first Down anywhere, in microseconds.
    #[serde(skip)]
    pub micros: Vec<u64>,
    /// The same in short.
    pub times: Times,
}

/// When which crash happens, counted from the start.
fn crashes_at(nodes: u32, crashes: u32, seed: u64) -> Vec<Duration> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let apart = if nodes <= SMALL_MAX {
        APART_SMALL
    } else {
        APART
    };
    // Phases of timers that everything shares must not decide.
    let mut jitter = move || Duration::from_micros(rng.random_range(0..1_000_000));
    (0..crashes)
        .map(|index| SETTLED + apart * index + jitter())
        .collect()
}

/// Crashes so many nodes of a cluster, one after the other, in a network that loses 1 %.
///
/// # Errors
/// If there is no such cluster.
pub fn detection(nodes: u32, profile: Profile, crashes: u32, seed: u64) -> Measured<Detection> {
    let topology = Topology {
        nodes,
        profile,
        ..Topology::default()
    };
    let network = Network {
        loss: Ppm::percent(1),
        ..Network::default()
    };
    let mut world = World::new(&topology, &network, seed)?;
    world.record_views(false);
    let times = crashes_at(nodes, crashes, seed);
    let lasts = (nodes <= SMALL_MAX).then(|| span(BACK_AFTER));
    for at in &times {
        let crash = Fault::Crash {
            target: Target::Random(1),
            returns: Return::Same,
        };
        world.schedule(span(*at), lasts, crash);
    }
    world.run_for(times.last().copied().unwrap_or_default() + PATIENCE);
    let mut crashed: BTreeMap<NodeId, Moment> = BTreeMap::new();
    let mut micros = Vec::new();
    let (mut count, mut false_writes) = (0, 0);
    for record in world.records() {
        match record.what {
            What::Crashed { node } => {
                count += 1;
                crashed.insert(node, record.at);
            }
            What::Written { node, .. } => match crashed.remove(&node) {
                Some(at) => micros.push(micros_of(record.at.since(at))),
                None => false_writes += u64::from(is_false(&world, node, record.at)),
            },
            _ => {}
        }
    }
    Ok(Detection {
        nodes,
        profile,
        seed,
        crashes: count,
        never: count - micros.len(),
        false_writes,
        times: Times::of(micros.clone()),
        micros,
    })
}

/// The same crashes in a cluster of plain foca members.
#[must_use]
pub fn foca_detection(nodes: NonZeroU32, crashes: u32, seed: u64) -> FocaDetection {
    let network = Network {
        loss: Ppm::percent(1),
        ..Network::default()
    };
    let mut cluster = Baseline::new(nodes, 3, &network, seed);
    let times = crashes_at(nodes.get(), crashes, seed);
    let victims = draw(nodes.get(), crashes, seed);
    for (at, node) in times.iter().zip(&victims) {
        cluster.crash(*at, NodeId(*node));
    }
    cluster.run_to(times.last().copied().unwrap_or_default() + PATIENCE);
    let first_down = |(at, node): (&Duration, &u32)| {
        let mut downs = cluster.downs().iter();
        let down = downs.find(|down| down.about.0 == *node && down.at >= *at)?;
        Some(micros_of(down.at - *at))
    };
    let micros: Vec<u64> = times.iter().zip(&victims).filter_map(first_down).collect();
    FocaDetection {
        nodes: nodes.get(),
        seed,
        crashes: victims.len(),
        never: victims.len() - micros.len(),
        times: Times::of(micros.clone()),
        micros,
    }
}

fn span(time: Duration) -> Span {
    Span::from_micros(micros_of(time))
}

fn micros_of(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
