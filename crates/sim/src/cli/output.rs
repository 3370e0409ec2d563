//! Standard output and standard error.

use std::io::Write;

use super::CliError;

/// A line, or lines, for standard output.
pub(super) fn say(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|source| CliError::Output {
            what: "standard output".to_owned(),
            source,
        })
}

/// A line for standard error. If nobody takes it, the exit code still tells.
pub(super) fn complain(text: &str) {
    let mut err = std::io::stderr().lock();
    drop(writeln!(err, "swimlet-sim: {text}"));
}

/// A line of progress: standard output is for results.
pub(super) fn progress(text: &str) {
    let mut err = std::io::stderr().lock();
    drop(writeln!(err, "{text}"));
}
