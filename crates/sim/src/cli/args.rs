//! Commands and flags.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// A deterministic simulator of swimlet in a cluster.
#[derive(Debug, Parser)]
#[command(
    name = "swimlet-sim",
    version,
    about,
    after_help = "Exit codes: 0 all held, 1 something did not hold, 64 bad input."
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a scenario.
    Run(Run),
    /// List scenarios and what they show.
    List(List),
    /// Run random schedules of faults until the time is up or an invariant is violated.
    Explore(Explore),
    /// Measure, and leave the figures under target/reports/.
    Measure(Measure),
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// A scenario file, or the name of one that comes with the simulator.
    pub(super) file: PathBuf,
    /// The first seed; it decides everything.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Run so many seeds, from the first one on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seeds: u64,
    /// Say what came of each run as a line of JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Show what happens, except for what members hold of each other.
    #[arg(long, conflicts_with = "json")]
    pub(super) trace: bool,
    /// Show that as well.
    #[arg(long, requires = "trace")]
    pub(super) views: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Where scenario files are, if not those that come with the simulator.
    pub(super) folder: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Explore {
    /// For how long.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) minutes: u64,
    /// The first schedule's seed.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Most candidates that are run to shrink a schedule.
    #[arg(long, default_value_t = 400)]
    pub(super) tries: u32,
    /// Go on after a violation, and print each.
    #[arg(long)]
    pub(super) go_on: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Measure {
    /// What.
    pub(super) what: What,
    /// Smaller, to see that it works: the figures mean little.
    #[arg(long)]
    pub(super) quick: bool,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum What {
    /// From a crash to the write: 10 to 5,000 nodes, and plain foca beside it.
    Detection,
    /// The same at 10,000 nodes.
    DetectionLarge,
    /// Lifeguard's anomalies, beside plain foca.
    Grid,
    /// Deaf and lossy members, and lossy networks.
    Weather,
    /// A third of the nodes lose power.
    ZoneLoss,
    /// What members send when nothing happens.
    Steady,
    /// A cluster forms at once.
    Join,
    /// All agents are restarted.
    Rolling,
}
