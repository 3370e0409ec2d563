//! An aggregator's settings.

use std::path::PathBuf;

use swimlet_cluster::Mode;
use swimlet_protocol::NodeName;
use swimlet_verdict::Profile;

use super::layers::{Faults, Layers};
use super::member::MemberConfig;

/// An aggregator's settings, parsed.
#[derive(Clone, Debug)]
pub(crate) struct AggregatorConfig {
    pub(crate) member: MemberConfig,
    /// The node it runs on.
    pub(crate) host: Option<NodeName>,
    pub(crate) mode: Mode,
    pub(crate) profile: Profile,
    /// `None` for the pod's own ServiceAccount.
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) lease_namespace: String,
    pub(crate) lease_name: String,
}

impl AggregatorConfig {
    /// Parses every setting of an aggregator, or says everything that is wrong.
    pub(crate) fn parse(layers: &Layers, mut faults: Faults) -> Result<Self, Faults> {
        let member = MemberConfig::parse(layers, &mut faults);
        let host = layers.optional("node-name", &mut faults);
        let mode = layers.required("mode", &mut faults);
        let profile = layers.required("profile", &mut faults);
        let kubeconfig = layers.optional("kubeconfig", &mut faults);
        let lease_namespace = layers.required::<NodeName>("lease-namespace", &mut faults);
        let lease_name = layers.required::<NodeName>("lease-name", &mut faults);
        match (member, mode, profile, lease_namespace, lease_name) {
            (Some(member), Some(mode), Some(profile), Some(namespace), Some(name))
                if faults.is_empty() =>
            {
                Ok(Self {
                    member,
                    host,
                    mode,
                    profile,
                    kubeconfig,
                    lease_namespace: namespace.to_string(),
                    lease_name: name.to_string(),
                })
            }
            _ => Err(faults),
        }
    }
}
