//! The folder of one rig, what it left on the machine, and the sweeping of
//! rigs whose test process was killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::netns;
use crate::process::ProcessId;

/// How many folders of failed tests are kept for reading; older ones are deleted.
const FAILED_KEPT: usize = 8;

/// The folder of one rig under `target/rig`, deleted with the rig.
#[derive(Debug)]
pub(crate) struct Workdir {
    path: PathBuf,
    id: String,
    traces: Mutex<Traces>,
    /// How many files were written, for names of their own while unfinished.
    writes: AtomicU32,
    keep: AtomicBool,
    cleaned: AtomicBool,
}

/// What must be removed from the machine if the test process dies before it
/// has done so itself. Written down before the thing is made.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Traces {
    boot: String,
    owner: Option<ProcessId>,
    namespaces: Vec<String>,
    processes: Vec<ProcessId>,
}

impl Workdir {
    /// Sweeps what dead owners left, then makes a folder of our own.
    pub(crate) fn create() -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let root = rigs_dir();
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let owner = ProcessId::of(std::process::id())?;
        let id = format!("{}-{}", owner.pid, COUNTER.fetch_add(1, Ordering::Relaxed));
        let path = root.join(&id);
        {
            let _lock = machine_lock()?;
            sweep(&root);
            // An earlier process of the same pid may have left one without traces.
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        let workdir = Self {
            path,
            id,
            traces: Mutex::new(Traces {
                boot: boot_id(),
                owner: Some(owner),
                ..Traces::default()
            }),
            writes: AtomicU32::new(0),
            cleaned: AtomicBool::new(false),
            keep: AtomicBool::new(std::env::var_os("SWIMLET_RIG_KEEP").is_some()),
        };
        workdir.change(|_| ())?;
        Ok(workdir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Unique on this machine among living rigs: the pid and a counter.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Makes a folder inside and returns its path.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Writes a file inside and returns its path. A reader sees the old content
    /// or the new one, never half of it.
    pub(crate) fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let new = self.path.join(format!("{name}.{number}.new"));
        fs::write(&new, content)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Notes a namespace that is about to be made.
    pub(crate) fn note_namespace(&self, name: &str) -> Result<()> {
        self.change(|traces| traces.namespaces.push(name.to_owned()))
    }

    /// Notes a process that was started.
    pub(crate) fn note_process(&self, pid: u32) -> Result<()> {
        // It may have ended already; then there is nothing to note.
        let Ok(process) = ProcessId::of(pid) else {
            return Ok(());
        };
        self.change(|traces| traces.processes.push(process))
    }

    /// Keeps the folder for reading.
    pub(crate) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Removes the namespaces and, unless a failed test wants its logs, the
    /// folder. Done once; dropping does it if nobody has.
    #[expect(
        clippy::print_stderr,
        reason = "a failed test must say where its logs are"
    )]
    pub(crate) fn clean(&self) {
        if self.cleaned.swap(true, Ordering::Relaxed) {
            return;
        }
        let traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        traces.remove_namespaces();
        if std::thread::panicking() || self.keep.load(Ordering::Relaxed) {
            let kept = failed_dir(&self.path);
            if fs::rename(&self.path, &kept).is_ok() {
                eprintln!("the control plane's logs are in {}", kept.display());
            }
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Traces)) -> Result<()> {
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut traces);
        self.file("traces.json", &serde_json::to_string(&*traces)?)?;
        Ok(())
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        self.clean();
    }
}

impl Traces {
    fn remove_namespaces(&self) {
        for name in &self.namespaces {
            netns::remove(name);
        }
    }

    /// Kills what is left of a rig, each process only if it is still the noted one.
    fn kill_processes(&self) {
        if self.boot != boot_id() {
            return;
        }
        for process in self.processes.iter().filter(|process| process.is_alive()) {
            let _ = Command::new("sh")
                .args(["-c", "kill -s KILL \"$1\"", "sh"])
                .arg(process.pid.to_string())
                .status();
        }
    }
}

/// The project's target folder.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    )
}

/// Serializes what touches names shared by all rigs of this checkout: sweeping,
/// and the choice of a subnet. Released when dropped.
pub(crate) fn machine_lock() -> Result<File> {
    let path = rigs_dir().join("lock");
    let lock = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(lock)
}

fn rigs_dir() -> PathBuf {
    let target = target_dir();
    // Without dots: the path goes into the files of many programs.
    fs::canonicalize(&target).unwrap_or(target).join("rig")
}

fn failed_dir(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().display().to_string();
    let mut attempt = path.with_file_name(format!("failed-{name}"));
    let mut suffix = 1;
    while attempt.exists() {
        attempt = path.with_file_name(format!("failed-{name}.{suffix}"));
        suffix += 1;
    }
    attempt
}

/// Removes what rigs of dead owners left behind. Best effort: another process
/// may be removing the same.
fn sweep(root: &Path) {
    let mut failed = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b"failed-") {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            failed.push((changed.ok(), path));
            continue;
        }
        // No readable traces: not provably a rig of ours.
        let Some(traces) = fs::read(path.join("traces.json"))
            .ok()
            .and_then(|text| serde_json::from_slice::<Traces>(&text).ok())
        else {
            continue;
        };
        let owned = traces.boot == boot_id() && traces.owner.is_some_and(ProcessId::is_alive);
        if !owned {
            traces.kill_processes();
            traces.remove_namespaces();
            let _ = fs::remove_dir_all(&path);
        }
    }
    failed.sort();
    let surplus = failed.len().saturating_sub(FAILED_KEPT);
    for (_, path) in failed.drain(..surplus) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Pids and start times are those of one boot.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
