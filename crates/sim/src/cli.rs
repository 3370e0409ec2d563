//! The command line.

mod args;
mod explore;
mod list;
mod measure;
mod output;
mod report;
mod run;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// Something was given that cannot be (sysexits.h: EX_USAGE).
const BAD_INPUT: u8 = 64;
/// Something did not hold.
const FAILED: u8 = 1;

/// Why a command did not come to an end.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// Something was given that cannot be.
    #[error("{0}")]
    Input(String),
    /// The result could not be shown or kept.
    #[error("{what}: {source}")]
    Output {
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// Whether what was run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    Fails,
}

pub(crate) fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() { BAD_INPUT } else { 0 };
            // If even that cannot be shown, the exit code says it.
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::from(FAILED),
            };
        }
    };
    let done = match &args.command {
        Command::Run(args) => run::run(args),
        Command::List(args) => list::list(args),
        Command::Explore(args) => explore::explore(args),
        Command::Measure(args) => measure::measure(args),
    };
    match done {
        Ok(Verdict::Holds) => ExitCode::SUCCESS,
        Ok(Verdict::Fails) => ExitCode::from(FAILED),
        Err(error) => {
            let code = match error {
                CliError::Input(_) => BAD_INPUT,
                CliError::Output { .. } => FAILED,
            };
            output::complain(&error.to_string());
            ExitCode::from(code)
        }
    }
}
