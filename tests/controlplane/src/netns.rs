//! Network namespaces, by the `ip` and `nft` commands.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, bail};

use crate::process::{append, run};
use crate::workdir::{Workdir, machine_lock};

/// The bridge in the control plane's namespace.
const BRIDGE: &str = "br0";
/// The host number of the control plane.
const CONTROL_PLANE: u8 = 1;
/// The host number of the test process' own leg.
const TEST_LEG: u8 = 254;

/// The network of one rig: a bridge in the control plane's namespace, one leg
/// for the test process, one for each host. Its subnet is a 10.x.y.0/24 that no
/// other route of the machine covers.
#[derive(Debug)]
pub(crate) struct Network {
    bridge_namespace: String,
    test_leg: String,
    subnet: [u8; 2],
    /// The last host number given out.
    last: AtomicU8,
}

/// A host's place in the network.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) namespace: String,
    pub(crate) address: Ipv4Addr,
    /// The end of its cable at the bridge; the bridge's own host has none.
    pub(crate) cable: Option<Cable>,
}

/// A port of the bridge.
#[derive(Debug)]
pub(crate) struct Cable {
    bridge_namespace: String,
    port: String,
}

impl Network {
    /// Makes the control plane's namespace, its bridge and the test's leg.
    pub(crate) fn create(workdir: &Workdir) -> Result<(Self, Leg)> {
        ensure_root()?;
        let namespace = format!("swimlet-{}-control-plane", workdir.id());
        workdir.note_namespace(&namespace)?;
        add(&namespace, "control-plane", None)?;
        // An interface's name has at most 15 bytes, a pid at most 7 digits.
        let test_leg = format!("sw{}", workdir.id());
        ip(&format!("-n {namespace} link add {BRIDGE} type bridge"))?;
        let network = {
            // Two rigs must not choose one subnet: the route to the winner's
            // must be there before the next one looks.
            let _lock = machine_lock()?;
            let network = Self {
                bridge_namespace: namespace.clone(),
                subnet: free_subnet()?,
                test_leg,
                last: AtomicU8::new(CONTROL_PLANE),
            };
            let leg = &network.test_leg;
            ip(&format!(
                "link add {leg} type veth peer name test netns {namespace}"
            ))?;
            ip(&format!(
                "address add {}/24 dev {leg}",
                network.address(TEST_LEG)
            ))?;
            ip(&format!("link set {leg} up"))?;
            network
        };
        ip(&format!("-n {namespace} link set test master {BRIDGE} up"))?;
        let address = network.address(CONTROL_PLANE);
        ip(&format!(
            "-n {namespace} address add {address}/24 dev {BRIDGE}"
        ))?;
        ip(&format!("-n {namespace} link set {BRIDGE} up"))?;
        let leg = Leg {
            namespace,
            address,
            cable: None,
        };
        Ok((network, leg))
    }

    /// Makes a namespace for the host `name` and plugs it into the bridge.
    pub(crate) fn plug(&self, workdir: &Workdir, name: &str) -> Result<Leg> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if number >= TEST_LEG {
            bail!("a rig has room for {} hosts", TEST_LEG - CONTROL_PLANE - 1);
        }
        let address = self.address(number);
        let namespace = format!("swimlet-{}-{name}", workdir.id());
        workdir.note_namespace(&namespace)?;
        add(&namespace, name, Some(address))?;
        let port = format!("port{number}");
        let bridge = &self.bridge_namespace;
        ip(&format!(
            "link add eth0 netns {namespace} type veth peer name {port} netns {bridge}"
        ))?;
        ip(&format!("-n {bridge} link set {port} master {BRIDGE} up"))?;
        ip(&format!("-n {namespace} address add {address}/24 dev eth0"))?;
        ip(&format!("-n {namespace} link set eth0 up"))?;
        let gateway = self.address(CONTROL_PLANE);
        ip(&format!("-n {namespace} route add default via {gateway}"))?;
        Ok(Leg {
            namespace,
            address,
            cable: Some(Cable {
                bridge_namespace: bridge.clone(),
                port,
            }),
        })
    }

    fn address(&self, number: u8) -> Ipv4Addr {
        let [x, y] = self.subnet;
        Ipv4Addr::new(10, x, y, number)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Deleting the namespace would delete it too, but only some time later.
        let _ = ip(&format!("link del {}", self.test_leg));
    }
}

impl Cable {
    /// Pulls the cable out, or puts it in again. Pulled at the bridge's end: the
    /// host keeps its address and routes, as a machine does whose switch died.
    pub(crate) fn set(&self, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        let Self {
            bridge_namespace,
            port,
        } = self;
        ip(&format!("-n {bridge_namespace} link set {port} {state}"))?;
        Ok(())
    }
}

/// `command`, to be run inside `namespace`, with the files of `/etc/netns`.
pub(crate) fn inside(namespace: &str, command: &Command) -> Command {
    let mut outer = Command::new("ip");
    outer.args(["netns", "exec", namespace]);
    append(&mut outer, command);
    outer
}

/// Feeds `script` to nft inside `namespace`.
pub(crate) fn nft(namespace: &str, script: &str) -> Result<()> {
    ensure_nft()?;
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]);
    let mut child = inside(namespace, &nft)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip netns exec")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("nft refused in {namespace}: {}\n{script}", error.trim());
    }
    Ok(())
}

/// Kills what runs in the namespace and removes it. Best effort: it may be gone.
pub(crate) fn remove(namespace: &str) {
    if let Ok(pids) = ip(&format!("netns pids {namespace}")) {
        for pid in pids.split_whitespace() {
            let _ = Command::new("sh")
                .args(["-c", "kill -s KILL \"$1\"", "sh", pid])
                .status();
        }
    }
    let _ = ip(&format!("netns del {namespace}"));
    let _ = fs::remove_dir_all(files_of(namespace));
}

fn add(namespace: &str, name: &str, address: Option<Ipv4Addr>) -> Result<()> {
    let files = files_of(namespace);
    fs::create_dir_all(&files).with_context(|| format!("cannot create {}", files.display()))?;
    // Without the machine's name here and with a real resolv.conf, a kubelet
    // waits for a DNS server that it cannot reach.
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut hosts = format!("127.0.0.1 localhost {}\n", machine.trim());
    if let Some(address) = address {
        hosts.push_str(&format!("{address} {name}\n"));
    }
    fs::write(files.join("hosts"), hosts)
        .and_then(|()| fs::write(files.join("resolv.conf"), ""))
        .with_context(|| format!("cannot write into {}", files.display()))?;
    ip(&format!("netns add {namespace}"))?;
    ip(&format!("-n {namespace} link set lo up"))?;
    Ok(())
}

fn files_of(namespace: &str) -> PathBuf {
    Path::new("/etc/netns").join(namespace)
}

fn ensure_root() -> Result<()> {
    let user = fs::metadata("/proc/self").context("cannot read /proc/self")?;
    if user.uid() != 0 {
        bail!("network namespaces need root: run these tests as root (`sudo -E cargo test ...`)");
    }
    Ok(())
}

fn ensure_nft() -> Result<()> {
    run(Command::new("nft").arg("--version"), "nftables")?;
    Ok(())
}

/// Runs `ip` with `arguments`, none of which holds a space.
fn ip(arguments: &str) -> Result<String> {
    run(
        Command::new("ip").args(arguments.split_whitespace()),
        "iproute2",
    )
}

/// A 10.x.y.0/24, x in 64..128, that no route of this namespace touches. The
/// first to be tried comes from the pid, so that rigs of several checkouts,
/// which share no lock, start at different ones.
fn free_subnet() -> Result<[u8; 2]> {
    let routes = ip("-4 -o route show table all")?;
    let first = std::process::id();
    for offset in 0..64 * 256 {
        let [.., x, y] = (first.wrapping_add(offset)).to_be_bytes();
        let subnet = [64 | (x & 63), y];
        let prefix = format!("10.{}.{}.", subnet[0], subnet[1]);
        if !routes.contains(&prefix) {
            return Ok(subnet);
        }
    }
    bail!("every 10.64.0.0/10 subnet has a route already: are old rigs left over (`ip netns`)?")
}
