//! `swimlet-sim list`.

use std::path::{Path, PathBuf};

use super::output::say;
use super::run::{FOLDER, read};
use super::{CliError, Verdict, args};

pub(super) fn list(args: &args::List) -> Result<Verdict, CliError> {
    let folder = args.folder.clone().unwrap_or_else(|| FOLDER.into());
    for path in files(&folder)? {
        let scenario = read(&path)?;
        let numbers: Vec<_> = scenario.numbers.iter().map(u8::to_string).collect();
        let numbers = if numbers.is_empty() {
            String::new()
        } else {
            format!(" [{}]", numbers.join(", "))
        };
        say(&format!(
            "{}{numbers}\n    {}",
            scenario.name,
            scenario.shows.trim()
        ))?;
    }
    Ok(Verdict::Holds)
}

/// The scenario files of a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let wrong = |error: std::io::Error| CliError::Input(format!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
