//! The table of settings.

use clap::{Arg, ArgAction};

/// Which role a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Agents and aggregators.
    Both,
    /// Agents only.
    Agent,
    /// Aggregators only.
    Aggregator,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Its name: the flag without `--`, and the key in the file.
    pub(crate) key: &'static str,
    /// Who has it.
    pub(crate) role: For,
    /// How its value is called in `--help`.
    pub(crate) value: &'static str,
    /// Its value when nobody sets it; `None` if it is required or may be absent.
    pub(crate) default: Option<&'static str>,
    /// What it means.
    pub(crate) help: &'static str,
}

/// Every setting, in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        key: "cluster-id",
        role: For::Both,
        value: "ID",
        default: None,
        help: "The cluster's id, which is the trust domain of its certificates [required]",
    },
    Setting {
        key: "name",
        role: For::Both,
        value: "NAME",
        default: None,
        help: "This member's name, which its certificate must bear: the node's name [required]",
    },
    Setting {
        key: "zone",
        role: For::Both,
        value: "ZONE",
        default: Some(""),
        help: "The zone this member runs in, if known",
    },
    Setting {
        key: "mesh-bind",
        role: For::Both,
        value: "ADDR,…",
        default: None,
        help: "UDP addresses of the mesh port, one per family [default: port 10270 for agents, 10271 for aggregators, on every advertised address]",
    },
    Setting {
        key: "advertise",
        role: For::Both,
        value: "IP,…",
        default: None,
        help: "The host's addresses at which other members reach this one, best first [required]",
    },
    Setting {
        key: "seeds",
        role: For::Both,
        value: "HOST:PORT,…",
        default: Some(""),
        help: "Members to join through, as addresses or DNS names; looked up again while nobody is known",
    },
    Setting {
        key: "state-dir",
        role: For::Both,
        value: "DIR",
        default: Some(""),
        help: "Where the generation and the last peers are remembered over a restart; empty for nowhere",
    },
    Setting {
        key: "cert-file",
        role: For::Both,
        value: "FILE",
        default: None,
        help: "This member's certificate chain (PEM); read again when it changes [required]",
    },
    Setting {
        key: "key-file",
        role: For::Both,
        value: "FILE",
        default: None,
        help: "The certificate's private key (PEM) [required]",
    },
    Setting {
        key: "ca-file",
        role: For::Both,
        value: "FILE",
        default: None,
        help: "The cluster's CA certificates (PEM); several during a rotation [required]",
    },
    Setting {
        key: "admin-bind",
        role: For::Both,
        value: "ADDR",
        default: None,
        help: "TCP address of /livez, /readyz and /metrics [default: port 10272 for agents, 10273 for aggregators, on every address]",
    },
    Setting {
        key: "log-format",
        role: For::Both,
        value: "FORMAT",
        default: Some("text"),
        help: "How logs are written: text or json",
    },
    Setting {
        key: "log-level",
        role: For::Both,
        value: "LEVEL",
        default: Some("info"),
        help: "Which logs are written: error, warn, info, debug, trace, or a filter by target",
    },
    Setting {
        key: "kubelet-port",
        role: For::Agent,
        value: "PORT",
        default: Some("10250"),
        help: "The port this node's kubelet serves on",
    },
    Setting {
        key: "kubelet-healthz",
        role: For::Agent,
        value: "ADDR",
        default: Some("127.0.0.1:10248"),
        help: "Where this node's kubelet serves /healthz in the clear",
    },
    Setting {
        key: "api-server",
        role: For::Agent,
        value: "HOST:PORT",
        default: Some(""),
        help: "The API server, to which a TCP connect is tried, without credentials; empty for no check",
    },
    Setting {
        key: "node-name",
        role: For::Aggregator,
        value: "NAME",
        default: None,
        help: "The node this aggregator runs on, so that it and the agent there count once",
    },
    Setting {
        key: "mode",
        role: For::Aggregator,
        value: "MODE",
        default: Some("observe"),
        help: "observe: change nothing and say what would be done; enforce: write",
    },
    Setting {
        key: "profile",
        role: For::Aggregator,
        value: "PROFILE",
        default: Some("default"),
        help: "How long a failure must last: default (4 s), fast (1 s), cautious (15 s)",
    },
    Setting {
        key: "kubeconfig",
        role: For::Aggregator,
        value: "FILE",
        default: Some(""),
        help: "Kubeconfig for the API server; empty for the pod's own ServiceAccount",
    },
    Setting {
        key: "lease-namespace",
        role: For::Aggregator,
        value: "NAMESPACE",
        default: Some("swimlet-system"),
        help: "Namespace of the aggregators' own Lease",
    },
    Setting {
        key: "lease-name",
        role: For::Aggregator,
        value: "NAME",
        default: Some("swimlet-aggregator"),
        help: "Name of the aggregators' own Lease",
    },
];

impl Setting {
    /// The environment variable that sets it.
    pub(crate) fn env(&self) -> String {
        format!("SWIMLET_{}", self.key.to_uppercase().replace('-', "_"))
    }

    /// Whether `role` has it.
    pub(crate) fn is_for(&self, role: For) -> bool {
        self.role == For::Both || self.role == role
    }
}

/// The command-line arguments of a role: its settings, and `--config`.
pub(crate) fn arguments(role: For) -> Vec<Arg> {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .action(ArgAction::Set)
        .help("YAML file of settings, under the names of the flags [env: SWIMLET_CONFIG]");
    let setting = |setting: &Setting| {
        let help = match setting.default {
            Some(default) if !default.is_empty() => {
                format!("{} [default: {default}]", setting.help)
            }
            _ => setting.help.to_owned(),
        };
        Arg::new(setting.key)
            .long(setting.key)
            .value_name(setting.value)
            .action(ArgAction::Set)
            .allow_hyphen_values(false)
            .help(format!("{help} [env: {}]", setting.env()))
    };
    let settings = SETTINGS.iter().filter(|s| s.is_for(role)).map(setting);
    std::iter::once(config).chain(settings).collect()
}
