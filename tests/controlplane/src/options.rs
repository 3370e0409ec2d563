//! What a control plane is to be like.

use std::time::Duration;

/// Where a control plane runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// On the machine itself, under a loopback address of its own. Needs no
    /// privilege; has no nodes but those that a test makes as objects.
    Machine,
    /// In a network namespace, with nodes and hosts in theirs. Needs root.
    Namespaces,
}

/// What a control plane is to be like; the defaults are those of Kubernetes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it runs.
    pub network: NetworkMode,
    /// The controllers to run, as `--controllers` names them. None: no
    /// controller manager at all.
    pub controllers: Vec<String>,
    /// How long a node may be silent before the controller manager writes
    /// `Ready=Unknown` itself. 50 s.
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has never been heard of. 60 s.
    pub node_startup_grace_period: Duration,
    /// Further flags of the API server.
    pub api_server_flags: Vec<String>,
    /// Further flags of the controller manager.
    pub controller_manager_flags: Vec<String>,
}

impl Options {
    /// An API server alone, on the machine itself.
    #[must_use]
    pub fn machine() -> Self {
        Self {
            network: NetworkMode::Machine,
            controllers: Vec::new(),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_mins(1),
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
        }
    }

    /// A control plane in its own namespace, with the controllers that look
    /// after nodes and endpoints.
    #[must_use]
    pub fn namespaces() -> Self {
        Self {
            network: NetworkMode::Namespaces,
            ..Self::machine().node_controllers()
        }
    }

    /// The same with the controllers that look after nodes and endpoints.
    #[must_use]
    pub fn node_controllers(mut self) -> Self {
        self.controllers = [
            "node-lifecycle-controller",
            "taint-eviction-controller",
            "endpointslice-controller",
        ]
        .map(String::from)
        .to_vec();
        self
    }

    /// The same with other grace periods, as the relaxed regime has them.
    #[must_use]
    pub fn grace_periods(mut self, monitor: Duration, startup: Duration) -> Self {
        self.node_monitor_grace_period = monitor;
        self.node_startup_grace_period = startup;
        self
    }
}
