//! `swimlet-sim`: runs scenarios in a simulated cluster, looks for schedules of faults
//! that break the product, and measures it.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
