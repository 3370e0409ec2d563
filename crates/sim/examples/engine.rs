//! How fast the engine is, and how much memory a world takes.
//!
//! Forms a world, lets it run in peace, lets a share of it fail at once, and prints JSON:
//!
//! ```text
//! cargo run --release -p swimlet-sim --example engine -- NODES STEADY_SECONDS SHARE_PERCENT FAILED_SECONDS
//! ```
//!
//! A large world is bound by memory: on Linux with glibc, huge pages
//! (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`) make 5,000 nodes a third faster.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement of wall time, for people"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use swimlet_sim::{Counters, Fault, Network, Ppm, Return, Start, Target, Topology, What, World};

/// Resident memory now and at its peak, in MB.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let mb = |name| field(name).unwrap_or_default() / 1_024;
    (mb("VmRSS:"), mb("VmHWM:"))
}

/// CPU time of this process so far, in seconds: what counts on a shared machine.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let run = stat
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse::<f64>().ok());
    run.unwrap_or_default() / 1e9
}

fn phase(world: &mut World, name: &str, seconds: u64) {
    let (before, began, cpu_before) = (world.counters(), Instant::now(), cpu());
    world.run_for(Duration::from_secs(seconds));
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
    let Counters {
        events,
        datagrams_sent,
        bytes_sent,
        queue_max,
        downs,
        ..
    } = world.counters();
    let events = events - before.events;
    let each = |sum: u64| sum as f64 / (f64::from(world.members()) * seconds as f64);
    let (rss, peak) = memory();
    println!(
        "{{\"phase\":\"{name}\",\"simulated_s\":{seconds},\"wall_s\":{wall:.2},\
         \"cpu_s\":{cpu:.2},\"simulated_s_per_cpu_s\":{:.2},\"events\":{events},\"ns_per_event\":{:.0},\
         \"datagrams_per_member_s\":{:.2},\"bytes_per_member_s\":{:.0},\"downs\":{},\
         \"queue_max\":{queue_max},\"rss_mb\":{rss},\"peak_mb\":{peak}}}",
        seconds as f64 / cpu,
        cpu * 1e9 / events.max(1) as f64,
        each(datagrams_sent - before.datagrams_sent),
        each(bytes_sent - before.bytes_sent),
        downs - before.downs,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |usual: u64| arguments.next().map_or(Ok(usual), |text| text.parse());
    let (nodes, steady) = (next(1_000)?, next(60)?);
    let (share, failed) = (next(33)?, next(20)?);
    let topology = Topology {
        nodes: u32::try_from(nodes)?,
        start: Start::Formed,
        ..Topology::default()
    };
    let began = Instant::now();
    let mut world = World::new(&topology, &Network::default(), 1)?;
    let (rss, peak) = memory();
    println!(
        "{{\"phase\":\"formed\",\"simulated_s\":{:.1},\"wall_s\":{:.2},\"cpu_s\":{:.2},\"events\":{},\
         \"handshakes\":{},\"rss_mb\":{rss},\"peak_mb\":{peak}}}",
        world.began().as_micros() as f64 / 1e6,
        began.elapsed().as_secs_f64(),
        cpu(),
        world.counters().events,
        world.counters().handshakes,
    );
    world.record_views(false);
    phase(&mut world, "steady", steady);
    if share > 0 {
        world.inject(Fault::Crash {
            target: Target::Share(Ppm::percent(u32::try_from(share)?)),
            returns: Return::Same,
        });
        phase(&mut world, "failed", failed);
    }
    let written = |record: &&swimlet_sim::Record| matches!(record.what, What::Written { .. });
    println!(
        "{{\"phase\":\"end\",\"writes\":{},\"trace\":\"{:016x}\"}}",
        world.records().iter().filter(written).count(),
        world.trace_hash(),
    );
    Ok(())
}
