//! Where the components' programs come from: built once from the Go module
//! beside this crate, or the folder that `KUBEBUILDER_ASSETS` names.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::workdir::target_dir;

/// How many builds are kept (150 MB each): the current one, and those of the
/// branches one switches between.
const BUILDS_KEPT: usize = 3;

/// A Kubernetes component that the rig runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The store beneath the API server.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`.
    ControllerManager,
    /// The real kubelet over a fake container runtime.
    Kubelet,
    /// `kubectl`.
    Kubectl,
}

impl Component {
    /// The name of its program, and of its applet in the multi-call binary.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Kubelet => "kubelet",
            Self::Kubectl => "kubectl",
        }
    }

    /// A command that runs it, without its flags.
    ///
    /// A program in `KUBEBUILDER_ASSETS` wins, as in every suite that uses
    /// envtest; what is not there, and always the hollow kubelet, is ours.
    ///
    /// # Errors
    /// Those of [`controlplane_binary`].
    pub fn command(self) -> Result<Command> {
        if self != Self::Kubelet
            && let Some(assets) = assets()
        {
            let program = Path::new(&assets).join(self.name());
            if program.is_file() {
                return Ok(Command::new(program));
            }
        }
        let mut command = Command::new(controlplane_binary()?);
        command.arg(self.name());
        Ok(command)
    }
}

/// The multi-call binary of the real components, built if it is not there yet.
///
/// The build is kept under `target/controlplane`, keyed by the Go module's own
/// files, and made under a lock, so that parallel tests build it once. It never
/// gives up silently: without the real control plane there is nothing to test.
///
/// # Errors
/// When Go is missing or the build fails.
pub fn controlplane_binary() -> Result<PathBuf> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("rig");
    let root = target_dir().join("controlplane");
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let root = fs::canonicalize(&root)?;
    let folder = root.join(hash_of(&module)?);
    let binary = folder.join("controlplane");
    if binary.is_file() {
        return Ok(binary);
    }
    let lock = File::create(root.join("lock")).context("cannot open the build's lock")?;
    lock.lock().context("cannot take the build's lock")?;
    // Another test may have built it while this one waited.
    if !binary.is_file() {
        build(&module, &folder, &binary)?;
        forget_old_builds(&root, &folder);
    }
    Ok(binary)
}

fn assets() -> Option<OsString> {
    std::env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty())
}

#[expect(
    clippy::print_stderr,
    reason = "minutes of silence in a test look like a hang"
)]
fn build(module: &Path, folder: &Path, binary: &Path) -> Result<()> {
    eprintln!(
        "building the control plane's components into {} (a cold build takes about 12 minutes on \
         2 cores, a warm one 15 seconds)",
        binary.display()
    );
    fs::create_dir_all(folder)?;
    let unfinished = folder.join("controlplane.new");
    let status = Command::new("go")
        .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&unfinished)
        .arg(".")
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .status()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow!(
                "the control plane's components are built with Go, and `go` is missing: install \
                 Go 1.26 or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS for those it has"
            ),
            _ => anyhow!("cannot run go: {error}"),
        })?;
    if !status.success() {
        bail!("`go build` in {} failed ({status})", module.display());
    }
    fs::rename(&unfinished, binary).context("cannot put the built binary in its place")?;
    Ok(())
}

/// A key for the build: the module's files, by name and content.
fn hash_of(module: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in
        fs::read_dir(module).with_context(|| format!("cannot read {}", module.display()))?
    {
        let path = entry?.path();
        let is_source = path
            .extension()
            .is_some_and(|extension| extension == "go" || extension == "mod" || extension == "sum");
        if is_source {
            names.push(path);
        }
    }
    names.sort();
    let mut hasher = SipHasher13::new();
    for path in names {
        let name = path.file_name().unwrap_or_default();
        hasher.write(name.as_encoded_bytes());
        hasher.write_u8(0);
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        hasher.write_u64(content.len() as u64);
        hasher.write(&content);
    }
    let hash = hasher.finish128();
    Ok(format!("{:016x}{:016x}", hash.h1, hash.h2))
}

/// Best effort: a build that cannot be deleted only costs disk.
fn forget_old_builds(root: &Path, current: &Path) {
    let mut builds: Vec<_> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && path != current)
        .map(|path| (path.metadata().and_then(|m| m.modified()).ok(), path))
        .collect();
    builds.sort();
    let surplus = (builds.len() + 1).saturating_sub(BUILDS_KEPT);
    for (_, path) in builds.drain(..surplus) {
        let _ = fs::remove_dir_all(path);
    }
}
