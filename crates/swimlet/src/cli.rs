//! The command line: one flag table, parsed before anything acts.

use std::ffi::OsString;
use std::io::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use swimlet_telemetry::logs;
use tokio::runtime::{Builder, Runtime};

use crate::config::{AgentConfig, AggregatorConfig, Faults, For, Layers, MemberConfig, arguments};
use crate::process::Shutdown;
use crate::{agent, aggregator, demo};

/// Why the program ends without success.
pub(crate) enum Failure {
    /// It was called or configured wrongly; nothing was started.
    Usage(String),
    /// It ran and failed.
    Run(anyhow::Error),
}

/// Parses the command line and runs what it asks for.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        // `--help` and `--version` arrive as errors too, and are none.
        Err(error) if !error.use_stderr() => {
            return error.print().map_err(|error| Failure::Run(error.into()));
        }
        Err(error) => return Err(Failure::Usage(error.render().ansi().to_string())),
    };
    match matches.subcommand() {
        Some(("agent", flags)) => run_agent(flags),
        Some(("aggregator", flags)) => run_aggregator(flags),
        Some(("demo", flags)) => run_demo(flags),
        _ => {
            out(&format!("swimlet {}\n", env!("CARGO_PKG_VERSION")));
            Ok(())
        }
    }
}

/// Writes to standard error.
pub(crate) fn say(text: &str) {
    // Nobody is left to tell if standard error is gone.
    drop(std::io::stderr().write_all(text.as_bytes()));
}

/// Writes to standard output.
pub(crate) fn out(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
}

fn command() -> Command {
    Command::new("swimlet")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Gossip-based peer liveness for Kubernetes: a dead node is noticed in seconds, without a heartbeat to the API server.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("agent")
                .about("Run a node's member of the mesh; it has no access to the Kubernetes API")
                .args(arguments(For::Agent)),
        )
        .subcommand(
            Command::new("aggregator")
                .about("Judge what the mesh sees; the holder of the Lease writes Ready=Unknown")
                .args(arguments(For::Aggregator)),
        )
        .subcommand(demo::command())
        .subcommand(Command::new("version").about("Print the version"))
}

fn run_agent(flags: &ArgMatches) -> Result<(), Failure> {
    let (layers, faults) = layers(For::Agent, flags);
    let config = AgentConfig::parse(&layers, faults).map_err(usage)?;
    start(&config.member.clone(), |shutdown| {
        agent::run(config, shutdown)
    })
}

fn run_aggregator(flags: &ArgMatches) -> Result<(), Failure> {
    let (layers, faults) = layers(For::Aggregator, flags);
    let config = AggregatorConfig::parse(&layers, faults).map_err(usage)?;
    let shown = shown(&layers);
    start(&config.member.clone(), |shutdown| {
        aggregator::run(config, shown, shutdown)
    })
}

fn run_demo(flags: &ArgMatches) -> Result<(), Failure> {
    let options = demo::Options::parse(flags).map_err(Failure::Usage)?;
    let runtime = runtime()?;
    runtime.block_on(demo::run(options)).map_err(Failure::Run)
}

/// Settings in order: flags, environment, file, defaults.
fn layers(role: For, flags: &ArgMatches) -> (Layers, Faults) {
    let mut faults = Faults::default();
    let layers = Layers::collect(role, flags, |name| std::env::var(name).ok(), &mut faults);
    (layers, faults)
}

fn shown(layers: &Layers) -> Value {
    let setting = |(key, text, source): (&str, &str, &str)| {
        (key.to_owned(), json!({ "value": text, "source": source }))
    };
    Value::Object(layers.shown().map(setting).collect())
}

fn usage(faults: Faults) -> Failure {
    Failure::Usage(format!("swimlet: {faults}"))
}

/// Starts logging and listens for signals, then runs a role: a SIGTERM during its start counts.
fn start<F>(config: &MemberConfig, role: impl FnOnce(Shutdown) -> F) -> Result<(), Failure>
where
    F: Future<Output = anyhow::Result<()>>,
{
    logs::start(config.log_format, &config.log_level)
        .map_err(|error| Failure::Run(anyhow::anyhow!("logging cannot be started: {error}")))?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let shutdown = Shutdown::listen()?;
        role(shutdown).await
    });
    // A blocked look-up must not hold up the end.
    runtime.shutdown_background();
    done.map_err(Failure::Run)
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Run(error.into()))
}

/// A flag that takes no value.
pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}
