//! Child processes that cannot outlive the test, and signals to them by pid.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// How often the end of a process is looked for.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// How much of a log an error message shows, in bytes.
const LOG_TAIL_BYTES: usize = 2_000;

/// A process that the rig started.
///
/// The handle is cheap to clone. It holds the unreaped child, so that its pid
/// cannot have passed to another process while a signal is sent.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// Starts `command` with its output going to `log`, under `setpriv`, so
    /// that the kernel kills it when the test process dies.
    pub(crate) fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let output =
            File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut guarded = Command::new("setpriv");
        guarded.args(["--pdeathsig", "KILL", "--"]);
        append(&mut guarded, command);
        guarded
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot share a log file")?)
            .stderr(output);
        let child = spawn_on_lasting_thread(guarded)
            .with_context(|| format!("cannot start {name} (is util-linux' setpriv installed?)"))?;
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            pid: child.id(),
            log: log.to_owned(),
            child: Mutex::new(child),
        })))
    }

    /// The name it was started under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The file that holds its standard output and error.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.0.log
    }

    /// What it has written so far; empty if the log cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(&self.0.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Whether it has not ended; a frozen process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Stops it with SIGSTOP: its sockets stay open and answer nothing.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal("STOP")
    }

    /// Lets a frozen process go on (SIGCONT).
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal("CONT")
    }

    /// Asks it to end (SIGTERM).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn terminate(&self) -> Result<()> {
        self.signal("TERM")
    }

    /// Kills it (SIGKILL) and returns once it is gone. Frozen processes die too.
    ///
    /// # Errors
    /// When the kernel refuses the signal.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.child();
        child
            .kill()
            .and_then(|()| child.wait())
            .with_context(|| format!("cannot kill {self:?}"))?;
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it still runs after `deadline`.
    pub async fn wait(&self, deadline: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child().try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= deadline {
                bail!("{self:?} still runs after {deadline:?}");
            }
            sleep(WAIT_INTERVAL).await;
        }
    }

    /// Fails with the end of its log if it is not running.
    pub(crate) fn ensure_running(&self) -> Result<()> {
        let Some(status) = self.child().try_wait()? else {
            return Ok(());
        };
        let log = self.log();
        let tail = log.floor_char_boundary(log.len().saturating_sub(LOG_TAIL_BYTES));
        bail!("{} ended ({status}): {}", self.name(), &log[tail..]);
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let mut child = self.child();
        if let Some(status) = child.try_wait()? {
            bail!("cannot send SIG{signal} to {self:?}: it has ended ({status})");
        }
        // The shell's own kill, so that no package has to be installed for it.
        let done = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal])
            .arg(self.0.pid.to_string())
            .status()
            .context("cannot run sh")?;
        if !done.success() {
            bail!("cannot send SIG{signal} to {self:?}");
        }
        Ok(())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.0.name, self.0.pid)
    }
}

/// A process that is still the same one while this value is equal: pids are
/// reused, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Clock ticks from boot to the start of the process.
    pub(crate) start_ticks: u64,
}

impl ProcessId {
    /// The process that has `pid` now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The command in parentheses may itself hold spaces and parentheses;
        // the start time is the 20th field after it (proc(5), field 22).
        let start_ticks = stat
            .rsplit_once(')')
            .and_then(|(_, fields)| fields.split_whitespace().nth(19))
            .and_then(|ticks| ticks.parse().ok())
            .ok_or_else(|| anyhow!("{path} has no start time: {stat}"))?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether this very process still exists.
    pub(crate) fn is_alive(self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == self)
    }
}

/// Appends `inner`, with its environment and folder, to the arguments of `outer`.
pub(crate) fn append(outer: &mut Command, inner: &Command) {
    outer.arg(inner.get_program()).args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
}

/// Runs a short tool to its end and returns its standard output.
pub(crate) fn run(command: &mut Command, package: &str) -> Result<String> {
    let output = command.output().map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            anyhow!(
                "{} is missing: install the package {package}",
                command.get_program().display()
            )
        } else {
            anyhow!("cannot run {command:?}: {error}")
        }
    })?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

type SpawnRequest = (Command, SyncSender<io::Result<Child>>);

/// Spawns on a thread that lives as long as the test process.
///
/// The death signal is sent when the *thread* that forked the child ends
/// (prctl(2), PR_SET_PDEATHSIG), and the threads of a test or of its runtime
/// end long before the process does.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        // Callers wait for their own child, so that a queue of one is enough.
        let (requests, inbox) = sync_channel::<SpawnRequest>(1);
        std::thread::spawn(move || {
            while let Ok((mut command, reply)) = inbox.recv() {
                // A caller that has gone drops its receiver; nobody needs the child then.
                if let Err(unwanted) = reply.send(command.spawn())
                    && let Ok(mut child) = unwanted.0
                {
                    let _ = child.kill().and_then(|()| child.wait());
                }
            }
        });
        requests
    });
    let (reply, child) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that spawns processes has died");
    spawner
        .send((command, reply))
        .map_err(|_| io::Error::other("the thread that spawns processes has died"))?;
    child.recv().map_err(gone)?
}

#[cfg(test)]
mod tests;
