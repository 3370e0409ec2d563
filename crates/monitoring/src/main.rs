//! Writes the monitoring files into the repository: `cargo run -p swimlet-monitoring`.

use std::path::Path;

use anyhow::Context;
use swimlet_monitoring::{REFERENCE_PAGE, artifacts, reference};

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for artifact in artifacts() {
        write(&root.join(artifact.path), &artifact.content)?;
    }
    let page = root.join(REFERENCE_PAGE);
    let old = std::fs::read_to_string(&page)
        .with_context(|| format!("cannot read {}", page.display()))?;
    let new = reference::renewed(&old)
        .with_context(|| format!("{} has no table of metrics to renew", page.display()))?;
    write(&page, &new)
}

fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
