//! What is measured: each measurement is a pure function of its sizes and seeds.
//!
//! Figures are kept as they are; whoever reads them judges. Times are in milliseconds of
//! the simulated world.

mod cluster;
mod detection;
mod grid;

#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use serde::Serialize;
use swimlet_protocol::Moment;

use crate::invariants::{INNOCENT_FOR, held_throughout};
use crate::record::{NodeId, Record, What};
use crate::topology::TopologyError;
use crate::world::World;

pub use cluster::{
    Joined, Rolled, Steady, Weathered, Weathers, ZoneLost, join, rolling, steady, weather,
    zone_loss,
};
pub use detection::{Detection, FocaDetection, detection, foca_detection};
pub use grid::{Cell, CellCounts, GridTotals, cells, grid_cell, totals};

/// Times, from the shortest to the longest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// How many there are.
    pub count: usize,
    /// The median.
    pub p50_ms: u64,
    /// The 90th percentile.
    pub p90_ms: u64,
    /// The 99th percentile.
    pub p99_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Times {
    /// Of these times in microseconds. Percentiles are nearest ranks: each is one of them.
    #[must_use]
    pub fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let at = |percent: usize| {
            let rank = (micros.len() * percent).div_ceil(100).max(1) - 1;
            micros.get(rank).map_or(0, |micros| micros / 1_000)
        };
        Self {
            count: micros.len(),
            p50_ms: at(50),
            p90_ms: at(90),
            p99_ms: at(99),
            max_ms: at(100),
        }
    }
}

/// Whether a write is false: about a node with which nothing was wrong then or in the
/// last [`INNOCENT_FOR`]. Paths are not looked at, since nothing here cuts them: a node
/// that others do not reach is itself crashed, frozen, sick or lossy.
fn is_false(world: &World, node: NodeId, at: Moment) -> bool {
    let from = at.before(INNOCENT_FOR);
    held_throughout(world.history(node), from, at, |truth| {
        truth.exists && truth.power && !truth.frozen && !truth.sick && !truth.impaired
    })
}

/// How many of these records are false writes.
fn false_writes(world: &World, records: &[Record]) -> u64 {
    let is_one = |record: &&Record| match record.what {
        What::Written { node, .. } => is_false(world, node, record.at),
        _ => false,
    };
    records.iter().filter(is_one).count() as u64
}

/// So many of the first `of` numbers, by the seed; all of them if there are no more.
fn draw(of: u32, count: u32, seed: u64) -> Vec<u32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut all: Vec<u32> = (0..of).collect();
    all.shuffle(&mut rng);
    all.truncate(count as usize);
    all
}

type Measured<T> = Result<T, TopologyError>;
