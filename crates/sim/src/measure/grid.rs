//! Lifeguard's anomalies (arXiv 1707.00788 §V): some members of 128 have all their packets
//! held for D and let through for I, in turn, while their timers go on.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Serialize;
use swimlet_protocol::MemberState;

use super::{Measured, draw, false_writes};
use crate::baseline::Baseline;
use crate::fault::{Fault, Target};
use crate::record::{NodeId, What};
use crate::topology::{Network, Topology};
use crate::units::Span;
use crate::world::World;

/// Members, as in the paper.
const NODES: u32 = 128;
/// Sick members.
const SICK: [u32; 6] = [1, 4, 8, 16, 24, 32];
/// For how long packets are held, in milliseconds.
const HELD_MS: [u64; 5] = [500, 2_000, 8_000, 16_000, 32_000];
/// For how long they flow, in milliseconds.
const FREE_MS: [u64; 4] = [1, 64, 1_000, 16_000];
/// Anomalies begin and end, counted from the start.
const FROM: Duration = Duration::from_secs(10);
const UNTIL: Duration = Duration::from_secs(130);
/// What they lead to is counted until then.
const END: Duration = Duration::from_secs(160);

/// One cell of the grid, with one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// C: how many are sick.
    pub sick: u32,
    /// D: for how long packets are held.
    pub held_ms: u64,
    /// I: for how long they flow.
    pub free_ms: u64,
    /// The seed: which members are sick, and all the rest.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CellCounts {
    /// Down events at healthy members about healthy ones.
    pub false_at_healthy: u64,
    /// Down events at any member about healthy ones.
    pub false_all: u64,
    /// Down events at any member about sick ones: no fault.
    pub about_sick: u64,
    /// Writes about a member not sick then or in the last 10 s.
    pub false_writes: u64,
    /// Writes about the others.
    pub writes: u64,
}

/// Sums over cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GridTotals {
    /// Ours.
    pub ours: CellCounts,
    /// Plain foca's.
    pub foca: CellCounts,
    /// Ours in parts per million of foca's, at healthy members about healthy ones.
    pub at_healthy_ppm: u64,
    /// The same of all false events.
    pub all_ppm: u64,
}

/// Every cell, with so many seeds each.
#[must_use]
pub fn cells(first_seed: u64, seeds: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for sick in SICK {
        for held_ms in HELD_MS {
            for free_ms in FREE_MS {
                cells.extend((first_seed..first_seed + seeds).map(|seed| Cell {
                    sick,
                    held_ms,
                    free_ms,
                    seed,
                }));
            }
        }
    }
    cells
}

/// Who is sick in a cell: any of the nodes, those that host an aggregator too.
fn sick(cell: Cell) -> BTreeSet<NodeId> {
    let drawn = draw(NODES, cell.sick, cell.seed);
    drawn.into_iter().map(NodeId).collect()
}

/// Runs a cell: ours, then plain foca's.
///
/// # Errors
/// If there is no such cluster, which there is.
pub fn grid_cell(cell: Cell) -> Measured<(CellCounts, CellCounts)> {
    Ok((ours(cell)?, foca(cell)))
}

fn ours(cell: Cell) -> Measured<CellCounts> {
    let sick = sick(cell);
    let topology = Topology {
        nodes: NODES,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), cell.seed)?;
    let fault = Fault::Sick {
        target: Target::Nodes(sick.iter().map(|node| node.0).collect()),
        held: Span::from_millis(cell.held_ms),
        free: Span::from_millis(cell.free_ms),
    };
    let (from, lasts) = (FROM.as_secs(), (UNTIL - FROM).as_secs());
    world.schedule(Span::from_secs(from), Some(Span::from_secs(lasts)), fault);
    world.run_for(END);
    let mut counts = CellCounts::default();
    for record in world.records() {
        match record.what {
            What::Held {
                by,
                about,
                to: MemberState::Down,
                ..
            } => {
                let host = |member| world.member_view(member).map(|view| view.host);
                if let (Some(by), Some(about)) = (host(by), host(about)) {
                    counts.count(&sick, by, about);
                }
            }
            What::Written { .. } => counts.writes += 1,
            _ => {}
        }
    }
    counts.false_writes = false_writes(&world, world.records());
    counts.writes -= counts.false_writes;
    Ok(counts)
}

fn foca(cell: Cell) -> CellCounts {
    let sick = sick(cell);
    let nodes = NonZeroU32::MIN.saturating_add(NODES - 1);
    let mut cluster = Baseline::new(nodes, 3, &Network::default(), cell.seed);
    let cycle = (
        Duration::from_millis(cell.held_ms),
        Duration::from_millis(cell.free_ms),
    );
    for node in &sick {
        cluster.sicken(*node, (FROM, UNTIL), cycle);
    }
    cluster.run_to(END);
    let mut counts = CellCounts::default();
    for down in cluster.downs() {
        counts.count(&sick, down.by, down.about);
    }
    counts
}

impl CellCounts {
    fn count(&mut self, sick: &BTreeSet<NodeId>, by: NodeId, about: NodeId) {
        if sick.contains(&about) {
            self.about_sick += 1;
            return;
        }
        self.false_all += 1;
        if !sick.contains(&by) {
            self.false_at_healthy += 1;
        }
    }

    fn add(&mut self, other: Self) {
        self.false_at_healthy += other.false_at_healthy;
        self.false_all += other.false_all;
        self.about_sick += other.about_sick;
        self.false_writes += other.false_writes;
        self.writes += other.writes;
    }
}

/// Sums over cells, and sets ours against foca's.
#[must_use]
pub fn totals(counts: &[(CellCounts, CellCounts)]) -> GridTotals {
    let mut totals = GridTotals::default();
    for (ours, foca) in counts {
        totals.ours.add(*ours);
        totals.foca.add(*foca);
    }
    let ppm = |ours: u64, foca: u64| (ours * 1_000_000).checked_div(foca).unwrap_or(0);
    totals.at_healthy_ppm = ppm(totals.ours.false_at_healthy, totals.foca.false_at_healthy);
    totals.all_ppm = ppm(totals.ours.false_all, totals.foca.false_all);
    totals
}
