//! swimlet: gossip-based peer liveness for Kubernetes.
//!
//! One binary, several roles: see `swimlet --help`. Roles parse their whole
//! configuration before they start anything.

mod agent;
mod aggregator;
mod cli;
mod config;
mod demo;
mod follow;
mod member;
mod process;

use std::process::ExitCode;

/// A usage or configuration error, as `sysexits.h` numbers it.
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cli::Failure::Usage(message)) => {
            cli::say(&message);
            ExitCode::from(EXIT_USAGE)
        }
        Err(cli::Failure::Run(error)) => {
            cli::say(&format!("swimlet: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}
