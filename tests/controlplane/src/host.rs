//! A machine of the rig: its processes, its cable, its firewall.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};

use crate::netns::{self, Cable, Leg};
use crate::process::{Process, run};
use crate::workdir::Workdir;

/// The table of all rules that faults put into a host's namespace.
const TABLE: &str = "inet rig";

/// Which way a packet goes, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the host.
    In,
    /// From the host.
    Out,
}

/// A machine: a network namespace with an address of its own, and what runs in it.
///
/// The handle is cheap to clone; the [`ControlPlane`](crate::ControlPlane) that
/// made it ends it.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    name: String,
    place: Place,
    folder: PathBuf,
    workdir: Arc<Workdir>,
    processes: Mutex<Vec<Process>>,
}

/// Where a host's processes run.
enum Place {
    /// On the machine itself; the address is a loopback one.
    Machine(Ipv4Addr),
    /// In a namespace.
    Namespace(Leg),
}

impl Host {
    /// The machine itself, under a loopback address.
    pub(crate) fn on_machine(
        name: &str,
        address: Ipv4Addr,
        workdir: &Arc<Workdir>,
    ) -> Result<Self> {
        Self::new(name, Place::Machine(address), workdir)
    }

    /// A host in a namespace.
    pub(crate) fn in_namespace(name: &str, leg: Leg, workdir: &Arc<Workdir>) -> Result<Self> {
        Self::new(name, Place::Namespace(leg), workdir)
    }

    fn new(name: &str, place: Place, workdir: &Arc<Workdir>) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            place,
            folder: workdir.folder(name)?,
            workdir: Arc::clone(workdir),
            processes: Mutex::default(),
        })))
    }

    /// Its name, unique in its rig.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address; the test process reaches it, too.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        match &self.0.place {
            Place::Machine(address) => *address,
            Place::Namespace(leg) => leg.address,
        }
    }

    /// A folder of its own for files and logs, deleted with the rig.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        &self.0.folder
    }

    /// Starts a process on this host. Its output goes to `NAME.log` in the
    /// host's folder, or `NAME.2.log` and so on if the name was used before.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(&self, name: &str, command: &Command) -> Result<Process> {
        let mut processes = self.lock();
        let log = match processes.iter().filter(|old| old.name() == name).count() {
            0 => format!("{name}.log"),
            earlier => format!("{name}.{}.log", earlier + 1),
        };
        let log = self.0.folder.join(log);
        let process = match &self.0.place {
            Place::Machine(_) => Process::spawn(name, command, &log)?,
            Place::Namespace(leg) => {
                Process::spawn(name, &netns::inside(&leg.namespace, command), &log)?
            }
        };
        self.0.workdir.note_process(process.pid())?;
        processes.push(process.clone());
        Ok(process)
    }

    /// Runs a short tool on this host to its end; returns its standard output.
    ///
    /// # Errors
    /// When it is missing or fails, with its standard error.
    pub fn run(&self, command: &Command) -> Result<String> {
        match &self.0.place {
            Place::Machine(_) => {
                let mut copy = Command::new("env");
                crate::process::append(&mut copy, command);
                run(&mut copy, "coreutils")
            }
            Place::Namespace(leg) => run(&mut netns::inside(&leg.namespace, command), "iproute2"),
        }
    }

    /// The processes started here that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<Process> {
        let mut processes = self.lock().clone();
        processes.retain(Process::is_running);
        processes
    }

    /// Pulls the network cable: not a single packet passes any more.
    ///
    /// # Errors
    /// Without a namespace, or on the control plane's host, which is the switch.
    pub fn link_down(&self) -> Result<()> {
        self.cable()?.set(false)
    }

    /// Puts the network cable in again.
    ///
    /// # Errors
    /// As for [`Host::link_down`].
    pub fn link_up(&self) -> Result<()> {
        self.cable()?.set(true)
    }

    /// Dies as a machine without power does: first the network falls silent,
    /// so that no RST or goodbye gets out, then every process is gone.
    ///
    /// # Errors
    /// As for [`Host::link_down`].
    pub fn die(&self) -> Result<()> {
        self.link_down()?;
        self.kill_all()
    }

    /// Kills every process with the network up: the ports answer RST, as those of
    /// a living host do.
    ///
    /// # Errors
    /// When a process cannot be killed.
    pub fn kill_all(&self) -> Result<()> {
        self.running().iter().try_for_each(Process::kill)
    }

    /// Suspends the machine as a hypervisor does: no packet passes and no
    /// process runs until [`Host::resume`].
    ///
    /// # Errors
    /// As for [`Host::link_down`].
    pub fn suspend(&self) -> Result<()> {
        self.link_down()?;
        self.running().iter().try_for_each(Process::freeze)
    }

    /// Resumes a suspended machine.
    ///
    /// # Errors
    /// As for [`Host::link_down`].
    pub fn resume(&self) -> Result<()> {
        self.running().iter().try_for_each(Process::thaw)?;
        self.link_up()
    }

    /// Drops all UDP from and to `port` at either end.
    ///
    /// # Errors
    /// Without a namespace, or when nft is missing.
    pub fn block_udp(&self, port: u16) -> Result<()> {
        self.add_rules(&[
            (Direction::In, format!("udp dport {port} drop")),
            (Direction::In, format!("udp sport {port} drop")),
            (Direction::Out, format!("udp dport {port} drop")),
            (Direction::Out, format!("udp sport {port} drop")),
        ])
    }

    /// Drops what comes to the TCP `port` of this host: it becomes silent.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn block_tcp(&self, port: u16) -> Result<()> {
        self.add_rules(&[(Direction::In, format!("tcp dport {port} drop"))])
    }

    /// Answers RST for the TCP `port` of this host, as a firewall's REJECT does.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn reject_tcp(&self, port: u16) -> Result<()> {
        let rule = format!("tcp dport {port} reject with tcp reset");
        self.add_rules(&[(Direction::In, rule)])
    }

    /// Drops everything from and to `peers`.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn cut_from(&self, peers: &[Ipv4Addr]) -> Result<()> {
        let rules: Vec<_> = peers
            .iter()
            .flat_map(|peer| {
                [
                    (Direction::In, format!("ip saddr {peer} drop")),
                    (Direction::Out, format!("ip daddr {peer} drop")),
                ]
            })
            .collect();
        self.add_rules(&rules)
    }

    /// Drops everything that goes `direction`, but not what is local.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn mute(&self, direction: Direction) -> Result<()> {
        self.lose(direction, 100)
    }

    /// Drops each packet that goes `direction` with a chance of `percent` in 100.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn lose(&self, direction: Direction, percent: u8) -> Result<()> {
        let interface = match direction {
            Direction::In => "iifname",
            Direction::Out => "oifname",
        };
        // nft takes no chance of 100 in 100.
        let chance = match percent {
            ..100 => format!("numgen random mod 100 < {percent} "),
            100.. => String::new(),
        };
        let rule = format!("{interface} != \"lo\" {chance}drop");
        self.add_rules(&[(direction, rule)])
    }

    /// Takes all firewall rules away. It does not put a pulled cable in.
    ///
    /// # Errors
    /// As for [`Host::block_udp`].
    pub fn heal(&self) -> Result<()> {
        // Added first: deleting what is not there would be an error.
        self.nft(&format!("add table {TABLE}\ndelete table {TABLE}\n"))
    }

    fn add_rules(&self, rules: &[(Direction, String)]) -> Result<()> {
        let mut script = format!("add table {TABLE}\n");
        for hook in ["input", "output"] {
            let chain = format!("{TABLE} {hook} {{ type filter hook {hook} priority 0; }}");
            writeln!(script, "add chain {chain}").context("cannot format")?;
        }
        for (direction, rule) in rules {
            let chain = match direction {
                Direction::In => "input",
                Direction::Out => "output",
            };
            writeln!(script, "add rule {TABLE} {chain} {rule}").context("cannot format")?;
        }
        self.nft(&script)
    }

    fn nft(&self, script: &str) -> Result<()> {
        match &self.0.place {
            Place::Machine(_) => Err(self.not_in_a_namespace()),
            Place::Namespace(leg) => netns::nft(&leg.namespace, script),
        }
    }

    fn cable(&self) -> Result<&Cable> {
        match &self.0.place {
            Place::Machine(_) => Err(self.not_in_a_namespace()),
            Place::Namespace(leg) => leg.cable.as_ref().ok_or_else(|| {
                anyhow!(
                    "{} is the switch itself and has no cable to pull",
                    self.name()
                )
            }),
        }
    }

    fn not_in_a_namespace(&self) -> anyhow::Error {
        anyhow!(
            "{} runs on the machine itself: faults of the network need Options::namespaces()",
            self.name()
        )
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Process>> {
        self.0
            .processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Host> for IpAddr {
    fn from(host: &Host) -> Self {
        Self::V4(host.address())
    }
}
