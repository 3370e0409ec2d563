//! A node: a host that runs a kubelet.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::host::Host;
use crate::process::Process;

/// What a node is to be like. The defaults are those of a kubelet.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its name, in the rig and in the API.
    pub name: String,
    /// The value of `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// Further labels; NodeRestriction confines those under `kubernetes.io`.
    pub labels: BTreeMap<String, String>,
    /// `nodeLeaseDurationSeconds`; the Lease is renewed each quarter of it.
    /// Whole seconds; 40 s by default.
    pub lease_duration: Duration,
    /// `nodeStatusReportFrequency`; 5 min by default.
    pub status_report_frequency: Duration,
}

impl NodeSpec {
    /// A node with the defaults of a kubelet, in no zone.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            zone: None,
            labels: BTreeMap::new(),
            lease_duration: Duration::from_secs(40),
            status_report_frequency: Duration::from_mins(5),
        }
    }

    /// The same in `zone`.
    #[must_use]
    pub fn zone(mut self, zone: &str) -> Self {
        self.zone = Some(zone.to_owned());
        self
    }

    /// The same with another lease duration, in whole seconds.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// The flags of the hollow kubelet that say the same.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut labels = self.labels.clone();
        if let Some(zone) = &self.zone {
            labels.insert("topology.kubernetes.io/zone".into(), zone.clone());
        }
        let labels: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        vec![
            format!("--node-name={}", self.name),
            format!("--node-labels={}", labels.join(",")),
            format!("--lease-duration-seconds={}", self.lease_duration.as_secs()),
            format!(
                "--status-report-frequency={}s",
                self.status_report_frequency.as_secs()
            ),
        ]
    }
}

/// A host with a hollow kubelet: the real one over a fake container runtime.
///
/// It serves the kubelet's API on [`Node::KUBELET_PORT`], over TLS and with
/// authentication, and the bare health check on loopback's
/// [`Node::HEALTHZ_PORT`]. The handle is cheap to clone.
#[derive(Clone)]
pub struct Node {
    host: Host,
    kubelet: Arc<Kubelet>,
}

struct Kubelet {
    command: Command,
    process: Mutex<Process>,
}

impl Node {
    /// The port of the kubelet's API.
    pub const KUBELET_PORT: u16 = 10250;
    /// The port of the kubelet's health check, on loopback.
    pub const HEALTHZ_PORT: u16 = 10248;

    pub(crate) fn start(host: Host, command: Command) -> Result<Self> {
        let process = host.spawn("kubelet", &command)?;
        let kubelet = Arc::new(Kubelet {
            command,
            process: Mutex::new(process),
        });
        Ok(Self { host, kubelet })
    }

    /// The kubelet's process, as last started.
    #[must_use]
    pub fn kubelet(&self) -> Process {
        let process = self.kubelet.process.lock();
        process.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills the kubelet, if it runs, and starts it anew, as the service manager would.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_kubelet(&self) -> Result<Process> {
        self.kubelet().kill()?;
        let process = self.host.spawn("kubelet", &self.kubelet.command)?;
        let mut current = self
            .kubelet
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *current = process.clone();
        Ok(process)
    }
}

/// A node is a host: what can be done to a host can be done to it.
impl Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
