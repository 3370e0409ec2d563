use std::collections::BTreeSet;

use super::{Times, cells, totals};
use crate::measure::CellCounts;

/// Guards that a percentile is a time that was measured, at every count.
#[test]
fn percentiles_are_nearest_ranks() {
    let of = |count: u64| Times::of((1..=count).map(|time| time * 1_000).collect());
    assert_eq!(of(0), Times::default());
    assert_eq!((of(1).p50_ms, of(1).p99_ms, of(1).max_ms), (1, 1, 1));
    assert_eq!((of(4).p50_ms, of(4).p99_ms), (2, 4));
    assert_eq!(
        (of(300).p50_ms, of(300).p90_ms, of(300).p99_ms),
        (150, 270, 297)
    );
}

/// Guards that the whole grid is run, each cell once with each seed.
#[test]
fn the_grid_is_whole() {
    let cells = cells(1, 3);
    assert_eq!(cells.len(), 6 * 5 * 4 * 3);
    let distinct: BTreeSet<_> = cells
        .iter()
        .map(|cell| (cell.sick, cell.held_ms, cell.free_ms, cell.seed))
        .collect();
    assert_eq!(distinct.len(), cells.len());
}

/// Guards the arithmetic of the ratios that the bar is about.
#[test]
fn ratios_are_of_sums() {
    let counts = |at_healthy, all| CellCounts {
        false_at_healthy: at_healthy,
        false_all: all,
        ..CellCounts::default()
    };
    let totals = totals(&[
        (counts(1, 2), counts(100, 100)),
        (counts(0, 1), counts(0, 200)),
    ]);
    assert_eq!((totals.at_healthy_ppm, totals.all_ppm), (10_000, 10_000));
}
