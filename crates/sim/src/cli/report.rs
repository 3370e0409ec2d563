//! Reports: JSON under target/reports/, with the command and the machine's facts.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::CliError;

/// Writes a report, and says where it is.
pub(super) fn write(name: &str, command: &str, figures: &Value) -> Result<PathBuf, CliError> {
    let report = json!({
        "report": name,
        "command": command,
        "swimlet": env!("CARGO_PKG_VERSION"),
        "machine": machine(),
        "figures": figures,
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/reports");
    let path = folder.join(format!("{name}.json"));
    let failed = |source| CliError::Output {
        what: path.display().to_string(),
        source,
    };
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let text = serde_json::to_string_pretty(&report).map_err(std::io::Error::other);
    std::fs::write(&path, text.map_err(failed)?).map_err(failed)?;
    Ok(path)
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1))
            .map(|value| value.trim().to_owned())
    };
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "peak_memory": field(&read("/proc/self/status"), "VmHWM"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
    })
}
