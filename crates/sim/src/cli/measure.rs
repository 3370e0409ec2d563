//! `swimlet-sim measure`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use swimlet_sim::measure::{
    self, CellCounts, Detection, FocaDetection, Times, Weathers, cells, totals,
};
use swimlet_sim::{Profile, TopologyError};

use super::args::What;
use super::output::{progress, say};
use super::{CliError, Verdict, args, report};

pub(super) fn measure(args: &args::Measure) -> Result<Verdict, CliError> {
    let started = now();
    let (name, figures) = match args.what {
        What::Detection => ("sim-detection", detection(args)?),
        What::DetectionLarge => ("sim-detection-large", detection_large(args)?),
        What::Grid => ("sim-grid", grid(args)?),
        What::Weather => ("sim-weather", weather(args)?),
        What::ZoneLoss => ("sim-zone-loss", zone_loss(args)?),
        What::Steady => ("sim-steady", steady(args)?),
        What::Join => ("sim-join", join(args)?),
        What::Rolling => ("sim-rolling", rolling(args)?),
    };
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let command = format!("cargo run --release -p swimlet-sim -- {command}");
    let name = if args.quick {
        format!("{name}-quick")
    } else {
        name.to_owned()
    };
    let path = report::write(&name, &command, &figures)?;
    let text = serde_json::to_string_pretty(&figures).unwrap_or_default();
    say(&format!(
        "{text}\n{} after {} s",
        path.display(),
        now().duration_since(started).as_secs()
    ))?;
    Ok(Verdict::Holds)
}

/// Does jobs on all cores, and gives their results in the jobs' order.
fn each<J: Copy + Sync, R: Send>(
    what: &str,
    jobs: &[J],
    threads_max: usize,
    run: impl Fn(J) -> Result<R, TopologyError> + Sync,
) -> Result<Vec<R>, CliError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(threads_max).min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else {
                        return;
                    };
                    let result = run(*job);
                    let Ok(mut done) = done.lock() else {
                        return;
                    };
                    done.insert(index, result);
                    if done.len().is_multiple_of(16) || jobs.len() < 16 {
                        progress(&format!("{what}: {} of {}", done.len(), jobs.len()));
                    }
                }
            });
        }
    });
    let done = done.into_inner().map_err(input)?;
    if done.len() < jobs.len() {
        return Err(input("a run ended early; its message stands above"));
    }
    done.into_values()
        .map(|result| result.map_err(input))
        .collect()
}

fn detection(args: &args::Measure) -> Result<Value, CliError> {
    // Five seeds of sixty crashes are three hundred.
    let sizes: &[(u32, u32, u64)] = if args.quick {
        &[(10, 3, 1), (100, 4, 1), (1_000, 10, 1)]
    } else {
        &[(10, 6, 10), (100, 12, 5), (1_000, 60, 2), (5_000, 60, 5)]
    };
    let mut figures = Vec::new();
    for &(nodes, crashes, seeds) in sizes {
        for profile in [Profile::Default, Profile::Fast] {
            let seeds: Vec<u64> = (args.seed..args.seed + seeds).collect();
            let what = format!("{nodes} nodes, {profile:?}");
            let worlds = each(&what, &seeds, threads(nodes), |seed| {
                measure::detection(nodes, profile, crashes, seed)
            })?;
            figures.push(ours(nodes, profile, &worlds));
        }
        let seeds: Vec<u64> = (args.seed..args.seed + seeds).collect();
        let size = NonZeroU32::new(nodes).unwrap_or(NonZeroU32::MIN);
        let clusters = each(
            &format!("{nodes} of foca"),
            &seeds,
            threads(nodes),
            |seed| Ok(measure::foca_detection(size, crashes, seed)),
        )?;
        figures.push(focas(nodes, &clusters));
    }
    Ok(json!({ "loss": "1%", "by_size": figures }))
}

fn detection_large(args: &args::Measure) -> Result<Value, CliError> {
    let (nodes, crashes) = if args.quick { (1_000, 3) } else { (10_000, 20) };
    let world = measure::detection(nodes, Profile::Default, crashes, args.seed).map_err(input)?;
    Ok(json!({ "loss": "1%", "by_size": [ours(nodes, Profile::Default, &[world])] }))
}

/// Large worlds one at a time: memory is what is short.
fn threads(nodes: u32) -> usize {
    if nodes > 2_000 { 1 } else { usize::MAX }
}

fn ours(nodes: u32, profile: Profile, worlds: &[Detection]) -> Value {
    let micros = worlds.iter().flat_map(|world| world.micros.clone());
    json!({
        "what": "crash to write",
        "nodes": nodes,
        "profile": profile,
        "seeds": worlds.len(),
        "crashes": worlds.iter().map(|world| world.crashes).sum::<usize>(),
        "never_written": worlds.iter().map(|world| world.never).sum::<usize>(),
        "false_writes": worlds.iter().map(|world| world.false_writes).sum::<u64>(),
        "times": Times::of(micros.collect()),
    })
}

fn focas(nodes: u32, clusters: &[FocaDetection]) -> Value {
    let micros = clusters.iter().flat_map(|cluster| cluster.micros.clone());
    json!({
        "what": "crash to first Down of plain foca 2.0",
        "nodes": nodes,
        "seeds": clusters.len(),
        "crashes": clusters.iter().map(|cluster| cluster.crashes).sum::<usize>(),
        "never_down": clusters.iter().map(|cluster| cluster.never).sum::<usize>(),
        "times": Times::of(micros.collect()),
    })
}

fn grid(args: &args::Measure) -> Result<Value, CliError> {
    let mut cells = cells(args.seed, if args.quick { 1 } else { 3 });
    if args.quick {
        cells.retain(|cell| [4, 24].contains(&cell.sick) && cell.held_ms >= 8_000);
    }
    let counts: Vec<(CellCounts, CellCounts)> =
        each("cells", &cells, usize::MAX, measure::grid_cell)?;
    let rows: Vec<Value> = cells
        .iter()
        .zip(&counts)
        .map(|(cell, (ours, foca))| json!({ "cell": cell, "ours": ours, "foca": foca }))
        .collect();
    Ok(json!({ "nodes": 128, "totals": totals(&counts), "cells": rows }))
}

fn weather(args: &args::Measure) -> Result<Value, CliError> {
    let weathers = [
        Weathers::Deaf(1),
        Weathers::Deaf(4),
        Weathers::Deaf(13),
        Weathers::Lossy,
        Weathers::Loss(15),
        Weathers::Loss(1),
    ];
    let seeds = if args.quick { 1 } else { 3 };
    let jobs: Vec<(Weathers, u64)> = weathers
        .into_iter()
        .flat_map(|weather| (args.seed..args.seed + seeds).map(move |seed| (weather, seed)))
        .collect();
    let runs = each("weathers", &jobs, usize::MAX, |(weather, seed)| {
        measure::weather(weather, seed)
    })?;
    Ok(json!({ "nodes": 128, "runs": runs }))
}

fn zone_loss(args: &args::Measure) -> Result<Value, CliError> {
    let nodes = if args.quick { 300 } else { 5_000 };
    let runs = timed(&[false, true], |with_leader| {
        measure::zone_loss(nodes, with_leader, args.seed)
    })?;
    Ok(json!({ "runs": runs }))
}

fn steady(args: &args::Measure) -> Result<Value, CliError> {
    let (nodes, seconds) = if args.quick { (300, 30) } else { (5_000, 120) };
    let runs = timed(&[()], |()| measure::steady(nodes, seconds, args.seed))?;
    Ok(json!({ "simulated_s": seconds + 20, "runs": runs }))
}

fn join(args: &args::Measure) -> Result<Value, CliError> {
    let nodes = if args.quick { 280 } else { 4_980 };
    let runs = timed(&[()], |()| measure::join(nodes, 60, args.seed))?;
    Ok(json!({ "runs": runs }))
}

fn rolling(args: &args::Measure) -> Result<Value, CliError> {
    let nodes = if args.quick { 300 } else { 5_000 };
    let runs = timed(&[()], |()| measure::rolling(nodes, args.seed))?;
    Ok(json!({ "runs": runs }))
}

/// Runs one after the other, with the time that each took.
fn timed<J: Copy, R: serde::Serialize>(
    jobs: &[J],
    run: impl Fn(J) -> Result<R, TopologyError>,
) -> Result<Vec<Value>, CliError> {
    let mut runs = Vec::new();
    for job in jobs {
        let started = now();
        let result = run(*job).map_err(input)?;
        let wall_ms = u64::try_from(now().duration_since(started).as_millis()).unwrap_or(u64::MAX);
        runs.push(json!({ "result": result, "wall_ms": wall_ms }));
    }
    Ok(runs)
}

fn input(error: impl std::fmt::Display) -> CliError {
    CliError::Input(error.to_string())
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a simulation takes is one of the figures"
)]
fn now() -> Instant {
    Instant::now()
}
